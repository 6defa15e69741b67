"""Tests of serialized graphs made fit to run side by side."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import op_def_registry

from tests.fixtures.computations import map_of
from tff_shift.execution.in_process import graphs
from tff_shift.execution.in_process import programs


def test_variables_of_parallel_clients(run, context):
  def count(limit):
    counter = tf.Variable(0)
    steps = tf.while_loop(
      # Read inside the loop: the initializer must have run before.
      lambda _: counter.read_value() < limit,
      lambda step: counter.assign_add(1) * 0 + step + 1,
      [0],
    )
    with tf.control_dependencies(steps):
      return counter.read_value(), steps[0]

  limits = [37 * index % 101 for index in range(60)]
  counted = run(context, map_of(count, np.int32), limits)
  assert counted == [(limit, limit) for limit in limits]


def test_tables_of_parallel_clients(run, context):
  def look_up(key):
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer([1, 2], ["one", "two"]), "none"
    )
    return table.lookup(key)

  words = run(context, map_of(look_up, np.int32), [1, 2, 3] * 10)
  assert words == [b"one", b"two", b"none"] * 10


def test_table_of_the_argument(run, context):
  @tff.tensorflow.computation(
    tff.TensorType(np.str_, [None]), tff.TensorType(np.str_, [None])
  )
  def places(words, wanted):
    initializer = tf.lookup.KeyValueTensorInitializer(
      words, tf.range(tf.size(words))
    )
    return tf.lookup.StaticHashTable(initializer, 101).lookup(wanted)

  found = run(context, places, ["a", "b", "c"], ["a", "z", "c"])
  assert found.tolist() == [0, 101, 2]
  assert run(context, places, ["d"], ["d"]).tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 9])
def test_branch_that_never_runs_for_a_known_shape(run, context, size):
  """The first sample is empty: TensorFlow refuses the -1 of a branch for it."""
  factory = tff.aggregators.UnweightedReservoirSamplingFactory(size)
  process = factory.create(
    tff.types.to_type([np.float32, (np.float32, [2]), (np.float32, [1])])
  )
  state = run(context, process.initialize)
  values = [
    [np.float32(number), np.float32([number, 0]), np.float32([1])]
    for number in (5, 6, 7)
  ]
  found, *_ = run(context, process.next, state, values).result
  assert len(found) == min(size, 3)
  assert set(found) <= {5.0, 6.0, 7.0}


def test_loop_over_a_dataset_within_another(run, context):
  # The inner reduction is part of a function of the graph.
  @tff.tensorflow.computation(tff.SequenceType(np.int64))
  def sum_of_sums(limits):
    def add(a, b):
      return a + b

    return limits.reduce(
      np.int64(0),
      lambda total, limit: (
        total + tf.data.Dataset.range(limit).reduce(np.int64(0), add)
      ),
    )

  # 0, 0, 0 + 1, 0 + 1 + 2, 0 + 1 + 2 + 3
  assert run(context, sum_of_sums, tf.data.Dataset.range(5)) == 10


def test_every_operation_with_a_seed_draws():
  """Asks TensorFlow's own register of operations."""
  missing = set()
  for name in dir(tf.raw_ops):
    definition = op_def_registry.get(name)
    if definition is None or name.startswith("Stateless"):
      continue
    words = {
      argument.name for argument in (*definition.attr, *definition.input_arg)
    }
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.add(name="node", op=name)
    if any(
      "seed" in word and not word.startswith("T") for word in words
    ) and not graphs.has_draws(graph_def):
      missing.add(name)
  # The kernel has a seed and no draw: it looks for common numbers.
  assert missing == {"ComputeAccidentalHits"}


def test_draws_of_a_data_set_are_draws():
  def computation(shuffled):
    @tff.tensorflow.computation
    def draw():
      data = tf.data.Dataset.range(9)
      data = data.shuffle(9) if shuffled else data
      return data.reduce(np.int64(0), lambda total, each: 10 * total + each)

    return programs.graph_of(draw.to_compiled_building_block())

  assert graphs.has_draws(computation(True))
  assert not graphs.has_draws(computation(False))
