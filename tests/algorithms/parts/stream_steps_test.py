"""Steps on the batch of a time step: their number, and what they refuse."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import stream_steps
from tff_shift.learning import local_training

HPARAMS = stream_steps.StreamHParams(
  adaptation_steps=3, learning_rate=0.5, momentum=0.5, weight_decay=0.1
)


def data(num_examples):
  return adaptation.AdaptationData(
    x=np.zeros((2, 1), np.float32),
    y=np.int32([0, 1]),
    stream_x=np.full((num_examples, 1), 2, np.float32),
    timestep=np.int32(1),
    confusion=np.eye(2, dtype=np.float32),
    seed=np.int32([1, 2]),
  )


@pytest.fixture(scope="module")
def descend(run_in_graph):
  """Returns `descend(client, w)`: of the loss w * mean(x), from w."""

  def work(client, weight):
    weights = (weight,)
    return stream_steps.descend(
      lambda current: current[0] * tf.reduce_mean(client.stream_x),
      weights,
      local_training.initial_moments(weights, HPARAMS.training),
      client,
      HPARAMS,
    )

  return lambda client, weight: run_in_graph(work, client, weight)


def test_steps_by_hand(descend):
  """The gradient is 2 + 0.1 w, and the momentum 1/2."""
  weight, accumulator, losses = 1.0, 0.0, []
  for _ in range(3):
    losses.append(2 * weight)
    accumulator = 0.5 * accumulator + 2 + 0.1 * weight
    weight -= 0.5 * accumulator
  result = descend(data(4), np.float32(1))
  assert_allclose(result.weights[0], weight, rtol=1e-6)
  assert_allclose(trees.leaves(result.moments), [accumulator], rtol=1e-6)
  assert_allclose(result.loss, np.mean(losses), rtol=1e-6)


def test_without_examples_no_step_is_taken(descend):
  result = descend(data(0), np.float32(1))
  assert result.weights[0] == 1
  assert result.loss == 0
  np.testing.assert_array_equal(trees.leaves(result.moments), [0])
