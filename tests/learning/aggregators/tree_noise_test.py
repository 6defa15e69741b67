"""Tests of DP-FTRL's noise: against the tree in NumPy, node by node."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_array_equal

from tests.fixtures import clients
from tff_shift import execution
from tff_shift.execution import local
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators.aggregator_hparams import (
  AggregatorHParams as HParams,
)

WEIGHT = tff.TensorType(np.float32)
NUM_CLIENTS = 8
NOISE, NORM = 1.5, 0.5
# Norms 5, 0.5 and 13.
UPDATES = [
  [np.float32([3]), np.float32([4])],
  [np.float32([0.3]), np.float32([-0.4])],
  [np.float32([-5]), np.float32([12])],
]


def create(name, noise, size=1, restart=0):
  hparams = HParams(
    noise_multiplier=noise,
    clipping="fixed",
    clipping_norm=NORM,
    tree_restart=restart,
  )
  vectors = tff.to_type([(np.float32, (size,))] * 2)
  return factories.build(name, hparams, clients_per_round=NUM_CLIENTS).create(
    vectors, WEIGHT
  )


def rounds_of(process, updates, num_rounds, state=None):
  """Returns the results, [rounds, 2 * size], and the states."""
  state = process.initialize() if state is None else state
  results, states = [], []
  for _ in range(num_rounds):
    output = process.next(state, updates, [1.0] * len(updates))
    state = output.state
    results.append(np.concatenate(output.result))
    states.append(state)
  return np.stack(results), states


def prefix_weights(num_rounds):
  """The weights of the nodes' noises in N_1, N_2, ...: [rounds, nodes].

  A node's sum is known from its own noise and from its two children. With the
  variance s of a child's estimate, the two sources have variances 1 and 2 s;
  the best estimate weights them by their inverses (Honaker, 2015).
  """
  columns = {}

  def node(level, index):
    own = columns.setdefault((level, index), len(columns))
    row = np.zeros(2 * num_rounds + 8)
    row[own] = 1.0
    if not level:
      return row
    children = node(level - 1, 2 * index) + node(level - 1, 2 * index + 1)
    of_own, of_children = 1.0, 1 / np.square(children).sum()
    return (row * of_own + children * of_children) / (of_own + of_children)

  rows = []
  for last in range(1, num_rounds + 1):
    # The fewest complete nodes that cover rounds 1 to `last`.
    row, start = 0.0, 0
    for level in reversed(range(last.bit_length())):
      if last >> level & 1:
        row = row + node(level, start >> level)
        start += 1 << level
    rows.append(row)
  return np.stack(rows)


def covariance(num_rounds, restart=0):
  """The covariance of the noise in the server's weights after each round."""
  length = restart or num_rounds
  found = np.zeros((num_rounds, num_rounds))
  for start in range(0, num_rounds, length):
    weights = prefix_weights(min(length, num_rounds - start))
    # What the last leaf of a tree has stays.
    stays = np.repeat(weights[-1:], num_rounds - start - len(weights), axis=0)
    weights = np.concatenate([weights, stays])
    found[start:, start:] += weights @ weights.T
  return found * (NOISE * NORM / NUM_CLIENTS) ** 2


@pytest.mark.slow
@pytest.mark.usefixtures("context")
class TestNoise:
  @pytest.mark.parametrize("restart", [0, 2])
  def test_without_it_the_mean_is_that_of_dp(self, restart):
    found, _ = rounds_of(create("dp_ftrl", 0.0, restart=restart), UPDATES, 5)
    expected, _ = rounds_of(create("dp", 0.0), UPDATES, 5)
    assert_array_equal(found, expected)
    assert np.any(found)

  @pytest.mark.parametrize("restart", [0, 3])
  def test_in_the_weights_has_the_covariance_of_the_tree(self, restart):
    size, num_rounds = 20_000, 9
    zeros = [[np.zeros(size, np.float32)] * 2] * 3
    process = create("dp_ftrl", NOISE, size, restart)
    results, _ = rounds_of(process, zeros, num_rounds)
    weights = np.cumsum(results, axis=0, dtype=np.float64)
    found = weights @ weights.T / (2 * size)
    expected = covariance(num_rounds, restart)
    # The variance of a product of two normal variables, over the draws.
    variances = np.outer(np.diag(expected), np.diag(expected)) + expected**2
    assert np.all(
      np.abs(found - expected) < 5 * np.sqrt(variances / (2 * size))
    )

  def test_is_another_in_each_run(self):
    process = create("dp_ftrl", NOISE)
    first, second = (rounds_of(process, UPDATES, 1)[0] for _ in range(2))
    assert np.all(first != second)

  @pytest.mark.filterwarnings("ignore::tff_shift._util.errors.NoiseWarning")
  def test_is_a_function_of_the_seed(self):
    spec = algorithm_lib.AlgorithmSpec(
      initial_weights=lambda seed: tf.zeros([9]),
      train_client=lambda weights, state, data, round_num: (
        algorithm_lib.ClientResult(weights, state, loss=0.0)
      ),
      predict_as_client=lambda weights, state, data, examples: examples.x,
    )
    hparams = HParams(noise_multiplier=NOISE, clipping="fixed")
    algorithm = clients.build(
      spec,
      num_features=2,
      aggregator=factories.build("dp_ftrl", hparams, clients_per_round=2),
    )

    def weights_of(seed):
      state, states, data = algorithm.start([clients.make(0, 1)], seed)
      for _ in range(2):
        state, _, _ = algorithm.phases[0](state, states, data)
      return state.weights

    first = weights_of(3)
    assert_array_equal(first, weights_of(3))
    assert np.all(first != weights_of(4))

  def test_is_the_same_from_the_same_state(self):
    process = create("dp_ftrl", NOISE, restart=4)
    results, states = rounds_of(process, UPDATES, 6)
    for done in (1, 3, 4):
      again, _ = rounds_of(process, UPDATES, 6 - done, states[done - 1])
      assert_array_equal(again, results[done:])


@pytest.mark.long
@pytest.mark.cpp
def test_two_workers_without_noise_are_the_mean_of_dp():
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(local.Worker.start()) for _ in range(2)]
    remote = execution.RemoteWorkers([each.address for each in workers])
    with execution.use("remote", remote_workers=remote):
      found, expected = (
        rounds_of(create(name, 0.0, restart=2), UPDATES, 3)[0]
        for name in ("dp_ftrl", "dp")
      )
  assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.cpp
def test_cpp_executor_keeps_the_state_of_the_tree():
  with local.local_context():
    process = create("dp_ftrl", NOISE, restart=4)
    results, states = rounds_of(process, UPDATES, 6)
    again, _ = rounds_of(process, UPDATES, 3, states[2])
    exact, _ = rounds_of(create("dp_ftrl", 0.0, restart=4), UPDATES, 6)
  assert_array_equal(again, results[3:])
  assert len(np.unique(results - exact)) == results.size


@pytest.mark.slow
def test_round_of_nobody_is_no_leaf(context):
  del context
  process = create("dp_ftrl", NOISE)
  _, (state,) = rounds_of(process, UPDATES, 1)
  output = process.next(state, UPDATES, [0.0] * 3)
  assert not np.any(np.concatenate(output.result))
  tf.nest.map_structure(assert_array_equal, output.state, state)
