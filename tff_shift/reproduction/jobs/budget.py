"""What `--budget` reduces: the rungs of a table, until the estimate fits."""

import dataclasses
import pathlib
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from tff_shift import records as records_lib
from tff_shift.reporting.pages import shown
from tff_shift.reproduction import reductions as reductions_lib
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import jobs as jobs_lib
from tff_shift.reproduction.jobs import records
from tff_shift.reproduction.jobs import running
from tff_shift.reproduction.jobs import telling

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# Of the quick measurement.
_ROUNDS = 3
# What each further process adds: one of them keeps more than one core busy.
_GAIN = 0.5


def parse(text: str) -> float:
  """Reads `--budget`.

  Args:
    text: A number with a unit: s, m, h or d.

  Returns:
    Seconds.

  Raises:
    ValueError: If it is not of that form.
  """
  found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", text)
  if not found or not float(found[1]):
    raise ValueError(f"--budget={text}: a time such as 30m or 2h wanted")
  return float(found[1]) * _UNITS[found[2]]


@dataclasses.dataclass(frozen=True)
class Speed:
  """How fast this machine is, against the guesses of `costs`.

  Attributes:
    startup: Seconds of a start, the first evaluation included.
    factor: Measured seconds for each second that was guessed.
  """

  startup: float = costs.STARTUP_SECONDS
  factor: float = 1.0

  def estimate(self, jobs: Sequence[jobs_lib.Job], num_processes: int) -> float:
    """Returns the seconds that jobs take, so many side by side."""
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
  """Goes down the rungs until the estimate is within the budget.

  Args:
    rungs: What each reduces, in order; later ones count instead of earlier
      ones of the same name.
    estimate: Reductions to seconds.
    budget: Seconds.

  Returns:
    All reductions up to the first rung that suffices, and their estimate.

  Raises:
    ValueError: If the last rung does not suffice.
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
      f"--budget={shown.duration(budget)}: the least that is worth running"
      f" takes about {shown.duration(found)}; leave out methods (--only) or"
      " columns (--columns)"
    )
  return reduced, found


def measure(
  job: jobs_lib.Job,
  plan: Callable[[reductions_lib.Reductions], jobs_lib.Job],
  folder: pathlib.Path,
  environment: Mapping[str, str],
) -> Speed:
  """Runs a few rounds of a job, thrown away afterwards.

  Args:
    job: The job.
    plan: Reductions to the same job with less.
    folder: A folder for it, which is empty.
    environment: Variables beside those of this process.

  Returns:
    The speed.

  Raises:
    ValueError: If it fails.
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
  options = running.Options(output_dir=folder, environment=environment)
  teller = telling.ProgressReporter(1, 1, is_silent=True)
  failures = running.Runner(options).run([short], teller)
  teller.close()
  if failures:
    raise ValueError(f"--budget: the measurement has failed: {failures[0]}")
  place = records.JobFolder(folder, short)
  (entry, *_) = place.summary()
  trained = records_lib.to_float(entry.seconds_per_round) * _ROUNDS
  guessed = costs.training_seconds(short)
  return Speed(
    startup=max(1.0, place.read().seconds - trained),
    factor=trained / guessed,
  )
