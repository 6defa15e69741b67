"""The smallest difference of two methods that the seeds could have shown.

A paired t-test over n seeds, two-sided at a level, finds a true mean difference
d with the probability (the power)

    P(|T| > c),  T noncentral t with n - 1 degrees of freedom and the parameter
    d sqrt(n) / s,  c the quantile 1 - level / 2 of Student's t,

where s is the standard deviation of the differences over seeds (Cohen:
Statistical Power Analysis for the Behavioral Sciences, 2nd edition, 1988,
chapter 2). The smallest difference is the d whose power is 80 %. It uses the
measured s, but not the measured difference.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize
from scipy import special

from tff_shift.reporting.pages import statistics

POWER = 0.8
# Quantiles of the chi-squared distribution over which a power is averaged.
_NUM_QUANTILES = 20_000


@functools.cache
def standardized(num_seeds: int, level: float, power: float) -> float:
  """Returns the smallest difference for differences of standard deviation 1.

  Args:
    num_seeds: The number of seeds, at least 2.
    level: The two-sided level of the test.
    power: The wanted power, above the level.
  """
  freedom = num_seeds - 1
  critical = float(special.stdtrit(freedom, 1 - level / 2))
  # T = (Z + shift) / r with r^2 = chi-squared / freedom. Unlike the noncentral
  # distribution of `scipy`, the mean over r is also accurate for two seeds.
  middles = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
  bounds = critical * np.sqrt(
    2 * special.gammaincinv(freedom / 2, middles) / freedom
  )

  def lack(shift):
    found = special.ndtr(shift - bounds) + special.ndtr(-shift - bounds)
    return float(np.mean(found)) - power

  shift = optimize.brentq(lack, 0.0, 10.0 + 4.0 * critical, xtol=1e-9)
  return shift / math.sqrt(num_seeds)


def smallest_difference(
  num_seeds: int,
  spread: float,
  *,
  level: float = statistics.LEVEL,
  power: float = POWER,
) -> float | None:
  """Returns the smallest true difference that a paired t-test finds.

  Args:
    num_seeds: The number of common seeds.
    spread: The sample standard deviation of the differences over seeds.
    level: The two-sided level of the test. With several tests, the level after
      correction.
    power: The probability with which the test finds the difference.

  Returns:
    The difference, in the unit of `spread`. None for fewer than two seeds.
  """
  if num_seeds < 2:
    return None
  return standardized(num_seeds, level, power) * spread


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnSensitivity:
  """What the seeds of a column could have shown.

  Attributes:
    num_seeds: The smallest and largest number of common seeds of a pair.
    spread: The median over the pairs of the standard deviation of the
      differences over seeds.
    alone: The median of the smallest differences of one test.
    corrected: The same for the smallest p-value of Holm's correction, which is
      multiplied by the number of tests.
    num_pairs: The number of pairs with a test.
    num_below: The number of pairs whose difference is below `corrected`'s
      counterpart of this pair.
  """

  num_seeds: tuple[int, int]
  spread: float
  alone: float
  corrected: float
  num_pairs: int
  num_below: int


def corrected_difference(ordering: statistics.Ordering) -> float | None:
  """Returns the smallest difference of a pair after the correction.

  None if the pair has no test.
  """
  if ordering.spread is None:
    return None
  return smallest_difference(
    ordering.num_seeds,
    ordering.spread,
    level=statistics.LEVEL / ordering.num_tests,
  )


def of_column(
  orderings: Sequence[statistics.Ordering],
) -> ColumnSensitivity | None:
  """Returns what the seeds of a column could have shown.

  Args:
    orderings: The pairs of the column.

  Returns:
    Medians over the pairs. None if no pair has a test.
  """
  tested = [each for each in orderings if each.spread is not None]
  if not tested:
    return None
  corrected = [corrected_difference(each) for each in tested]
  counts = [each.num_seeds for each in tested]
  return ColumnSensitivity(
    num_seeds=(min(counts), max(counts)),
    spread=float(np.median([each.spread for each in tested])),
    alone=float(
      np.median([smallest_difference(e.num_seeds, e.spread) for e in tested])
    ),
    corrected=float(np.median(corrected)),
    num_pairs=len(tested),
    num_below=sum(
      abs(each.difference) < smallest
      for each, smallest in zip(tested, corrected, strict=True)
    ),
  )
