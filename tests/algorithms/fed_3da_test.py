"""Fed-3DA: what a client does to the hypernetwork, and what it asks of it."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_3da
from tff_shift.data import client_dataset
from tff_shift.learning import periods
from tff_shift.learning import randomness

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


@pytest.fixture
def run(start, clients):
  return start(HPARAMS, clients)


def examples_of(client):
  """The examples of a period as data to predict."""
  return client_dataset.ClientDataset(*client[:-1])


def test_training_agrees_with_the_oracle(
  functions, clients, oracle, compare, initial
):
  round_num = 5
  client = clients[0]
  phi = functions.initial_weights(randomness.server_seed(0))
  in_use = initial(client.seed)
  result = functions.train_client(phi, in_use, client, round_num)
  # One epoch of 10 examples is three batches of 4.
  batches = oracle.of_training(client, 3, round_num)
  by_phi, _, mean_loss = oracle.train_work_network(
    phi, client.representation, batches, 0.3
  )
  # Towards the trained weights; alpha is 0.5.
  compare.assert_close(result.update, trees.scale(by_phi, 0.5), 1e-5)
  for part in (result.update.hidden, result.update.output):
    assert trees.largest(part) > 1e-4
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
  # What is used is what was received.
  compare.assert_close(
    result.client_state, oracle.work_network(phi, client.representation), 1e-6
  )


def test_request_gives_what_the_meta_network_gives(run, oracle, compare):
  run.step()
  r = np.array([0.5, -1.0, 2.0], np.float32)
  compare.assert_close(
    run.algorithm.request(run.server_state, r),
    oracle.work_network(run.server_state.weights, r),
    1e-6,
  )


class TestDrift:
  """Two distributions whose classes contradict each other."""

  def test_client_that_drifts_is_sent_the_other_model(self, start, make_client):
    representations = np.array([[1, 0, -1], [-1, 1, 0]], np.float32)
    x = make_client(0, [60]).x
    y = (x[:, 0] > 0).astype(np.int32)
    clients = [
      periods.PeriodData(
        *make_client(i, [60])._replace(x=x, y=classes), representation
      )
      for i, (classes, representation) in enumerate(
        zip((y, 1 - y), representations, strict=True)
      )
    ]
    hparams = fed_3da.HParams(
      representation_size=SIZE,
      local_steps=20,
      batch_size=20,
      learning_rate=0.1,
    )
    run = start(hparams, clients, 25)

    def accuracy(client, state):
      metrics = run.algorithm.evaluate_clients(
        run.server_state, [state], [client], [examples_of(client)]
      )
      return metrics["accuracy"][0]

    held = run.client_states[0]
    assert accuracy(clients[0], held) > 0.95
    assert accuracy(clients[1], held) < 0.05
    sent = run.algorithm.request(run.server_state, representations[1])
    assert accuracy(clients[1], sent) > 0.95
