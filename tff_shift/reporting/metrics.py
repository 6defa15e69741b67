"""Metrics of the stability of client accuracy over periods.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 3.1. Both metrics compare the test accuracy of every
client and period, TACC, with the validation accuracy of the model, VACC, over
all n periods.

The paper does not state the unit of MPV. Here accuracies are in percent, and
MPV is in squared percentage points. The paper's tables are only consistent with
its own LAT if MPV is in 1e-3 squared fractions there: divide by 10.
"""

import numpy as np

# AT of Section 3.1, as a fraction of the validation accuracy.
LOW_ACCURACY = 0.9

# In percentage points. An accuracy equal to the threshold up to rounding is not
# below it.
_TOLERANCE = 1e-4


def multi_period_variance(
  test_accuracy: np.ndarray, validation_accuracy: float
) -> float:
  """Computes MPV, the mean of (TACC - VACC)^2 (eq. 4).

  The deviation is from VACC, not from the mean of TACC. A client that is always
  better than VACC therefore also has a large MPV.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent.

  Returns:
    The variance, in squared percentage points.
  """
  return float(np.square(test_accuracy - validation_accuracy).mean())


def multi_period_variance_below(
  test_accuracy: np.ndarray, validation_accuracy: float
) -> float:
  """Computes the part of MPV that comes from accuracies below VACC.

  This metric is not in the paper. Unlike MPV, it does not grow when a client is
  better than VACC.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent.

  Returns:
    The mean over all periods of min(TACC - VACC, 0)^2, at most MPV.
  """
  below = np.minimum(test_accuracy - validation_accuracy, 0)
  return float(np.square(below).mean())


def low_accuracy_share(
  test_accuracy: np.ndarray, validation_accuracy: float
) -> float:
  """Computes LAT: how often TACC is below 90 % of VACC.

  This follows the text of Section 3.1. Eq. 5 as printed counts the opposite:
  its condition, 0 <= (VACC - TACC) / VACC <= AT, with AT near 1, holds for all
  accuracies up to VACC except the lowest.

  Args:
    test_accuracy: In percent, [periods, clients].
    validation_accuracy: In percent.

  Returns:
    Percent of all pairs of client and period.
  """
  is_low = test_accuracy < LOW_ACCURACY * validation_accuracy - _TOLERANCE
  return float((100.0 * is_low).mean())
