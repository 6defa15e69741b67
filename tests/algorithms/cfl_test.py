"""CFL: past domains are quadratic functions that a client keeps."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import cfl
from tff_shift.algorithms.parts import continual_tasks
from tff_shift.algorithms.parts import fisher_information
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow


COMMON = {"batch_size": 4, "learning_rate": 0.1}
# Three domains in six rounds.
HPARAMS = cfl.HParams(
  task_rounds=6,
  past_weight=0.5,
  curvature=2.0,
  linear_term=True,
  local_steps=1,
  **COMMON,
)
SIZES = [4, 6, 5]


def nothing(weights):
  """The state of a client at its start."""
  zeros = tf.nest.map_structure(np.zeros_like, weights)
  return cfl.Past(zeros, zeros, np.float32(0), np.float32(0), np.int32(-1))


def moments(oracle, weights, client):
  """Mean loss, gradient and squared gradient over examples, in NumPy."""
  losses = [
    lambda w, i=i: oracle.cross_entropy(
      oracle.predict(w, client.x[i : i + 1]), client.y[i : i + 1]
    )
    for i in range(len(client.y))
  ]
  gradients = [oracle.gradient(loss, weights) for loss in losses]
  mean = lambda *each: np.mean(each, axis=0)  # noqa: E731
  return (
    np.mean([loss(weights) for loss in losses]),
    tf.nest.map_structure(mean, *gradients),
    tf.nest.map_structure(
      lambda *each: np.mean(np.square(each), axis=0), *gradients
    ),
  )


@pytest.fixture(scope="module")
def client(make_client):
  return make_client(0, SIZES)


class TestExpansion:
  def test_sum_of_quadratic_functions_is_exact(self, run_in_graph):
    generator = np.random.default_rng(0)
    functions = [
      (generator.random(4), generator.normal(size=4)) for _ in range(3)
    ]

    def value(w, bend, centre):
      return np.sum(bend * (w - centre) ** 2) / 2

    def expand(seen, w):
      past = cfl.Past(tf.zeros(4), tf.zeros(4), 0.0, 0.0, 2)
      for number, (bend, centre) in enumerate(functions):
        anchor = seen[number]
        bend, centre = (tf.constant(v, tf.float32) for v in (bend, centre))
        change = anchor - centre
        loss = tf.reduce_sum(bend * change**2) / 2.0
        past = cfl.expand(past, anchor, loss, bend * change, bend)
      return past.count, cfl.past_loss(past, w)

    anchors = generator.normal(size=(3, 4)).astype(np.float32)
    w = generator.normal(size=4).astype(np.float32)
    count, found = run_in_graph(expand, anchors, w)
    assert count == 3
    np.testing.assert_allclose(
      found, sum(value(w, *each) for each in functions), rtol=1e-4
    )

  def test_moments_are_those_of_single_examples(
    self, model, client, weights, oracle, run_in_graph, compare
  ):
    found = run_in_graph(
      lambda w, data: fisher_information.differentiate(model, w, data),
      weights,
      client,
    )
    compare.assert_close(found, moments(oracle, weights, client), 1e-5)


class TestTraining:
  def test_first_domain_is_fed_avg_on_it(
    self, learn_alone, build, client, weights, compare
  ):
    result = build(HPARAMS).train_client(weights, nothing(weights), client, 1)
    expected = learn_alone(weights, client, 0, 1)
    assert compare.equal_bits(result.update, expected.update)
    assert compare.equal_bits(
      result.client_state, nothing(weights)._replace(domain=np.int32(0))
    )

  def test_past_of_no_weight_is_forgotten(
    self, learn_alone, build, client, weights, compare
  ):
    past = nothing(weights)._replace(domain=np.int32(0))
    forgets = cfl.HParams(
      task_rounds=6, past_weight=0.0, local_steps=1, **COMMON
    )
    result = build(forgets).train_client(weights, past, client, 3)
    expected = learn_alone(weights, client, 1, 3)
    assert compare.equal_bits(result.update, expected.update)

  def test_domain_that_is_over_is_expanded_where_the_client_meets_the_next(
    self, domain_of, build, client, weights, oracle, run_in_graph, compare
  ):
    past = nothing(weights)._replace(domain=np.int32(0))
    result = build(HPARAMS).train_client(weights, past, client, 3)
    _, gradient, fisher = moments(oracle, weights, domain_of(client, 0))
    fisher = tf.nest.map_structure(lambda f: 2 * f, fisher)
    state = result.client_state
    compare.assert_close(state.curvature, fisher, 1e-5)
    assert (state.count, state.domain) == (1, 1)

    def draw_batches(data):
      seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 3)
      current = continual_tasks.of_domain(data, 1)
      draw = local_training.pooled_batches(current, 3, 4, seed)
      return [draw(step) for step in range(3)]

    def expansion(w):
      flat = map(tf.nest.flatten, (gradient, fisher, w, weights))
      return sum(
        np.sum(g * (now - then) + f * (now - then) ** 2 / 2)
        for g, f, now, then in zip(*flat, strict=True)
      )

    before = oracle.cross_entropy(
      oracle.predict(weights, client.x[:4]), client.y[:4]
    )
    expected, mean_loss = oracle.descend(
      weights,
      [
        lambda w, batch=batch: (
          oracle.cross_entropy(oracle.predict(w, batch.x), batch.y)
          + 0.5 * (before + expansion(w))
        )
        / 1.5
        for batch in run_in_graph(draw_batches, client)
      ],
      0.1,
    )
    compare.assert_close(
      result.update, tf.nest.map_structure(np.subtract, expected, weights), 1e-5
    )
    np.testing.assert_allclose(result.loss, mean_loss, rtol=1e-4)
    # In the next round of the domain nothing is added.
    again = build(HPARAMS).train_client(weights, state, client, 3)
    assert compare.equal_bits(again.client_state, state)

  def test_without_linear_term_the_old_weights_are_a_minimum(
    self, build, client, weights, oracle, run_in_graph
  ):
    past = nothing(weights)._replace(domain=np.int32(0))
    result = build(HPARAMS, linear_term=False).train_client(
      weights, past, client, 3
    )
    state = result.client_state
    loss, slope = run_in_graph(
      lambda past, w: (
        cfl.past_loss(past, w),
        tf.gradients(cfl.past_loss(past, w), w.head[0])[0],
      ),
      state,
      weights,
    )
    before = oracle.cross_entropy(
      oracle.predict(weights, client.x[:4]), client.y[:4]
    )
    np.testing.assert_allclose(loss, before, rtol=1e-5)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    assert np.all(state.curvature.head[0] >= 0)
    assert np.any(state.curvature.head[0] > 1e-4)

  def test_of_a_domain_without_examples_nothing_is_learned(
    self, build, make_client, weights
  ):
    client = make_client(0, [4, 0, 5])
    start = nothing(weights)._replace(domain=np.int32(0))
    result = build(HPARAMS).train_client(weights, start, client, 3)
    assert not any(np.any(w) for w in tf.nest.flatten(result.update))
    # It is not among the past ones either.
    state = result.client_state
    later = build(HPARAMS).train_client(weights, state, client, 5)
    assert (state.count, later.client_state.count) == (1, 1)


class TestRounds:
  def test_each_domain_that_is_over_is_counted(
    self, model, make_client, context
  ):
    algorithm = algorithms.build(cfl, model, HPARAMS)
    run = rounds.Rounds(
      algorithm, [make_client(i, SIZES) for i in range(2)], run_seed=0
    )
    counts = []
    for _ in range(6):
      run.step()
      counts.append([int(each.count) for each in run.client_states])
    assert counts == [[0] * 2] * 2 + [[1] * 2] * 2 + [[2] * 2] * 2
