"""FLUX: the elbow is the one that its program's package kneed finds."""

import kneed
import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import flux

DISTANCES = tf.TensorSpec([None, None], tf.float32)


def _distances(seed):
  """Those of clients around up to three centres."""
  generator = np.random.default_rng(seed)
  number = generator.integers(2, 40)
  centres = generator.integers(0, 3, size=(number, 1)) * generator.choice(
    [0, 3]
  )
  rows = generator.normal(size=(number, 3)) + centres
  return np.float32(np.linalg.norm(rows[:, np.newaxis] - rows, axis=2))


@pytest.mark.slow
def test_is_that_of_the_package_and_else_the_largest_gap():
  elbow, largest_gap = (
    tf.function(
      lambda distances, kind=kind: flux.elbow(distances, kind),
      input_signature=[DISTANCES],
    )
    for kind in ("kneed", "largest_gap")
  )
  num_without = num_different = 0
  for seed in range(400):
    distances = _distances(seed)
    np.fill_diagonal(distances, np.inf)
    delta = np.sort(distances.min(axis=1))
    with np.errstate(invalid="ignore"):  # Of two clients.
      index = kneed.KneeLocator(
        range(len(delta)),
        delta.astype(np.float64),
        curve="convex",
        direction="increasing",
      ).elbow
    largest = largest_gap(distances).numpy()
    expected = largest if index is None else delta[index]
    assert elbow(distances).numpy() == expected
    num_without += index is None
    num_different += expected != largest
  # All of the three cases occur.
  assert 0 < num_without < num_different < 300


@pytest.mark.parametrize("kind", ["kneed", "largest_gap"])
def test_of_few_or_equal_clients_is_finite(kind):
  assert flux.elbow(tf.zeros([1, 1]), kind) == 0
  assert flux.elbow(tf.constant([[0.0, 2.0], [2.0, 0.0]]), kind) == 2
  equal = tf.ones([4, 4]) - tf.eye(4)
  assert flux.elbow(equal, kind) == 1


def test_example_by_hand():
  # Points on a line, whose nearest neighbours are 0, 0, 0, 3.5, 3.5, 3.5 and
  # 6.5 away. The curve is below the line by 0, 1/6, 1/3, -0.04, 0.13, 0.29, 0.
  place = np.float32([0, 0, 0, 100, 103.5, 107, 113.5])
  distances = tf.constant(np.abs(place[:, np.newaxis] - place))
  assert flux.elbow(distances, "largest_gap") == 0
  # From the end, 0.29 is the first top, and -0.04 more than 1/6 below it.
  assert flux.elbow(distances, "kneed") == 3.5
