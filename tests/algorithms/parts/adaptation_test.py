"""Tests of what adaptation shares: eq. 4, its estimates, and what it sees."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import keras_models
from tff_shift.algorithms.parts import adaptation


@pytest.fixture(scope="module")
def models(deep_model):
  """A model with fixed weights, as after pre-training, and with others."""
  return [
    keras_models.fixed(deep_model, deep_model.initial_weights(np.int32(seed)))
    for seed in ([5, 6], [7, 8])
  ]


class TestRisk:
  """Eq. 4: the sum over classes of their share times their mean loss."""

  DISTRIBUTION = np.array([0.5, 0.3, 0.15, 0.05], np.float32)
  # 6, 2, 2 and 2 of 12 examples.
  Y = np.array([0, 1, 2, 3, 0, 0, 0, 1, 2, 0, 0, 3], np.int32)

  @pytest.fixture(scope="class")
  def compute(self, compile_in_graph):
    """Returns `compute(distribution, logits, y)`: weights, the risk."""

    def work(distribution, logits, y):
      weights = adaptation.class_weights(distribution, y)
      return weights, adaptation.risk(logits, y, weights)

    return compile_in_graph(
      work,
      tf.TensorSpec([4], tf.float32),
      tf.TensorSpec([None, 4], tf.float32),
      tf.TensorSpec([None], tf.int32),
    )

  @pytest.fixture(scope="class")
  def logits(self):
    return np.random.default_rng(0).normal(0, 2, (12, 4)).astype(np.float32)

  @pytest.mark.parametrize(
    "y, distribution, weights",
    [
      (Y, DISTRIBUTION, [1, 1.8, 0.9, 0.3]),
      # A class that the client lacks drops out.
      ([0, 1, 3, 3] * 3, DISTRIBUTION, [2, 1.2, 0, 0.1]),
      # A class that is not expected has no weight.
      ([0, 1, 2, 3] * 3, [0, 0, 1, 0], [0, 0, 4, 0]),
      # Its own distribution gives the plain mean.
      (Y, [6 / 12, 2 / 12, 2 / 12, 2 / 12], [1, 1, 1, 1]),
    ],
  )
  def test_is_the_sum_over_classes(
    self, compute, logits, oracle, y, distribution, weights
  ):
    y = np.int32(y)
    result, risk = compute(np.float32(distribution), logits, y)
    assert_allclose(result, weights, rtol=1e-6)
    expected = sum(
      distribution[c] * oracle.cross_entropy(logits[y == c], y[y == c])
      for c in set(y)
    )
    assert_allclose(risk, expected, rtol=1e-6)

  def test_client_without_examples_has_finite_weights(self, compute):
    weights, _ = compute(
      self.DISTRIBUTION, np.zeros((0, 4), np.float32), np.zeros(0, np.int32)
    )
    assert_array_equal(weights, np.zeros(4))


@pytest.fixture(scope="module")
def data(make_adapting_client):
  return make_adapting_client(0, 4, 300)


class TestEstimateClasses:
  @pytest.fixture(scope="class")
  def estimate(self, run_in_graph, models):
    """Returns `estimate(data, **options)`, of a client that has moved away."""
    model, current = models

    def estimate(data, **options):
      hparams = adaptation.LabelShiftHParams(**options)
      return run_in_graph(
        lambda data: adaptation.estimate_classes(
          model, hparams, current.initial_weights(data.seed), data
        ),
        data,
      )

    return estimate

  @pytest.fixture(scope="class")
  def logits(self, models, data):
    """Of the pre-trained model and of the client's."""
    return [
      model.predict(model.initial_weights(data.seed), data.stream_x).numpy()
      for model in models
    ]

  def by_hand(self, logits, confusion, soft=False) -> np.ndarray:
    predicted = np.eye(3)[logits.argmax(axis=1)]
    if soft:
      predicted = scipy.special.softmax(np.float64(logits), axis=1)
    solution = np.linalg.solve(
      np.float64(confusion), predicted.mean(axis=0)
    ).clip(0)
    return solution / solution.sum()

  def test_each_estimator_asks_the_model_of_its_name(
    self, data, logits, estimate
  ):
    expected = [self.by_hand(each, data.confusion) for each in logits]
    assert np.abs(np.subtract(*expected)).max() > 0.1
    found = [
      estimate(data, label_estimator=name) for name in ("pretrained", "current")
    ]
    assert_allclose(found, expected, rtol=0, atol=1e-5)

  def test_soft_predictions(self, data, logits, estimate):
    # So mild a matrix that soft predictions, all near uniform, are not clipped.
    data = data._replace(confusion=np.eye(3, dtype=np.float32))
    result = estimate(data, label_estimator="current", soft_predictions=True)
    soft, hard = (
      self.by_hand(logits[1], data.confusion, each) for each in (True, False)
    )
    assert np.abs(soft - hard).max() > 0.05
    assert_allclose(result, soft, rtol=0, atol=1e-5)

  def test_threshold_leaves_out_what_it_says(self, data, estimate):
    # Singular values 1, 0.1 and 0.1: above 0.1 only the mean is left.
    confusion = (0.1 * np.eye(3) + 0.3).astype(np.float32)
    data = data._replace(confusion=confusion)
    assert_allclose(
      estimate(data, svd_threshold=0.11), np.full(3, 1 / 3), rtol=1e-4
    )
    assert np.abs(estimate(data, svd_threshold=0.09) - 1 / 3).max() > 0.1


@pytest.mark.parametrize(
  "part, x, y",
  # Unlabelled examples have zeros for classes.
  [("unlabelled", "stream_x", np.zeros(300)), ("labelled", "x", [0, 1, 2, 0])],
)
def test_part_of_the_data_is_one_domain(run_in_graph, data, part, x, y):
  result = run_in_graph(lambda data: getattr(data, part), data)
  assert_array_equal(result.x, getattr(data, x))
  assert_array_equal(result.y, y)
  assert_array_equal(result.domain_sizes, [len(y)])
  assert_array_equal(result.seed, data.seed)


def test_weight_of_a_client_is_the_size_of_its_stream(run_in_graph, data):
  assert run_in_graph(adaptation.num_stream_examples, data) == 300
