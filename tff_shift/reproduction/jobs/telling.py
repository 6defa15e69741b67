"""Tells how far a reproduction is: a line for each event, and a bar of jobs."""

import sys
import time
from collections.abc import Sequence

import tqdm

from tff_shift import records as records_lib
from tff_shift import shown_names
from tff_shift.reporting.pages import shown
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import jobs as jobs_lib
from tff_shift.reproduction.jobs import records

# Between two looks into the files of running jobs.
_LOOK_SECONDS = 2.0


class ProgressReporter:
  """Prints events; the bar shows what is left.

  The time that is left follows from what jobs have cost so far, against the
  guesses of `costs`: of those that are done, and of the share of the running
  ones that their metrics.csv has rows of.
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
    # Guessed and measured seconds of all that is done.
    self._guessed = self._measured = 0.0
    self._last_look = -_LOOK_SECONDS

  def close(self) -> None:
    """Takes the bar away."""
    self._bar.close()

  def say(self, line: str) -> None:
    """Prints a line beside the bar."""
    if self._is_silent:
      return
    self._bar.write(shown_names.printable(line), file=sys.stdout)
    sys.stdout.flush()

  def skipped(self, job: jobs_lib.Job) -> None:
    """Tells that a job was finished before."""
    self.say(f"done before  {job.folder}")
    self._bar.update()

  def started(self, job: jobs_lib.Job, has_resumed: bool) -> None:
    """Tells that a job begins, or goes on."""
    word = "goes on" if has_resumed else "begins"
    self.say(f"{word:<12} {job.folder} ({costs.num_runs(job)} runs)")

  def finished(
    self, job: jobs_lib.Job, place: records.JobFolder, seconds: float
  ) -> None:
    """Tells that a job is done."""
    self._guessed += costs.seconds(job)
    self._measured += seconds
    rounds = {
      f"{records_lib.to_float(entry.seconds_per_round):.3g} s a round"
      for entry in place.summary()
    }
    self.say(
      f"done         {job.folder} in {shown.duration(seconds)},"
      f" {', '.join(sorted(rounds))}"
    )
    self._bar.update()

  def failed(self, job: jobs_lib.Job, line: str) -> None:
    """Tells that a job has failed."""
    del job
    self.say(f"FAILED       {line}")
    self._bar.update()

  def elsewhere(self, job: jobs_lib.Job) -> None:
    """Tells that another process has a job."""
    self.say(f"elsewhere    {job.folder}: another process runs it")

  def update(
    self,
    running: Sequence[tuple[jobs_lib.Job, records.JobFolder, float]],
    waiting: Sequence[jobs_lib.Job],
  ) -> None:
    """Moves the bar.

    Args:
      running: Jobs, where they are, and for how many seconds they have run.
      waiting: Those that have not begun.
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
    running: Sequence[tuple[jobs_lib.Job, records.JobFolder, float]],
    waiting: Sequence[jobs_lib.Job],
  ) -> float | None:
    """Returns an estimate; None while nothing has been measured."""
    guessed, measured, left = self._guessed, self._measured, 0.0
    for job, place, seconds in running:
      guess = costs.seconds(job)
      done = share_done(job, place)
      guessed += done * guess
      measured += seconds * (done > 0)
      left += (1 - done) * guess
    left += sum(map(costs.seconds, waiting))
    if not guessed:
      return None
    return left * measured / guessed / self._num_processes


def share_done(job: jobs_lib.Job, place: records.JobFolder) -> float:
  """Returns which part of a job's evaluations there are, from 0 to 1."""
  try:
    with open(place.folder / "metrics.csv", "rb") as file:
      rows = sum(1 for _ in file) - 1
  except FileNotFoundError:
    return 0.0
  expected = costs.num_runs(job) * costs.num_evaluations(job)
  return min(1.0, max(0, rows) / expected)
