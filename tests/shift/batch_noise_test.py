"""The noise of batches, by hand, over all splits, and over many batches."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.shift import batch_noise


@pytest.fixture(scope="module")
def noise_of(compile_in_graph):
  """Returns `noise_of_direction` of rows of any size, in a graph."""
  return compile_in_graph(
    batch_noise.noise_of_direction, tf.TensorSpec([None, None], tf.float32)
  )


def test_noise_of_direction_by_hand(noise_of):
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
def test_noise_of_direction_is_0_where_it_cannot_be_told(noise_of, rows):
  assert noise_of(np.asarray(rows, np.float32)) == 0


def test_noise_of_direction_is_a_quarter_of_what_random_halves_are_apart(
  noise_of,
):
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


def test_correct_by_hand():
  # A cosine of 0.8 becomes 0.8 * 1.05 = 0.84.
  found = batch_noise.correct(tf.constant(0.2), 0.02, 0.08)
  assert found.numpy() == pytest.approx(0.16)
  assert batch_noise.correct(tf.constant(0.2), 0.0, 0.0).numpy() == (
    np.float32(0.2)
  )
  # No distance has no noise in it: the same batch again.
  assert batch_noise.correct(tf.constant(0.0), 0.3, 0.3).numpy() == 0
