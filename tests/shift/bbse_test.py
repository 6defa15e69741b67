"""Tests of black box shift estimation beside NumPy (Fed-ADE, eq. 4)."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.shift import bbse

NUM_CLASSES = 4
LOGITS = tf.TensorSpec([None, NUM_CLASSES], tf.float32)
CLASSES = tf.TensorSpec([None], tf.int32)
DISTRIBUTION = tf.TensorSpec([NUM_CLASSES], tf.float32)
MATRIX = tf.TensorSpec([NUM_CLASSES, NUM_CLASSES], tf.float32)
UNIFORM = np.full(NUM_CLASSES, 1 / NUM_CLASSES)

SEEDS = st.integers(0, 2**32 - 1)


def random_batch(seed, num_examples):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(num_examples, NUM_CLASSES)).astype(np.float32)
  return logits, rng.integers(0, NUM_CLASSES, num_examples).astype(np.int32)


def random_confusion(seed, diagonal):
  """A matrix with columns that sum to 1, and a random class distribution."""
  rng = np.random.default_rng(seed)
  mistakes = rng.dirichlet(np.ones(NUM_CLASSES), size=NUM_CLASSES).T
  confusion = diagonal * np.eye(NUM_CLASSES) + (1 - diagonal) * mistakes
  return confusion, rng.dirichlet(np.ones(NUM_CLASSES))


def on_simplex(estimated):
  return (estimated >= 0).all() and np.isclose(estimated.sum(), 1, atol=1e-6)


@pytest.fixture(scope="module")
def distributions(compile_in_graph):
  """Hard and soft distribution of logits."""
  return compile_in_graph(
    lambda logits: (
      bbse.prediction_distribution(logits),
      bbse.prediction_distribution(logits, soft=True),
    ),
    LOGITS,
  )


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.integers(1, 30))
def test_prediction_distribution_distributions_match_numpy(
  distributions, seed, num_examples
):
  logits, _ = random_batch(seed, num_examples)
  hard, soft = distributions(logits)
  counts = np.bincount(logits.argmax(axis=1), minlength=NUM_CLASSES)
  assert_allclose(hard, counts / num_examples, rtol=1e-6)
  probabilities = scipy.special.softmax(logits.astype(np.float64), axis=1)
  assert_allclose(soft, probabilities.mean(axis=0), rtol=1e-5)


def test_prediction_distribution_hard_ties_count_for_the_lowest_class(
  distributions,
):
  logits = np.float32([[0, 5, 5, 1], [7, 7, 7, 7], [0, 0, 1, 1]])
  hard, soft = distributions(logits)
  assert_allclose(hard, [1 / 3, 1 / 3, 1 / 3, 0])
  assert_allclose(soft.sum(), 1, rtol=1e-6)


def test_prediction_distribution_empty_batch_is_zero(distributions):
  hard, soft = distributions(np.zeros([0, NUM_CLASSES], np.float32))
  assert_array_equal(hard, np.zeros(NUM_CLASSES))
  assert_array_equal(soft, np.zeros(NUM_CLASSES))


@pytest.fixture(scope="module")
def confusions(compile_in_graph):
  """Hard and soft confusion matrix of logits and classes."""
  return compile_in_graph(
    lambda logits, y: (
      bbse.confusion_matrix(logits, y),
      bbse.confusion_matrix(logits, y, soft=True),
    ),
    LOGITS,
    CLASSES,
  )


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.integers(0, 20))
def test_confusion_matrix_columns_match_numpy(confusions, seed, num_examples):
  logits, y = random_batch(seed, num_examples)
  predictions = (
    np.eye(NUM_CLASSES)[logits.argmax(axis=1)],
    scipy.special.softmax(logits.astype(np.float64), axis=1),
  )
  for measured, rows in zip(confusions(logits, y), predictions, strict=True):
    assert_allclose(measured.sum(axis=0), 1, rtol=1e-6)
    for label in range(NUM_CLASSES):
      expected = np.eye(NUM_CLASSES)[label]
      if (y == label).any():
        expected = rows[y == label].mean(axis=0)
      assert_allclose(measured[:, label], expected, rtol=1e-5)


@pytest.fixture(scope="module")
def estimate(compile_in_graph):
  return compile_in_graph(bbse.estimate, DISTRIBUTION, MATRIX)


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.floats(0.5, 1))
def test_estimate_invertible_matrix_recovers_the_distribution(
  estimate, seed, diagonal
):
  confusion, truth = random_confusion(seed, diagonal)
  values = np.linalg.svd(confusion, compute_uv=False)
  hypothesis.assume(values[-1] > 0.06 * values[0])
  assert_allclose(estimate(confusion @ truth, confusion), truth, atol=2e-5)


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.floats(0, 0.2))
def test_estimate_any_matrix_matches_pseudo_inverse(estimate, seed, diagonal):
  """Ill-conditioned matrices, and predictions that no prior explains."""
  confusion, predicted = random_confusion(seed, diagonal)
  values = np.linalg.svd(confusion, compute_uv=False)
  threshold = bbse.DEFAULT_THRESHOLD
  hypothesis.assume((abs(values / values[0] - threshold) > 1e-4).all())
  solution = np.linalg.pinv(confusion, rcond=threshold) @ predicted
  positive = solution.clip(min=0)
  assert_allclose(
    estimate(predicted, confusion), positive / positive.sum(), atol=1e-4
  )


@pytest.mark.parametrize("threshold", [0, 0.05])
def test_estimate_singular_matrix_shares_equal_columns_evenly(
  run_in_graph, threshold
):
  """Two classes that are predicted alike cannot be told apart."""
  confusion = np.float32(
    [
      [0.9, 0.0, 0.0, 0.1],
      [0.0, 0.5, 0.5, 0.0],
      [0.0, 0.5, 0.5, 0.0],
      [0.1, 0.0, 0.0, 0.9],
    ]
  )
  truth = np.array([0.3, 0.5, 0.1, 0.1])
  estimated = run_in_graph(
    lambda predicted, matrix: bbse.estimate(
      predicted, matrix, threshold=threshold
    ),
    (confusion @ truth).astype(np.float32),
    confusion,
  )
  assert_allclose(estimated, [0.3, 0.3, 0.3, 0.1], atol=1e-6)


@hypothesis.settings(max_examples=10)
@hypothesis.given(SEEDS)
def test_estimate_is_on_the_simplex_and_empty_batch_is_uniform(estimate, seed):
  confusion, _ = random_confusion(seed, 0)
  for label in range(NUM_CLASSES):
    assert on_simplex(estimate(np.eye(NUM_CLASSES)[label], confusion))
  # As of an empty batch, and of a matrix of zeros.
  zeros = 0 * confusion
  for arguments in ((zeros[0], confusion), (np.eye(NUM_CLASSES)[0], zeros)):
    assert_array_equal(estimate(*arguments), UNIFORM)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_estimate_bad_threshold_is_refused(threshold, refusal):
  assert refusal(
    bbse.estimate, tf.zeros([2]), tf.eye(2), threshold=threshold
  ) == (f"threshold must lie between 0 and 1, got {threshold}")
