"""CFL: past domains are quadratic functions that a client keeps."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import cfl

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
  zeros = trees.zeros(weights)
  return cfl.Past(zeros, zeros, np.float32(0), np.float32(0), np.int32(-1))


def moments(oracle, weights, client):
  """Gradient and mean squared gradient over examples, in NumPy."""
  examples = [
    client._replace(x=x[np.newaxis], y=[y])
    for x, y in zip(client.x, client.y, strict=True)
  ]
  gradients = [
    oracle.gradient(loss, weights) for loss in oracle.losses(examples)
  ]
  squares = [trees.map(np.square, each) for each in gradients]
  return trees.mean(*gradients), trees.mean(*squares)


def test_expansion_of_a_sum_of_quadratic_functions_is_exact(run_in_graph):
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
  assert_allclose(found, sum(value(w, *each) for each in functions), rtol=1e-4)


@pytest.mark.parametrize(
  "past_weight, domain, round_num",
  # The first domain, and a past of no weight.
  [(0.5, 0, 1), (0.0, 1, 3)],
)
def test_without_a_past_training_is_fed_avg_on_the_domain(
  learn_alone, build, client, weights, compare, past_weight, domain, round_num
):
  past = nothing(weights)._replace(domain=np.int32(domain - 1))
  result = build(HPARAMS, past_weight=past_weight).train_client(
    weights, past, client, round_num
  )
  expected = learn_alone(weights, client, domain, round_num)
  assert compare.equal_bits(result.update, expected.update)
  if not domain:
    assert compare.equal_bits(
      result.client_state, past._replace(domain=np.int32(0))
    )


def test_domain_that_is_over_is_expanded_where_the_client_meets_the_next(
  domain_of, client, weights, oracle, compare, functions
):
  past = nothing(weights)._replace(domain=np.int32(0))
  result = functions.train_client(weights, past, client, 3)
  gradient, fisher = moments(oracle, weights, domain_of(client, 0))
  fisher = trees.scale(fisher, 2)
  state = result.client_state
  compare.assert_close(state.curvature, fisher, 1e-5)
  assert (state.count, state.domain) == (1, 1)

  def expansion(w):
    return sum(
      np.sum(g * (now - then) + f * (now - then) ** 2 / 2)
      for g, f, now, then in trees.pairs(gradient, fisher, w, weights)
    )

  (before,) = oracle.losses([domain_of(client, 0)])
  batches = oracle.of_training(domain_of(client, 1), 3, 3)
  expected, mean_loss = oracle.descend(
    weights,
    [
      lambda w, loss=loss: (loss(w) + 0.5 * (before(weights) + expansion(w)))
      / 1.5
      for loss in oracle.losses(batches)
    ],
    0.1,
  )
  oracle.check(result, weights, expected, mean_loss)
  # In the next round of the domain nothing is added.
  again = functions.train_client(weights, state, client, 3)
  assert compare.equal_bits(again.client_state, state)


def test_without_linear_term_the_old_weights_are_a_minimum(
  build, domain_of, client, weights, oracle, run_in_graph
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
  (before,) = oracle.losses([domain_of(client, 0)])
  assert_allclose(loss, before(weights), rtol=1e-5)
  assert_allclose(slope, 0, atol=1e-6)
  assert np.all(state.curvature.head[0] >= 0)
  assert np.any(state.curvature.head[0] > 1e-4)


def test_of_a_domain_without_examples_nothing_is_learned(
  make_client, weights, functions
):
  client = make_client(0, [4, 0, 5])
  start = nothing(weights)._replace(domain=np.int32(0))
  result = functions.train_client(weights, start, client, 3)
  assert trees.largest(result.update) == 0
  # It is not among the past ones either.
  state = result.client_state
  later = functions.train_client(weights, state, client, 5)
  assert (state.count, later.client_state.count) == (1, 1)
