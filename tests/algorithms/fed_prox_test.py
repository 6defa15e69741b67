"""FedProx: FedAvg with a proximal term."""

import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_prox

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def test_steps_agree_with_the_oracle(build, client, weights, oracle, compare):
  mu = 0.7
  result = build(fed_prox.HParams(mu=mu, **COMMON)).train_client(
    weights, (), client, ROUND
  )
  # Two iterations of a step for each of the two domains.
  batches = oracle.of_training(client, 4, ROUND)
  expected, mean_loss = oracle.descend(
    weights,
    [
      lambda w, loss=loss: loss(w) + mu / 2 * trees.squared_distance(w, weights)
      for loss in oracle.losses(batches)
    ],
    COMMON["learning_rate"],
  )
  oracle.check(result, weights, expected, mean_loss)
  assert result.client_state == ()
