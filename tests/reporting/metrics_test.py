"""Tests of MPV and LAT by hand, and beside binomial noise."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tff_shift.reporting import metrics

# Three periods of two clients.
ACCURACY = np.array([[80.0, 71.0], [90.0, 72.0], [50.0, 83.0]])


class TestMultiPeriodVariance:
  def test_variance_by_hand(self):
    # 0, 81, 100, 64, 900, 9.
    np.testing.assert_allclose(
      metrics.multi_period_variance(ACCURACY, 80), [1154 / 6]
    )
    np.testing.assert_allclose(
      metrics.multi_period_variance(ACCURACY, 80, 1), [40.5, 82, 454.5]
    )
    # The last period is no block of two.
    np.testing.assert_allclose(
      metrics.multi_period_variance(ACCURACY, 80, 2), [245 / 4]
    )

  def test_validation_accuracy_of_each_client(self):
    # 0, 1, 100, 4, 900, 169.
    np.testing.assert_allclose(
      metrics.multi_period_variance(ACCURACY, [80, 70]), [1174 / 6]
    )

  def test_part_below_by_hand(self):
    # 81, 64, 900.
    np.testing.assert_allclose(
      metrics.multi_period_variance_below(ACCURACY, 80), [1045 / 6]
    )
    # Who is always better has none; who is never better has all of it.
    for validation, share in ((40, 0), (95, 1)):
      np.testing.assert_allclose(
        metrics.multi_period_variance_below(ACCURACY, validation),
        share * metrics.multi_period_variance(ACCURACY, validation),
      )

  @pytest.mark.parametrize("accuracy, size", [(0.5767, 100), (0.907, 1000)])
  def test_iid_periods_have_binomial_noise(self, accuracy, size):
    correct = np.random.default_rng(0).binomial(size, accuracy, (2000, 10))
    found = metrics.multi_period_variance(
      100 * correct / size, 100 * accuracy, 1000
    )
    expected = 1e4 * accuracy * (1 - accuracy) / size
    # Relative standard error of 10,000 squares: sqrt(2 / 10,000) = 1.4 %.
    np.testing.assert_allclose(found, [expected] * 2, rtol=0.07)


class TestLowAccuracyShare:
  def test_share_by_hand(self):
    # Below 72: 71 and 50. 72 itself is not below.
    np.testing.assert_allclose(
      metrics.low_accuracy_share(ACCURACY, 80), [100 * 2 / 6]
    )
    np.testing.assert_allclose(
      metrics.low_accuracy_share(ACCURACY, 80, 1), [50, 0, 50]
    )
    np.testing.assert_allclose(
      metrics.low_accuracy_share(ACCURACY, 80, 2), [25]
    )

  def test_validation_accuracy_of_each_client(self):
    # Below 72 and below 81: 50; 71, 72.
    np.testing.assert_allclose(
      metrics.low_accuracy_share(ACCURACY, [80, 90]), [50]
    )

  def test_equation_5_as_printed_would_count_the_others(self):
    # A perfect client has no low accuracy, a useless one has nothing else.
    for accuracy, expected in ((80, 0), (0, 100)):
      assert metrics.low_accuracy_share(
        np.full([4, 2], float(accuracy)), 80
      ) == [expected]

  @pytest.mark.parametrize("dtype", [np.float32, np.float64])
  @pytest.mark.parametrize("validation", [90.7, 57.67, 87.1, 82.5, 33.3])
  def test_threshold_itself_is_not_below_in_any_precision(
    self, dtype, validation
  ):
    threshold = np.full([1, 1], 0.9 * validation, dtype)
    assert metrics.low_accuracy_share(threshold, dtype(validation)) == [0]
    below = np.full([1, 1], 0.9 * validation - 0.01, dtype)
    assert metrics.low_accuracy_share(below, dtype(validation)) == [100]


FUNCTIONS = [
  metrics.multi_period_variance,
  metrics.multi_period_variance_below,
  metrics.low_accuracy_share,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(st.integers(1, 20), st.integers(1, 4), st.data())
def test_blocks_are_those_of_their_periods_alone(
  function, num_periods, num_clients, data
):
  n = data.draw(st.integers(1, num_periods))
  accuracy = np.random.default_rng(0).uniform(
    40, 100, (num_periods, num_clients)
  )
  found = function(accuracy, 75, n)
  assert found.shape == (num_periods // n,) and found.dtype == np.float64
  for block, value in enumerate(found):
    np.testing.assert_allclose(
      function(accuracy[block * n : (block + 1) * n], 75), [value]
    )


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
  "test, validation, n, start",
  [
    (ACCURACY[0], 80, None, "test_accuracy must have the shape [periods, "),
    (ACCURACY[:0], 80, None, "test_accuracy must have the shape "),
    (ACCURACY, [80, 80, 80], None, "validation_accuracy must be a number "),
    (ACCURACY, np.nan, None, "validation_accuracy must be percentages "),
    (ACCURACY + np.nan, 80, None, "test_accuracy must be percentages "),
    (ACCURACY * 2, 80, None, "test_accuracy must be percentages "),
    (ACCURACY, 80, 0, "n must be an integer from 1 to 3, "),
    (ACCURACY, 80, 4, "n must be an integer from 1 to 3, "),
    (ACCURACY, 80, 1.5, "n must be an integer from 1 to 3, "),
  ],
)
def test_bad_values_are_refused(function, test, validation, n, start, refusal):
  assert refusal(function, test, validation, n).startswith(start)
