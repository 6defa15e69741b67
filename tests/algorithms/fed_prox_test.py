"""FedProx: FedAvg with a proximal term."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_prox
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def squared_distance(one, other):
  return sum(
    np.sum((a - b) ** 2)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  )


def test_steps_agree_with_the_oracle(build, client, weights, oracle, compare):
  mu = 0.7
  result = build(fed_prox.HParams(mu=mu, **COMMON)).train_client(
    weights, (), client, ROUND
  )
  # Two iterations of a step for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  expected, mean_loss = oracle.descend(
    weights,
    [
      lambda w, loss=loss: loss(w) + mu / 2 * squared_distance(w, weights)
      for loss in oracle.losses(batches)
    ],
    COMMON["learning_rate"],
  )
  compare.assert_close(
    result.update, tf.nest.map_structure(np.subtract, expected, weights), 1e-5
  )
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
  assert result.client_state == ()
