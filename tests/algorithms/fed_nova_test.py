"""FedNova: the server averages updates per step."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_nova
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "learning_rate": 0.3}


def factors_of_recursion(num_steps, rho, pull):
  """a_j for each gradient: how far a gradient of 1 at step j alone moves."""
  factors = []
  for j in range(num_steps):
    velocity, way = 0.0, 0.0
    for step in range(num_steps):
      velocity = rho * velocity + (step == j) - pull * way
      way += velocity
    factors.append(way)
  return factors


class TestFactors:
  def of(self, run_in_graph, num_steps, **hparams):
    values = fed_nova.HParams(learning_rate=0.1, **hparams)
    return float(
      run_in_graph(
        lambda count: fed_nova.sum_of_factors(values, count, tf.constant(0)),
        np.int32(num_steps),
      )
    )

  def test_are_the_number_of_plain_steps(self, run_in_graph):
    assert [self.of(run_in_graph, n) for n in (0, 1, 7)] == [0.0, 1.0, 7.0]

  def test_of_momentum(self, run_in_graph):
    # The first gradient moves by 1, and by 0.9 in the second step.
    assert self.of(run_in_graph, 2, momentum=0.9) == pytest.approx(2.9, 1e-6)
    rho, tau = 0.9, 12
    expected = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    found = self.of(run_in_graph, tau, momentum=rho)
    assert found == pytest.approx(expected, 1e-5)

  def test_of_a_proximal_term(self, run_in_graph):
    expected = (1 - (1 - 0.1 * 2) ** 5) / (0.1 * 2)
    assert self.of(run_in_graph, 5, mu=2.0) == pytest.approx(expected, 1e-6)

  def test_of_both_are_those_of_the_recursion(self, run_in_graph):
    found = self.of(run_in_graph, 6, mu=2.0, momentum=0.5)
    factors = factors_of_recursion(6, 0.5, 0.2)
    assert min(factors) > 0
    assert found == pytest.approx(sum(factors), 1e-6)


def test_round_agrees_with_the_oracle(
  build, make_client, weights, oracle, compare
):
  # An epoch of 11 and of 5 examples: 4 steps (two domains) and 2 steps.
  clients = [make_client(0, [6, 5]), make_client(1, [5])]
  functions = build(fed_nova.HParams(local_epochs=1, momentum=0.5, **COMMON))
  updates, directions, counts = [], [], []
  for client, num_steps in zip(clients, (4, 2), strict=True):
    updates.append(functions.train_client(weights, (), client, ROUND).update)
    y, velocity = weights, tf.nest.map_structure(np.zeros_like, weights)
    batches = oracle.batches(client, num_steps, randomness.Purpose.TRAIN, ROUND)
    for loss in oracle.losses(batches):
      velocity = tf.nest.map_structure(
        lambda v, g: 0.5 * v + g, velocity, oracle.gradient(loss, y)
      )
      y = tf.nest.map_structure(lambda w, v: w - 0.3 * v, y, velocity)
    counts.append(sum(factors_of_recursion(num_steps, 0.5, 0.0)))
    directions.append(
      tf.nest.map_structure(
        lambda a, b, count=counts[-1]: (a - b) / count, y, weights
      )
    )
    compare.assert_close(updates[-1].direction, directions[-1], 1e-5)
    np.testing.assert_allclose(updates[-1].num_steps, counts[-1], rtol=1e-6)
  share = np.float32([0.25, 0.75])
  mean = tf.nest.map_structure(
    lambda one, other: share[0] * one + share[1] * other, *updates
  )
  updated = functions.update_server(weights, mean, (), ROUND)
  expected = tf.nest.map_structure(
    lambda w, one, other: w
    + np.dot(share, counts) * (share[0] * one + share[1] * other),
    weights,
    *directions,
  )
  compare.assert_close(updated, expected, 1e-5)


class TestRounds:
  def test_more_steps_pull_fed_avg_and_not_fed_nova(self, quadratics):
    """Clients at 0 and 1 take one step and four steps of equal curvature."""
    ends = {}
    for name in ("fed_avg", "fed_nova"):
      run = quadratics.start(
        name,
        coefficients=((1.0, 0.0), (1.0, 1.0)),
        repeats=(1, 4),
        local_epochs=1,
        learning_rate=0.1,
        num_rounds=100,
      )
      ends[name] = quadratics.u(run)
    # A step keeps 0.9 of the distance: 0.1 u = (1 - 0.9^4) (1 - u).
    assert ends["fed_avg"] == pytest.approx(0.3439 / 0.4439, 1e-5)
    # The same with means of steps; 0.5 for a small rate.
    assert ends["fed_nova"] == pytest.approx(0.085975 / 0.185975, 1e-5)
