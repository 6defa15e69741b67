"""LAME by hand, its limits, and batches that are neither cut nor padded."""

import numpy as np
import pytest
import scipy.spatial
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import refusals
from tff_shift import algorithms
from tff_shift.algorithms import lame

STREAM = 6, 8


def test_it_ends_when_the_objective_does_not_change():
  calls = []

  def multiply(z):
    calls.append(1)
    return tf.zeros_like(z)

  lame.adjust(tf.constant([[0.3, -2.0]]), multiply, 100)
  # In eager execution each repetition calls it; three are the least.
  assert len(calls) == 3


def numpy_distances(features):
  unit = features / np.linalg.norm(features, axis=1, keepdims=True)
  return scipy.spatial.distance.cdist(unit, unit)


FEATURES = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)


def test_affinity_nearest_neighbours_beside_numpy():
  apart = numpy_distances(np.float64(FEATURES))
  expected = np.zeros([7, 7])
  # The nearest is the example itself.
  np.put_along_axis(expected, np.argsort(apart, axis=1)[:, 1:3], 1, axis=1)
  found = lame.knn_affinity(FEATURES, 2)(tf.eye(7))
  assert_array_equal(found, expected)


def test_affinity_equal_distances_go_to_the_lower_position():
  """All are equal, and no example is its own neighbour."""
  same = np.ones([4, 3], np.float32)
  assert_array_equal(
    lame.knn_affinity(same, 1)(tf.eye(4)),
    [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
  )
  # A width of 0: they are alike.
  assert_array_equal(lame.rbf_affinity(same, 3)(tf.eye(4)), np.ones([4, 4]))


@pytest.mark.parametrize("neighbors", [1, 3])
def test_affinity_without_a_width_it_is_that_to_the_nearest_different_one(
  neighbors,
):
  # Three examples in each of three directions.
  angles = np.repeat([0.0, 0.4, 2.0], 3)
  features = np.float32(np.stack([np.cos(angles), np.sin(angles)], axis=1))
  apart = scipy.spatial.distance.cdist(features, features)
  # From 0 to 0.4, back, and from 2 to 0.4.
  width = 2 / 3 * 2 * np.sin(0.2) + 1 / 3 * 2 * np.sin(0.8)
  assert_allclose(
    lame.rbf_affinity(features, neighbors)(tf.eye(9)),
    np.exp(-(apart**2) / (2 * width**2)),
    atol=1e-6,
  )


@pytest.mark.parametrize("size", [1, 2])
def test_affinity_fewer_examples_than_neighbours(size):
  few = FEATURES[:size]
  found = lame.knn_affinity(few, 5)(tf.eye(size))
  assert_array_equal(found, 1 - np.eye(size))
  assert np.all(np.isfinite(lame.rbf_affinity(few, 5)(tf.eye(size))))


def numpy_lame(features, logits, num_neighbors, num_steps):
  matrix = np.ones((1, 1))
  # Its own affinity with itself, without a width, is 1.
  if len(features) > 1:
    apart = numpy_distances(np.float64(features))
    width = np.sort(apart, axis=1)[:, num_neighbors - 1].mean()
    matrix = np.exp(-(apart**2) / (2 * width**2))
  z = scipy.special.softmax(np.float64(logits), axis=1)
  for _ in range(num_steps):
    z = scipy.special.softmax(logits + matrix @ z, axis=1)
  return z


@pytest.mark.parametrize("size", [1, 30, 300])
def test_whole_batch_beside_numpy(
  build, make_client, client, weights, oracle, size
):
  """300 examples are more than models take at a time, and no multiple."""
  examples = make_client(3, [size])
  features = oracle.embed(weights.backbone, examples.x)
  logits = oracle.classify(weights.head, features)
  functions = build(lame.HParams(max_steps=4))
  result = functions.predict_as_client(weights, (), client, examples)
  assert_allclose(
    scipy.special.softmax(result, axis=1),
    numpy_lame(features, logits, min(5, size), 4),
    rtol=0,
    atol=2e-5,
  )


def test_it_answers_no_single_queries(model):
  with refusals.refused("num_queries .* predicts a batch as one"):
    algorithms.build(lame, model, num_queries=3)
