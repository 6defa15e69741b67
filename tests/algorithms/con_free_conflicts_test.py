"""ConFREE: coefficients of the server against the updates themselves."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_shift.algorithms import con_free

SHARES = np.array([0.1, 0.4, 0.3, 0.2])
ORDERS = np.int32([[3, 0, 1, 2], [0, 1, 2, 3], [1, 3, 2, 0], [2, 1, 3, 0]])


def draw(num_layers=6, num_clients=4, size=7):
  """Updates, [layer, client, size], some of them in conflict."""
  generator = np.random.default_rng(0)
  updates = generator.normal(size=(num_layers, num_clients, size))
  updates *= 10 ** generator.uniform(-2, 1, size=(num_layers, num_clients, 1))
  # In the last layer all point the same way.
  updates[-1] = np.abs(updates[-1])
  return updates


def products_of(updates):
  return np.einsum("lid,ljd->lij", updates, updates)


def project(updates, orders):
  """PCGrad on the updates of a layer."""
  projected = updates.copy()
  for i, order in enumerate(orders):
    for j in order:
      if i != j:
        along = min(projected[i] @ updates[j], 0)
        projected[i] -= along / (updates[j] @ updates[j]) * updates[j]
  return projected


@pytest.fixture(scope="module")
def projected(run_in_graph):
  """Returns `projected(updates, shares, orders)`, the coefficients."""

  def run(updates, shares=SHARES, orders=ORDERS):
    return run_in_graph(
      con_free.projected_mean, products_of(updates), shares, orders
    )

  return run


class TestProjection:
  def test_is_that_of_the_vectors(self, projected):
    updates = draw()
    found = projected(updates)
    for layer, coefficients in zip(updates, found, strict=True):
      np.testing.assert_allclose(
        coefficients @ layer, SHARES @ project(layer, ORDERS), rtol=1e-10
      )

  def test_two_in_conflict_by_hand(self, projected):
    # u_1 = (1, 0), u_2 = (-2, 2): u_1' = (1/2, 1/2), u_2' = (0, 2).
    updates = np.array([[[1.0, 0], [-2, 2]]])
    found = projected(updates, np.array([0.5, 0.5]), np.int32([[0, 1], [1, 0]]))
    np.testing.assert_allclose(found[0] @ updates[0], [1 / 4, 5 / 4])

  def test_who_has_sent_nothing_does_not_count(self, projected):
    updates, shares = draw(), np.array([0.2, 0, 0.5, 0.3])
    updates[:, 1] = 0
    found = projected(updates, shares)
    assert not found[:, 1].any()
    others = [0, 2, 3]
    orders = [
      [others.index(j) for j in ORDERS[i] if j in others] for i in others
    ]
    alone = projected(updates[:, others], shares[others], np.int32(orders))
    np.testing.assert_allclose(found[:, others], alone, rtol=1e-12)

  def test_pairwise_one_takes_the_updates_as_they_were(self, run_in_graph):
    updates = draw()
    found = run_in_graph(
      con_free.pairwise_projected_mean, products_of(updates), SHARES
    )
    for layer, coefficients in zip(updates, found, strict=True):
      adjusted = layer.copy()
      for i in range(4):
        for j in range(i + 1, 4):
          dot = layer[i] @ layer[j]
          if dot < 0:
            adjusted[i] -= dot / (layer[j] @ layer[j]) * layer[j]
            adjusted[j] -= dot / (layer[i] @ layer[i]) * layer[i]
      np.testing.assert_allclose(
        coefficients @ layer, SHARES @ adjusted, rtol=1e-10
      )


@pytest.mark.slow
class TestAversion:
  @pytest.fixture(scope="class")
  def avert(self, compile_in_graph):
    """Returns `avert(updates, guide, alpha, allowed)`."""
    compiled = compile_in_graph(
      con_free.avert_conflicts,
      tf.TensorSpec([None, None, None], tf.float64),
      tf.TensorSpec([None, None], tf.float64),
      tf.TensorSpec([None], tf.bool),
      tf.TensorSpec([], tf.float64),
    )

    def run(updates, guide, alpha, allowed=None):
      if allowed is None:
        allowed = np.ones(guide.shape[1], bool)
      return compiled(products_of(updates), guide, allowed, alpha)

    return run

  @pytest.mark.parametrize(
    ("alpha", "num_clients"), [(0.5, 1), (2.0, 2), (0.1, 5), (2.0, 5)]
  )
  def test_agrees_with_scipy(self, avert, alpha, num_clients):
    updates = draw(12, num_clients, 7 if num_clients > 2 else 2)
    # Equal updates, and two that cancel each other.
    updates[-1] = updates[-1, :1]
    guide = np.full((12, num_clients), 1 / num_clients)
    found = avert(updates, guide, alpha)
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

  def test_single_update_grows_by_hand(self, avert):
    # g_0 = u, w = 1: g = (1 + alpha) / (1 + alpha^2) u.
    found = avert(np.array([[[3.0, 4.0]]]), np.ones((1, 1)), 0.5)
    np.testing.assert_allclose(found, 1.5 / 1.25, rtol=1e-9)

  def test_two_at_a_right_angle_by_hand(self, avert):
    # By symmetry w = 1/2: g goes along the mean.
    found = avert(np.eye(2)[np.newaxis], np.full((1, 2), 0.5), 1.0)
    np.testing.assert_allclose(found, [[0.5, 0.5]], rtol=1e-6)
    # The guide is the first: towards the second, (1, 0) + (0, 1), over 2.
    found = avert(np.eye(2)[np.newaxis], np.array([[1.0, 0.0]]), 1.0)
    np.testing.assert_allclose(found, [[0.5, 0.5]], atol=1e-5)

  def test_updates_that_cancel_and_zeros_stay_numbers(self, avert):
    updates = np.array([[[1.0, 0], [-1, 0]], [[0, 0], [0, 0]]])
    found = avert(updates, np.full((2, 2), 0.5), 0.5)
    np.testing.assert_allclose(found, 0.4)

  def test_who_has_sent_nothing_does_not_count(self, avert):
    updates, guide = draw(), np.tile([0.4, 0, 0.4, 0.2], [6, 1])
    updates[:, 1] = 0
    there = np.array([True, False, True, True])
    found = avert(updates, guide, 0.5, there)
    assert not found[:, 1].any()
    alone = avert(updates[:, there], guide[:, there], 0.5)
    np.testing.assert_allclose(found[:, there], alone, atol=1e-5)
