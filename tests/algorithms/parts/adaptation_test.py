"""Tests of what adaptation shares: eq. 4, its estimates, and what it sees."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.shift import bbse

SEED = np.array([5, 6], np.int32)


def losses_by_hand(logits, y) -> np.ndarray:
  """Cross-entropy example by example, in float64."""
  logits = np.float64(logits)
  return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]


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
    ("y", "distribution", "weights"),
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
    self, compute, logits, y, distribution, weights
  ):
    y = np.int32(y)
    result, risk = compute(np.float32(distribution), logits, y)
    np.testing.assert_allclose(result, weights, rtol=1e-6)
    losses = losses_by_hand(logits, y)
    expected = sum(distribution[c] * losses[y == c].mean() for c in set(y))
    np.testing.assert_allclose(risk, expected, rtol=1e-6)

  def test_client_without_examples_has_finite_weights(self, compute):
    weights, _ = compute(
      self.DISTRIBUTION, np.zeros((0, 4), np.float32), np.zeros(0, np.int32)
    )
    np.testing.assert_array_equal(weights, np.zeros(4))

  def test_mean_over_batches_is_the_risk_over_all(
    self, run_in_graph, compute, logits
  ):
    weights, whole = compute(self.DISTRIBUTION, logits, self.Y)
    order = np.random.default_rng(1).permutation(12).reshape(4, 3)
    parts = [
      run_in_graph(adaptation.risk, logits[part], self.Y[part], weights)
      for part in order
    ]
    assert np.std(parts) > 0.1
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-6)


class TestUnbiasedness:
  """Lemma 5 by Monte Carlo, in a world of nine different inputs.

  A class has three inputs, one as probable as the other; what the model makes
  of them is fixed. So the confusion matrix and the risk under any class
  distribution are known.
  """

  NUM_TRIALS = 400
  TRUE = np.array([0.5, 0.2, 0.3])
  # Class 0 is taken for class 1 once in three times, class 1 for class 2, and
  # class 2 for class 0. The mean losses are about 0.4, 2.4 and 1.5.
  CLASSES = np.repeat(np.arange(3), 3)
  LOGITS = np.array(
    [
      [3.0, 0.0, 0.0],
      [3.5, 1.0, 0.0],
      [1.0, 1.2, 0.0],
      [0.0, 0.7, 0.0],
      [4.0, 4.2, 0.0],
      [0.0, 0.0, 6.0],
      [0.0, 0.0, 6.0],
      [0.0, 1.0, 2.0],
      [4.0, 0.0, 0.0],
    ],
    np.float32,
  )
  CONFUSION = np.array(
    [[2, 0, 1], [1, 2, 0], [0, 1, 2]], np.float32
  ) / np.float32(3)

  @pytest.fixture(scope="class")
  def trials(self, compile_in_graph):
    """Draws data and estimates the risk, again and again.

    Returns estimates of the class distribution [trials, classes], what solving
    without clipping gives, and the estimates of the risk [trials].
    """

    def work(stream_logits, logits, y):
      predicted = bbse.prediction_distribution(stream_logits)
      classes = bbse.estimate(predicted, tf.constant(self.CONFUSION))
      weights = adaptation.class_weights(classes, y)
      return predicted, classes, adaptation.risk(logits, y, weights)

    compiled = compile_in_graph(
      work,
      tf.TensorSpec([None, 3], tf.float32),
      tf.TensorSpec([None, 3], tf.float32),
      tf.TensorSpec([None], tf.int32),
    )
    generator = np.random.default_rng(3)
    inputs_of_stream = np.repeat(self.TRUE, 3) / 3
    results = []
    for _ in range(self.NUM_TRIALS):
      stream = generator.choice(9, size=300, p=inputs_of_stream)
      # All classes alike before deployment.
      labelled = generator.integers(0, 9, 60)
      results.append(
        compiled(
          self.LOGITS[stream],
          self.LOGITS[labelled],
          self.CLASSES[labelled].astype(np.int32),
        )
      )
    predicted, classes, risks = map(np.array, zip(*results, strict=True))
    unclipped = np.linalg.solve(np.float64(self.CONFUSION), predicted.T).T
    return classes, unclipped, np.float64(risks)

  def standard_error(self, values) -> float:
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values))

  def test_class_estimates_are_unbiased_where_nothing_is_clipped(self, trials):
    classes, unclipped, _ = trials
    assert unclipped.min() > 0
    np.testing.assert_allclose(classes, unclipped, rtol=0, atol=1e-5)
    errors = classes.mean(axis=0) - self.TRUE
    assert np.all(np.abs(errors) < 4 * self.standard_error(classes))

  def test_risk_is_unbiased(self, trials):
    _, _, risks = trials
    by_class = losses_by_hand(self.LOGITS, self.CLASSES).reshape(3, 3).mean(1)
    error = self.standard_error(risks)
    assert abs(risks.mean() - self.TRUE @ by_class) < 4 * error
    # The test can tell the true risk from that before deployment, and from what
    # the histogram of predictions would give uncorrected.
    for other in (np.full(3, 1 / 3), self.CONFUSION @ self.TRUE):
      assert abs(risks.mean() - other @ by_class) > 4 * error


@pytest.fixture(scope="module")
def drawn_model():
  return mlp.build((5,), num_classes=3, width=8, head_width=6)


@pytest.fixture(scope="module")
def draw(drawn_model, compile_in_graph):
  """Returns `draw(seed)`: initial weights of the model."""
  return compile_in_graph(
    drawn_model.initial_weights, tf.TensorSpec([2], tf.int32)
  )


@pytest.fixture(scope="module")
def model(drawn_model, draw):
  """The model with fixed weights, as after pre-training."""
  values = tf.nest.flatten(draw(SEED))
  names = tf.nest.flatten(drawn_model.weight_names())
  return split_model.with_weights(
    drawn_model, dict(zip(names, values, strict=True))
  )


@pytest.fixture(scope="module")
def data():
  generator = np.random.default_rng(2)
  return adaptation.AdaptationData(
    x=generator.normal(size=(4, 5)).astype(np.float32),
    y=np.array([2, 0, 1, 1], np.int32),
    stream_x=generator.normal(size=(300, 5)).astype(np.float32),
    timestep=np.int32(3),
    confusion=np.array(
      [[0.8, 0.1, 0.0], [0.1, 0.9, 0.2], [0.1, 0.0, 0.8]], np.float32
    ),
    seed=np.array([1, 2], np.int32),
  )


class TestEstimateClasses:
  @pytest.fixture(scope="class")
  def current(self, draw):
    """The weights of a client that has moved away from the model."""
    return draw(np.array([7, 8], np.int32))

  @pytest.fixture(scope="class")
  def estimate(self, run_in_graph, model, current):
    """Returns `estimate(data, **options)`."""

    def estimate(data, **options):
      hparams = adaptation.LabelShiftHParams(**options)
      return run_in_graph(
        lambda *arguments: adaptation.estimate_classes(
          model, hparams, *arguments
        ),
        current,
        data,
      )

    return estimate

  def by_hand(self, logits, confusion, soft=False) -> np.ndarray:
    if soft:
      exponentials = np.exp(np.float64(logits))
      predicted = exponentials / exponentials.sum(axis=1, keepdims=True)
    else:
      predicted = np.eye(3)[logits.argmax(axis=1)]
    solution = np.linalg.solve(
      np.float64(confusion), predicted.mean(axis=0)
    ).clip(0)
    return solution / solution.sum()

  def test_each_estimator_asks_the_model_of_its_name(
    self, run_in_graph, model, current, data, draw, estimate
  ):
    expected = {
      name: self.by_hand(
        run_in_graph(model.predict, weights, data.stream_x), data.confusion
      )
      for name, weights in (("pretrained", draw(SEED)), ("current", current))
    }
    assert np.abs(expected["pretrained"] - expected["current"]).max() > 0.1
    for name, distribution in expected.items():
      result = estimate(data, label_estimator=name)
      np.testing.assert_allclose(result, distribution, rtol=0, atol=1e-5)

  def test_soft_predictions(self, run_in_graph, model, current, data, estimate):
    logits = run_in_graph(model.predict, current, data.stream_x)
    # So mild a matrix that soft predictions, all near uniform, are not clipped.
    data = data._replace(confusion=np.eye(3, dtype=np.float32))
    result = estimate(data, label_estimator="current", soft_predictions=True)
    expected = self.by_hand(logits, data.confusion, soft=True)
    hard = self.by_hand(logits, data.confusion)
    assert np.abs(expected - hard).max() > 0.05
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)

  def test_threshold_leaves_out_what_it_says(self, data, estimate):
    # Singular values 1, 0.1 and 0.1: above 0.1 only the mean is left.
    confusion = (0.1 * np.eye(3) + 0.3).astype(np.float32)
    data = data._replace(confusion=confusion)
    np.testing.assert_allclose(
      estimate(data, svd_threshold=0.11), np.full(3, 1 / 3), rtol=1e-4
    )
    assert np.abs(estimate(data, svd_threshold=0.09) - 1 / 3).max() > 0.1


@pytest.mark.parametrize(
  ("part", "x", "y"),
  # Unlabelled examples have zeros for classes.
  [("unlabelled", "stream_x", np.zeros(300)), ("labelled", "x", [2, 0, 1, 1])],
)
def test_part_of_the_data_is_one_domain(run_in_graph, data, part, x, y):
  result = run_in_graph(lambda data: getattr(data, part), data)
  np.testing.assert_array_equal(result.x, getattr(data, x))
  np.testing.assert_array_equal(result.y, y)
  np.testing.assert_array_equal(result.domain_sizes, [len(y)])
  np.testing.assert_array_equal(result.seed, data.seed)


def test_weight_of_a_client_is_the_size_of_its_stream(run_in_graph, data):
  assert run_in_graph(adaptation.num_stream_examples, data) == 300
