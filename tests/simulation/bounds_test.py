"""Baselines without federated learning, by hand and by scikit-learn."""

import numpy as np
import pytest
from sklearn import linear_model
from sklearn import preprocessing

from tff_shift.data import examples
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.simulation import bounds

ROW = np.zeros([1, 1])


def of(*y):
  return examples.Examples(np.zeros([len(y), 1]), np.array(y, np.int32))


def test_most_frequent_classes():
  fitted = bounds.majority_class(
    [[of(2, 2, 0)], [of(1), of(0, 1, 0)], [of()], iter([of(3), of(2, 2)])]
  )
  # Of equally frequent classes the smallest; who has none, that of all.
  assert [predict(ROW).item() for predict in fitted.clients] == [2, 0, 2, 2]
  assert fitted.server(ROW).item() == 2
  with pytest.raises(ValueError, match="train must have an example"):
    bounds.majority_class([[of()]])


def test_accuracy_of_predictors():
  fitted = bounds.majority_class([[of(1)], [of(0)], [of(2)]])
  test = [of(1, 1, 1, 0), of(1, 2), of()]
  np.testing.assert_array_equal(
    bounds.accuracy(fitted.clients, test), [75, 0, np.nan]
  )
  assert bounds.shared_accuracy(fitted.clients[0], test) == pytest.approx(
    100 * 4 / 6
  )


def test_clients_and_system_answer_queries_with_one_class():
  bound = guidance.baseline(
    bounds.majority_class,
    [of(0, 0, 0), of(1), of(2)],
    [of(0, 1), of(1, 1, 1, 0), of()],
  )
  np.testing.assert_array_equal(bound.client_accuracy, [50, 75, np.nan])
  assert bound.metrics == {
    # Weighted by 3 and 1 training examples.
    "average_accuracy": pytest.approx((3 * 50 + 75) / 4),
    "system_accuracy": pytest.approx(100 * 2 / 6),
  }


class TestLogisticRegression:
  def parts(self):
    """Two clients whose classes are on opposite sides, and one of one class."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 40, 2)) * [1, 100]
    y = (x[:, :, 0] > 0).astype(np.int32)
    y[1] = 1 - y[1]
    y[2] = 1
    return [examples.Examples(*pair) for pair in zip(x, y, strict=True)]

  def test_each_client_has_the_model_of_its_examples(self):
    one, other, constant = self.parts()
    nothing = examples.Examples(one.x[:0], one.y[:0])
    fitted = bounds.local_logistic_regression(
      [[one], [other], [constant], [nothing]]
    )
    assert fitted.server is None
    scores = bounds.accuracy(fitted.clients[:3], [one, other, constant])
    assert scores.min() >= 95
    # Without examples, the shared one.
    shared = bounds.pooled_logistic_regression([[one], [other], [constant]])
    np.testing.assert_array_equal(
      fitted.clients[3](one.x), shared.server(one.x)
    )

  def test_pooled_is_that_of_scikit_learn(self):
    parts = self.parts()
    x, y = map(np.concatenate, zip(*parts, strict=True))
    scaler = preprocessing.StandardScaler().fit(x)
    model = linear_model.LogisticRegression().fit(scaler.transform(x), y)
    fitted = bounds.pooled_logistic_regression(
      [[parts[0]], [parts[1], parts[2]]]
    )
    np.testing.assert_array_equal(
      fitted.server(x), model.predict(scaler.transform(x))
    )
    assert fitted.clients == [fitted.server] * 2
