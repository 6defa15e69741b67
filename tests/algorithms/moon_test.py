"""MOON: a contrastive term between the received and the last local model."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import moon
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


@pytest.fixture(scope="module")
def last(model, run_in_graph):
  """The backbone of another model."""
  return run_in_graph(model.initial_weights, randomness.server_seed(1)).backbone


def term(trained, received, last, temperature):
  def cosines(one, other):
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.sum(one * other, axis=1) / np.maximum(lengths, 1e-12)

  near = np.exp(cosines(trained, received) / temperature)
  far = np.exp(cosines(trained, last) / temperature)
  return np.mean(-np.log(near / (near + far)))


def test_steps_agree_with_the_oracle(
  build, client, weights, last, oracle, compare
):
  mu, temperature = 2.0, 0.5
  result = build(
    moon.HParams(mu=mu, temperature=temperature, **COMMON)
  ).train_client(weights, last, client, ROUND)

  def objective(batch):
    def value(w):
      (loss,) = oracle.losses([batch])
      return loss(w) + mu * term(
        oracle.embed(w.backbone, batch.x),
        oracle.embed(weights.backbone, batch.x),
        oracle.embed(last, batch.x),
        temperature,
      )

    return value

  # Two iterations of a step for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  trained, mean_loss = oracle.descend(
    weights, [objective(each) for each in batches], COMMON["learning_rate"]
  )
  compare.assert_close(
    result.update, tf.nest.map_structure(np.subtract, trained, weights), 1e-5
  )
  compare.assert_close(result.client_state, trained.backbone, 1e-5)
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)


def test_first_round_of_a_client_is_that_of_fed_avg_bit_for_bit(
  build, client, weights, compare
):
  result = build(moon.HParams(**COMMON)).train_client(
    weights, weights.backbone, client, ROUND
  )
  plain = build(fed_avg.HParams(**COMMON)).train_client(
    weights, (), client, ROUND
  )
  assert compare.equal_bits(result.update, plain.update)
  # The default mu is 5.
  np.testing.assert_allclose(
    result.loss, plain.loss + 5 * math.log(2), rtol=1e-5
  )


def test_term_computed_by_hand():
  one = np.float32([[2.0, 0.0]])
  # Cosines 1 and -1: log(1 + e^-4).
  found = moon.contrastive_loss(one, 3 * one, -one, temperature=0.5)
  np.testing.assert_allclose(found, 0.0181499, rtol=1e-5)
  nothing = moon.contrastive_loss(0 * one, one, -one, temperature=0.5)
  np.testing.assert_allclose(nothing, math.log(2), rtol=1e-6)


def test_zero_embedding_has_a_finite_gradient():
  zeros, one = tf.zeros([1, 2]), tf.constant([[1.0, 0.0]])
  with tf.GradientTape() as tape:
    tape.watch(zeros)
    loss = moon.contrastive_loss(zeros, one, -one, temperature=0.5)
  assert np.all(np.isfinite(tape.gradient(loss, zeros)))
