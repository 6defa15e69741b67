"""Fed-3DA: what a client does to the hypernetwork, and what it asks of it."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_3da

pytestmark = pytest.mark.slow

SIZE = 3
HPARAMS = fed_3da.HParams(
  hidden_width=4,
  num_hidden=2,
  representation_size=SIZE,
  meta_learning_rate=0.5,
  local_epochs=1,
  batch_size=4,
  learning_rate=0.3,
)


@pytest.fixture(scope="module")
def clients(make_period_client):
  return [make_period_client(i, 10 + i, SIZE) for i in range(3)]


def test_training_agrees_with_the_oracle(
  functions, shared, clients, oracle, compare, initial
):
  round_num = 5
  client = clients[0]
  in_use = initial(client.seed)
  result = functions.train_client(shared, in_use, client, round_num)
  # One epoch of 10 examples is three batches of 4.
  batches = oracle.of_training(client, 3, round_num)
  by_phi, _, mean_loss = oracle.train_work_network(
    shared, client.representation, batches, 0.3
  )
  # Towards the trained weights; alpha is 0.5.
  compare.assert_close(result.update, trees.scale(by_phi, 0.5), 1e-5)
  for part in (result.update.hidden, result.update.output):
    assert trees.largest(part) > 1e-4
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
  # What is used is what was received.
  compare.assert_close(
    result.client_state,
    oracle.work_network(shared, client.representation),
    1e-6,
  )


def test_request_gives_what_the_meta_network_gives(
  start, clients, oracle, compare
):
  run = start(HPARAMS, clients, 1)
  r = np.array([0.5, -1.0, 2.0], np.float32)
  compare.assert_close(
    run.algorithm.request(run.server_state, r),
    oracle.work_network(run.server_state.weights, r),
    1e-6,
  )
