"""Tests of the federated intrinsics, on results one can work out."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import in_process

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32, np.float32)
def multiply(a, b):
  return a * b


@tff.tensorflow.computation(np.int32)
def below_three(number):
  check = tf.debugging.assert_less(number, 3, message="too many")
  with tf.control_dependencies([check]):
    return tf.identity(number)


@tff.federated_computation(INTS_AT_CLIENTS)
def all_below_three(numbers):
  return tff.federated_map(below_three, numbers)


def test_federated_operators(run, context):
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER), AT_CLIENTS
  )
  def operators(factor, values):
    scaled = tff.federated_map(
      multiply, (tff.federated_broadcast(factor), values)
    )
    return collections.OrderedDict(
      scaled=scaled,
      sum=tff.federated_sum(values),
      mean=tff.federated_mean(values),
      weighted_mean=tff.federated_mean(scaled, values),
      min=tff.federated_min(values),
      max=tff.federated_max(values),
      shared=tff.federated_broadcast(factor),
      server=factor,
    )

  result = run(context, operators, 2.0, [1.0, 2.5, 4.5])
  assert result["scaled"] == [2.0, 5.0, 9.0]
  assert result["sum"] == 8.0
  assert result["mean"] == np.float32(8 / 3)
  # (2 * 1 + 5 * 2.5 + 9 * 4.5) / 8 = 55 / 8
  assert result["weighted_mean"] == 6.875
  assert (result["min"], result["max"]) == (1.0, 4.5)
  assert (result["shared"], result["server"]) == (2.0, 2.0)
  assert type(result["sum"]) is np.float32


def test_value_from_outside_of_a_mapped_function(run, context):
  constant = tff.tensorflow.computation(lambda: tf.constant(3.0))

  @tff.federated_computation(AT_CLIENTS)
  def captures(values):
    three = constant()
    times_three = tff.federated_computation(
      lambda value: multiply(value, three), np.float32
    )
    return tff.federated_map(times_three, values)

  assert run(context, captures, [1.0, 2.5]) == [3.0, 7.5]


def test_literal_block(run, context):
  literal = tff.framework.Literal(
    np.array([1, 2], np.int32), tff.TensorType(np.int32, [2])
  )
  computation = tff.framework.ConcreteComputation.from_building_block(
    tff.framework.Lambda(None, None, literal)
  )
  assert run(context, computation).tolist() == [1, 2]


def test_eval_and_value_use_the_default_number_of_clients(run):
  @tff.federated_computation
  def ones():
    one = tff.tensorflow.computation(lambda: tf.constant(1))
    return (
      tff.federated_eval(one, tff.CLIENTS),
      tff.federated_eval(one, tff.SERVER),
      tff.federated_sum(tff.federated_value(1, tff.CLIENTS)),
    )

  context = in_process.in_process_context(default_num_clients=3)
  assert run(context, ones) == ([1, 1, 1], 1, 3)


def test_select(run, context):
  @tff.federated_computation(
    tff.FederatedType((np.int32, [2]), tff.CLIENTS),
    tff.FederatedType((np.str_, [3]), tff.SERVER),
  )
  def select_and_join(keys, letters):
    selected = tff.federated_select(
      keys,
      tff.federated_value(3, tff.SERVER),
      letters,
      tff.tensorflow.computation(lambda words, key: tf.gather(words, key)),
    )
    join = tff.tensorflow.computation(
      lambda dataset: dataset.reduce("", lambda a, b: tf.strings.join([a, b]))
    )
    return tff.federated_map(join, selected)

  keys = [np.array(each, np.int32) for each in ([0, 1], [2, 0], [1, 1])]
  joined = run(context, select_and_join, keys, ["a", "b", "c"])
  assert joined == [b"ab", b"ca", b"bb"]
  with pytest.raises(ValueError, match="below 3; got 5"):
    run(context, select_and_join, [np.array([5, 0], np.int32)], ["", "", ""])


def test_failing_client_is_named(run, context):
  with pytest.raises(
    in_process.ClientError, match=r"(?s)client 2 of 4 failed.*too many"
  ) as error:
    run(context, all_below_three, [1, 2, 7, 0])
  assert isinstance(error.value.__cause__, tf.errors.InvalidArgumentError)
  # The context is as good as before.
  assert run(context, all_below_three, [1, 2, 0, 0]) == [1, 2, 0, 0]
