"""FedPAC: the combination of heads against NumPy and SciPy, and by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_pac


def matrix(h, v, client):
  """diag(v) + D of a client, from its definition."""
  away = h[client] - h
  return np.diag(v) + np.einsum("jkd,lkd->jl", away, away)


@pytest.fixture(scope="module")
def combine(run_in_graph):
  """Returns `combine(h, v, present=None)`, the vectors a."""

  def run(h, v, present=None):
    present = np.ones(len(v)) if present is None else present
    return run_in_graph(
      fed_pac.combinations,
      *(np.asarray(each, np.float32) for each in (h, v, present)),
    )

  return run


def draw(spread, num_clients=6):
  """h and v of clients in two groups that are `spread` apart."""
  generator = np.random.default_rng(0)
  h = generator.normal(size=(num_clients, 3, 4))
  h[::2] += spread
  v = generator.uniform(1, 9, size=num_clients)
  return np.float32(h), np.float32(v)


@pytest.fixture
def statistics(run_in_graph):
  """Returns `statistics(features)` of examples of class 1 of two."""
  return lambda features: run_in_graph(
    lambda f: fed_pac.feature_statistics(
      f, np.ones(len(features), np.int32), 2
    ),
    np.float32(features),
  )


def test_variance_far_from_zero(statistics):
  rng = np.random.default_rng(0)
  features = 1e4 + rng.integers(-8, 8, (50, 3)) / 8
  expected = features.var(axis=0).sum() / 50
  assert_allclose(statistics(features).v, expected, rtol=1e-3)


def test_variance_of_one_example_is_zero(statistics):
  found = statistics(np.full((1, 3), 0.1))
  assert_allclose(found.v, 0, atol=1e-8)
  assert found.v >= 0


def test_client_without_examples_has_zeros(statistics):
  assert not trees.largest(statistics(np.zeros((0, 3))))


@pytest.mark.slow
class TestCombinations:
  @pytest.mark.parametrize("spread", [0, 1, 10])
  def test_agree_with_scipy(self, combine, solve_with_scipy, spread):
    h, v = draw(spread)
    found = combine(h, v)
    assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    for client, row in enumerate(found):
      p = matrix(h, v, client)
      expected = solve_with_scipy(2 * p, np.zeros(len(p))).x
      assert_allclose(row, expected, atol=1e-5)
    # Who is far away does not count.
    assert np.any(found[0, 1::2] > 0.01) == (spread < 10)

  def test_small_ones_are_dropped_and_the_rest_sums_to_one(self, combine):
    # Of equal clients a_j goes with 1 / v_j: here 1 : 0.0005, and 1 : 0.5.
    (found, *_) = combine(np.zeros((3, 1, 1)), [1, 2000, 2])
    assert_allclose(found, [2 / 3, 0, 1 / 3], rtol=1e-4)

  def test_equal_clients_count_alike(self, combine):
    h, v = np.ones((4, 2, 3)), np.full(4, 0.7)
    assert_allclose(combine(h, v), 1 / 4, rtol=1e-6)
    # Without variance too, where any weights would do.
    assert_allclose(combine(h, 0 * v), 1 / 4, rtol=1e-6)

  def test_certain_clients_keep_their_own_head_to_the_bit(self, combine):
    h, _ = draw(0)
    assert_array_equal(combine(h, np.zeros(6)), np.eye(6))
    assert_array_equal(combine(h[:1], [0.3]), [[1]])
