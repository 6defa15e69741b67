"""MOON: a contrastive term between the received and the last local model."""

import math

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import moon

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def cosines(one, other):
  lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
  return np.sum(one * other, axis=1) / np.maximum(lengths, 1e-12)


def test_steps_agree_with_the_oracle(
  build, client, weights, personal, oracle, compare
):
  mu, temperature, last = 2.0, 0.5, personal.backbone
  result = build(
    moon.HParams(mu=mu, temperature=temperature, **COMMON)
  ).train_client(weights, last, client, ROUND)

  def objective(batch):
    (loss,) = oracle.losses([batch])

    def value(w):
      # The received model is to be chosen, and not the last one.
      logits = np.stack(
        [
          cosines(
            oracle.embed(w.backbone, batch.x), oracle.embed(other, batch.x)
          )
          for other in (weights.backbone, last)
        ],
        axis=1,
      )
      return loss(w) + mu * oracle.cross_entropy(
        logits / temperature, [0] * len(logits)
      )

    return value

  # Two iterations of a step for each of the two domains.
  batches = oracle.of_training(client, 4, ROUND)
  trained, mean_loss = oracle.descend(
    weights, [objective(each) for each in batches], COMMON["learning_rate"]
  )
  oracle.check(result, weights, trained, mean_loss)
  compare.assert_close(result.client_state, trained.backbone, 1e-5)


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
  assert_allclose(result.loss, plain.loss + 5 * math.log(2), rtol=1e-5)


def test_zero_embedding_has_a_finite_term_and_gradient():
  zeros, one = tf.zeros([1, 2]), tf.constant([[1.0, 0.0]])
  with tf.GradientTape() as tape:
    tape.watch(zeros)
    loss = moon.contrastive_loss(zeros, one, -one, temperature=0.5)
  assert_allclose(loss, math.log(2), rtol=1e-6)
  assert np.all(np.isfinite(tape.gradient(loss, zeros)))
