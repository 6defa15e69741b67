"""FedALA: how much of the global model a client takes, weight by weight."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tff_shift.algorithms import fed_ala
from tff_shift.algorithms import fed_avg
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.2}
HPARAMS = fed_ala.HParams(**COMMON)


@pytest.fixture(scope="module")
def personal(initial):
  """The client's own model, far from the server's in all weights."""
  return trees.map(lambda w: w + np.float32(0.5), initial(1))


@pytest.fixture(scope="module")
def mixture(personal):
  """A W of the head that is neither 0 nor 1."""
  generator = np.random.default_rng(0)
  return trees.map(
    lambda w: generator.uniform(0.2, 0.8, w.shape).astype(np.float32),
    personal.head,
  )


def make_state(personal, mixture, is_settled):
  return fed_ala.ClientState(personal, mixture, np.int32(is_settled))


@pytest.fixture(scope="module")
def pass_batches(client, oracle):
  """The batches of 4 of a pass: 0.8 of 11 examples are 9, three batches."""
  return oracle.batches(client, 3, randomness.Purpose.PERSONALIZE, ROUND)


def mixed(weights, personal, mixture):
  head = trees.map(
    lambda g, v, w: v + (g - v) * w, weights.head, personal.head, mixture
  )
  return weights._replace(head=head)


@pytest.fixture(scope="module")
def learn(model, run_in_graph, weights):
  """Returns `learn(state, data, **changes)`, at round `ROUND`."""

  @functools.cache
  def function_of(hparams):
    return lambda *arguments: fed_ala.learn_mixture(
      model, hparams, *arguments, tf.constant(ROUND)
    )

  return lambda state, data, **changes: run_in_graph(
    function_of(dataclasses.replace(HPARAMS, **changes)), weights, state, data
  )


def test_mixture_pass_agrees_with_the_oracle(
  client, weights, personal, mixture, learn, oracle, pass_batches, compare
):
  rate = 1.5
  # Neither the model's optimizer nor its decay count.
  result = learn(
    make_state(personal.head, mixture, 1),
    client,
    ala_rate=rate,
    optimizer="adam",
    momentum=0.9,
    weight_decay=0.1,
  )
  expected = tuple(map(np.float64, mixture))
  for loss in oracle.losses(pass_batches):
    slopes = oracle.gradient(loss, mixed(weights, personal, expected)).head
    expected = trees.map(
      lambda w, slope, g, v: np.clip(w - rate * slope * (g - v), 0, 1),
      expected,
      slopes,
      weights.head,
      personal.head,
    )
  compare.assert_close(result.mixture, expected, 1e-5)
  assert compare.equal_bits(result.personal, personal.head)
  # Some have come to a bound, and some have not.
  kernel = result.mixture[0]
  assert 0 < np.sum((kernel > 0) & (kernel < 1)) < kernel.size


def test_mixture_first_passes_end_when_losses_have_settled(
  client, personal, mixture, learn, compare
):
  def passes(is_settled, **changes):
    state = make_state(personal.head, mixture, is_settled)
    result = learn(state, client, ala_rate=0.05, **changes)
    assert result.is_settled == 1
    return result.mixture

  one_by_one = make_state(personal.head, mixture, 1)
  for _ in range(3):
    one_by_one = learn(one_by_one, client, ala_rate=0.05)
  never = {"ala_threshold": 0.0}
  assert compare.equal_bits(
    passes(0, ala_max_passes=3, **never), one_by_one.mixture
  )
  # More than ten, whatever their losses.
  eleven = passes(0, ala_max_passes=11, **never)
  assert compare.equal_bits(passes(0, ala_threshold=1e9), eleven)
  assert not compare.equal_bits(passes(0, ala_max_passes=12, **never), eleven)
  # Once they have, it is one.
  one = passes(1, **never)
  assert compare.equal_bits(passes(0, ala_max_passes=1), one)


def test_mixture_threshold_is_of_the_last_ten_losses(
  client, weights, personal, mixture, learn, oracle, pass_batches, compare
):
  loss, *_ = oracle.losses(pass_batches)
  state = make_state(personal.head, mixture, 1)
  options = {"ala_rate": 0.3, "ala_share": 1e-6}
  # A pass of one batch: its loss is that before its step.
  losses, states = [], []
  for _ in range(14):
    losses.append(loss(mixed(weights, personal, state.mixture)))
    state = learn(state, client, **options)
    states.append(state)
  spreads = [np.std(losses[i - 10 : i]) for i in range(11, 15)]
  assert spreads == sorted(spreads, reverse=True)
  found = learn(
    make_state(personal.head, mixture, 0),
    client,
    # After 13 passes, and not after 12.
    ala_threshold=float(np.mean(spreads[1:3])),
    **options,
  )
  assert compare.equal_bits(found.mixture, states[12].mixture)


def test_mixture_nothing_is_learned_of_nothing(
  client, make_client, weights, personal, mixture, learn, compare
):
  # Of no examples, and of no difference.
  for data, own in ((make_client(0, [0, 0]), personal), (client, weights)):
    state = make_state(own.head, mixture, 0)
    assert compare.equal_bits(learn(state, data), state)


def test_training_starts_from_the_mixture(
  build, client, weights, personal, mixture, learn, oracle, compare
):
  options = {"momentum": 0.5, "weight_decay": 0.01}
  state = make_state(personal.head, mixture, 1)
  result = build(HPARAMS, **options).train_client(weights, state, client, ROUND)
  learned = learn(state, client, **options)
  start = mixed(weights, personal, learned.mixture)
  # The other layers are the server's.
  assert compare.equal_bits(start.backbone, weights.backbone)
  plain = build(fed_avg.HParams(**COMMON, **options)).train_client(
    start, (), client, ROUND
  )
  trained = trees.add(start, plain.update)
  compare.assert_close(result.client_state.personal, trained.head, 1e-5)
  compare.assert_close(result.client_state.mixture, learned.mixture, 0)
  assert result.client_state.is_settled == 1
  # What is sent is the way from the server's weights.
  oracle.check(result, weights, trained, plain.loss)


@pytest.mark.parametrize("ala_layers, num_tensors", [(1, 2), (0, 4)])
def test_at_one_it_is_fed_avg_and_the_program_bit_for_bit(
  build, client, weights, personal, oracle, compare, ala_layers, num_tensors
):
  def work(hparams, **changes):
    functions = build(hparams, momentum=0.5, weight_decay=0.01, **changes)
    state = functions.initial_client_state(client.seed, personal)
    prepare = functions.prepare_client or (lambda *_: ())
    prepared = prepare(weights, state, client, ROUND)
    result = functions.train_client(weights, state, client, ROUND)
    return (
      (result.update, result.loss),
      result.client_state,
      functions.predict_as_client(weights, prepared, client, client),
    )

  expected, _, expected_logits = work(fed_avg.HParams(**COMMON))
  actual, state, logits = work(HPARAMS, ala_rate=0.0, ala_layers=ala_layers)
  programs, own, program_logits = work(HPARAMS, variant="program")
  assert compare.equal_bits(
    (actual, programs, logits), (expected, expected, expected_logits)
  )
  # The last tensors of the model.
  assert len(state.personal) == num_tensors
  assert compare.equal_bits(state.personal, own.personal[-num_tensors:])
  # There clients predict with what they have trained.
  trained_logits = oracle.predict(personal, client.x)
  np.testing.assert_allclose(program_logits, trained_logits, atol=1e-5)


def test_client_predicts_with_what_the_next_round_starts_from(
  client, weights, personal, mixture, learn, compare, functions
):
  state = make_state(personal.head, mixture, 0)
  prepared = functions.prepare_client(weights, state, client, ROUND)
  learned = learn(state, client)
  assert not compare.equal_bits(learned.mixture, mixture)
  compare.assert_close(
    prepared, mixed(weights, personal, learned.mixture), 1e-6
  )
