"""Tests of serialized graphs made fit to run side by side."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


def test_variables_of_parallel_clients(run, context):
  @tff.tensorflow.computation(np.int32)
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
  counted = run(
    context,
    tff.federated_computation(
      lambda values: tff.federated_map(count, values), INTS_AT_CLIENTS
    ),
    limits,
  )
  assert counted == [(limit, limit) for limit in limits]


def test_tables_of_parallel_clients(run, context):
  @tff.tensorflow.computation(np.int32)
  def look_up(key):
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer([1, 2], ["one", "two"]), "none"
    )
    return table.lookup(key)

  words = run(
    context,
    tff.federated_computation(
      lambda values: tff.federated_map(look_up, values), INTS_AT_CLIENTS
    ),
    [1, 2, 3] * 10,
  )
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


def test_loop_in_a_function_that_is_not_put_in_line(run, context):
  """TensorFlow cannot import a function with the cycle of such a loop."""

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
  def total(limit):
    numbers = tf.data.Dataset.range(tf.cast(limit, tf.int64))
    return numbers.reduce(np.int64(0), lambda a, b: a + b)

  @tff.tensorflow.computation(np.int32)
  def twice(limit):
    return total(limit), total(limit + 1)

  found = run(
    context,
    tff.federated_computation(
      lambda values: tff.federated_map(twice, values), INTS_AT_CLIENTS
    ),
    [3, 4],
  )
  assert found == [(3, 6), (6, 10)]


def test_branch_that_never_runs_for_a_known_shape(run, context):
  """TensorFlow refuses the number -1 of a branch for the first, empty total."""

  @tff.tensorflow.computation(tff.TensorType(np.int32, [None]), np.int32)
  def append(total, value):
    return tf.cond(
      tf.size(total) > 0,
      lambda: tf.concat(
        [tf.math.top_k(total, tf.size(total) - 1).values, [value]], 0
      ),
      lambda: tf.reshape(value, [-1]),
    )

  zero = tff.tensorflow.computation(lambda: tf.zeros([0], tf.int32))
  same = tff.tensorflow.computation(
    lambda total: total, tff.TensorType(np.int32, [None])
  )
  merge = tff.tensorflow.computation(
    lambda one, other: tf.concat([one, other], 0),
    *[tff.TensorType(np.int32, [None])] * 2,
  )
  last = tff.federated_computation(
    lambda values: tff.federated_aggregate(values, zero(), append, merge, same),
    INTS_AT_CLIENTS,
  )
  assert run(context, last, [5, 6, 7]).tolist() == [7]


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
