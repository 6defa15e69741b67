"""LAME by hand, its limits, and batches that are neither cut nor padded."""

import numpy as np
import pytest
import scipy.spatial
import scipy.special
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import lame
from tff_shift.learning import randomness

HParams = lame.HParams
SMALL = {"rtol": 0, "atol": 1e-6}


class TestAdjust:
  @pytest.mark.parametrize(
    ("max_steps", "expected"),
    [
      (0, [0.6, 0.4, 0.2]),
      (1, [0.55118633, 0.44881367, 0.23392234]),
      (2, [0.57519832, 0.42480168, 0.21688340]),
      (3, [0.56342363, 0.43657637, 0.22515085]),
      (100, [0.56730354, 0.43269646, 0.22240820]),
    ],
  )
  def test_first_column_by_hand(self, max_steps, expected):
    matrix = tf.constant([[0.0, 1, 0], [1, 0, 0], [1, 0, 0]])
    found = lame.adjust(
      tf.math.log([[0.6, 0.4], [0.4, 0.6], [0.2, 0.8]]),
      lambda z: tf.matmul(matrix, z),
      max_steps,
    )
    np.testing.assert_allclose(tf.nn.softmax(found)[:, 0], expected, **SMALL)

  def test_without_affinity_nothing_changes(self):
    logits = tf.constant([[0.3, -2.0], [1.0, 5.0]])
    found = lame.adjust(logits, tf.zeros_like, 7)
    np.testing.assert_array_equal(found, logits)

  def test_it_ends_when_the_objective_does_not_change(self):
    calls = []

    def multiply(z):
      calls.append(1)
      return tf.zeros_like(z)

    lame.adjust(tf.constant([[0.3, -2.0]]), multiply, 100)
    # In eager execution each repetition calls it; three are the least.
    assert len(calls) == 3


def numpy_distances(features):
  unit = features / np.linalg.norm(features, axis=1, keepdims=True)
  return np.linalg.norm(unit[:, None] - unit[None], axis=-1)


class TestAffinities:
  FEATURES = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)

  def test_rbf_beside_numpy(self):
    apart = numpy_distances(np.float64(self.FEATURES))
    # The third nearest, itself counted.
    width = np.sort(apart, axis=1)[:, 2].mean()
    found = lame.rbf_affinity(self.FEATURES, 3)(tf.eye(7))
    np.testing.assert_allclose(
      found, np.exp(-(apart**2) / (2 * width**2)), **SMALL
    )

  def test_nearest_neighbours_beside_numpy(self):
    apart = numpy_distances(np.float64(self.FEATURES)) + np.diag([9.0] * 7)
    expected = np.zeros([7, 7])
    for row, nearest in enumerate(np.argsort(apart, axis=1)[:, :2]):
      expected[row, nearest] = 1
    found = lame.knn_affinity(self.FEATURES, 2)(tf.eye(7))
    np.testing.assert_array_equal(found, expected)

  def test_equal_distances_go_to_the_lower_position(self):
    """All are equal, and no example is its own neighbour."""
    same = np.ones([4, 3], np.float32)
    np.testing.assert_array_equal(
      lame.knn_affinity(same, 1)(tf.eye(4)),
      [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
    )
    # A width of 0: they are alike.
    np.testing.assert_array_equal(
      lame.rbf_affinity(same, 3)(tf.eye(4)), np.ones([4, 4])
    )

  @pytest.mark.parametrize("neighbors", [1, 3])
  def test_without_a_width_it_is_that_to_the_nearest_different_one(
    self, neighbors
  ):
    # Three examples in each of three directions.
    angles = np.repeat([0.0, 0.4, 2.0], 3)
    features = np.float32(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    apart = scipy.spatial.distance.cdist(features, features)
    # From 0 to 0.4, back, and from 2 to 0.4.
    width = 2 / 3 * 2 * np.sin(0.2) + 1 / 3 * 2 * np.sin(0.8)
    np.testing.assert_allclose(
      lame.rbf_affinity(features, neighbors)(tf.eye(9)),
      np.exp(-(apart**2) / (2 * width**2)),
      atol=1e-6,
    )

  @pytest.mark.parametrize("size", [1, 2])
  def test_fewer_examples_than_neighbours(self, size):
    few = self.FEATURES[:size]
    found = lame.knn_affinity(few, 5)(tf.eye(size))
    np.testing.assert_array_equal(found, 1 - np.eye(size))
    assert np.all(np.isfinite(lame.rbf_affinity(few, 5)(tf.eye(size))))


@pytest.fixture(scope="module")
def predict(build, make_adapting_client):
  """Returns `predict(hparams, examples)`."""
  client = make_adapting_client(0, 6, 8)

  def predict(hparams, examples):
    functions = build(hparams)
    weights = functions.initial_weights(randomness.server_seed(0))
    return functions.predict_as_client(weights, (), client, examples)

  return predict


def numpy_lame(features, logits, num_neighbors, num_steps):
  apart = numpy_distances(np.float64(features))
  width = np.sort(apart, axis=1)[:, num_neighbors - 1].mean()
  matrix = np.exp(-(apart**2) / (2 * width**2))
  z = scipy.special.softmax(np.float64(logits), axis=1)
  for _ in range(num_steps):
    z = scipy.special.softmax(logits + matrix @ z, axis=1)
  return z


class TestPredictions:
  @pytest.mark.parametrize("size", [1, 30, 300])
  def test_whole_batch_beside_numpy(
    self, predict, make_client, oracle, model, run_in_graph, size
  ):
    """300 examples are more than models take at a time, and no multiple."""
    examples = make_client(3, [size])
    weights = run_in_graph(model.initial_weights, randomness.server_seed(0))
    logits = oracle.predict(weights, examples.x)
    result = predict(HParams(max_steps=4), examples)
    np.testing.assert_allclose(
      scipy.special.softmax(result, axis=1),
      numpy_lame(
        oracle.embed(weights.backbone, examples.x), logits, min(5, size), 4
      )
      if size > 1
      # Its own affinity with itself, without a width, is 1.
      else numpy_alone(logits, 4),
      rtol=0,
      atol=2e-5,
    )


def numpy_alone(logits, num_steps):
  z = scipy.special.softmax(np.float64(logits), axis=1)
  for _ in range(num_steps):
    z = scipy.special.softmax(logits + z, axis=1)
  return z


def test_it_answers_no_single_queries(model):
  with pytest.raises(
    ValueError, match=r"num_queries .* predicts a batch as one"
  ):
    algorithms.build(lame, model, num_queries=3)
