"""Expectation maximisation by hand, and beside NumPy."""

import numpy as np
import pytest
import scipy.special
from numpy.testing import assert_allclose

from tff_shift.shift import expectation_maximization

UNIFORM = np.float32([0.5, 0.5])


@pytest.fixture(scope="module")
def estimate(run_in_graph):
  def estimate(probabilities, num_passes, prior=UNIFORM):
    return run_in_graph(
      expectation_maximization.estimate,
      np.log(np.float32(probabilities)),
      np.float32(prior),
      np.int32(num_passes),
    )

  return estimate


@pytest.mark.parametrize(
  "num_passes, expected",
  list(
    zip(
      (0, 1, 2, 3, 4, 200),
      (0.5, 0.6, 0.655836, 0.686121, 0.702679, 0.723649),
      strict=True,
    )
  ),
)
def test_passes_by_hand(estimate, num_passes, expected):
  found = estimate([(0.9, 0.1), (0.8, 0.2), (0.1, 0.9), (0.6, 0.4)], num_passes)
  assert_allclose(found, [expected, 1 - expected], atol=1e-6)


def test_one_sided_batch_ends_at_a_vertex(estimate):
  batch = [(0.7, 0.3), (0.6, 0.4), (0.8, 0.2), (0.4, 0.6)]
  assert_allclose(estimate(batch, 5000), [1, 0], atol=1e-3)
  # Two passes are far from it: q_1 = 0.625, and 0.4375 / 0.55 and so on.
  assert_allclose(estimate(batch, 2)[0], 0.72640558, atol=1e-6)


def test_another_prior_beside_numpy(estimate):
  generator = np.random.default_rng(3)
  probabilities = scipy.special.softmax(generator.normal(size=(7, 4)), axis=1)
  prior = np.array([0.4, 0.3, 0.2, 0.1])
  expected = prior
  for _ in range(6):
    corrected = probabilities * expected / prior
    corrected /= corrected.sum(axis=1, keepdims=True)
    expected = corrected.mean(axis=0)
  assert_allclose(estimate(probabilities, 6, prior), expected, atol=1e-6)


def test_class_that_is_impossible_stays_so_and_numbers_finite(estimate):
  found = estimate([(0.9, 0.1), (0.8, 0.2)], 3, (1.0, 1e-30))
  assert_allclose(found.sum(), 1, atol=1e-6)


def test_empty_batch_has_the_prior(estimate):
  found = estimate(np.zeros([0, 2]), 3, (0.3, 0.7))
  np.testing.assert_array_equal(found, np.float32([0.3, 0.7]))
