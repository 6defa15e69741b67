"""Tests of programs over the simplex: against SciPy, and by hand."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms.parts import simplex_programs


def programs(size, count):
  """Random ones: well and badly scaled, of low rank, with equal rows, zero."""
  generator = np.random.default_rng(size)
  matrices, slopes = [], []
  for number in range(count):
    rank = generator.integers(1, 2 * size + 1)
    rows = generator.normal(size=(size, rank))
    rows *= 10 ** generator.uniform(-2, 1, size=(size, 1))
    if number % 4 == 0:
      rows[size // 2 :] = rows[0]
    variance = 10 ** generator.uniform(-8, 0, size=size)
    if number % 3 == 0:
      variance[:] = 0
    matrices.append(rows @ rows.T + np.diag(variance))
    # FedPAC's programs have none.
    slopes.append(generator.normal(size=size) * (number % 2))
  matrices[-1][:] = 0
  return np.array(matrices), np.array(slopes)


@pytest.fixture(scope="module")
def solve(compile_in_graph):
  """Returns `solve(matrices, slopes, allowed=None)`."""
  compiled = compile_in_graph(
    simplex_programs.minimize_quadratic,
    tf.TensorSpec([None, None, None], tf.float64),
    tf.TensorSpec([None, None], tf.float64),
    tf.TensorSpec([None, None], tf.bool),
  )

  def run(matrices, slopes, allowed=None):
    if allowed is None:
      allowed = np.ones(np.shape(slopes), bool)
    return compiled(*map(np.array, (matrices, slopes, allowed)))

  return run


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_no_value_is_above_that_of_scipy(solve, solve_with_scipy, size):
  matrices, slopes = programs(size, 24)
  found = solve(matrices, slopes)
  assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
  assert found.min() >= 0
  for matrix, slope, a in zip(matrices, slopes, found, strict=True):
    scale = max(np.abs(matrix).max(), np.abs(slope).max())
    value = a @ matrix @ a / 2 + slope @ a
    assert value <= solve_with_scipy(matrix, slope).fun + 1e-10 * scale


@pytest.mark.slow
def test_many_entries_are_found(solve):
  # As many as clients of a federation: sum of v_j a_j^2 is least at a_j in
  # proportion to 1 / v_j.
  variances = np.arange(1.0, 55)
  (found,) = solve([np.diag(variances)], [np.zeros(54)])
  inverse = 1 / variances
  assert_allclose(found, inverse / inverse.sum(), rtol=1e-8)


def test_scale_does_not_count(solve):
  matrices, slopes = programs(5, 6)
  found = solve(matrices, slopes)
  for factor in (1e-12, 1e12):
    again = solve(factor * matrices, factor * slopes)
    assert_allclose(again, found, atol=1e-7)


def test_what_does_not_differ_gets_equal_shares(solve):
  zeros, ones = np.zeros((3, 3)), np.ones((3, 3))
  found = solve([zeros, ones], np.ones((2, 3)))
  assert_allclose(found, 1 / 3, rtol=1e-8)


def test_entries_that_are_not_allowed_do_not_count(solve):
  matrices, slopes = programs(5, 8)
  allowed = np.array([True, False, True, True, False])
  # Nor does what stands there.
  changed = matrices.copy()
  changed[:, 1] = changed[:, :, 1] = np.pi
  found, again = (
    solve(each, slopes, [allowed] * 8) for each in (matrices, changed)
  )
  np.testing.assert_array_equal(found, again)
  assert not found[:, ~allowed].any()
  alone = solve(matrices[:, allowed][:, :, allowed], slopes[:, allowed])
  assert_allclose(found[:, allowed], alone, atol=1e-9)
