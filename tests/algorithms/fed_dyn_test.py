"""FedDyn: a dynamic regulariser aligns the optima of clients and server."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_dyn

pytestmark = pytest.mark.slow

ROUND = 3
ALPHA = 0.7
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
HPARAMS = fed_dyn.HParams(alpha=ALPHA, **COMMON)
# Enough steps that clients reach their minimum.
EXACT = {"alpha": 0.5, "learning_rate": 0.1, "local_steps": 200}


def test_steps_agree_with_the_oracle(
  client, weights, oracle, compare, functions
):
  summed = trees.normal(weights)
  result = functions.train_client(weights, summed, client, ROUND)
  # g_k of the paper.
  linear = trees.scale(trees.map(np.float64, summed), -ALPHA)

  def objective(loss):
    return lambda u: (
      loss(u)
      - trees.inner(linear, u)
      + ALPHA / 2 * trees.squared_distance(u, weights)
    )

  # Two iterations of a step for each of the two domains.
  batches = oracle.of_training(client, 4, ROUND)
  trained, _ = oracle.descend(
    weights,
    [objective(loss) for loss in oracle.losses(batches)],
    COMMON["learning_rate"],
  )
  update = trees.subtract(trained, weights)
  compare.assert_close(result.update, update, 1e-5)
  # g_k - alpha (u - w)
  compare.assert_close(
    trees.scale(result.client_state, -ALPHA),
    trees.add(linear, update, -ALPHA),
    1e-5,
  )


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_memory_is_the_mean_over_all_clients(
  start, make_client, participation, compare
):
  data = [make_client(i, [5 + i]) for i in range(4)]
  run = start(HPARAMS, data, participation=participation)
  for _ in range(4):
    run.step()
    mean = trees.mean(*run.client_states)
    compare.assert_close(run.server_state.memory, mean, 1e-6)
    assert any(np.any(each) for each in trees.leaves(mean))


class TestQuadratics:
  """Two clients whose mean loss is smallest at 0.8."""

  def test_first_round_computed_by_hand(self, quadratics):
    run = quadratics.start("fed_dyn", **EXACT, num_rounds=1)
    # The second client minimises 4 (u - 1)^2 / 2 + u^2 / 4: u = 8/9.
    assert_allclose(quadratics.u(run), 8 / 9, rtol=1e-5)
    assert_allclose(run.server_state.memory.head[0], 4 / 9, rtol=1e-5)
