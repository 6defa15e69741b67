"""pFedHN: the hypernetwork is shared, an embedding of its own is not."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import p_fed_hn
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

HPARAMS = p_fed_hn.HParams(
  hidden_width=4,
  num_hidden=2,
  embedding_size=7,
  meta_learning_rate=0.5,
  embedding_learning_rate=2.0,
  local_steps=2,
  batch_size=4,
  learning_rate=0.3,
)


@pytest.fixture(scope="module")
def clients(make_client):
  return [make_client(i, [10 + i]) for i in range(3)]


def test_training_agrees_with_the_oracle(functions, clients, oracle, compare):
  round_num = 5
  client = clients[0]
  phi = functions.initial_weights(randomness.server_seed(0))
  embedding = functions.initial_client_state(client.seed, ())
  result = functions.train_client(phi, embedding, client, round_num)
  batches = oracle.of_training(client, 2, round_num)
  by_phi, by_embedding, mean_loss = oracle.train_work_network(
    phi, embedding, batches, 0.3
  )
  compare.assert_close(result.update, trees.scale(by_phi, 0.5), 1e-5)
  moved = 2.0 * by_embedding
  assert np.abs(moved).max() > 1e-4
  assert_allclose(result.client_state - embedding, moved, rtol=0, atol=2e-6)
  assert_allclose(result.loss, mean_loss, rtol=1e-5)


class TestEmbeddings:
  def test_are_drawn_from_a_standard_normal_distribution(
    self, functions, compile_in_graph
  ):
    draw = compile_in_graph(
      functions.initial_client_state, tf.TensorSpec([2], tf.int32), ()
    )
    numbers = np.concatenate(
      [draw(randomness.client_seed(0, client)) for client in range(100)]
    )
    assert len(set(numbers.tolist())) == 700
    # Five standard errors of the mean and of the variance.
    assert abs(numbers.mean()) < 5 / np.sqrt(700)
    assert abs(numbers.var() - 1) < 5 * np.sqrt(2 / 700)

  def test_client_predicts_with_the_model_of_its_embedding(
    self, functions, clients, oracle
  ):
    phi = functions.initial_weights(randomness.server_seed(1))
    client, other = clients[:2]
    embedding = functions.initial_client_state(client.seed, ())
    logits = functions.predict_as_client(phi, embedding, client, other)
    expected = oracle.predict(oracle.work_network(phi, embedding), other.x)
    assert_allclose(logits, expected, atol=1e-5)
