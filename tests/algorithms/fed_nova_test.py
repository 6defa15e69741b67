"""FedNova: the server averages updates per step."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_nova

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


@pytest.mark.parametrize(
  "num_steps, rho, mu",
  [
    (0, 0, 0),
    (1, 0, 0),
    (7, 0, 0),
    (2, 0.9, 0),
    (12, 0.9, 0),
    (5, 0, 2),
    (6, 0.5, 2),
  ],
)
def test_factors_are_those_of_the_recursion(run_in_graph, num_steps, rho, mu):
  hparams = fed_nova.HParams(
    learning_rate=0.1, momentum=float(rho), mu=float(mu)
  )
  found = run_in_graph(
    lambda count: fed_nova.sum_of_factors(hparams, count, tf.constant(0)),
    np.int32(num_steps),
  )
  factors = factors_of_recursion(num_steps, rho, 0.1 * mu)
  assert min(factors, default=1) > 0
  assert_allclose(found, sum(factors), rtol=1e-6)


def test_round_agrees_with_the_oracle(
  build, make_client, weights, oracle, compare
):
  # An epoch of 11 and of 5 examples: 4 steps (two domains) and 2 steps.
  clients = [make_client(0, [6, 5]), make_client(1, [5])]
  functions = build(fed_nova.HParams(local_epochs=1, momentum=0.5, **COMMON))
  updates, directions, counts = [], [], []
  for client, num_steps in zip(clients, (4, 2), strict=True):
    updates.append(functions.train_client(weights, (), client, ROUND).update)
    y, velocity = weights, trees.zeros(weights)
    batches = oracle.of_training(client, num_steps, ROUND)
    for loss in oracle.losses(batches):
      velocity = trees.add(oracle.gradient(loss, y), velocity, 0.5)
      y = trees.add(y, velocity, -0.3)
    counts.append(sum(factors_of_recursion(num_steps, 0.5, 0.0)))
    directions.append(trees.scale(trees.subtract(y, weights), 1 / counts[-1]))
    compare.assert_close(updates[-1].direction, directions[-1], 1e-5)
    assert_allclose(updates[-1].num_steps, counts[-1], rtol=1e-6)
  share = np.float32([0.25, 0.75])
  mean = trees.map(np.float32, trees.mean(*updates, weights=share))
  updated = functions.update_server(weights, mean, (), ROUND)
  direction = trees.mean(*directions, weights=share)
  expected = trees.add(weights, direction, np.dot(share, counts))
  compare.assert_close(updated, expected, 1e-5)
