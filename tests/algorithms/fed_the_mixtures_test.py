"""FedTHE: the mixture of two heads of each example."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms import fed_the

pytestmark = pytest.mark.slow

NUM_CLASSES = 4


def draw(seed, num_examples):
  generator = np.random.default_rng(seed)
  return fed_the.MixtureInputs(
    *generator.normal(size=(2, num_examples, NUM_CLASSES)).astype(np.float32),
    generator.uniform(0, 3, (num_examples, 2)).astype(np.float32),
  )


@pytest.fixture(scope="module")
def find(compile_in_graph):
  """Returns `find(inputs)` for 20 steps at a rate of 0.2."""
  specs = fed_the.MixtureInputs(
    *[tf.TensorSpec([None, n], tf.float32) for n in (NUM_CLASSES,) * 2 + (2,)]
  )
  return compile_in_graph(
    lambda inputs: fed_the.find_mixtures(inputs, 20, 0.2), specs
  )


def loss_by_hand(numbers, g, l, distances):  # noqa: E741
  u = scipy.special.softmax(numbers)
  p, q = scipy.special.softmax(g), scipy.special.softmax(l)
  s = p @ q / np.linalg.norm(p) / np.linalg.norm(q)
  entropy = scipy.stats.entropy(scipy.special.softmax(u[0] * g + u[1] * l))
  return s * entropy + (1 - s) * (u @ distances)


def find_by_hand(g, l, distances, num_steps=20, rate=0.2):  # noqa: E741
  """Adam on central differences, in float64."""
  g, l, distances = map(np.float64, (g, l, distances))  # noqa: E741
  numbers, mean, square = np.zeros((3, 2))
  for step in range(1, num_steps + 1):
    slopes = np.array(
      [
        loss_by_hand(numbers + each, g, l, distances)
        - loss_by_hand(numbers - each, g, l, distances)
        for each in 1e-6 * np.eye(2)
      ]
    ) / (2 * 1e-6)
    if np.linalg.norm(slopes) < 1e-5:
      break
    mean = 0.9 * mean + 0.1 * slopes
    square = 0.999 * square + 0.001 * slopes**2
    at = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    numbers = numbers - at * mean / (np.sqrt(square) + 1e-7)
  return scipy.special.softmax(numbers)


def test_find_agrees_with_adam_by_hand(find):
  inputs = draw(0, 6)
  found = find(inputs)
  expected = [find_by_hand(*each) for each in zip(*inputs, strict=True)]
  assert_allclose(found, expected, atol=1e-4)
  assert np.ptp(found[:, 0]) > 0.5


def test_find_example_does_not_depend_on_the_others(find):
  # More than are found side by side.
  inputs = draw(1, 300)
  found = find(inputs)
  assert found.shape == (300, 2)
  for place in (0, 255, 256, 299):
    alone = find(
      fed_the.MixtureInputs(*(each[place : place + 1] for each in inputs))
    )
    assert_allclose(found[place : place + 1], alone, atol=1e-6)
  assert find(draw(0, 0)).shape == (0, 2)


def test_find_search_ends_where_the_slope_is_small(find):
  # A step of Adam is as long as the rate, however small the slope is.
  sure = np.float32([[30, 0, 0, 0]])
  inputs = fed_the.MixtureInputs(
    sure, sure[:, [1, 0, 2, 3]], np.float32([[1, 1 + 1e-5]])
  )
  assert_allclose(find(inputs), [[0.5, 0.5]], atol=1e-6)
  steeper = inputs._replace(distances=np.float32([[1, 1 + 1e-3]]))
  assert find(steeper)[0, 0] > 0.9


def test_smooth_history_by_hand(run_in_graph):
  # h is 4, 2, 5 in the first domain, and anew 8 in the second.
  found = run_in_graph(
    lambda z, sizes: fed_the.smooth_features(z, 0.5, 0.25, sizes, None),
    np.float32([[4], [0], [8], [8]]),
    np.int32([3, 1]),
  )
  np.testing.assert_array_equal(
    found, [[4], [0.75 * 2], [0.25 * 8 + 0.75 * 5], [8]]
  )
