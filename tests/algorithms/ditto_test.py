"""Ditto: a personal model beside FedAvg's, pulled towards it."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import ditto
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
    build,
    client,
    weights,
    personal,
    oracle,
    run_in_graph,
    compare,
    strength,
  ):
    # The personal model has no weight decay.
    result = run_in_graph(
      train(
        build(ditto.HParams(ditto_lambda=strength, weight_decay=0.1, **COMMON))
      ),
      weights,
      personal,
      client,
    )
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


class TestPrediction:
  def test_client_predicts_with_its_own_model(
    self, build, client, weights, personal, oracle
  ):
    functions = build(ditto.HParams(**COMMON))
    own = functions.predict_as_client(weights, personal, client, client)
    np.testing.assert_allclose(
      own, oracle.predict(personal, client.x), atol=1e-5
    )
    shared = functions.predict_as_server(weights, (), client)
    np.testing.assert_allclose(
      shared, oracle.predict(weights, client.x), atol=1e-5
    )

  def test_first_personal_model_is_what_the_server_sends(
    self, build, client, weights, compare
  ):
    first = build(ditto.HParams(**COMMON)).initial_client_state(
      client.seed, weights
    )
    assert compare.equal_bits(first, weights)
