"""Ditto: a personal model beside FedAvg's, pulled towards it."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import ditto

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.25
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}


# With 1 / RATE a step forgets where v was, but for its gradient.
@pytest.mark.parametrize("strength", [0.7, 1 / RATE])
def test_personal_steps_agree_with_the_oracle(
  build, client, weights, personal, oracle, compare, strength
):
  # The personal model has no weight decay.
  result = build(
    ditto.HParams(ditto_lambda=strength, weight_decay=0.1, **COMMON)
  ).train_client(weights, personal, client, ROUND)
  expected = trees.map(np.float64, personal)
  # Two iterations of a step for each of the two domains.
  for loss in oracle.losses(oracle.of_training(client, 4, ROUND)):
    pull = trees.subtract(expected, weights)
    slopes = trees.add(oracle.gradient(loss, expected), pull, strength)
    expected = trees.add(expected, slopes, -RATE)
  compare.assert_close(result.client_state, expected, 1e-5)
