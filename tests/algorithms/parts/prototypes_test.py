"""Tests of prototypes beside NumPy: eq. 3, the distances, eq. 4 and 6."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import refusals
from tff_shift.algorithms.parts import prototypes

DISTANCES = ("l2", "squared_l2", "cosine")


@st.composite
def batches(draw, min_examples=1):
  """(num_classes, embeddings and classes of two batches), float64 and int."""
  num_classes = draw(st.integers(1, 5))
  size = draw(st.integers(1, 6))
  generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

  def batch():
    num_examples = draw(st.integers(min_examples, 10))
    return (
      generator.normal(size=(num_examples, size)),
      generator.integers(0, num_classes, num_examples),
    )

  return num_classes, batch(), batch()


EMBEDDINGS = tf.TensorSpec([None, None], tf.float32)
CLASSES = tf.TensorSpec([None], tf.int32)


def compute_distances(embeddings, means):
  return [
    prototypes.distances(
      np.float32(embeddings), np.float32(means), name
    ).numpy()
    for name in DISTANCES
  ]


@pytest.fixture(scope="module")
def compute_loss(compile_in_graph):
  """Returns `compute(num_classes, distance)(e1, y1, e2, y2)`.

  It gives the loss of the second batch beside the prototypes of the first, and
  its gradients to the embeddings of both.
  """

  @functools.cache
  def compute(num_classes, distance):
    def work(earlier, y_earlier, later, y_later):
      means = prototypes.class_means(
        prototypes.class_sums(earlier, y_earlier, num_classes)
      )
      loss = prototypes.alignment_loss(later, y_later, means, distance)
      return loss, tf.gradients(loss, [earlier, later])

    run = compile_in_graph(work, EMBEDDINGS, CLASSES, EMBEDDINGS, CLASSES)
    return lambda *lists: run(*map(np.asarray, lists))

  return compute


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(batches(min_examples=0))
def test_class_means_of_random_batches(oracle, drawn):
  num_classes, (embeddings, y), _ = drawn
  sums = prototypes.class_sums(np.float32(embeddings), y, num_classes)
  means = prototypes.class_means(sums)
  expected = oracle.class_means(embeddings, y)
  assert_array_equal(sums.count, np.bincount(y, minlength=num_classes))
  for label in range(num_classes):
    assert means.present[label] == (label in expected)
    # Sums of at most 10 values of float32.
    assert_allclose(
      sums.total[label], embeddings[y == label].sum(axis=0), atol=1e-5
    )
    assert_allclose(
      means.mean[label], expected.get(label, 0), rtol=0, atol=2e-6
    )


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(batches())
def test_distances_of_random_batches(oracle, drawn):
  _, (embeddings, _), (means, _) = drawn
  expected = [oracle.distances(embeddings, means, name) for name in DISTANCES]
  roots, squares, cosines = found = compute_distances(embeddings, means)
  assert_allclose(found[:2], expected[:2], rtol=1e-5, atol=1e-6)
  assert_allclose(cosines, expected[2], atol=2e-6)
  assert (squares >= 0).all() and (roots >= 0).all()
  # Rounding makes -1e-7 of zero.
  assert cosines.min() > -1e-6 and cosines.max() < 2 + 1e-6


def test_distances_by_hand():
  roots, squares, cosines = compute_distances(
    [[3.0, 4.0], [0.0, 2.0]], [[0.0, 0.0], [-6.0, -8.0], [5.0, 0.0]]
  )
  assert_array_equal(squares, [[25, 225, 20], [4, 136, 29]])
  assert_allclose(roots, [[5, 15, 20**0.5], [2, 136**0.5, 29**0.5]], rtol=1e-6)
  # The angle to a prototype without length counts as a right one.
  assert_allclose(cosines, [[1, 2, 0.4], [1, 1.8, 1]], rtol=0, atol=1e-6)


def test_small_distance_between_long_vectors_is_exact():
  roots, squares, _ = compute_distances([[4096.0, 4096.0]], [[4096.5, 4096.25]])
  assert squares == 0.5**2 + 0.25**2
  assert_allclose(roots, np.hypot(0.5, 0.25), rtol=1e-6)


def test_unknown_distance_is_refused_with_those_that_there_are():
  with refusals.refused("'l1'; there are l2, squared_l2, cos"):
    prototypes.distances(tf.zeros([1, 2]), tf.zeros([3, 2]), "l1")


@pytest.mark.parametrize("distance", DISTANCES)
class TestAlignmentLoss:
  @pytest.mark.slow
  @hypothesis.settings(max_examples=60, deadline=None)
  @hypothesis.given(drawn=batches())
  def test_loss_of_random_batches(self, compute_loss, oracle, distance, drawn):
    num_classes, (earlier, y_earlier), (later, y_later) = drawn
    loss, gradients = compute_loss(num_classes, distance)(
      earlier, y_earlier, later, y_later
    )
    expected = oracle.alignment_loss(
      later, y_later, oracle.class_means(earlier, y_earlier), distance
    )
    # Distances of up to 100 in float32.
    assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    assert all(np.isfinite(gradient).all() for gradient in gradients)

  @pytest.mark.parametrize(
    "y_earlier, y_later",
    [
      ([1, 1, 1], [1, 1, 1]),
      ([0, 1, 2], [1, 1, 1]),
      ([1, 1, 1], [0, 1, 2]),
      ([0, 1, 0], [2, 3, 3]),
    ],
  )
  def test_one_class_in_common_or_none_leaves_nothing_to_learn(
    self, compute_loss, distance, y_earlier, y_later
  ):
    earlier, later = np.random.default_rng(4).normal(size=(2, 3, 2))
    loss, gradients = compute_loss(4, distance)(
      earlier, y_earlier, later, y_later
    )
    assert loss == 0
    assert_array_equal(gradients, np.zeros((2, 3, 2)))

  def test_embeddings_without_length_have_finite_gradients(
    self, compute_loss, distance
  ):
    loss, gradients = compute_loss(2, distance)(
      np.zeros((2, 3)), [0, 1], np.zeros((2, 3)), [0, 1]
    )
    assert_allclose(loss, np.log(2), rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
