"""Reduces a table to `--budget`: applies rungs until the estimate fits.

Choices:
  * Time is estimated from three rounds of the first method and a table of
    assumed ratios (`costs.toml`). Other load on the machine makes the estimate
    wrong, not the plan, which is in `plan.json`.
  * Seeds and rates are reduced first, because they cost most and change a run
    least.
"""

import contextlib
import dataclasses
import pathlib
import re
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence

from experiments.papers import costs
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from experiments.papers import reductions as reductions_lib
from experiments.papers import running
from tff_shift._util import records as records_lib
from tff_shift.reporting.pages import shown

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# The number of rounds of the measurement.
_ROUNDS = 3
# The gain of each additional process: one process uses more than one core.
_GAIN = 0.5


def parse(text: str) -> float:
  """Parses `--budget`.

  Args:
    text: A number with a unit: s, m, h or d.

  Returns:
    Seconds.

  Raises:
    ValueError: If the text has another format.
  """
  found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", text)
  if not found or not float(found[1]):
    raise ValueError(f"--budget={text}: it must be a time such as 30m or 2h")
  return float(found[1]) * _UNITS[found[2]]


@dataclasses.dataclass(frozen=True)
class Speed:
  """The speed of this machine relative to the guesses of `costs`.

  Attributes:
    startup: Seconds to start a job, including the first evaluation.
    factor: Measured seconds per guessed second.
  """

  startup: float = costs.STARTUP_SECONDS
  factor: float = 1.0

  def estimate(self, jobs: Sequence[job_lib.Job], num_processes: int) -> float:
    """Estimates the seconds of jobs in the given number of processes."""
    each = [
      self.startup + self.factor * (costs.seconds(job) - costs.STARTUP_SECONDS)
      for job in jobs
    ]
    side_by_side = 1 + _GAIN * (num_processes - 1)
    return max([sum(each) / side_by_side, *each], default=0.0)


def fit(
  rungs: Sequence[reductions_lib.Reductions],
  estimate: Callable[[reductions_lib.Reductions], float],
  budget: float,
) -> tuple[reductions_lib.Reductions, float]:
  """Applies rungs until the estimate is within the budget.

  Args:
    rungs: The reductions, in order; later ones override earlier ones of the
      same name.
    estimate: Takes reductions and returns the estimated seconds.
    budget: The budget in seconds.

  Returns:
    The reductions up to the first rung that suffices, and their estimate.

  Raises:
    ValueError: If all rungs do not suffice.
  """
  reduced = reductions_lib.Reductions()
  found = estimate(reduced)
  for rung in rungs:
    if found <= budget:
      return reduced, found
    reduced = reduced.then(rung)
    found = estimate(reduced)
  if found > budget:
    raise ValueError(
      f"--budget={shown.duration(budget)}: the smallest useful plan takes about"
      f" {shown.duration(found)}; select methods (--only) or columns"
      " (--columns)"
    )
  return reduced, found


def measure(
  job: job_lib.Job,
  plan: Callable[[reductions_lib.Reductions], job_lib.Job],
  folder: pathlib.Path,
  data_dir: str | None,
) -> Speed:
  """Measures the speed of this machine with a few rounds of a job.

  Args:
    job: The job.
    plan: Takes reductions and returns the reduced job.
    folder: An empty folder for the run.
    data_dir: The folder of the data sets.

  Returns:
    The speed.

  Raises:
    ValueError: If the run fails.
  """
  counted = "timesteps" if job.binary == "online_adaptation" else "rounds"
  short = plan(
    reductions_lib.Reductions(
      {
        "num_seeds": "1",
        "num_settings": "1",
        counted: str(_ROUNDS),
        "evaluate_every": str(_ROUNDS),
        "periods": "1",
      }
    )
  )
  command = job_lib.resuming_command(short, folder, data_dir=data_dir)
  start = time.monotonic()
  # Standard output is for the lines of --print_jobs.
  with contextlib.redirect_stdout(sys.stderr):
    failures = running.run([short], [command], folder, 1)
  seconds = time.monotonic() - start
  for name, line in failures.items():
    raise ValueError(f"--budget: the measurement failed: {name}: {line}")
  (entry, *_) = job_folder.JobFolder(folder, short).summary()
  trained = records_lib.to_float(entry.seconds_per_round) * _ROUNDS
  guessed = costs.training_seconds(short)
  return Speed(
    startup=max(1.0, seconds - trained),
    factor=trained / guessed,
  )
