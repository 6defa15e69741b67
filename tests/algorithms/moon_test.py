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
def client(make_client):
  return make_client(0, [6, 5])


@pytest.fixture(scope="module")
def weights(model, run_in_graph):
  return run_in_graph(model.initial_weights, randomness.server_seed(0))


@pytest.fixture(scope="module")
def last(model, run_in_graph):
  """The backbone of another model."""
  return run_in_graph(model.initial_weights, randomness.server_seed(1)).backbone


def train(functions):
  return lambda weights, state, data: functions.train_client(
    weights, state, data, tf.constant(ROUND)
  )


def term(trained, received, last, temperature):
  def cosines(one, other):
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.sum(one * other, axis=1) / np.maximum(lengths, 1e-12)

  near = np.exp(cosines(trained, received) / temperature)
  far = np.exp(cosines(trained, last) / temperature)
  return np.mean(-np.log(near / (near + far)))


def test_steps_agree_with_the_oracle(
  model, client, weights, last, oracle, run_in_graph, compare
):
  mu, temperature = 2.0, 0.5
  functions = moon.build(
    model, moon.HParams(mu=mu, temperature=temperature, **COMMON)
  )
  result = run_in_graph(train(functions), weights, last, client)

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


@pytest.mark.parametrize(
  "optimizer",
  [
    {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    {"optimizer": "adam"},
  ],
)
def test_without_the_term_it_is_fed_avg_bit_for_bit(
  model, client, weights, last, run_in_graph, compare, optimizer
):
  hparams = COMMON | optimizer
  found = run_in_graph(
    train(moon.build(model, moon.HParams(mu=0.0, **hparams))),
    weights,
    last,
    client,
  )
  plain = run_in_graph(
    train(fed_avg.build(model, fed_avg.HParams(**hparams))), weights, (), client
  )
  assert compare.equal_bits(found.update, plain.update)
  assert compare.equal_bits(found.loss, plain.loss)


def test_first_round_of_a_client_is_that_of_fed_avg_bit_for_bit(
  model, client, weights, run_in_graph, compare
):
  found = run_in_graph(
    train(moon.build(model, moon.HParams(**COMMON))),
    weights,
    weights.backbone,
    client,
  )
  plain = run_in_graph(
    train(fed_avg.build(model, fed_avg.HParams(**COMMON))), weights, (), client
  )
  assert compare.equal_bits(found.update, plain.update)
  # The default mu is 5.
  np.testing.assert_allclose(
    found.loss, plain.loss + 5 * math.log(2), rtol=1e-5
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


def test_larger_terms_keep_embeddings_nearer_to_the_received_model(
  model, client, weights, last, run_in_graph, oracle
):
  terms = []
  for mu in (0.0, 1.0, 5.0):
    functions = moon.build(model, moon.HParams(mu=mu, **COMMON))
    result = run_in_graph(train(functions), weights, last, client)
    terms.append(
      term(
        *(
          oracle.embed(backbone, client.x)
          for backbone in (result.client_state, weights.backbone, last)
        ),
        0.5,
      )
    )
  assert terms == sorted(terms, reverse=True)
  assert terms[-1] < terms[0]
