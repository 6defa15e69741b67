"""Tests of the federated intrinsics, on results one can work out."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures.computations import AT_CLIENTS
from tests.fixtures.computations import map_of
from tests.fixtures.computations import multiply
from tff_shift.execution import in_process


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


@pytest.mark.parametrize(
  "select", [tff.federated_select, tff.federated_secure_select]
)
def test_select(run, context, select):
  pick = tff.tensorflow.computation(
    lambda words, key: tf.gather(words, key), (np.str_, [3]), np.int32
  )
  join = tff.tensorflow.computation(
    lambda dataset: dataset.reduce("", lambda a, b: tf.strings.join([a, b])),
    tff.SequenceType(np.str_),
  )

  @tff.federated_computation(
    tff.FederatedType((np.int32, [2]), tff.CLIENTS),
    tff.FederatedType((np.str_, [3]), tff.SERVER),
  )
  def select_and_join(keys, letters):
    number = tff.federated_value(3, tff.SERVER)
    return tff.federated_map(join, select(keys, number, letters, pick))

  keys = [np.array(each, np.int32) for each in ([0, 1], [2, 0], [1, 1])]
  joined = run(context, select_and_join, keys, ["a", "b", "c"])
  assert joined == [b"ab", b"ca", b"bb"]
  with pytest.raises(ValueError, match="below 3; got 5"):
    run(context, select_and_join, [np.array([5, 0], np.int32)], ["", "", ""])


def test_failing_client_is_named(run, context):
  def below_three(number):
    check = tf.debugging.assert_less(number, 3, message="too many")
    with tf.control_dependencies([check]):
      return tf.identity(number)

  all_below_three = map_of(below_three, np.int32)
  with pytest.raises(
    in_process.ClientError, match=r"(?s)client 2 of 4 failed.*too many"
  ) as error:
    run(context, all_below_three, [1, 2, 7, 0])
  assert isinstance(error.value.__cause__, tf.errors.InvalidArgumentError)
  # The context is as good as before.
  assert run(context, all_below_three, [1, 2, 0, 0]) == [1, 2, 0, 0]
