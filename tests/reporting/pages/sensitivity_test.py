"""Smallest differences against published, simulated and limiting values."""

import numpy as np
import pytest
from scipy import stats

from tff_shift.reporting.pages import sensitivity


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
