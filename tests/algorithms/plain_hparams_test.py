"""Algorithms whose hyper-parameters are not those of local training."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.simulation.engine import rounds

layers = tf.keras.layers


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.HParams):
  """One number, and none of local training."""

  rate: float = hyperparameters.hparam(0.5, "A rate.", minimum=0)


def build(model, hparams):
  def train_client(weights, _, data, round_num):
    del round_num
    # As long as the client has examples: 1 and 3 times the rate.
    step = hparams.rate * tf.cast(data.num_examples, tf.float32)
    return algorithm_lib.ClientResult(
      trees.map(lambda each: tf.fill(each.shape, step), weights),
      client_state=(),
      loss=tf.constant(0.0),
    )

  return algorithm_lib.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=train_client,
    predict_as_client=lambda weights, _, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )


MODULE = types.SimpleNamespace(
  __name__="plain",
  HParams=HParams,
  SCENARIOS=("evolving",),
  RUNNING_STATISTICS=algorithm_lib.ONE_MODEL,
  build=build,
)


@pytest.mark.slow
@pytest.mark.parametrize("normalization", [[], [layers.BatchNormalization]])
def test_clients_have_equal_weights(context, make_client, normalization):
  model = keras_models.split(
    (5,),
    lambda: [layers.Dense(3), *(make() for make in normalization)],
    lambda: [layers.Dense(2)],
  )
  data = [make_client(size, [size], y=[0] * size) for size in (1, 3)]
  algorithm = algorithms.build(MODULE, model)
  running = rounds.Rounds(algorithm, data, run_seed=0)
  before = trees.leaves(running.server_state.weights)
  running.step()
  after = trees.leaves(running.server_state.weights)
  # By the number of examples, it would be 0.5 * (1 * 1 + 3 * 3) / 4 = 1.25.
  for index in (0, 1):
    np.testing.assert_allclose(after[index] - before[index], 1.0, rtol=1e-6)
