"""Tests of whole computations as one function: beside client by client."""

from typing import Any
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures.computations import map_of
from tests.fixtures.trees import typed_bits as bits
from tff_shift.data import examples
from tff_shift.execution import in_process
from tff_shift.execution.in_process import cohorts
from tff_shift.execution.in_process import memory
from tff_shift.execution.in_process import packing


class Data(NamedTuple):
  """Rows of any number, a vector and a number of a client."""

  rows: Any
  vector: Any
  number: Any


DATA_TYPE = tff.types.to_type(
  Data(
    tff.TensorType(np.float32, (None, 2)),
    tff.TensorType(np.float32, (3,)),
    tff.TensorType(np.int32),
  )
)
STATE_TYPE = tff.types.to_type((tff.TensorType(np.float32, (2,)), np.int32))
AT_SERVER = tff.FederatedType(tff.TensorType(np.float32, (2,)), tff.SERVER)


@tff.tensorflow.computation(
  tff.TensorType(np.float32, (2,)), STATE_TYPE, DATA_TYPE
)
def work(weights, state, data):
  kept, count = state
  # A loop within the loop over clients.
  steps, total = tf.while_loop(
    lambda step, _: step < tf.shape(data.rows)[0],
    lambda step, total: (step + 1, 0.9 * total + data.rows[step] * weights),
    (tf.constant(0), kept),
  )
  noise = tf.random.stateless_normal([2], tf.stack([data.number, steps]))
  return total + 0.01 * noise, (total, count + steps), data.vector


@tff.tensorflow.computation(tff.TensorType(np.float32, (2,)), np.float32)
def divide(total, count):
  return total / count


@tff.federated_computation(
  AT_SERVER,
  tff.FederatedType(STATE_TYPE, tff.CLIENTS),
  tff.FederatedType(DATA_TYPE, tff.CLIENTS),
)
def one_round(weights, states, data):
  update, new_states, vector = tff.federated_map(
    work, (tff.federated_broadcast(weights), states, data)
  )
  count = tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS))
  mean = tff.federated_map(divide, (tff.federated_sum(update), count))
  return mean, new_states, tff.federated_sum(vector), weights


def make_clients(num_clients, seed=0):
  generator = np.random.default_rng([seed, num_clients])
  states = [
    (generator.normal(size=2).astype(np.float32), np.int32(i))
    for i in range(num_clients)
  ]
  data = [
    Data(
      generator.normal(size=(int(generator.integers(0, 6)), 2)).astype("f4"),
      generator.normal(size=3).astype(np.float32),
      np.int32(100 + i),
    )
    for i in range(num_clients)
  ]
  return states, data


WEIGHTS = np.array([1.5, -0.5], np.float32)


@pytest.fixture
def whole(monkeypatch):
  """Counts the calls that run as one function."""
  calls = []
  run = cohorts.CohortProgram.__call__

  def counted(self, num_clients, packed, *batches):
    result = run(self, num_clients, packed, *batches)
    calls.append(num_clients)
    return result

  monkeypatch.setattr(cohorts.CohortProgram, "__call__", counted)
  return calls


@pytest.fixture
def one_by_one(monkeypatch, run):
  def run_it(*arguments):
    with monkeypatch.context() as patch:
      patch.setattr(packing.Packer, "__call__", lambda *arguments: None)
      return run(in_process.in_process_context(), *arguments)

  return run_it


class TestOneFunction:
  @pytest.mark.slow
  def test_same_bits_for_any_number_of_clients_and_threads_with_one_trace(
    self, run, whole, one_by_one
  ):
    contexts = [
      in_process.in_process_context(num_threads=number) for number in (1, 2, 8)
    ]
    for num_clients in (3, 1, 20, 3):
      states, data = make_clients(num_clients)
      expected = bits(one_by_one(one_round, WEIGHTS, states, data))
      for context in contexts:
        found = run(context, one_round, WEIGHTS, states, data)
        assert bits(found) == expected
        assert context.num_traces == 1
    assert whole == [each for each in (3, 1, 20, 3) for _ in contexts]

  @pytest.mark.slow
  def test_read_only_data_are_packed_once_with_the_same_bits(
    self, run, monkeypatch
  ):
    monkeypatch.setattr(memory, "_MIN_KEPT_BYTES", 0)
    joined = []
    join = packing._join
    monkeypatch.setattr(
      packing, "_join", lambda *each: joined.append(each) or join(*each)
    )
    states, data = make_clients(6)
    expected = {
      num_clients: bits(
        run(
          in_process.in_process_context(),
          one_round,
          WEIGHTS,
          states[:num_clients],
          data[:num_clients],
        )
      )
      for num_clients in (6, 4)
    }
    data = [each._replace(rows=examples.read_only(each.rows)) for each in data]
    joined.clear()
    context = in_process.in_process_context()
    for num_clients in (6, 4, 6, 4, 6, 6, 4):
      found = run(
        context, one_round, WEIGHTS, states[:num_clients], data[:num_clients]
      )
      assert bits(found) == expected[num_clients]
    # Each cohort once in memory that is lent, and once in its own.
    assert len(joined) == 4

  def test_clients_states_do_not_share_memory(self, run):
    states, data = make_clients(3)
    _, new_states, _, _ = run(
      in_process.in_process_context(), one_round, WEIGHTS, states, data
    )
    arrays = [state[0] for state in new_states]
    assert not any(
      np.shares_memory(one, other)
      for i, one in enumerate(arrays)
      for other in arrays[:i]
    )
    # None is a part of what all clients have.
    assert all(array.base is None for array in arrays)

  def test_aggregate_that_depends_on_another_takes_a_second_loop(
    self, run, whole
  ):
    at_clients = tff.FederatedType(np.float32, tff.CLIENTS)

    @tff.tensorflow.computation(np.float32, np.float32)
    def squared_distance(value, mean):
      return (value - mean) ** 2

    @tff.federated_computation(at_clients)
    def variance(numbers):
      mean = tff.federated_broadcast(tff.federated_mean(numbers))
      distances = tff.federated_map(squared_distance, (numbers, mean))
      return tff.federated_mean(distances), distances

    found, distances = run(
      in_process.in_process_context(), variance, [*np.float32([1, 2, 6])]
    )
    assert found == np.float32(14 / 3) and distances == [4, 1, 9]
    assert whole == [3]

  def test_loop_at_the_server(self, run, whole):
    # TensorFlow names its frame as that of the loop over clients.
    @tff.tensorflow.computation(np.int32)
    def double(number):
      (doubled,) = tf.while_loop(lambda n: n < 100, lambda n: 2 * n, [number])
      return doubled

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def doubled_sum(numbers):
      return tff.federated_map(double, tff.federated_sum(numbers))

    found = run(
      in_process.in_process_context(), doubled_sum, [*np.int32([3, 4])]
    )
    assert found == 112 and whole == [2]

  def test_gradient_of_a_condition(self, run, whole):
    def slope(x):
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.cond(x > 0, lambda: tf.sin(x * x), lambda: -x)
      return tape.gradient(y, x)

    slopes = map_of(slope, np.float32)
    proto = tff.framework.ConcreteComputation.get_proto(slopes)
    # It is an operation of data sets, too.
    assert b"OptionalFromValue" in proto.SerializeToString()
    found = run(in_process.in_process_context(), slopes, [*np.float32([2, -1])])
    np.testing.assert_allclose(found, [4 * np.cos(4), -1], rtol=1e-6)
    assert whole == [2]


class TestOneByOne:
  def test_clients_with_much_data_are_called_one_by_one(
    self, run, whole, monkeypatch
  ):
    states, data = make_clients(3)
    context = in_process.in_process_context()
    expected = bits(run(context, one_round, WEIGHTS, states, data))
    assert whole == [3]
    for limit in ("MAX_CLIENT_BYTES", "MAX_BYTES"):
      with monkeypatch.context() as patch:
        patch.setattr(packing, limit, 8)
        found = run(context, one_round, WEIGHTS, states, data)
      assert bits(found) == expected
    assert whole == [3]

  @pytest.mark.slow
  def test_failure_of_the_one_function_is_said_once(
    self, run, one_by_one, monkeypatch, caplog
  ):
    def fail(self, num_clients, packed):
      raise tf.errors.ResourceExhaustedError(None, None, "no memory\nis left")

    caplog.set_level("INFO", "absl")
    states, data = make_clients(3)
    expected = one_by_one(one_round, WEIGHTS, states, data)
    monkeypatch.setattr(cohorts.CohortProgram, "__call__", fail)
    context = in_process.in_process_context()
    for _ in range(2):
      found = run(context, one_round, WEIGHTS, states, data)
      assert bits(found) == bits(expected)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "client by client" in line and "no memory is left" in line

  def test_other_values_than_arrays_of_the_type_are_converted(self, run, whole):
    states, data = make_clients(2)
    context = in_process.in_process_context()
    expected = bits(run(context, one_round, WEIGHTS, states, data))
    tensors = [each._replace(rows=tf.constant(each.rows)) for each in data]
    found = run(context, one_round, WEIGHTS.tolist(), states, tensors)
    assert bits(found) == expected
    assert whole == [2]

  @pytest.mark.parametrize(
    "change, message",
    [
      ({"rows": np.zeros([2, 2])}, "float64"),
      ({"rows": np.zeros([2, 3], np.float32)}, "shape"),
    ],
  )
  def test_wrong_values_are_refused(self, run, change, message):
    states, data = make_clients(2)
    with pytest.raises(TypeError, match=message):
      run(
        in_process.in_process_context(),
        one_round,
        WEIGHTS,
        states,
        [data[0], data[1]._replace(**change)],
      )

  def test_without_clients(self, run, whole):
    context = in_process.in_process_context()
    _, states, total, _ = run(context, one_round, WEIGHTS, [], [])
    assert states == [] and total.tolist() == [0, 0, 0]
    assert whole == []


def _of_clients(function):
  return tff.tensorflow.computation(function, np.float32)


_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.federated_computation(_FLOATS)
def _deviations(values):
  """The sum of the deviations of drawn values from their mean."""
  drawn = tff.federated_map(
    _of_clients(lambda value: value + tf.random.uniform([])), values
  )
  mean = tff.federated_broadcast(tff.federated_mean(drawn))
  subtract = tff.tensorflow.computation(
    lambda one, other: one - other, np.float32, np.float32
  )
  return tff.federated_sum(tff.federated_map(subtract, (drawn, mean))), drawn


@tff.federated_computation(_FLOATS)
def _one_depth(values):
  """A drawn value and its sum."""
  drawn = tff.federated_map(
    _of_clients(lambda value: value + tf.random.uniform([])), values
  )
  return tff.federated_sum(drawn), drawn


class TestDraws:
  @pytest.mark.parametrize("num_threads", [1, 2])
  def test_value_without_a_seed_is_drawn_once(self, run, whole, num_threads):
    context = in_process.in_process_context(num_threads=num_threads)
    for _ in range(2):
      total, drawn = run(context, _deviations, [np.float32(0)] * 4)
      assert abs(total) < 1e-6
      assert len(set(drawn)) == 4
    assert not whole

  def test_one_depth_runs_as_one_function(self, run, whole):
    context = in_process.in_process_context()
    total, drawn = run(context, _one_depth, [np.float32(0)] * 4)
    assert whole == [4]
    np.testing.assert_allclose(total, np.sum(drawn), rtol=1e-6)


class TestStructures:
  def test_part_of_a_struct_that_tensorflow_returns_is_selected(
    self, run, whole
  ):
    two = tff.tensorflow.computation(
      lambda value: (value + 1.0, value * 2.0), np.float32
    )

    @tff.federated_computation(np.float32, _FLOATS)
    def select(scale, values):
      second = two(scale)[1]
      return second, tff.federated_sum(values)

    context = in_process.in_process_context()
    assert run(context, select, np.float32(3), [np.float32(1)] * 2) == (6, 2)
    assert whole == [2]

  def test_clients_return_structures_of_empty_structures(self, run):
    empty = map_of(lambda value: ((), ((),)), np.float32)
    result = run(in_process.in_process_context(), empty, [np.float32(1)] * 2)
    assert result == [((), ((),))] * 2
