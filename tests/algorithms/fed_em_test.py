"""FedEM: each client has its own mixture of several server models."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_em
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fed_em.HParams(num_models=2, **COMMON)
PI = np.array([0.3, 0.7], np.float32)


def row(models, number):
  return tf.nest.map_structure(lambda w: w[number], models)


def softmax(values):
  powers = np.exp(values - values.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def models(build):
  return build(HPARAMS).initial_weights(randomness.server_seed(0))


def expectation(oracle, models, pi, client):
  """q in NumPy, [num_examples, num_models]."""
  likelihoods = np.stack(
    [
      softmax(oracle.predict(row(models, k), client.x))[
        np.arange(len(client.y)), client.y
      ]
      for k in range(2)
    ],
    axis=1,
  )
  return pi * likelihoods / (pi * likelihoods).sum(axis=1, keepdims=True)


class TestExpectation:
  def test_is_bayes_rule(self):
    # pi exp(-l): 0.25 / 2, 0.75 / 8 of the first example, 0.25 / 4, 0.75 / 4
    # of the second.
    losses = np.log([[2.0, 4.0], [8.0, 4.0]]).astype(np.float32)
    found = fed_em.expect(tf.constant([0.25, 0.75]), losses)
    np.testing.assert_allclose(
      found.q, [[4 / 7, 3 / 7], [1 / 4, 3 / 4]], rtol=1e-6
    )
    np.testing.assert_allclose(found.pi, [23 / 56, 33 / 56], rtol=1e-6)

  def test_one_model_has_weight_1_exactly(self):
    losses = np.random.default_rng(0).exponential(5, (1, 100))
    expected = fed_em.expect(tf.ones([1]), tf.constant(losses, tf.float32))
    np.testing.assert_array_equal(expected.q, np.ones((100, 1)))
    np.testing.assert_array_equal(expected.pi, [1])

  def test_without_examples_the_mixture_stays(self):
    found = fed_em.expect(tf.constant(PI), tf.zeros([2, 0]))
    np.testing.assert_array_equal(found.pi, PI)


class TestRound:
  def test_agrees_with_the_oracle(
    self, build, models, make_client, oracle, compare
  ):
    client = make_client(0, [6, 5])
    result = build(HPARAMS).train_client(models, PI, client, ROUND)
    q = expectation(oracle, models, PI, client)
    np.testing.assert_allclose(result.client_state, q.mean(axis=0), rtol=1e-5)
    batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
    total = 0.0
    for k in range(2):

      def loss_on(batch, k=k):
        # The examples differ: their weights are found by what they are.
        places = [
          int(np.flatnonzero((client.x == x).all(axis=1))[0]) for x in batch.x
        ]
        return lambda weights: np.mean(
          [
            q[place, k]
            * oracle.cross_entropy(
              oracle.predict(weights, client.x[[place]]), client.y[[place]]
            )
            for place in places
          ]
        )

      trained, loss = oracle.descend(
        row(models, k), [loss_on(batch) for batch in batches], RATE
      )
      total += loss
      expected = tf.nest.map_structure(np.subtract, trained, row(models, k))
      compare.assert_close(row(result.update, k), expected, 1e-5)
      assert max(np.abs(w).max() for w in tf.nest.flatten(expected)) > 1e-3
    np.testing.assert_allclose(result.loss, total, rtol=1e-5)


class TestPrediction:
  def test_is_the_mixture_of_probabilities(
    self, build, models, make_client, oracle
  ):
    functions = build(HPARAMS)
    client, other = make_client(0, [7]), make_client(1, [9])
    pi = functions.prepare_client(models, PI, client, ROUND)
    expected_pi = expectation(oracle, models, PI, client).mean(axis=0)
    np.testing.assert_allclose(pi, expected_pi, rtol=1e-5)
    mixture = sum(
      expected_pi[k] * softmax(oracle.predict(row(models, k), other.x))
      for k in range(2)
    )
    # Whatever the labels of what is predicted.
    for y in (other.y, 2 - other.y):
      logits = functions.predict_as_client(
        models, pi, client, other._replace(y=y)
      )
      np.testing.assert_allclose(np.exp(logits), mixture, rtol=1e-4)

  def test_model_of_weight_0_does_not_count(self):
    logits = np.random.default_rng(0).normal(size=(2, 4, 3))
    found = fed_em.mix(tf.constant([0.0, 1.0]), logits.astype(np.float32))
    np.testing.assert_allclose(np.exp(found), softmax(logits[1]), rtol=1e-5)
