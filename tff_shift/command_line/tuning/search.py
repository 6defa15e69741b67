"""Which settings of hyper-parameters are compared: a grid, or random draws.

Random search (Random Search for Hyper-Parameter Optimization, Bergstra, Bengio;
JMLR 2012) draws the same values for the same hyper-parameter of all algorithms.
Successive halving (Non-stochastic Best Arm Identification and Hyperparameter
Optimization, Jamieson, Talwalkar; AISTATS 2016) scores such settings after few
rounds, keeps the best third, and scores these after three times as many rounds,
until one is left.
"""

import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift.data import partition

GRID = "grid"
RANDOM = "random"
HALVING = "halving"
SEARCHES = GRID, RANDOM, HALVING

# Of the settings of successive halving, one of this number goes on.
FACTOR = 3

# Between the ends of a range, in the value of a flag.
_TO = ".."
# Drawn numbers are shown in tables and figures without loss.
_DIGITS = 3
# How often a setting is drawn again that was drawn before.
_MOST_DRAWS = 1_000


def ends(text: str) -> tuple[str, str] | None:
  """Returns the ends of a range `low..high`; None for other texts."""
  low, separator, high = text.partition(_TO)
  return (low, high) if separator else None


def is_range(value: Any) -> bool:
  """Returns whether a value of a flag is a range."""
  return isinstance(value, str) and ends(value) is not None


def draw(values: Sequence[Any], name: str, seed: int, number: int) -> Any:
  """Draws the value of a hyper-parameter.

  Args:
    values: The values to choose from with equal probabilities. A range
      `low..high` is uniform on a logarithmic scale; of two integers, values are
      rounded to integers.
    name: The hyper-parameter.
    seed: The seed of the search.
    number: The number of the draw.

  Returns:
    The value; a number of a range has three significant digits.
  """
  generator = partition.generator(f"search {name}", [seed, number])
  value = values[int(generator.integers(len(values)))]
  if not is_range(value):
    return value
  low, high = ends(value)
  start, end = float(low), float(high)
  drawn = math.exp(generator.uniform(math.log(start), math.log(end)))
  try:
    least, most = int(low), int(high)
  except ValueError:
    return min(max(float(f"{drawn:.{_DIGITS}g}"), start), end)
  return min(max(round(drawn), least), most)


def settings(
  given: Mapping[str, Sequence[Any]], search: str, num_trials: int, seed: int
) -> Iterator[dict[str, Any]]:
  """Yields different settings of hyper-parameters.

  Args:
    given: The values of each hyper-parameter, see `draw`.
    search: One of `SEARCHES`.
    num_trials: The number of settings, unless the search is a grid; fewer if
      there are not as many.
    seed: The seed of the search.

  Yields:
    The settings: all combinations for a grid, in which the values of the last
    hyper-parameter vary fastest; otherwise draws.
  """
  if search == GRID:
    for values in itertools.product(*given.values()):
      yield dict(zip(given, values, strict=True))
    return
  seen = []
  for number in range(_MOST_DRAWS * num_trials):
    setting = {
      name: draw(values, name, seed, number) for name, values in given.items()
    }
    if setting not in seen:
      seen.append(setting)
      yield setting
    if len(seen) == num_trials or not given:
      return


def rungs(num_settings: int, num_rounds: int) -> list[tuple[int, int]]:
  """Returns the plan of successive halving.

  Args:
    num_settings: The number of settings, at least 1.
    num_rounds: The number of rounds of a whole run.

  Returns:
    For each step, the number of settings and the number of rounds after which
    they are scored. The last step has at most `FACTOR` settings and a part
    `1 / FACTOR` of all rounds.
  """
  counts = [num_settings]
  while counts[-1] > FACTOR:
    counts.append(math.ceil(counts[-1] / FACTOR))
  return [
    (count, max(1, num_rounds // FACTOR ** (len(counts) - step)))
    for step, count in enumerate(counts)
  ]
