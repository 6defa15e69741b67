"""FedSR: the divergence of Gaussians, by hand."""

import numpy as np

from tff_shift.algorithms import fed_sr


def row(*values):
  return np.array([values], np.float32)


class TestDivergence:
  def test_is_that_of_two_normals(self, run_in_graph):
    # KL(N(1, 1) || N(0, 4)) = log 2 + (1 + 1) / 8 - 1 / 2, twice.
    found = run_in_graph(
      fed_sr.divergence, row(1, 1), row(1, 1), row(0, 0), row(2, 2)
    )
    np.testing.assert_allclose(found, [2 * (np.log(2) - 0.25)], rtol=1e-6)

  def test_from_itself_is_zero(self, run_in_graph):
    found = run_in_graph(
      fed_sr.divergence, row(3, -1), row(2, 5), row(3, -1), row(2, 5)
    )
    np.testing.assert_allclose(found, [0], atol=1e-6)

  def test_without_deviation_is_a_number(self, run_in_graph):
    found = run_in_graph(fed_sr.divergence, *[row(0.0)] * 4)
    assert np.isfinite(found).all()
