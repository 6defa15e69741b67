"""The noise of batches, by hand, over all splits, and over many batches."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.shift import batch_noise
from tff_shift.shift import dynamics


@pytest.fixture(scope="module")
def noise_of(compile_in_graph):
  """Returns `noise_of_direction` of rows of any size, in a graph."""
  return compile_in_graph(
    batch_noise.noise_of_direction, tf.TensorSpec([None, None], tf.float32)
  )


class TestNoiseOfDirection:
  def test_by_hand(self, noise_of):
    # The mean is (1/2, 1/2), of squared length 1/2; both rows are at a squared
    # distance of 1/2 from its line: (1/2 + 1/2) / (2 * 1 * 1/2).
    assert noise_of(np.eye(2, dtype=np.float32)) == pytest.approx(1.0)
    # Rows on the line of the mean have no noise, whatever their lengths.
    rows = np.outer([1, 2, 6], [3, 4]).astype(np.float32)
    assert noise_of(rows) == pytest.approx(0.0, abs=1e-6)

  @pytest.mark.parametrize(
    "rows",
    [np.zeros([0, 3]), [[0.2, 0.3, 0.5]], np.zeros([4, 3]), [[1, 0], [-1, 0]]],
    ids=["empty", "one", "zeros", "zero mean"],
  )
  def test_is_0_where_it_cannot_be_told(self, noise_of, rows):
    assert noise_of(np.asarray(rows, np.float32)) == 0

  def test_is_a_quarter_of_what_random_halves_are_apart(self, noise_of):
    rows = np.random.default_rng(0).random([6, 3])
    mean = rows.mean(axis=0)
    squares = []
    for half in itertools.combinations(range(6), 3):
      is_first = np.isin(range(6), half)
      apart = rows[is_first].mean(axis=0) - rows[~is_first].mean(axis=0)
      apart -= (apart @ mean) / (mean @ mean) * mean
      squares.append(apart @ apart)
    assert noise_of(rows.astype(np.float32)) == pytest.approx(
      np.mean(squares) / 4 / (mean @ mean), rel=1e-5
    )


class TestCorrect:
  def test_by_hand(self):
    # A cosine of 0.8 becomes 0.8 * 1.05 = 0.84.
    found = batch_noise.correct(tf.constant(0.2), 0.02, 0.08)
    assert found.numpy() == pytest.approx(0.16)
    assert batch_noise.correct(tf.constant(0.2), 0.0, 0.0).numpy() == (
      np.float32(0.2)
    )
    # No distance has no noise in it: the same batch again.
    assert batch_noise.correct(tf.constant(0.0), 0.3, 0.3).numpy() == 0

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "other, tolerance",
    [((0.1, 0.2, 0.3, 0.4), 0.003), ((0.4, 0.3, 0.2, 0.1), 0.01)],
    ids=["same", "other"],
  )
  def test_takes_the_noise_of_small_batches_out(self, other, tolerance):
    """4,000 pairs of batches of 30 classes, of one distribution and of two."""
    one, num_pairs, size = np.array([0.1, 0.2, 0.3, 0.4]), 4000, 30
    generator = np.random.default_rng(1)

    def draw(distribution):
      classes = generator.choice(4, [num_pairs, size], p=distribution)
      return tf.constant(np.eye(4)[classes], tf.float32)

    def distances(pair):
      means = [tf.reduce_mean(batch, axis=0) for batch in pair]
      noise = [batch_noise.noise_of_direction(batch) for batch in pair]
      found = dynamics.uncertainty_dynamics(*means)
      return found, batch_noise.correct(found, *noise)

    measured, corrected = tf.vectorized_map(
      distances, (draw(one), draw(np.array(other)))
    )
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    # As they are, batches are further apart than their distributions.
    assert np.mean(measured) - (1 - cosine) > 0.02
    assert abs(np.mean(corrected) - (1 - cosine)) < tolerance
