"""Tests of accuracy and loss per domain, alone and through TFF."""

import collections

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.learning import evaluation
from tff_shift.models import modes

pytestmark = pytest.mark.usefixtures("context")

NUM_CLASSES = 3


def sums_by_hand(logits, y, domain_sizes):
  """`domain_metrics` example by example."""
  ends = np.cumsum(domain_sizes)
  correct, losses = np.zeros(len(domain_sizes)), np.zeros(len(domain_sizes))
  for i, (row, label) in enumerate(zip(np.float64(logits), y, strict=True)):
    domain = np.searchsorted(ends, i, side="right")
    correct[domain] += np.argmax(row) == label
    losses[domain] += scipy.special.logsumexp(row) - row[label]
  return {
    "accuracy": correct,
    "pooled_accuracy": correct,
    "loss": losses,
    "not_finite": np.zeros(len(domain_sizes)),
    "num_examples": np.array(domain_sizes),
    "num_examples_of_loss": np.array(domain_sizes),
  }


def predictions(generator, domain_sizes):
  """Random logits and classes; logits of a row are never equal."""
  size = sum(domain_sizes)
  return (
    generator.normal(size=(size, NUM_CLASSES)).astype(np.float32),
    generator.integers(0, NUM_CLASSES, size).astype(np.int32),
    np.array(domain_sizes, np.int32),
  )


class TestPredictByDomain:
  """A predictor with a history: the running sum of what it has seen."""

  @pytest.fixture(scope="class")
  def predict(self, compile_in_graph):
    def with_history(domain, x):
      return tf.stack(
        [tf.cumsum(x), tf.fill(tf.shape(x), tf.cast(domain, tf.float32))],
        axis=1,
      )

    return compile_in_graph(
      lambda x, sizes: evaluation.predict_by_domain(
        with_history, x, sizes, width=2
      ),
      tf.TensorSpec([None], tf.float32),
      tf.TensorSpec([3], tf.int32),
    )

  def test_history_starts_anew_at_every_domain(self, predict):
    x = np.float32([1, 2, 3, 4, 5])
    assert_array_equal(
      predict(x, np.int32([2, 0, 3])),
      [[1, 0], [3, 0], [3, 2], [7, 2], [12, 2]],
    )

  @hypothesis.settings(max_examples=30)
  @hypothesis.given(st.lists(st.integers(0, 4), min_size=3, max_size=3))
  def test_target_alone_is_predicted_as_beside_the_others(self, predict, sizes):
    x = np.arange(1, sum(sizes) + 1, dtype=np.float32)
    target = x[len(x) - sizes[-1] :]
    together = predict(x, np.array(sizes, np.int32))
    alone = predict(target, np.int32([0, 0, sizes[-1]]))
    assert_array_equal(together[len(x) - sizes[-1] :], alone)


class TestPredictInBatches:
  @pytest.fixture(scope="class")
  def predict(self, compile_in_graph):
    """Gives [sum, first entry, size of the batch] of each example."""

    def by_example(x):
      size = tf.shape(x)[0]
      return tf.stack(
        [
          tf.reduce_sum(x, axis=[1, 2]),
          x[:, 0, 0],
          tf.cast(tf.fill([size], size), tf.float32),
        ],
        axis=1,
      )

    return compile_in_graph(
      lambda x: evaluation.predict_in_batches(by_example, x, 3),
      tf.TensorSpec([None, 2, 2], tf.float32),
    )

  @pytest.mark.parametrize(
    "size, batch_sizes",
    [
      (0, []),
      (256, [256]),
      (257, [256, 1]),
      (600, [256, 256, 88]),
    ],
  )
  def test_result_is_that_of_one_call(self, predict, size, batch_sizes):
    # Whole numbers: sums of float32 are exact.
    x = np.random.default_rng(size).integers(-99, 99, (size, 2, 2))
    outputs = predict(x)
    assert outputs.shape == (size, 3)
    assert outputs.dtype == np.float32
    assert_array_equal(outputs[:, 0], x.sum(axis=(1, 2)))
    assert_array_equal(outputs[:, 1], x[:, 0, 0])
    assert_array_equal(outputs[:, 2], np.repeat(batch_sizes, batch_sizes))

  @pytest.mark.parametrize("size", [0, 600])
  def test_batch_is_not_cut_where_models_normalise_by_it(
    self, run_in_graph, size
  ):
    def subtract_mean(x):
      return x - tf.reduce_mean(x, axis=0)

    def predict(x):
      with modes.by_batch():
        return evaluation.predict_in_batches(subtract_mean, x, 2)

    x = np.random.default_rng(size).integers(-99, 99, (size, 2))
    outputs = run_in_graph(predict, x.astype(np.float32))
    assert outputs.shape == (size, 2)
    if size:
      assert_allclose(outputs, x - x.mean(axis=0), atol=1e-4)


class TestDomainMetrics:
  @hypothesis.settings(max_examples=40)
  @hypothesis.given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
  )
  def test_sums_of_random_predictions(self, metrics, domain_sizes, seed):
    drawn = predictions(np.random.default_rng(seed), domain_sizes)
    sums, expected = metrics(*drawn), sums_by_hand(*drawn)
    assert all(value.dtype == np.float32 for value in sums.values())
    for name, value in expected.items():
      # Sums of at most 9 losses of float32.
      assert_allclose(sums[name], value, rtol=0, atol=1e-5)

  @pytest.fixture(scope="class")
  def metrics(self, compile_in_graph):
    return compile_in_graph(
      evaluation.domain_metrics,
      tf.TensorSpec([None, NUM_CLASSES], tf.float32),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([None], tf.int32),
    )


class TestPredictedClasses:
  def test_what_is_no_number_is_no_class(self, run_in_graph):
    nan, inf = np.nan, np.inf
    logits = np.float32(
      [
        [1, 3, 2],
        [nan, 3, 2],
        [1, 3, nan],
        [nan, nan, nan],
        [1, inf, 2],
        [-inf, -inf, -inf],
        # A class that is impossible.
        [-inf, 1, 2],
      ]
    )
    classes = run_in_graph(evaluation.predicted_classes, logits)
    none = evaluation.NO_CLASS
    assert_array_equal(classes, [1, none, none, none, none, none, 2])

  @pytest.mark.parametrize("logit", [np.nan, evaluation.NO_LOGIT])
  def test_model_that_can_predict_no_class_is_never_right(
    self, run_in_graph, logit
  ):
    sums = run_in_graph(
      evaluation.domain_metrics,
      np.full([8, 3], logit, np.float32),
      np.arange(8, dtype=np.int32) % 3,
      np.int32([3, 5]),
    )
    assert_array_equal(sums["accuracy"], [0, 0])
    assert_array_equal(sums["pooled_accuracy"], [0, 0])
    assert_array_equal(sums["not_finite"], [3, 5])


class TestClassThatCannotBePredicted:
  NO = evaluation.NO_LOGIT
  # The last class is the one; probabilities of the first two are 3 to 1.
  LOGITS = np.float32([[np.log(3), 0, NO], [np.log(3), 0, NO], [0, 2, NO]])

  @pytest.fixture(scope="class")
  def evaluate(self, run_in_graph):
    def measure(logits, y, domain_sizes):
      sums = evaluation.domain_metrics(logits, y, domain_sizes)
      return evaluation.finalize(
        sums | {"num_clients": tf.cast(domain_sizes > 0, tf.float32)}
      )

    return lambda y, sizes: run_in_graph(
      measure, self.LOGITS, np.int32(y), np.int32(sizes)
    )

  def test_its_examples_are_wrong_and_count_nowhere_in_the_loss(self, evaluate):
    sums = evaluate([0, 2, 0], [2, 1])
    # -log(3/4) of the one that counts, and -log of 1 / (1 + e^2).
    assert_allclose(
      sums["loss"], [np.log(4 / 3), np.log1p(np.exp(2))], rtol=1e-6
    )
    assert_array_equal(sums["pooled_accuracy"], [0.5, 0])
    assert_array_equal(sums["num_examples"], [2, 1])
    assert_array_equal(sums["not_finite"], [0, 0])

  def test_of_no_others_the_loss_is_not_a_number(self, evaluate):
    sums = evaluate([0, 1, 2], [2, 1])
    assert np.isfinite(sums["loss"][0]) and np.isnan(sums["loss"][1])
    assert sums["accuracy"][1] == 0

  def test_overflow_to_minus_infinity_still_shows(self, run_in_graph):
    sums = run_in_graph(
      evaluation.domain_metrics,
      np.float32([[-np.inf, 1, 2]]),
      np.int32([0]),
      np.int32([1]),
    )
    assert np.isinf(sums["loss"]) and sums["num_examples_of_loss"] == 1


def sums_of(num_domains, **values):
  """Sums of these values, and of zeros of all other metrics."""
  zeros = evaluation.domain_metrics(
    tf.zeros([0, 2]), tf.zeros([0], tf.int32), tf.zeros([num_domains], tf.int32)
  )
  return collections.OrderedDict(
    (name, np.float32(values.get(name, np.zeros(num_domains))))
    for name in zeros | values
  )


def test_finalize_means_by_hand(run_in_graph):
  # Three clients in the first domain, none in the second.
  means = run_in_graph(
    evaluation.finalize,
    sums_of(
      2,
      accuracy=[1.5, 0],
      pooled_accuracy=[6, 0],
      loss=[4, 0],
      not_finite=[2, 0],
      num_examples=[8, 0],
      num_examples_of_loss=[4, 0],
      num_clients=[3, 0],
    ),
  )
  assert list(means) == [*evaluation.METRICS, "num_examples"]
  assert_array_equal(means["not_finite"], [0.25, np.nan])
  assert_array_equal(means["accuracy"], [0.5, np.nan])
  assert_array_equal(means["pooled_accuracy"], [0.75, np.nan])
  assert_array_equal(means["loss"], [1, np.nan])
  assert_array_equal(means["num_examples"], [8, 0])


def test_accuracies_are_reported_in_percent():
  means = {name: np.float32([0, 0.7]) for name in evaluation.METRICS}
  found = evaluation.report(means, lambda values: float(values[1]))
  share = float(np.float32(0.7))
  assert found["accuracy"] == found["pooled_accuracy"] == 100 * share
  assert found["loss"] == found["not_finite"] == share
  arrays = evaluation.report(means, np.asarray)
  assert_array_equal(arrays["accuracy"], np.float32([0, 70]))
