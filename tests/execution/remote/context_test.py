"""Tests of what remote workers compute together."""

import contextlib
import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import executor_equality
from tff_shift import execution

pytestmark = pytest.mark.cpp

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


@tff.tensorflow.computation(np.float32)
def check(value):
  with tf.control_dependencies([tf.debugging.assert_positive(value)]):
    return tf.identity(value)


class TestResults:
  @pytest.fixture(scope="class", params=[1, 3])
  def context(self, request, workers, use):
    with use(workers[: request.param]) as context:
      yield context

  def test_clients_keep_their_order(self, context, count):
    # The first worker finishes last.
    limits = [50_000, 3, 2, 1, 0]
    own, mean = count(limits)
    assert own == limits
    np.testing.assert_allclose(mean, sum(limits) / 3 / 5, rtol=1e-6)

  def test_fewer_clients_than_workers(self, context, count):
    assert count([6]) == ([6], 2.0)

  def test_result_of_clients_that_depends_on_an_aggregate(
    self, context, center
  ):
    assert center([1.0, 2.0, 3.0, 6.0]) == ([-2.0, -1.0, 0.0, 3.0], 3.0)

  def test_aggregate_that_depends_on_another(self, context, center, caplog):
    @tff.federated_computation(AT_CLIENTS)
    def mean_distance(values):
      centered, _ = center(values)
      distance = tff.tensorflow.computation(lambda x: tf.abs(x), np.float32)
      return tff.federated_mean(tff.federated_map(distance, centered))

    assert mean_distance([1.0, 2.0, 3.0, 6.0]) == 1.5
    assert "one aggregate dependent on another" in caplog.text

  def test_without_placement(self, context, subtract):
    assert subtract(5.0, 3.0) == 2.0

  @pytest.mark.slow
  def test_computation_that_fails_says_why(self, context):
    total = tff.federated_computation(
      lambda values: tff.federated_sum(tff.federated_map(check, values)),
      AT_CLIENTS,
    )
    with pytest.raises(execution.WorkerError, match="x > 0 did not") as error:
      total([1.0, -1.0, 2.0])
    assert re.fullmatch(
      r"the worker 127.0.0.1:\d+ answers CreateCall with INTERNAL: .*"
      r"; the computation seems to fail there for client 1 of 3",
      str(error.value),
    )
    assert total([1.0, 1.0, 2.0]) == 4.0

  @pytest.mark.slow
  def test_failure_of_the_server_names_no_client(self, context):
    total = tff.federated_computation(
      lambda values: tff.federated_map(check, tff.federated_sum(values)),
      AT_CLIENTS,
    )
    with pytest.raises(execution.WorkerError, match=r"fail there$"):
      total([1.0, -1.0, -2.0])

  def test_result_that_all_clients_share(self, context):
    @tff.federated_computation(AT_CLIENTS, AT_SERVER)
    def broadcast(values, value):
      return tff.federated_sum(values), tff.federated_broadcast(value)

    assert broadcast([1.0, 2.0, 4.0], 5.0) == (7.0, 5.0)

    @tff.federated_computation(AT_CLIENTS, AT_SERVER)
    def broadcast_alone(values, value):
      del values
      return tff.federated_broadcast(value)

    assert broadcast_alone([1.0, 2.0, 4.0], 5.0) == 5.0
    with pytest.raises(ValueError, match="share needs a client; there are 0"):
      broadcast_alone([], 5.0)


@pytest.mark.slow
def test_same_bits_for_any_number_of_workers(workers, use, count, center):
  limits = [1, 2, 4, 10, 31, 100, 317, 1000, 3163, 10_000]
  # Sums in another order end in other bits.
  numbers = list(np.random.default_rng(0).normal(size=10).astype(np.float32))
  results = []
  for num_workers in (1, 2, 3):
    with use(workers[:num_workers]):
      results.append((count(limits), center(numbers)))
  assert results[0] == results[1] == results[2]


@tff.tensorflow.computation(np.float32)
def add_noise(value):
  return value + tf.random.uniform([])


@tff.tensorflow.computation(np.float32, np.float32)
def subtract(a, b):
  return a - b


class TestDraws:
  """A value that is drawn without a seed has one value in a call."""

  @pytest.fixture(scope="class")
  def context(self, workers, use):
    with use(workers[:2]) as context:
      yield context

  def test_independent_draws_of_clients(self, context, caplog):
    @tff.federated_computation(AT_CLIENTS)
    def draw_twice(values):
      first = tff.federated_map(add_noise, values)
      second = tff.federated_map(add_noise, values)
      return first, second, tff.federated_sum(first)

    first, second, total = draw_twice([0.0] * 4)
    assert len({*first, *second}) == 8
    # What is summed is what clients keep.
    np.testing.assert_allclose(total, sum(first), rtol=1e-6)
    assert not caplog.records

  def test_draw_before_and_after_an_aggregate(self, context, caplog):
    @tff.federated_computation(AT_CLIENTS)
    def center(values):
      drawn = tff.federated_map(add_noise, values)
      mean = tff.federated_mean(drawn)
      centered = tff.federated_map(
        subtract, (drawn, tff.federated_broadcast(mean))
      )
      return drawn, centered, mean

    drawn, centered, mean = center([0.0] * 4)
    np.testing.assert_allclose(np.mean(drawn), mean, rtol=1e-6)
    np.testing.assert_allclose(np.subtract(drawn, mean), centered, atol=1e-6)
    assert "a value without a seed would be drawn several" in caplog.text

  @pytest.mark.parametrize("has_aggregate", [False, True])
  def test_draw_of_the_server(self, context, has_aggregate):
    @tff.federated_computation(AT_CLIENTS, AT_SERVER)
    def shift(values, value):
      drawn = tff.federated_map(add_noise, value)
      shifted = tff.federated_map(
        subtract, (values, tff.federated_broadcast(drawn))
      )
      if has_aggregate:
        return shifted, drawn, tff.federated_sum(values)
      return shifted, drawn

    shifted, drawn, *_ = shift([0.0] * 4, 0.0)
    np.testing.assert_allclose(shifted, [-drawn] * 4, rtol=1e-6)

  def test_draw_after_the_aggregates(self, context, caplog):
    @tff.federated_computation(AT_CLIENTS)
    def noisy_sum(values):
      total = tff.federated_sum(values)
      noisy = tff.federated_map(add_noise, total)
      return noisy, tff.federated_map(subtract, (noisy, total)), total

    noisy, noise, total = noisy_sum([1.0, 2.0])
    assert total == 3.0
    assert 0.0 < noise < 1.0
    np.testing.assert_allclose(noisy - total, noise, atol=1e-6)
    assert not caplog.records


@functools.cache
def local_calls(name, num_rounds, beside_rounds):
  """The calls of an algorithm, and what the local executor gives."""
  built = executor_equality.build(name)
  with execution.use("local"):
    calls = executor_equality.run_all(built, beside_rounds, num_rounds)
  num_phases = num_rounds * len(built.phases)
  prepares = bool(built.guidance and built.guidance.prepare)
  assert len(calls) == 2 + num_phases + prepares + len(beside_rounds)
  return calls


@pytest.mark.slow
class TestAlgorithms:
  """Each step from the same state as on the local executor.

  `benchmarks.executor_equality` compares every computation of all algorithms.
  """

  @pytest.fixture(scope="class")
  def contexts(self, workers, use):
    with contextlib.ExitStack() as stack:
      yield {
        2: stack.enter_context(use(workers[:2])),
        3: stack.enter_context(use(workers)),
      }

  @pytest.mark.parametrize(
    ("name", "num_rounds", "beside_rounds", "num_workers"),
    [
      # Clients keep a state, and vote.
      ("fed_rep", 2, ("vote",), 2),
      # What clients count, and a guide.
      ("fed_drm", 0, ("guide",), 2),
      # The server answers a client.
      ("fed_3da", 0, ("request",), 3),
      *(
        pytest.param(*row, marks=pytest.mark.long)
        for row in (
          # They adapt to one example after the other.
          ("t3a", 0, ("evaluate_clients", "evaluate_each_client"), 2),
          # The server goes on from the mean and a sum, and evaluates alone.
          ("cfed", 1, ("evaluate_server",), 2),
          # Two phases.
          ("fed_ade", 1, (), 3),
          # Clients prepare, and answer from that.
          ("fed_avg_ft", 0, ("answer",), 2),
          # What clients keep starts from what the server sends.
          ("apfl", 1, (), 3),
          # They send a summary.
          ("fed_evolve", 1, ("evaluate_server",), 2),
        )
      ),
    ],
  )
  def test_same_as_local(
    self, contexts, name, num_rounds, beside_rounds, num_workers
  ):
    install = tff.framework.get_context_stack().install
    for call in local_calls(name, num_rounds, beside_rounds):
      with install(contexts[num_workers]):
        found = call.computation(*call.arguments)
      difference = executor_equality.largest_difference(found, call.result)
      assert difference <= 1e-5, call.name
