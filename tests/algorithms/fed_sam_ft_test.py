"""FedSAMFT: steps down the gradient of weights near by."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_sam_ft
from tff_shift.algorithms.parts import sharpness
from tff_shift.learning import local_training
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.25
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}


def test_round_agrees_with_the_oracle(build, client, weights, oracle, compare):
  rho, decay, momentum = 0.4, 0.1, 0.5
  result = build(
    fed_sam_ft.HParams(rho=rho, weight_decay=decay, momentum=momentum, **COMMON)
  ).train_client(weights, (), client, ROUND)
  current = tf.nest.map_structure(np.float64, weights)
  moved = tf.nest.map_structure(np.zeros_like, current)
  losses = []
  # Two iterations of a step for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  for loss in oracle.losses(batches):
    losses.append(loss(current))
    first = oracle.gradient(loss, current)
    # One length over all weights, decay without a part in it.
    length = np.sqrt(sum(np.sum(g**2) for g in tf.nest.flatten(first)))
    near = tf.nest.map_structure(
      lambda w, g, by=rho / length: w + by * g, current, first
    )
    second = oracle.gradient(loss, near)
    moved = tf.nest.map_structure(
      lambda m, g, w: momentum * m + g + decay * w, moved, second, current
    )
    current = tf.nest.map_structure(lambda w, m: w - RATE * m, current, moved)
  compare.assert_close(
    result.update, tf.nest.map_structure(np.subtract, current, weights), 1e-5
  )
  np.testing.assert_allclose(result.loss, np.mean(losses), rtol=1e-5)
  assert result.client_state == ()


def test_gradient_of_zeros_moves_nothing(run_in_graph):
  def work(weight):
    found = sharpness.sharpness_aware(0.5)(
      lambda trained: local_training.Gradient(
        tf.constant(1.0), (), (tf.zeros_like(trained[0]),)
      ),
      (weight,),
    )
    return found.gradients[0], found.loss

  gradient, loss = run_in_graph(work, np.ones(3, np.float32))
  assert gradient.tolist() == [0, 0, 0]
  assert loss == 1
