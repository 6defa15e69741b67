"""A guide of an algorithm whose model is not a `GuidedModel`."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_shift
from tff_shift import algorithms
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.models.networks import mlp
from tff_shift.serving import export
from tff_shift.simulation.engine import rounds

# For a query x, a client's logit is x times its own factor.
FACTORS = [1.0, 0.0, -1.0]


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Those of local training."""


def build(model, hparams):
  del hparams
  return algorithm_lib.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=lambda weights, _, data, round_num: algorithm_lib.ClientResult(
      tf.nest.map_structure(tf.zeros_like, weights), (), tf.constant(0.0)
    ),
    predict_as_client=lambda weights, _, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    guide_queries=lambda weights, x: x * tf.constant([FACTORS]),
  )


MODULE = types.SimpleNamespace(
  __name__="factors", HParams=HParams, SCENARIOS=("guidance",), build=build
)


@pytest.mark.slow
def test_it_is_exported(context, tmp_path):
  del context
  data = [
    client_dataset.ClientDataset.from_arrays(
      np.ones([size, 1], np.float32), np.zeros(size, np.int32)
    )
    for size in (1, 1, 2)
  ]
  algorithm = algorithms.build(
    MODULE, mlp.build((1,), num_classes=2, width=3, head_width=3), num_queries=2
  )
  running = rounds.Rounds(
    algorithm, algorithm.start(data, run_seed=0).data, run_seed=0
  )
  export.export(
    algorithm,
    running.server_state,
    running.states,
    running.data,
    tmp_path / "model",
  )
  routes, probabilities = tff_shift.load(tmp_path / "model").guide(
    np.array([[2.0], [-2.0]], np.float32)
  )
  np.testing.assert_array_equal(routes, [0, 2])
  # The logits, without the shares of the clients: with uniform weighting a
  # client counts as one, so that they are equal.
  odds = np.exp([[2, 0, -2], [-2, 0, 2]])
  np.testing.assert_allclose(
    probabilities, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5
  )
