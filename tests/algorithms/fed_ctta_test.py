"""FedCTTA against NumPy: clients' steps, indicators, mixtures and limits."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_ctta
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp

pytestmark = pytest.mark.slow

RATE = 0.3
HPARAMS = fed_ctta.HParams(
  optimizer="sgd", learning_rate=RATE, adaptation_steps=2, noise_examples=5
)
NOISE_SEED = np.int32([6, 7])


@pytest.fixture(scope="module")
def clients(make_adapting_client):
  """Clients 0, 1 and 3 of four."""
  return [make_adapting_client(i, 9, 5 + i) for i in (0, 1, 3)]


@pytest.fixture(scope="module")
def shared(functions):
  return functions.initial_weights(NOISE_SEED)


@pytest.fixture(scope="module")
def states(clients, shared, functions):
  """States of clients that have adapted before, each in its own way."""

  def perturbed(number, client):
    state = functions.initial_client_state(client.seed, shared)
    moved = trees.add(state.weights, trees.normal(state.weights, number, 0.3))
    # The third has none yet.
    indicator = trees.normal(state.indicator, number) * np.float32(number < 2)
    return state._replace(weights=moved, indicator=indicator)

  return [perturbed(*pair) for pair in enumerate(clients)]


@pytest.fixture(scope="module")
def run(build, clients, states, shared, round_by_hand):
  """Returns `run(chosen, **changes)`: results, server, personal results."""

  @functools.cache
  def run(chosen=(0, 1, 2), **changes):
    return round_by_hand(
      build(HPARAMS, **changes),
      shared,
      [states[i] for i in chosen],
      [clients[i] for i in chosen],
      2,
    )

  return run


def test_uniform_mixture_is_the_plain_mean(run_in_graph):
  shares = run_in_graph(
    lambda each: fed_ctta.mixture_weights(each, "uniform"),
    np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32),
  )
  assert_allclose(shares, 0.2, rtol=1e-6)


@pytest.fixture(scope="module")
def draw(run_in_graph):
  """Returns `draw(model, number, round_num)`."""

  def draw(model, number, round_num=0):
    return run_in_graph(
      lambda seed: fed_ctta.draw_noise(
        model, number, randomness.fold(seed, round_num)
      ),
      NOISE_SEED,
    )

  return draw


@pytest.fixture(scope="module")
def adapted(clients, states, oracle):
  """Models after two steps on the entropy, and the mean losses."""
  return [
    oracle.descend(
      state.weights,
      [lambda w, x=client.stream_x: oracle.entropy(oracle.predict(w, x))] * 2,
      RATE,
    )
    for client, state in zip(clients, states, strict=True)
  ]


@pytest.fixture(scope="module")
def indicators(model, adapted, states, draw, oracle):
  # What all clients see in round 2.
  noise = draw(model, 5, 2)

  def indicator_of(weights, before):
    share = 0.1 if np.any(before) else 1.0
    now = oracle.predict(weights, noise).mean(axis=0)
    return share * now + (1 - share) * before

  return np.array(
    [
      indicator_of(weights, state.indicator)
      for (weights, _), state in zip(adapted, states, strict=True)
    ]
  )


def test_round_clients_agree_with_the_oracle(
  run, adapted, indicators, clients, compare
):
  results, _, _ = run()
  for result, (weights, loss), indicator, client in zip(
    results, adapted, indicators, clients, strict=True
  ):
    compare.assert_close(result.client_state.weights, weights, 1e-5)
    assert_allclose(result.loss, loss, rtol=1e-5)
    assert_allclose(result.client_state.indicator, indicator, atol=1e-5)
    sent, number = result.plaintext_sum
    assert number == client.client_id + 1
    assert compare.equal_bits(sent.weights, result.client_state.weights)
    assert compare.equal_bits(sent.indicator, result.client_state.indicator)


def test_round_every_client_receives_its_mixture(
  run, adapted, indicators, oracle, compare
):
  _, _, personal = run()
  directions = indicators / np.linalg.norm(indicators, axis=1, keepdims=True)
  shares = oracle.softmax(np.exp(directions @ directions.T))
  states = [each.client_state for each in personal]
  for own, state in zip(shares, states, strict=True):
    expected = trees.mean(*[weights for weights, _ in adapted], weights=own)
    compare.assert_close(state.weights, expected, 1e-5)
  assert np.ptp(shares) > 0.05
  assert np.any(states[0].weights.head[0] != states[1].weights.head[0])


def test_round_a_client_whose_model_did_not_arrive_keeps_its_own(
  run, clients, compare, functions
):
  results, _, _ = run()
  _, new, _ = run(chosen=(0, 2))
  assert_array_equal(new.written, [3, 0, 0, 3])
  assert_array_equal(new.noise_seed, NOISE_SEED)
  assert_array_equal(new.models.head[0][1], 0)
  state = results[1].client_state
  kept = functions.personalize_client(new, state, clients[1], 2)
  assert compare.equal_bits(kept.client_state, state)
  # Its loss is that of the round before; in its first round there is none.
  first = functions.initial_client_state(clients[1].seed, new)
  kept = functions.personalize_client(new, first, clients[1], 2)
  assert compare.equal_bits(kept.client_state, first) and kept.loss == 0


def test_round_pseudo_labels_on_demand(run, clients, states, oracle, compare):
  results, _, _ = run(objective="pseudo", adaptation_steps=1)
  state, x = states[0], clients[0].stream_x
  labels = oracle.predict(state.weights, x).argmax(axis=1)
  expected, _ = oracle.descend(
    state.weights,
    [lambda w: oracle.cross_entropy(oracle.predict(w, x), labels)],
    RATE,
  )
  compare.assert_close(results[0].client_state.weights, expected, 1e-5)


def test_a_client_alone_receives_its_own_model(run, compare):
  """Bit for bit: the local descent of the entropy."""
  (result,), _, (personal,) = run(chosen=(1,))
  assert compare.equal_bits(personal.client_state, result.client_state)


def test_noise_rounds_have_their_own(model, draw):
  one, other = (draw(model, 100, round_num) for round_num in (0, 1))
  assert one.shape == (100, 5)
  assert np.all(one != other)
  assert_allclose(one.std(), 1, atol=0.15)


def test_noise_images_and_tokens(draw):
  images = mlp.build(
    (4, 3, 1), num_classes=3, width=6, head_width=5, input_dtype=tf.uint8
  )
  found = draw(images, 400)
  assert (found.dtype, found.shape) == (np.uint8, (400, 4, 3, 1))
  assert (found.min(), found.max()) == (0, 255)
  assert_allclose(found.mean(), 127.5, atol=5)
  tokens = dataclasses.replace(images, input_dtype=tf.int32, vocabulary_size=9)
  found = draw(tokens, 50)
  assert found.dtype == np.int32
  assert set(np.unique(found)) == set(range(9))


def test_noise_tokens_of_an_unknown_vocabulary_are_refused(model, refusal):
  tokens = dataclasses.replace(model, input_dtype=tf.int32)
  message = refusal(fed_ctta.draw_noise, tokens, 3, NOISE_SEED)
  assert "noise needs the size of its vocabulary" in message
