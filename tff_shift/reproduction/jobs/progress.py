"""Reports the progress of a reproduction: event lines and a progress bar."""

import sys
import time
from collections.abc import Sequence

import tqdm

from tff_shift import records as records_lib
from tff_shift import shown_names
from tff_shift.reporting.pages import shown
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.reproduction.jobs import records

# The interval between reads of the files of running jobs.
_LOOK_SECONDS = 2.0


class ProgressReporter:
  """Prints events and shows the remaining jobs and time.

  The remaining time is estimated from the ratio of measured seconds to the
  guesses of `costs`. Finished jobs count in full, running jobs by the fraction
  of expected rows in metrics.csv.
  """

  def __init__(
    self, num_jobs: int, num_processes: int, *, is_silent: bool = False
  ):
    self._is_silent = is_silent
    self._num_processes = num_processes
    self._bar = tqdm.tqdm(
      total=num_jobs,
      file=sys.stderr,
      disable=is_silent or None,
      bar_format="{desc}{bar}| {n_fmt}/{total_fmt} jobs [{elapsed}{postfix}]",
    )
    # Guessed and measured seconds of finished jobs.
    self._guessed = self._measured = 0.0
    self._last_look = -_LOOK_SECONDS

  def close(self) -> None:
    """Removes the bar."""
    self._bar.close()

  def say(self, line: str) -> None:
    """Prints a line above the bar."""
    if self._is_silent:
      return
    self._bar.write(shown_names.printable(line), file=sys.stdout)
    sys.stdout.flush()

  def skipped(self, job: job_lib.Job) -> None:
    """Reports a job that was finished before."""
    self.say(f"done before  {job.folder}")
    self._bar.update()

  def started(self, job: job_lib.Job, has_resumed: bool) -> None:
    """Reports that a job starts or resumes."""
    word = "resumes" if has_resumed else "starts"
    self.say(f"{word:<12} {job.folder} ({costs.num_runs(job)} runs)")

  def finished(
    self, job: job_lib.Job, job_folder: records.JobFolder, seconds: float
  ) -> None:
    """Reports that a job is finished."""
    self._guessed += costs.seconds(job)
    self._measured += seconds
    rounds = {
      f"{records_lib.to_float(entry.seconds_per_round):.3g} s per round"
      for entry in job_folder.summary()
    }
    self.say(
      f"done         {job.folder} in {shown.duration(seconds)},"
      f" {', '.join(sorted(rounds))}"
    )
    self._bar.update()

  def failed(self, job: job_lib.Job, line: str) -> None:
    """Reports that a job failed."""
    self.say(f"FAILED       {job.folder}: {line}")
    self._bar.update()

  def update(
    self,
    running: Sequence[tuple[job_lib.Job, records.JobFolder, float]],
    waiting: Sequence[job_lib.Job],
  ) -> None:
    """Updates the bar.

    Args:
      running: The running jobs, their files and their seconds so far.
      waiting: The jobs that have not started.
    """
    now = time.monotonic()
    if now - self._last_look < _LOOK_SECONDS:
      return
    self._last_look = now
    left = self.seconds_left(running, waiting)
    names = " ".join(job.method for job, _, _ in running)
    text = "" if left is None else f"about {shown.duration(left)} left, "
    self._bar.set_postfix_str(shown_names.line(f"{text}{names}"))

  def seconds_left(
    self,
    running: Sequence[tuple[job_lib.Job, records.JobFolder, float]],
    waiting: Sequence[job_lib.Job],
  ) -> float | None:
    """Estimates the remaining seconds; None before any measurement."""
    guessed, measured, left = self._guessed, self._measured, 0.0
    for job, job_folder, seconds in running:
      guess = costs.seconds(job)
      done = share_done(job, job_folder)
      guessed += done * guess
      measured += seconds * (done > 0)
      left += (1 - done) * guess
    left += sum(map(costs.seconds, waiting))
    if not guessed:
      return None
    return left * measured / guessed / self._num_processes


def share_done(job: job_lib.Job, job_folder: records.JobFolder) -> float:
  """Returns the fraction of a job's evaluations that are done."""
  try:
    with open(job_folder.folder / "metrics.csv", "rb") as file:
      rows = sum(1 for _ in file) - 1
  except FileNotFoundError:
    return 0.0
  expected = costs.num_runs(job) * costs.num_evaluations(job)
  return min(1.0, max(0, rows) / expected)
