"""FedSAMFT: steps down the gradient of weights near by."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tff_shift.algorithms import fed_sam_ft
from tff_shift.algorithms.parts import sharpness
from tff_shift.learning import local_training

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.25
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}


def test_round_agrees_with_the_oracle(build, client, weights, oracle, compare):
  rho, decay, momentum = 0.4, 0.1, 0.5
  result = build(
    fed_sam_ft.HParams(rho=rho, weight_decay=decay, momentum=momentum, **COMMON)
  ).train_client(weights, (), client, ROUND)
  current = trees.map(np.float64, weights)
  moved = trees.zeros(current)
  losses = []
  # Two iterations of a step for each of the two domains.
  batches = oracle.of_training(client, 4, ROUND)
  for loss in oracle.losses(batches):
    losses.append(loss(current))
    first = oracle.gradient(loss, current)
    # One length over all weights, decay without a part in it.
    length = np.sqrt(trees.inner(first, first))
    second = oracle.gradient(loss, trees.add(current, first, rho / length))
    moved = trees.add(trees.add(second, current, decay), moved, momentum)
    current = trees.add(current, moved, -RATE)
  oracle.check(result, weights, current, np.mean(losses))
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
