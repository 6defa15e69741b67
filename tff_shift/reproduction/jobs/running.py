"""Runs the commands of jobs in parallel processes."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tff_shift import files
from tff_shift.reproduction.jobs import child
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.reproduction.jobs import progress
from tff_shift.reproduction.jobs import records

_POLL_SECONDS = 0.2
# The time for a binary to end after each signal.
_GRACE_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 10.0}


@dataclasses.dataclass(frozen=True)
class _Running:
  """A running job and its process."""

  job: job_lib.Job
  folder: records.JobFolder
  process: subprocess.Popen
  start: float = dataclasses.field(default_factory=time.monotonic)

  @property
  def seconds(self) -> float:
    """Seconds since the start."""
    return time.monotonic() - self.start


def run(
  jobs: Sequence[job_lib.Job],
  commands: Sequence[Sequence[str]],
  output_dir: pathlib.Path,
  num_processes: int,
  reporter: progress.ProgressReporter,
) -> dict[str, str]:
  """Runs the commands of unfinished jobs, in order.

  Args:
    jobs: The jobs.
    commands: The command of each job, see `job.resuming_command`.
    output_dir: The folder of the reproduction.
    num_processes: The number of parallel processes.
    reporter: Reports progress.

  Returns:
    What went wrong, by the folder of the failed job.

  Raises:
    KeyboardInterrupt: After Ctrl-C, once all processes have ended.
  """
  waiting, running, failures = [], [], {}
  for job, command in zip(jobs, commands, strict=True):
    if records.JobFolder(output_dir, job).is_finished():
      reporter.skipped(job)
    else:
      waiting.append((job, command))
  try:
    while waiting or running:
      while waiting and len(running) < num_processes:
        job, command = waiting.pop(0)
        folder = records.JobFolder(output_dir, job)
        reporter.started(job, folder.can_resume())
        process = _start(command, folder.log)
        running.append(_Running(job, folder, process))
      for each in [r for r in running if r.process.poll() is not None]:
        running.remove(each)
        if each.process.returncode == 0 and each.folder.is_finished():
          reporter.finished(each.job, each.folder, each.seconds)
        else:
          line = f"{_ending(each.process)}: {each.folder.last_line()}"
          failures[each.job.folder] = line
          reporter.failed(each.job, line)
      reporter.update(
        [(each.job, each.folder, each.seconds) for each in running],
        [job for job, _ in waiting],
      )
      time.sleep(_POLL_SECONDS)
  finally:
    _end_all([each.process for each in running])
  return failures


def _start(command: Sequence[str], log: pathlib.Path) -> subprocess.Popen:
  files.make_folder(log.parent)
  with files.writing(log), open(log, "ab") as output:
    return subprocess.Popen(
      [
        *(sys.executable, os.fspath(pathlib.Path(child.__file__))),
        *(str(os.getpid()), *command),
      ],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      # Only this process receives Ctrl-C; it passes the signal on.
      process_group=0,
    )


def _end_all(processes: Sequence[subprocess.Popen]) -> None:
  """Ends processes, gently first; keeps their checkpoints."""
  for kind, grace in (*_GRACE_SECONDS.items(), (signal.SIGKILL, None)):
    alive = [each for each in processes if each.poll() is None]
    for process in alive:
      process.send_signal(kind)
    end = None if grace is None else time.monotonic() + grace
    for process in alive:
      _wait(process, end)


def _wait(process: subprocess.Popen, end: float | None) -> None:
  """Waits for a process until a time, or until another Ctrl-C."""
  try:
    process.wait(None if end is None else max(0.0, end - time.monotonic()))
  except (subprocess.TimeoutExpired, KeyboardInterrupt):
    return


def _ending(process: subprocess.Popen) -> str:
  code = process.returncode
  if code < 0:
    return f"ended by {signal.Signals(-code).name}"
  return f"exit code {code}"
