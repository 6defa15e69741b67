"""FedProx: FedAvg with a proximal term."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_prox
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def train(functions):
  return lambda weights, data: functions.train_client(
    weights, (), data, tf.constant(ROUND)
  )


def squared_distance(one, other):
  return sum(
    np.sum((a - b) ** 2)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  )


def test_steps_agree_with_the_oracle(
  model, client, weights, oracle, run_in_graph, compare
):
  mu = 0.7
  functions = fed_prox.build(model, fed_prox.HParams(mu=mu, **COMMON))
  result = run_in_graph(train(functions), weights, client)
  # Two iterations of a step for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  expected, mean_loss = oracle.descend(
    weights,
    [
      lambda w, loss=loss: loss(w) + mu / 2 * squared_distance(w, weights)
      for loss in oracle.losses(batches)
    ],
    COMMON["learning_rate"],
  )
  compare.assert_close(
    result.update, tf.nest.map_structure(np.subtract, expected, weights), 1e-5
  )
  np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-5)
  assert result.client_state == ()


@pytest.mark.parametrize(
  "optimizer",
  [
    {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    {"optimizer": "adam"},
  ],
)
def test_without_the_term_it_is_fed_avg_bit_for_bit(
  model, client, weights, run_in_graph, compare, optimizer
):
  hparams = COMMON | optimizer
  found, plain = (
    run_in_graph(train(functions), weights, client)
    for functions in (
      fed_prox.build(model, fed_prox.HParams(mu=0.0, **hparams)),
      fed_avg.build(model, fed_avg.HParams(**hparams)),
    )
  )
  assert compare.equal_bits(found, plain)


def test_larger_terms_keep_clients_nearer(model, client, weights, run_in_graph):
  distances = []
  for mu in (0.0, 1.0, 3.0):
    functions = fed_prox.build(model, fed_prox.HParams(mu=mu, **COMMON))
    update = run_in_graph(train(functions), weights, client).update
    distances.append(
      squared_distance(update, tf.nest.map_structure(np.zeros_like, update))
    )
  assert distances == sorted(distances, reverse=True)
  assert 0 < distances[-1] < distances[0] / 2
