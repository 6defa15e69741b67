"""pFedMe: personal models within a Moreau envelope."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import p_fed_me

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def test_steps_agree_with_the_oracle(build, client, weights, oracle, compare):
  strength, rate, beta = 2.0, 0.1, 1.5
  # The state is no part of training.
  state = trees.zeros(weights)
  result = build(
    p_fed_me.HParams(
      moreau_lambda=strength,
      personal_steps=3,
      outer_rate=rate,
      server_beta=beta,
      **COMMON,
    )
  ).train_client(weights, state, client, ROUND)
  personal = copy = trees.map(np.float64, weights)
  values = []
  # Two local steps for each of the two domains.
  batches = oracle.of_training(client, 4, ROUND)
  for loss in oracle.losses(batches):

    def objective(w, loss=loss, center=copy):
      return loss(w) + strength / 2 * trees.squared_distance(w, center)

    personal, mean = oracle.descend(
      personal, [objective] * 3, COMMON["learning_rate"]
    )
    values.append(mean)
    copy = trees.add(copy, trees.subtract(personal, copy), rate * strength)
  compare.assert_close(result.client_state, personal, 1e-5)
  sent = trees.add(weights, trees.subtract(copy, weights), beta)
  oracle.check(result, weights, sent, np.mean(values))


@pytest.mark.parametrize(
  "limit", [{"server_beta": 0.0}, {"moreau_lambda": 0.0}]
)
def test_server_model_never_changes_bit_for_bit(
  start, make_client, compare, limit
):
  run = start(
    p_fed_me.HParams(**(COMMON | limit)),
    [make_client(i, [5 + i]) for i in range(2)],
  )
  before, first = run.server_state.weights, run.client_states[0]
  run.step()
  assert compare.equal_bits(run.server_state.weights, before)
  assert not compare.equal_bits(run.client_states[0], first)
