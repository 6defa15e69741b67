"""The most frequent class as a floor, by hand."""

import numpy as np
import pytest

from tff_shift.data import examples
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.simulation import bounds

NOTHING = np.zeros(0, np.int32)


def test_most_frequent_classes():
  found = bounds.majority_of(
    [[[2, 2, 0]], [[1], [0, 1, 0]], [NOTHING], iter([[3], [2, 2]])]
  )
  # Of equally frequent classes the smallest; who has none, that of all.
  assert found.own.tolist() == [2, 0, 2, 2]
  assert found.shared == 2
  with pytest.raises(ValueError, match="train must have an example"):
    bounds.majority_of([[NOTHING]])


def test_accuracy_of_a_constant_prediction():
  np.testing.assert_array_equal(
    bounds.accuracy(
      [1, 0, 2], [np.array([1, 1, 1, 0]), np.array([1, 2]), NOTHING]
    ),
    [75, 0, np.nan],
  )


def test_clients_and_system_answer_queries_with_one_class():
  def of(*y):
    return examples.Examples(np.zeros([len(y), 1]), np.array(y, np.int32))

  found = guidance.majority_class(
    [of(0, 0, 0), of(1), of(2)], [of(0, 1), of(1, 1, 1, 0), of()]
  )
  np.testing.assert_array_equal(found.client_accuracy, [50, 75, np.nan])
  assert found.metrics == {
    # Weighted by 3 and 1 training examples.
    "average_accuracy": pytest.approx((3 * 50 + 75) / 4),
    "system_accuracy": pytest.approx(100 * 2 / 6),
  }
