"""FedDyn: a dynamic regulariser aligns the optima of clients and server."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_dyn

pytestmark = pytest.mark.slow

ROUND = 3
ALPHA = 0.7
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
HPARAMS = fed_dyn.HParams(alpha=ALPHA, **COMMON)


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


def test_memory_is_the_mean_over_all_clients(start, make_client, compare):
  data = [make_client(i, [5 + i]) for i in range(4)]
  run = start(HPARAMS, data, participation=0.5)
  for _ in range(4):
    run.step()
    mean = trees.mean(*run.client_states)
    compare.assert_close(run.server_state.memory, mean, 1e-6)
    assert trees.largest(mean) > 0


def test_server_adds_the_mean_and_the_new_memory(weights, compare, functions):
  change, memory = (trees.normal(weights, seed) for seed in (1, 2))
  moved, after = functions.update_server(weights, change, (), 0, memory)
  # One of four clients took part.
  expected = trees.add(memory, change, 1 / 4)
  compare.assert_close(after, expected, 1e-6)
  expected = trees.add(trees.add(weights, change), expected)
  compare.assert_close(moved, expected, 1e-6)
