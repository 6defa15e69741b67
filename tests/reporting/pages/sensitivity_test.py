"""Smallest differences against published, simulated and limiting values."""

import numpy as np
import pytest
from scipy import stats

from tff_shift.reporting.pages import sensitivity
from tff_shift.reporting.pages import statistics


def test_published_sample_size():
  # Cohen (1988) and G*Power: a paired test of an effect of 0.5 standard
  # deviations needs 34 pairs for a power of 80 %, which they exceed: 80.78 %.
  assert sensitivity.standardized(34, 0.05, 0.807775) == pytest.approx(
    0.5, abs=1e-4
  )
  assert sensitivity.smallest_difference(34, 2.0) < 1.0
  assert sensitivity.smallest_difference(33, 2.0) > 1.0


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.005])
def test_power_of_the_noncentral_distribution(num_seeds, level):
  difference = sensitivity.smallest_difference(num_seeds, 1.0, level=level)
  freedom = num_seeds - 1
  shift = difference * num_seeds**0.5
  critical = stats.t.ppf(1 - level / 2, freedom)
  power = stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(
    -critical, freedom, shift
  )
  assert power == pytest.approx(0.8, abs=1e-4)


@pytest.mark.parametrize("num_seeds", [2, 4])
def test_fraction_of_simulated_tests(num_seeds):
  difference = sensitivity.smallest_difference(num_seeds, 3.0)
  draws = np.random.default_rng(0).normal(
    difference, 3.0, size=(100_000, num_seeds)
  )
  found = stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05
  # Four standard errors.
  assert found.mean() == pytest.approx(0.8, abs=4 * (0.16 / 100_000) ** 0.5)


def test_many_seeds_approach_the_normal_distribution():
  found = sensitivity.smallest_difference(1_000_000, 1.0)
  expected = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
  assert found * 1000.0 == pytest.approx(expected, rel=1e-4)


def test_one_seed_shows_nothing():
  assert sensitivity.smallest_difference(1, 1.0) is None


def ordering(difference, spread, *, num_tests=4, num_seeds=5):
  return statistics.Ordering(
    column=("accuracy",),
    better="a",
    worse="b",
    paper_difference=None,
    threshold=None,
    difference=difference,
    num_seeds=num_seeds,
    num_held=0,
    spread=spread,
    interval=None,
    p_value=None,
    num_tests=num_tests,
  )


def test_column_has_medians_over_its_pairs():
  alone = sensitivity.standardized(5, 0.05, 0.8)
  corrected = sensitivity.standardized(5, 0.0125, 0.8)
  assert corrected > alone
  found = sensitivity.of_column(
    [
      ordering(corrected * 1.0 + 0.01, 1.0),
      ordering(-corrected * 2.0 + 0.01, 2.0),
      ordering(0.0, 6.0),
      # One seed: no test.
      ordering(50.0, None, num_seeds=1),
    ]
  )
  assert (found.num_seeds, found.spread) == ((5, 5), 2.0)
  assert (found.num_pairs, found.num_below) == (3, 2)
  assert found.alone == pytest.approx(2 * alone)
  assert found.corrected == pytest.approx(2 * corrected)


def test_column_without_tests():
  assert sensitivity.of_column([ordering(1.0, None)]) is None
  assert sensitivity.corrected_difference(ordering(1.0, None)) is None
