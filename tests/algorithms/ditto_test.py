"""Ditto: a personal model beside FedAvg's, pulled towards it."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import ditto
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import local
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.25
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}


def train(functions):
  return lambda weights, state, data: functions.train_client(
    weights, state, data, tf.constant(ROUND)
  )


class TestTraining:
  @pytest.mark.parametrize(
    "strength",
    # With 1 / RATE a step forgets where v was, but for its gradient.
    [0.7, 1 / RATE],
  )
  def test_personal_steps_agree_with_the_oracle(
    self,
    model,
    client,
    weights,
    personal,
    oracle,
    run_in_graph,
    compare,
    strength,
  ):
    # The personal model has no weight decay.
    functions = ditto.build(
      model, ditto.HParams(ditto_lambda=strength, weight_decay=0.1, **COMMON)
    )
    result = run_in_graph(train(functions), weights, personal, client)
    expected = tf.nest.map_structure(np.float64, personal)
    # Two iterations of a step for each of the two domains.
    batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
    for loss in oracle.losses(batches):
      slopes = oracle.gradient(loss, expected)
      expected = tf.nest.map_structure(
        lambda v, slope, w: v - RATE * (slope + strength * (v - w)),
        expected,
        slopes,
        weights,
      )
    compare.assert_close(result.client_state, expected, 1e-5)

  @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
  def test_without_the_pull_clients_learn_alone_bit_for_bit(
    self, model, client, weights, personal, run_in_graph, compare, optimizer
  ):
    hparams = COMMON | {"optimizer": optimizer}
    free, alone = (
      run_in_graph(train(functions), weights, personal, client).client_state
      for functions in (
        ditto.build(model, ditto.HParams(ditto_lambda=0.0, **hparams)),
        local.build(model, local.HParams(**hparams)),
      )
    )
    assert compare.equal_bits(free, alone)

  def test_what_leaves_the_client_is_that_of_fed_avg(
    self, model, client, weights, personal, run_in_graph, compare
  ):
    hparams = COMMON | {"momentum": 0.5, "weight_decay": 0.01}
    found, plain = (
      run_in_graph(train(functions), weights, personal, client)
      for functions in (
        ditto.build(model, ditto.HParams(**hparams)),
        fed_avg.build(model, fed_avg.HParams(**hparams)),
      )
    )
    assert compare.equal_bits(
      (found.update, found.loss), (plain.update, plain.loss)
    )


class TestPrediction:
  def test_client_predicts_with_its_own_model(
    self, model, client, weights, personal, oracle, run_in_graph
  ):
    functions = ditto.build(model, ditto.HParams(**COMMON))
    own = run_in_graph(
      functions.predict_as_client, weights, personal, client, client
    )
    np.testing.assert_allclose(
      own, oracle.predict(personal, client.x), atol=1e-5
    )
    shared = run_in_graph(functions.predict_as_server, weights, (), client)
    np.testing.assert_allclose(
      shared, oracle.predict(weights, client.x), atol=1e-5
    )

  def test_first_personal_model_is_what_the_server_sends(
    self, model, client, weights, run_in_graph, compare
  ):
    functions = ditto.build(model, ditto.HParams(**COMMON))
    first = run_in_graph(functions.initial_client_state, client.seed, weights)
    assert compare.equal_bits(first, weights)
