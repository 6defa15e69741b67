"""ConFREE: coefficients of the server against the updates themselves."""

import numpy as np
import pytest
import scipy.optimize

from tff_shift.algorithms import con_free


def draw(num_layers, num_clients, size):
  """Updates, [layer, client, size], some of them in conflict."""
  generator = np.random.default_rng(0)
  updates = generator.normal(size=(num_layers, num_clients, size))
  updates *= 10 ** generator.uniform(-2, 1, size=(num_layers, num_clients, 1))
  # In the last layer all point the same way.
  updates[-1] = np.abs(updates[-1])
  return updates


@pytest.mark.slow
class TestAversion:
  @pytest.fixture(scope="class")
  def avert(self, run_in_graph):
    """Returns `avert(updates, alpha)`; the guide is the mean."""

    def run(updates, alpha):
      shape = updates.shape[:2]
      return run_in_graph(
        con_free.avert_conflicts,
        np.einsum("lid,ljd->lij", updates, updates),
        np.full(shape, 1 / shape[1]),
        np.ones(shape[1], bool),
        alpha,
      )

    return run

  @pytest.mark.parametrize(
    "alpha, num_clients", [(0.5, 1), (2.0, 2), (0.1, 5), (2.0, 5)]
  )
  def test_agrees_with_scipy(self, avert, alpha, num_clients):
    updates = draw(12, num_clients, 7 if num_clients > 2 else 2)
    # Equal updates, and two that cancel each other.
    updates[-1] = updates[-1, :1]
    found = avert(updates, alpha)
    for layer, coefficients in zip(updates, found, strict=True):
      g_0 = layer.mean(axis=0)
      c = alpha * np.linalg.norm(g_0)

      def value(w, layer=layer, g_0=g_0, c=c):
        return w @ layer @ g_0 + c * np.linalg.norm(w @ layer)

      best = min(
        (
          scipy.optimize.minimize(
            value,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * num_clients,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"maxiter": 1000, "ftol": 1e-15},
          )
          for start in [
            np.full(num_clients, 1 / num_clients),
            *np.eye(num_clients),
          ]
        ),
        key=lambda each: each.fun,
      )
      # It is the largest value of the least <u_i, d> within c of g_0.
      d = (1 + alpha**2) * coefficients @ layer
      scale = c * np.abs(layer).max()
      assert np.linalg.norm(d - g_0) <= c * (1 + 1e-9)
      assert np.min(layer @ d) >= best.fun - 1e-5 * scale

  def test_updates_that_cancel_and_zeros_stay_numbers(self, avert):
    updates = np.array([[[1.0, 0], [-1, 0]], [[0, 0], [0, 0]]])
    found = avert(updates, 0.5)
    np.testing.assert_allclose(found, 0.4)
