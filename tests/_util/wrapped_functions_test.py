"""Traced functions leave nothing in the process when they are gone."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager

from tff_shift import algorithms
from tff_shift import models
from tff_shift._util import wrapped_functions
from tff_shift.data import client_dataset
from tff_shift.learning import randomness


def repeat(x, times):
  """Multiplies by 2, in a loop that has a condition inside."""
  return tf.while_loop(
    lambda number, _: number < times,
    lambda number, y: (
      number + 1,
      tf.cond(tf.reduce_sum(y) > 0, lambda: 2 * y, lambda: y),
    ),
    (tf.constant(0), x),
  )[1]


@pytest.fixture
def left():
  """Returns the names of functions that are new and still registered."""

  def names():
    gc.collect()
    return {
      name
      for name in eager.context().list_function_names()
      # TensorFlow keeps one for each eager operation.
      if not name.startswith("__wrapped__")
    }

  tf.zeros([])
  before = names()
  return lambda: names() - before


@pytest.mark.slow
def test_functions_of_loops_go_with_the_graph(left):
  function = wrapped_functions.wrap(
    lambda x: [repeat(x, 3)], [tf.TensorSpec([2])]
  )
  (found,) = function(tf.constant([1.0, 2.0]))
  np.testing.assert_array_equal(found, [8, 16])
  assert left()
  del function, found
  assert not left()


def test_functions_of_a_part_go_with_it(left):
  with tf.Graph().as_default() as graph:
    x, y = (tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(2))
    output = repeat(x, 2) + repeat(y, 1)
  ends = [x, y], [output]
  part = wrapped_functions.part_of(graph.as_graph_def(), *ends)
  function = wrapped_functions.from_part(part, *ends)
  del graph, x, y, output, ends
  (found,) = function(tf.constant([1.0, 2.0]), tf.constant([1.0, 0.0]))
  np.testing.assert_array_equal(found, [6, 8])
  del function, found
  assert not left()


def test_a_part_does_not_wait_for_its_inputs():
  with tf.Graph().as_default() as graph:
    x, y = (tf.compat.v1.placeholder(tf.float32, []) for _ in range(2))
    middle = tf.exp(x)
    with tf.control_dependencies([middle]):
      output = 2 * y
  ends = [middle, y], [output]
  part = wrapped_functions.part_of(graph.as_graph_def(), *ends)
  assert wrapped_functions.used_inputs(part, *ends) == [1]
  (result,) = wrapped_functions.from_part(part, *ends)(tf.zeros([]), 3.0)
  assert result == 6


@pytest.mark.slow
def test_algorithm_that_is_gone_has_left_nothing(context, left):
  model = models.build("mlp", input_shape=(5,), num_classes=3, width=2)
  algorithm = algorithms.build("fed_avg", model)
  data = [
    client_dataset.ClientDataset.from_arrays(
      np.eye(5, dtype=np.float32),
      np.zeros(5, np.int32),
      seed=randomness.client_seed(0, client),
    )
    for client in range(2)
  ]
  state = algorithm.initialize(randomness.server_seed(0))
  (phase,) = algorithm.phases
  phase(state, [(), ()], data)
  assert any("while" in name for name in left())
  del model, algorithm, phase
  assert not left()
