"""pFedHN: the hypernetwork is shared, an embedding of its own is not."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import p_fed_hn
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

SIZES = [10]
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
def embedding(functions, client):
  return functions.initial_client_state(client.seed, ())


def test_training_agrees_with_the_oracle(
  functions, shared, embedding, client, oracle, compare
):
  result = functions.train_client(shared, embedding, client, 5)
  by_phi, by_embedding, mean_loss = oracle.train_work_network(
    shared, embedding, oracle.of_training(client, 2, 5), 0.3
  )
  compare.assert_close(result.update, trees.scale(by_phi, 0.5), 1e-5)
  moved = 2.0 * by_embedding
  assert np.abs(moved).max() > 1e-4
  assert_allclose(result.client_state - embedding, moved, rtol=0, atol=2e-6)
  assert_allclose(result.loss, mean_loss, rtol=1e-5)


def test_embeddings_are_drawn_from_a_standard_normal_distribution(functions):
  numbers = np.concatenate(
    [
      functions.initial_client_state(randomness.client_seed(0, client), ())
      for client in range(100)
    ]
  )
  assert len(set(numbers.tolist())) == 700
  # Five standard errors of the mean and of the variance.
  assert abs(numbers.mean()) < 5 / np.sqrt(700)
  assert abs(numbers.var() - 1) < 5 * np.sqrt(2 / 700)


def test_client_predicts_with_the_model_of_its_embedding(
  functions, shared, embedding, client, make_client, oracle
):
  other = make_client(1, [11])
  logits = functions.predict_as_client(shared, embedding, client, other)
  expected = oracle.predict(oracle.work_network(shared, embedding), other.x)
  assert_allclose(logits, expected, atol=1e-5)
