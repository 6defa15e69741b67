"""Runs jobs in parallel processes; does not repeat finished jobs."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence

from tff_shift import files
from tff_shift.command_line import binaries
from tff_shift.reproduction.jobs import child
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.reproduction.jobs import progress
from tff_shift.reproduction.jobs import records

_POLL_SECONDS = 0.2
# The time for a binary to end after each signal.
_GRACE_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 10.0}
# A killed process may hold its folder for another moment.
_HELD = "a run is still going on in"
_HELD_TRIES, _HELD_SECONDS = 20, 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Options for running jobs.

  Attributes:
    output_dir: The folder of the reproduction.
    num_jobs: The number of parallel processes.
    more: Further arguments of each job, which do not change its results.
    environment: Additional environment variables.
  """

  output_dir: pathlib.Path
  num_jobs: int = 1
  more: Sequence[str] = ()
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class _Running:
  """A running job and its process."""

  def __init__(
    self,
    job: job_lib.Job,
    job_folder: records.JobFolder,
    options: Options,
    tries: int,
  ):
    self.job = job
    self.job_folder = job_folder
    # The number of failed starts because its folder was still held.
    self.tries = max(0, tries)
    self.has_resumed = job_folder.can_resume()
    earlier = job_folder.read()
    self._seconds_before = 0.0 if earlier is None else earlier.seconds
    job_folder.write(
      records.JobRecord(
        arguments=tuple(job.arguments),
        seconds=self._seconds_before,
        machine=records.machine(),
      )
    )
    arguments = job_lib.command(job, options.output_dir, options.more)
    arguments += ["--resume"] * self.has_resumed
    self._start = time.monotonic()
    with open(files.open_to_append(job_folder.log), "ab") as log:
      self.process = subprocess.Popen(
        [
          sys.executable,
          os.fspath(pathlib.Path(child.__file__)),
          str(os.getpid()),
          "-m",
          # An installed package has no folder `experiments`.
          arguments[0].replace("experiments", binaries.__name__),
          *arguments[1:],
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **options.environment},
        # Only this process receives Ctrl-C; it passes the signal on.
        process_group=0,
      )

  @property
  def seconds(self) -> float:
    """Seconds since the start."""
    return time.monotonic() - self._start

  def end(self, exit_code: int) -> None:
    """Records the end of the process and unlocks the job."""
    self.job_folder.write(
      records.JobRecord(
        arguments=tuple(self.job.arguments),
        exit_code=exit_code,
        summary=self.job_folder.digest(),
        seconds=self._seconds_before + self.seconds,
        ended=records.now(),
        machine=records.machine(),
      )
    )
    self.job_folder.give_back()


class Runner:
  """Runs jobs until all are finished or have failed."""

  def __init__(self, options: Options):
    self._options = options
    self._reporter = None
    self._running: list[_Running] = []
    self._waiting: list[tuple[float, int, job_lib.Job]] = []

  def check(self, jobs: Sequence[job_lib.Job]) -> None:
    """Refuses folders that contain runs with other flags.

    Raises:
      ValueError: If there is one.
    """
    for job in jobs:
      records.JobFolder(self._options.output_dir, job).check_same()

  def run(
    self, jobs: Sequence[job_lib.Job], reporter: progress.ProgressReporter
  ) -> list[str]:
    """Runs checked jobs, the longest first.

    Args:
      jobs: The jobs.
      reporter: Reports progress.

    Returns:
      The failures, one line each.

    Raises:
      KeyboardInterrupt: After Ctrl-C, once all processes have ended.
    """
    job_folders = [
      records.JobFolder(self._options.output_dir, job) for job in jobs
    ]
    self._reporter = reporter
    todo = []
    for job, job_folder in zip(jobs, job_folders, strict=True):
      if job_folder.is_finished():
        self._reporter.skipped(job)
      else:
        todo.append(job)
    todo.sort(key=costs.seconds, reverse=True)
    self._waiting = [(0.0, 0, job) for job in todo]
    failures = []
    try:
      while self._waiting or self._running:
        self._start_some()
        failures += self._collect()
        self._reporter.update(
          [(each.job, each.job_folder, each.seconds) for each in self._running],
          [job for _, _, job in self._waiting],
        )
        if not self._running and self._only_elsewhere():
          break
        time.sleep(_POLL_SECONDS)
    finally:
      self._end_all()
    for _, _, job in self._waiting:
      self._reporter.elsewhere(job)
    return failures

  def _only_elsewhere(self) -> bool:
    """Returns whether other processes run all waiting jobs."""
    return all(tries < 0 for _, tries, _ in self._waiting)

  def _start_some(self) -> None:
    """Starts jobs up to the limit; jobs of other processes keep waiting."""
    left, self._waiting = self._waiting, []
    for not_before, tries, job in left:
      is_due = time.monotonic() >= not_before
      if not is_due or len(self._running) >= self._options.num_jobs:
        self._waiting.append((not_before, tries, job))
        continue
      job_folder = records.JobFolder(self._options.output_dir, job)
      if not job_folder.take():
        later = time.monotonic() + _HELD_SECONDS
        self._waiting.append((later, -1, job))
      elif job_folder.is_finished():
        # Another process has finished it in the meantime.
        job_folder.give_back()
        self._reporter.skipped(job)
      else:
        running = _Running(job, job_folder, self._options, tries)
        self._running.append(running)
        self._reporter.started(job, running.has_resumed)

  def _collect(self) -> list[str]:
    """Records ended processes and returns the failures."""
    failures = []
    for running in list(self._running):
      code = running.process.poll()
      if code is None:
        continue
      self._running.remove(running)
      running.end(code)
      job, line = running.job, running.job_folder.last_line()
      if code == 0 and running.job_folder.is_finished():
        self._reporter.finished(job, running.job_folder, running.seconds)
      elif _HELD in line and running.tries < _HELD_TRIES:
        later = time.monotonic() + _HELD_SECONDS
        self._waiting.append((later, running.tries + 1, job))
      else:
        failures.append(f"{job.folder}: {_ending(code)}: {line}")
        self._reporter.failed(job, failures[-1])
    return failures

  def _end_all(self) -> None:
    """Ends running processes, gently first; keeps their checkpoints."""
    for kind, grace in (*_GRACE_SECONDS.items(), (signal.SIGKILL, None)):
      alive = [each for each in self._running if each.process.poll() is None]
      for running in alive:
        running.process.send_signal(kind)
      end = None if grace is None else time.monotonic() + grace
      for running in alive:
        _wait(running.process, end)
    for running in self._running:
      running.end(running.process.wait())
    self._running = []


def _wait(process: subprocess.Popen, end: float | None) -> None:
  """Waits for a process until a time, or until another Ctrl-C."""
  try:
    process.wait(None if end is None else max(0.0, end - time.monotonic()))
  except (subprocess.TimeoutExpired, KeyboardInterrupt):
    return


def _ending(code: int) -> str:
  if code < 0:
    return f"ended by {signal.Signals(-code).name}"
  return f"exit code {code}"
