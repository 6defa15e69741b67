"""Bytes per client and round against sums by hand."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures import keras_models
from tff_shift import algorithms
from tff_shift.learning import traffic
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import server_optimizers
from tff_shift.models.networks import mlp
from tff_shift.testing import forms

# Beside the update: two weights (the aggregator's and the count of clients with
# one), loss, count of losses, number of clients, number of diverged clients.
_REPORT = 6 * 4
# Beside the weights: the number of the round.
_ROUND = 4


def built(name, model, **options):
  return algorithms.build(name, model, forms.hparams(name), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, options, num_weights",
  [
    # 5 x 8 + 8 and 8 x 3 + 3 weights.
    ("fed_avg", {}, 75),
    # Its state stays at the server.
    ("fed_avg", {"server_optimizer": server_optimizers.build("fed_adam")}, 75),
    # FedRep shares the first.
    ("fed_rep", {}, 48),
    # Reports alone.
    ("local", {}, 0),
  ],
)
def test_weights_that_are_shared_travel(name, options, num_weights):
  found = traffic.of_round(built(name, forms.model(), **options))
  assert found == (4 * num_weights + _ROUND, 4 * num_weights + _REPORT)


def test_nothing_travels_without_rounds():
  assert traffic.of_round(built("source", forms.model())) == (0, 0)


@pytest.mark.slow
def test_every_phase_of_a_round_counts():
  algorithm = built("fed_ade", forms.model())
  assert len(algorithm.phases) > 1
  parts = [
    traffic.of_round(_part(phase, algorithm.model))
    for phase in algorithm.phases
  ]
  down, up = zip(*parts, strict=True)
  assert traffic.of_round(algorithm) == (sum(down), sum(up))


def _part(phase, model=None):
  return types.SimpleNamespace(phases=[phase], model=model)


@pytest.mark.slow
def test_compression_sends_eight_bits_per_number():
  # Only tensors of more than 20,000 numbers: here 200 x 200, twice.
  model = mlp.build((3,), num_classes=2, width=200, head_width=3)
  plain = traffic.of_round(built("fed_avg", model))
  compressed = traffic.of_round(
    built("fed_avg", model, aggregator=factories.build("compressed"))
  )
  saved = plain.up - compressed.up
  # Words of 4 bytes hold 28 bits. Reports of the clipping add few bytes.
  packed = 4 * -(-8 * 40_000 // 28)
  assert 2 * (4 * 40_000 - packed) - 100 < saved < 2 * (4 * 40_000 - packed)
  assert compressed.down == pytest.approx(plain.down, abs=100)


def test_call_counts_as_often_as_it_is_made():
  place = tff.FederatedType(np.float32, tff.CLIENTS)

  @tff.federated_computation(place)
  def total(values):
    return tff.federated_sum(values)

  @tff.federated_computation(
    place, tff.FederatedType((np.float32, (3,)), tff.CLIENTS)
  )
  def phase(one, other):
    return total(one), tff.federated_mean(other, one)

  found = traffic.of_round(_part(phase))
  # A sum of 4 bytes; a mean of 12 bytes with a weight of 4.
  assert found == (0, 4 + 12 + 4)


@pytest.mark.slow
def test_frozen_weights_are_at_the_clients():
  layers = tf.keras.layers

  model = keras_models.split(
    (5,),
    lambda: [
      layers.Dense(11, use_bias=False, trainable=False),
      layers.Dense(6),
    ],
    lambda: [layers.Dense(3)],
  )
  # 11 x 6 + 6 and 6 x 3 + 3 weights, without the 5 x 11 frozen ones.
  found = traffic.of_round(built("fed_avg", model))
  assert found == (4 * 93 + _ROUND, 4 * 93 + _REPORT)


def test_size_that_is_not_known():
  @tff.federated_computation(
    tff.FederatedType((np.float32, (None,)), tff.CLIENTS)
  )
  def phase(values):
    return tff.federated_aggregate(
      values,
      0.0,
      _add,
      _merge,
      tff.tensorflow.computation(lambda x: x, np.float32),
    )

  found = traffic.of_round(_part(phase))
  assert found == (0, None)


@tff.tensorflow.computation(np.float32, tff.TensorType(np.float32, (None,)))
def _add(total, values):
  return total + tf.reduce_sum(values)


@tff.tensorflow.computation(np.float32, np.float32)
def _merge(one, other):
  return one + other
