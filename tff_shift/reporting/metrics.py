"""Metrics of the stability of client accuracy over periods.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 3.1. Both metrics compare the test accuracy of every
client and period, TACC, with the validation accuracy of the model, VACC, over
blocks of n periods. The i-th value is for periods (i - 1) n + 1 to i n. Periods
after the last full block are ignored.

The paper does not state whether VACC is one number or one per client (both are
supported), nor the unit of MPV. Here accuracies are in percent, and MPV is in
squared percentage points. The paper's tables are only consistent with its own
LAT if MPV is in 1e-3 squared fractions there: divide by
`POINTS_PER_TABLE_UNIT`.
"""

import numpy as np
from numpy import typing as npt

# Squared percentage points per 1e-3, the unit that Table 1 of the paper seems
# to use for MPV: 1e-3 * (100 points)^2.
POINTS_PER_TABLE_UNIT = 10.0

# AT of Section 3.1, as a fraction of the validation accuracy.
LOW_ACCURACY = 0.9

# In percentage points. An accuracy equal to the threshold up to rounding is not
# below it.
_TOLERANCE = 1e-4


def multi_period_variance(
  test_accuracy: npt.ArrayLike,
  validation_accuracy: npt.ArrayLike,
  n: int | None = None,
) -> np.ndarray:
  """Computes MPV, the mean of (TACC - VACC)^2 (eq. 4).

  The deviation is from VACC, not from the mean of TACC. A client that is always
  better than VACC therefore also has a large MPV.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent, a number or [clients].
    n: The number of periods in a block. None: one block of all periods.

  Returns:
    [periods // n] float64, in squared percentage points.

  Raises:
    ValueError: If shapes do not match, an accuracy is not in [0, 100], or there
      are fewer than n periods.
  """
  test, validation = _accuracies(test_accuracy, validation_accuracy)
  return _block_means(np.square(test - validation), n)


def multi_period_variance_below(
  test_accuracy: npt.ArrayLike,
  validation_accuracy: npt.ArrayLike,
  n: int | None = None,
) -> np.ndarray:
  """Computes the part of MPV that comes from accuracies below VACC.

  This metric is not in the paper. Unlike MPV, it does not grow when a client is
  better than VACC.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent, a number or [clients].
    n: The number of periods in a block. None: one block of all periods.

  Returns:
    [periods // n] float64, in squared percentage points: the mean over all
    periods of min(TACC - VACC, 0)^2, at most MPV.

  Raises:
    ValueError: If an argument is invalid for `multi_period_variance`.
  """
  test, validation = _accuracies(test_accuracy, validation_accuracy)
  return _block_means(np.square(np.minimum(test - validation, 0)), n)


def low_accuracy_share(
  test_accuracy: npt.ArrayLike,
  validation_accuracy: npt.ArrayLike,
  n: int | None = None,
) -> np.ndarray:
  """Computes LAT: how often TACC is below 90 % of VACC.

  This follows the text of Section 3.1. Eq. 5 as printed counts the opposite:
  its condition, 0 <= (VACC - TACC) / VACC <= AT, with AT near 1, holds for all
  accuracies up to VACC except the lowest.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent, a number or [clients].
    n: The number of periods in a block. None: one block of all periods.

  Returns:
    [periods // n] float64, percent of all pairs of client and period.

  Raises:
    ValueError: If an argument is invalid for `multi_period_variance`.
  """
  test, validation = _accuracies(test_accuracy, validation_accuracy)
  is_low = test < LOW_ACCURACY * validation - _TOLERANCE
  return _block_means(100.0 * is_low, n)


def _accuracies(test, validation) -> tuple[np.ndarray, np.ndarray]:
  test = np.asarray(test, np.float64)
  validation = np.asarray(validation, np.float64)
  if test.ndim != 2 or not test.size:
    raise ValueError(
      "test_accuracy must have the shape [periods, clients] with at least one"
      f" of each, got {list(test.shape)}"
    )
  if validation.shape not in ((), test.shape[1:]):
    raise ValueError(
      "validation_accuracy must be a number or have the shape"
      f" [{test.shape[1]}], one for each client, got {list(validation.shape)}"
    )
  for name, values in (
    ("test_accuracy", test),
    ("validation_accuracy", validation),
  ):
    if not np.all((values >= 0) & (values <= 100)):  # Also refuses NaN.
      raise ValueError(
        f"{name} must be percentages from 0 to 100, got"
        f" {values.min():g} to {values.max():g}"
      )
  return test, validation


def _block_means(values, n) -> np.ndarray:
  """Returns the mean of each block of n periods, [periods // n]."""
  num_periods = len(values)
  n = num_periods if n is None else n
  if not isinstance(n, int | np.integer) or not 1 <= n <= num_periods:
    raise ValueError(
      f"n must be an integer from 1 to {num_periods}, the number of periods,"
      f" got {n!r}"
    )
  num_blocks = num_periods // n
  return values[: num_blocks * n].reshape(num_blocks, -1).mean(axis=1)
