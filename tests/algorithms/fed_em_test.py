"""FedEM: each client has its own mixture of several server models."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import arrays
from tests.fixtures import trees
from tff_shift.algorithms import fed_em

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_em.HParams(num_models=2, **COMMON)
PI = np.array([0.3, 0.7], np.float32)


def expectation(oracle, shared, pi, client):
  """q in NumPy, [num_examples, num_models]."""
  likelihoods = np.exp(-oracle.example_losses(shared, client))
  return pi * likelihoods / (pi * likelihoods).sum(axis=1, keepdims=True)


def test_without_examples_the_mixture_stays():
  found = fed_em.expect(tf.constant(PI), tf.zeros([2, 0]))
  np.testing.assert_array_equal(found.pi, PI)


def test_round_agrees_with_the_oracle(
  shared, client, oracle, compare, functions
):
  result = functions.train_client(shared, PI, client, ROUND)
  q = expectation(oracle, shared, PI, client)
  assert_allclose(result.client_state, q.mean(axis=0), rtol=1e-5)
  batches = oracle.of_training(client, 4, ROUND)
  total = 0.0
  for k in range(2):

    def loss_on(batch, k=k):
      # The examples differ: their weights are found by what they are.
      is_same = (client.x == batch.x[:, np.newaxis]).all(axis=2)
      weights = q[is_same.argmax(axis=1), k]

      def loss(w):
        p = oracle.softmax(oracle.predict(w, batch.x))
        of_label = p[np.arange(len(batch.y)), batch.y]
        return -np.mean(weights * np.log(of_label))

      return loss

    trained, mean_loss = oracle.descend(
      trees.row(shared, k), [loss_on(batch) for batch in batches], RATE
    )
    total += mean_loss
    expected = trees.subtract(trained, trees.row(shared, k))
    compare.assert_close(trees.row(result.update, k), expected, 1e-5)
    assert trees.largest(expected) > 1e-3
  assert_allclose(result.loss, total, rtol=1e-5)


def test_prediction_is_the_mixture_of_probabilities(
  shared, make_client, oracle, functions
):
  client, other = make_client(0, [7]), make_client(1, [9])
  pi = functions.prepare_client(shared, PI, client, ROUND)
  expected_pi = expectation(oracle, shared, PI, client).mean(axis=0)
  assert_allclose(pi, expected_pi, rtol=1e-5)
  mixture = sum(
    expected_pi[k]
    * oracle.softmax(oracle.predict(trees.row(shared, k), other.x))
    for k in range(2)
  )
  logits = functions.predict_as_client(shared, pi, client, other)
  assert_allclose(np.exp(logits), mixture, rtol=1e-4)


def test_prediction_model_of_weight_0_does_not_count(oracle):
  logits = arrays.normal(0, 2, 4, 3)
  found = fed_em.mix(tf.constant([0.0, 1.0]), logits)
  assert_allclose(np.exp(found), oracle.softmax(logits[1]), rtol=1e-5)
