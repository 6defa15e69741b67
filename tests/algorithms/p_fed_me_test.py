"""pFedMe: personal models within a Moreau envelope."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import p_fed_me
from tff_shift.learning import randomness
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def squared_distance(one, other):
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return sum(np.sum((a - b) ** 2) for a, b in pairs)


def test_steps_agree_with_the_oracle(build, client, weights, oracle, compare):
  strength, rate, beta = 2.0, 0.1, 1.5
  # The state is no part of training.
  state = tf.nest.map_structure(np.zeros_like, weights)
  result = build(
    p_fed_me.HParams(
      moreau_lambda=strength,
      personal_steps=3,
      outer_rate=rate,
      server_beta=beta,
      **COMMON,
    )
  ).train_client(weights, state, client, ROUND)
  personal = copy = tf.nest.map_structure(np.float64, weights)
  values = []
  # Two local steps for each of the two domains.
  batches = oracle.batches(client, 4, randomness.Purpose.TRAIN, ROUND)
  for loss in oracle.losses(batches):

    def objective(w, loss=loss, center=copy):
      return loss(w) + strength / 2 * squared_distance(w, center)

    personal, mean = oracle.descend(
      personal, [objective] * 3, COMMON["learning_rate"]
    )
    values.append(mean)
    copy = tf.nest.map_structure(
      lambda w, theta: w - rate * strength * (w - theta), copy, personal
    )
  compare.assert_close(result.client_state, personal, 1e-5)
  compare.assert_close(
    result.update,
    tf.nest.map_structure(lambda w, old: beta * (w - old), copy, weights),
    1e-5,
  )
  np.testing.assert_allclose(result.loss, np.mean(values), rtol=1e-5)


@pytest.mark.parametrize(
  "limit", [{"server_beta": 0.0}, {"moreau_lambda": 0.0}]
)
def test_server_model_never_changes_bit_for_bit(
  context, model, make_client, compare, limit
):
  del context
  built = algorithms.build(
    p_fed_me, model, p_fed_me.HParams(**(COMMON | limit))
  )
  run = rounds.Rounds(
    built, [make_client(i, [5 + i]) for i in range(2)], run_seed=0
  )
  before, first = run.server_state.weights, run.client_states[0]
  run.step()
  assert compare.equal_bits(run.server_state.weights, before)
  assert not compare.equal_bits(run.client_states[0], first)


def test_envelope_computed_by_hand(quadratics):
  # u^2 / 2 + 15 / 2 (u - 1)^2 is smallest at 15 / 16.
  run = quadratics.start(
    "p_fed_me",
    coefficients=[(1.0, 0.0)],
    at=1.0,
    local_steps=1,
    personal_steps=100,
    learning_rate=0.05,
    num_rounds=1,
  )
  np.testing.assert_allclose(run.client_states[0].head[0], 0.9375, rtol=1e-6)
  # 1 - 0.005 * 15 * (1 - 0.9375)
  np.testing.assert_allclose(quadratics.u(run), 0.9953125, rtol=1e-6)


def test_clients_predict_with_their_personal_models(
  build, model, client, weights, run_in_graph, oracle
):
  functions = build(p_fed_me.HParams(**COMMON))
  other = run_in_graph(model.initial_weights, randomness.server_seed(1))
  logits = run_in_graph(
    lambda *each: functions.predict_as_client(*each),
    weights,
    other,
    client,
    client,
  )
  np.testing.assert_allclose(logits, oracle.predict(other, client.x), atol=1e-5)
