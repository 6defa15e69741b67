"""Tests of MPV and LAT by hand, and beside binomial noise."""

import numpy as np
import pytest

from tests.fixtures.arrays import assert_close
from tff_shift.reporting import metrics

# Three periods of two clients.
ACCURACY = np.array([[80.0, 71.0], [90.0, 72.0], [50.0, 83.0]])


class TestMultiPeriodVariance:
  def test_part_below(self):
    # Who is always better has none; who is never better has all of it.
    for validation, share in ((40, 0), (95, 1)):
      assert_close(
        metrics.multi_period_variance_below(ACCURACY, validation),
        share * metrics.multi_period_variance(ACCURACY, validation),
      )

  @pytest.mark.parametrize("accuracy, size", [(0.5767, 100), (0.907, 1000)])
  def test_iid_periods_have_binomial_noise(self, accuracy, size):
    correct = np.random.default_rng(0).binomial(size, accuracy, (1000, 10))
    variance = metrics.multi_period_variance(
      100 * correct / size, 100 * accuracy
    )
    expected = 1e4 * accuracy * (1 - accuracy) / size
    # Relative standard error of 10,000 squares: sqrt(2 / 10,000) = 1.4 %.
    assert_close(variance, expected, 0.07)


class TestLowAccuracyShare:
  def test_equation_5_as_printed_would_count_the_others(self):
    # A perfect client has no low accuracy, a useless one has nothing else.
    for accuracy, expected in ((80, 0), (0, 100)):
      share = metrics.low_accuracy_share(np.full([4, 2], float(accuracy)), 80)
      assert share == expected

  @pytest.mark.parametrize("validation", [90.7, 57.67, 87.1, 82.5, 33.3])
  def test_threshold_itself_is_not_below(self, validation):
    # Accuracies are measured in float32.
    threshold = np.full([1, 1], np.float32(0.9 * validation), np.float64)
    assert metrics.low_accuracy_share(threshold, validation) == 0
    assert metrics.low_accuracy_share(threshold - 0.01, validation) == 100
