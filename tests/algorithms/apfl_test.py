"""APFL: a mixture of two models, and how much of each."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import apfl

pytestmark = pytest.mark.slow

ROUND = 2
RATE = 0.25
HPARAMS = apfl.HParams(batch_size=4, local_steps=2, learning_rate=RATE)
# Two iterations of a step for each of the two domains.
NUM_STEPS = 4


def mix(alpha, own, shared):
  return trees.map(lambda v, w: alpha * v + (1 - alpha) * w, own, shared)


def descend(oracle, batches, mixture, own, shared, alpha, mixture_rate):
  """The steps of the docstring in NumPy; returns v, w and alpha."""
  own, shared = (trees.map(np.float64, each) for each in (own, shared))
  for batch in batches:
    (loss,) = oracle.losses([batch])
    of_shared = oracle.gradient(loss, shared)
    if mixture == "weights":
      at_mixture = oracle.gradient(loss, mix(alpha, own, shared))
      of_own = trees.scale(at_mixture, alpha)
      slope = trees.inner(at_mixture, trees.subtract(own, shared))
    else:

      def loss_of(own, alpha, shared=shared, batch=batch):
        logits = mix(
          alpha, oracle.predict(own, batch.x), oracle.predict(shared, batch.x)
        )
        return oracle.cross_entropy(logits, batch.y)

      of_own = oracle.gradient(lambda v: loss_of(v, alpha), own)  # noqa: B023
      slope = (loss_of(own, alpha + 1e-6) - loss_of(own, alpha - 1e-6)) / 2e-6
    own = trees.add(own, of_own, -RATE)
    shared = trees.add(shared, of_shared, -RATE)
    alpha = np.clip(alpha - mixture_rate * slope, 0, 1)
  return own, shared, alpha


@pytest.mark.parametrize(
  "mixture, mixture_rate",
  # At the last rate alpha is cut off.
  [("weights", 0.0), ("logits", 0.0), ("weights", 0.1), ("weights", 50.0)],
)
def test_training_steps_agree_with_the_oracle(
  build, client, weights, personal, oracle, compare, mixture, mixture_rate
):
  alpha = 0.3
  result = build(
    HPARAMS, mixture=mixture, mixture_learning_rate=mixture_rate
  ).train_client(
    weights, apfl.ClientState(personal, np.float32(alpha)), client, ROUND
  )
  batches = oracle.of_training(client, NUM_STEPS, ROUND)
  own, shared, expected = descend(
    oracle, batches, mixture, personal, weights, alpha, mixture_rate or RATE
  )
  assert_allclose(result.client_state.alpha, expected, atol=1e-5)
  assert (expected in (0, 1)) == (mixture_rate > 1)
  assert abs(expected - alpha) > 1e-3
  compare.assert_close(result.client_state.personal, own, 1e-5)
  compare.assert_close(result.update, trees.subtract(shared, weights), 1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_weight_decay_is_of_the_shared_model_alone(
  build, client, weights, personal, compare, optimizer
):
  state = apfl.ClientState(personal, np.float32(0.4))
  # One step: w has not decayed before it.
  once = {"local_steps": 1, "batch_size": 99}
  one = client._replace(domain_sizes=np.int32([len(client.y)]))
  found, plain, decayed = (
    build(HPARAMS, optimizer=optimizer, **once, **changes)
    .train_client(weights, state, one, ROUND)
    .client_state.personal
    for changes in (
      {"weight_decay": 0.1},
      {},
      {"weight_decay": 0.1, "personal_weight_decay": True},
    )
  )
  assert compare.equal_bits(found, plain)
  assert not compare.equal_bits(decayed, plain)
  # Less by rate * decay * v.
  expected = trees.add(plain, personal, -RATE * 0.1)
  compare.assert_close(decayed, expected, 1e-6)


@pytest.mark.parametrize("mixture", ["weights", "logits"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_prediction_agrees_with_the_oracle(
  build, client, weights, personal, oracle, mixture, alpha
):
  functions = build(apfl.HParams(mixture=mixture))
  state = apfl.ClientState(personal, np.float32(alpha))
  found = functions.predict_as_client(weights, state, client, client)
  if not alpha:
    np.testing.assert_array_equal(
      found, functions.predict_as_server(weights, (), client)
    )
  own, shared = (oracle.predict(w, client.x) for w in (personal, weights))
  expected = (
    oracle.predict(mix(alpha, personal, weights), client.x)
    if mixture == "weights"
    else mix(alpha, own, shared)
  )
  assert_allclose(found, expected, atol=1e-5)


def test_first_model_is_what_the_server_sends(build, client, weights, compare):
  first = build(apfl.HParams(mixture_weight=0.2)).initial_client_state(
    client.seed, weights
  )
  assert compare.equal_bits(first, apfl.ClientState(weights, np.float32(0.2)))
