"""FedDyn: a dynamic regulariser aligns the optima of clients and server."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_dyn
from tff_shift.algorithms import fed_prox
from tff_shift.learning import randomness
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

ROUND = 3
ALPHA = 0.7
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
# Enough steps that clients reach their minimum.
EXACT = {"alpha": 0.5, "learning_rate": 0.1, "local_steps": 200}


@pytest.fixture(scope="module")
def client(make_client):
  return make_client(0, [6, 5])


@pytest.fixture(scope="module")
def weights(model, run_in_graph):
  return run_in_graph(model.initial_weights, randomness.server_seed(0))


def minus(one, other):
  return tf.nest.map_structure(np.subtract, one, other)


def inner_product(one, other):
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return sum(np.sum(a * b) for a, b in pairs)


def train(functions):
  return lambda weights, state, data: functions.train_client(
    weights, state, data, tf.constant(ROUND)
  )


def build(model, **hparams):
  return fed_dyn.build(
    model, fed_dyn.HParams(alpha=ALPHA, **(COMMON | hparams)), num_clients=4
  )


def test_steps_agree_with_the_oracle(
  model, client, weights, oracle, run_in_graph, compare
):
  generator = np.random.default_rng(0)
  summed = tf.nest.map_structure(
    lambda w: generator.normal(size=w.shape).astype(np.float32), weights
  )
  result = run_in_graph(train(build(model)), weights, summed, client)
  # g_k of the paper.
  linear = tf.nest.map_structure(lambda own: -ALPHA * np.float64(own), summed)

  def objective(loss):
    def value(u):
      moved = minus(u, weights)
      return (
        loss(u)
        - inner_product(linear, u)
        + ALPHA / 2 * inner_product(moved, moved)
      )

    return value

  # Two iterations of a step for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  trained, _ = oracle.descend(
    weights,
    [objective(loss) for loss in oracle.losses(batches)],
    COMMON["learning_rate"],
  )
  update = minus(trained, weights)
  compare.assert_close(result.update, update, 1e-5)
  # g_k - alpha (u - w)
  compare.assert_close(
    tf.nest.map_structure(lambda own: -ALPHA * own, result.client_state),
    tf.nest.map_structure(lambda g, moved: g - ALPHA * moved, linear, update),
    1e-5,
  )


@pytest.mark.parametrize(
  "optimizer",
  [
    {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    {"optimizer": "adam"},
  ],
)
def test_first_round_of_a_client_is_that_of_fed_prox_bit_for_bit(
  model, client, weights, run_in_graph, compare, optimizer
):
  functions = build(model, **optimizer)
  zeros = tf.nest.map_structure(np.zeros_like, weights)
  found = run_in_graph(train(functions), weights, zeros, client)
  hparams = fed_prox.HParams(mu=ALPHA, **COMMON, **optimizer)
  expected = run_in_graph(
    train(fed_prox.build(model, hparams)), weights, (), client
  )
  assert compare.equal_bits(found.update, expected.update)
  assert compare.equal_bits(found.loss, expected.loss)
  assert compare.equal_bits(found.client_state, expected.update)


class TestRounds:
  @pytest.fixture(scope="class")
  def run(self, context, model, make_client):
    """Returns `run(participation)`: weights, memory and states by round."""
    del context

    def start(participation):
      built = algorithms.build(
        fed_dyn, model, fed_dyn.HParams(alpha=ALPHA, **COMMON), num_clients=4
      )
      data = [make_client(i, [5 + i]) for i in range(4)]
      current = rounds.Rounds(
        built, data, run_seed=0, participation=participation
      )
      states = []
      for _ in range(4):
        before = current.server_state.weights
        current.step()
        state = current.server_state
        states.append(
          (
            before,
            state.weights,
            state.memory,
            [each for each in current.client_states],
          )
        )
      return states

    return start

  @pytest.mark.parametrize("participation", [0.5, 1.0])
  def test_memory_is_the_mean_over_all_clients(
    self, run, participation, compare
  ):
    for _, _, memory, states in run(participation):
      mean = tf.nest.map_structure(lambda *each: np.mean(each, axis=0), *states)
      compare.assert_close(memory, mean, 1e-6)
      assert any(np.any(each) for each in tf.nest.flatten(memory))

  def test_first_round_of_all_clients_moves_twice_the_mean_update(
    self, run, compare
  ):
    before, after, _, states = run(1.0)[0]
    mean = tf.nest.map_structure(lambda *each: np.mean(each, axis=0), *states)
    compare.assert_close(
      minus(after, before),
      tf.nest.map_structure(lambda each: 2 * each, mean),
      1e-6,
    )


class TestQuadratics:
  """Two clients whose mean loss is smallest at 0.8."""

  def test_first_round_computed_by_hand(self, quadratics):
    run = quadratics.start("fed_dyn", **EXACT)
    run.step()
    # The second client minimises 4 (u - 1)^2 / 2 + u^2 / 4: u = 8/9.
    np.testing.assert_allclose(quadratics.u(run), 8 / 9, rtol=1e-5)
    np.testing.assert_allclose(
      run.server_state.memory.head[0], 4 / 9, rtol=1e-5
    )

  @pytest.mark.parametrize("alpha", [0.5, 2.0])
  def test_optimum_is_the_fixed_point(self, quadratics, alpha):
    run = quadratics.start("fed_dyn", **(EXACT | {"alpha": alpha}))
    for _ in range(60):
      run.step()
    np.testing.assert_allclose(quadratics.u(run), 0.8, rtol=1e-4)

  def test_fixed_point_of_fed_prox_is_elsewhere(self, quadratics):
    hparams = {"mu": 0.5, "learning_rate": 0.1, "local_steps": 200}
    run = quadratics.start("fed_prox", **hparams)
    for _ in range(60):
      run.step()
    np.testing.assert_allclose(quadratics.u(run), 4 / 7, rtol=1e-4)

  def test_optimum_is_the_fixed_point_of_sampled_clients(self, quadratics):
    run = quadratics.start("fed_dyn", participation=0.5, **EXACT)
    for _ in range(150):
      run.step()
    np.testing.assert_allclose(quadratics.u(run), 0.8, rtol=1e-3)


@pytest.mark.parametrize(
  ("wrong", "named"),
  [
    ({"alpha": 0.0}, "alpha=0.0"),
    ({"client_weighting": "num_examples"}, "client_weighting=num_examples"),
    ({"personal_norm": "all"}, "personal_norm=all"),
  ],
)
def test_what_breaks_the_sums_is_refused(model, wrong, named):
  hparams = dataclasses.replace(fed_dyn.HParams(), **wrong)
  with pytest.raises(ValueError, match=f"{named} is not allowed.*must be"):
    algorithms.build("fed_dyn", model, hparams, num_clients=4)
