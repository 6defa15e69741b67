"""FedProxFT: FedProx's rounds, FedAvgFT's predictions."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import fed_prox
from tff_shift.algorithms import fed_prox_ft

pytestmark = pytest.mark.slow

ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
COMMON |= {"momentum": 0.5, "weight_decay": 0.01, "cosine_rounds": 5}


def train(functions, weights, data):
  return functions.train_client(weights, (), data, tf.constant(ROUND))


def prepare(functions, weights, data):
  return functions.prepare_client(weights, (), data, tf.constant(ROUND))


def test_rounds_have_the_term_and_fine_tuning_has_not(
  model, client, weights, run_in_graph, compare
):
  mu = 0.7
  own, proximal, tuned = (
    module.build(model, module.HParams(**COMMON, **values))
    for module, values in (
      (fed_prox_ft, {"mu": mu, "fine_tuning_steps": 2}),
      (fed_prox, {"mu": mu}),
      (fed_avg_ft, {"fine_tuning_steps": 2}),
    )
  )
  found, expected, without = (
    run_in_graph(lambda w, data, f=f: train(f, w, data), weights, client)
    for f in (own, proximal, tuned)
  )
  assert compare.equal_bits(found, expected)
  assert not compare.equal_bits(found.update, without.update)
  prepared, expected = (
    run_in_graph(lambda w, data, f=f: prepare(f, w, data), weights, client)
    for f in (own, tuned)
  )
  assert compare.equal_bits(prepared, expected)
  assert any(
    np.any(one != other)
    for one, other in zip(
      tf.nest.flatten(prepared), tf.nest.flatten(weights), strict=True
    )
  )
