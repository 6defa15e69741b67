"""FedALA: how much of the global model a client takes, weight by weight."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_ala
from tff_shift.algorithms import fed_avg
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

ROUND = 3
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def personal(model, run_in_graph):
  """The client's own model, far from the server's in all weights."""
  return tf.nest.map_structure(
    lambda w: w + np.float32(0.5),
    run_in_graph(model.initial_weights, randomness.server_seed(1)),
  )


@pytest.fixture(scope="module")
def mixture(personal):
  """A W of the head that is neither 0 nor 1."""
  generator = np.random.default_rng(0)
  return tuple(
    generator.uniform(0.2, 0.8, w.shape).astype(np.float32)
    for w in personal.head
  )


def make_state(personal, mixture, is_settled):
  return fed_ala.ClientState(personal, mixture, np.int32(is_settled))


def make_hparams(**changes):
  return fed_ala.HParams(**COMMON | changes)


@pytest.fixture(scope="module")
def pass_batches(client, oracle):
  """The batches of 4 of a pass: 0.8 of 11 examples are 9, three batches."""
  return oracle.batches(client, 3, randomness.Purpose.PERSONALIZE, ROUND)


def mixed(weights, personal, mixture):
  return weights._replace(
    head=tuple(
      v + (g - v) * w
      for g, v, w in zip(weights.head, personal.head, mixture, strict=True)
    )
  )


@pytest.fixture(scope="module")
def learn(model, compile_in_graph):
  """Returns `learn(hparams, weights, state, data)`, at round `ROUND`."""
  compiled = {}

  def learn(hparams, *arguments):
    specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(np.shape(value), value.dtype), arguments
    )
    key = hparams, len(arguments[-1].y)
    if key not in compiled:
      compiled[key] = compile_in_graph(
        lambda *inputs: fed_ala.learn_mixture(
          model, hparams, *inputs, tf.constant(ROUND)
        ),
        *specs,
      )
    return compiled[key](*arguments)

  return learn


class TestMixture:
  def test_pass_agrees_with_the_oracle(
    self,
    client,
    weights,
    personal,
    mixture,
    learn,
    oracle,
    pass_batches,
    compare,
  ):
    rate = 1.5
    # Neither the model's optimizer nor its decay count.
    hparams = make_hparams(
      ala_rate=rate, optimizer="adam", momentum=0.9, weight_decay=0.1
    )
    state = make_state(personal.head, mixture, 1)
    found = learn(hparams, weights, state, client)
    expected = tuple(map(np.float64, mixture))
    for loss in oracle.losses(pass_batches):
      slopes = oracle.gradient(loss, mixed(weights, personal, expected)).head
      expected = tuple(
        np.clip(w - rate * slope * (g - v), 0, 1)
        for w, slope, g, v in zip(
          expected, slopes, weights.head, personal.head, strict=True
        )
      )
    compare.assert_close(found.mixture, expected, 1e-5)
    assert compare.equal_bits(found.personal, personal.head)
    # Some have come to a bound, and some have not.
    kernel = found.mixture[0]
    assert 0 < np.sum((kernel > 0) & (kernel < 1)) < kernel.size

  def test_first_passes_end_when_losses_have_settled(
    self, client, weights, personal, mixture, learn, compare
  ):
    def passes(is_settled, **changes):
      state = make_state(personal.head, mixture, is_settled)
      hparams = make_hparams(ala_rate=0.05, **changes)
      found = learn(hparams, weights, state, client)
      assert found.is_settled == 1
      return found.mixture

    one_by_one = make_state(personal.head, mixture, 1)
    for _ in range(3):
      one_by_one = learn(
        make_hparams(ala_rate=0.05), weights, one_by_one, client
      )
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

  def test_threshold_is_of_the_last_ten_losses(
    self,
    client,
    weights,
    personal,
    mixture,
    learn,
    oracle,
    pass_batches,
    compare,
  ):
    loss, *_ = oracle.losses(pass_batches)
    state = make_state(personal.head, mixture, 1)
    hparams = make_hparams(ala_rate=0.3, ala_share=1e-6)
    # A pass of one batch: its loss is that before its step.
    losses, states = [], []
    for _ in range(14):
      losses.append(loss(mixed(weights, personal, state.mixture)))
      state = learn(hparams, weights, state, client)
      states.append(state)
    spreads = [np.std(losses[i - 10 : i]) for i in range(11, 15)]
    assert spreads == sorted(spreads, reverse=True)
    found = learn(
      make_hparams(
        ala_rate=0.3,
        ala_share=1e-6,
        # After 13 passes, and not after 12.
        ala_threshold=float(np.mean(spreads[1:3])),
      ),
      weights,
      make_state(personal.head, mixture, 0),
      client,
    )
    assert compare.equal_bits(found.mixture, states[12].mixture)

  @pytest.mark.parametrize("what", ["no_examples", "no_difference"])
  def test_nothing_is_learned_of_nothing(
    self, client, make_client, weights, personal, mixture, learn, compare, what
  ):
    own = personal.head
    if what == "no_examples":
      client = make_client(0, [0, 0])
    else:
      own = weights.head
    state = make_state(own, mixture, 0)
    assert compare.equal_bits(
      learn(make_hparams(), weights, state, client), state
    )


class TestRound:
  def test_training_starts_from_the_mixture(
    self,
    model,
    client,
    weights,
    personal,
    mixture,
    learn,
    run_in_graph,
    compare,
  ):
    hparams = make_hparams(momentum=0.5, weight_decay=0.01)
    state = make_state(personal.head, mixture, 1)
    functions = fed_ala.build(model, hparams)
    result = run_in_graph(
      functions.train_client, weights, state, client, np.int32(ROUND)
    )
    learned = learn(hparams, weights, state, client)
    start = mixed(weights, personal, learned.mixture)
    # The other layers are the server's.
    assert compare.equal_bits(start.backbone, weights.backbone)
    plain = run_in_graph(
      lambda *arguments: fed_avg.train_client(
        model, hparams, *arguments, tf.constant(ROUND)
      ),
      start,
      client,
    )
    trained = tf.nest.map_structure(np.add, start, plain.update)
    compare.assert_close(result.client_state.personal, trained.head, 1e-5)
    compare.assert_close(result.client_state.mixture, learned.mixture, 0)
    assert result.client_state.is_settled == 1
    # What is sent is the way from the server's weights.
    compare.assert_close(
      result.update, tf.nest.map_structure(np.subtract, trained, weights), 1e-5
    )
    np.testing.assert_allclose(result.loss, plain.loss, rtol=1e-5)

  @pytest.mark.parametrize("ala_layers", [1, 0])
  def test_at_one_it_is_fed_avg_and_the_program_bit_for_bit(
    self, model, client, weights, personal, run_in_graph, compare, ala_layers
  ):
    hparams = COMMON | {"momentum": 0.5, "weight_decay": 0.01}
    plain, still, program = (
      module.build(model, module.HParams(**hparams, **values))
      for module, values in (
        (fed_avg, {}),
        (fed_ala, {"ala_rate": 0.0, "ala_layers": ala_layers}),
        (fed_ala, {"variant": "program"}),
      )
    )

    def work(functions):
      def everything(weights, personal, data):
        round_num = tf.constant(ROUND)
        state = functions.initial_client_state(data.seed, personal)
        result = functions.train_client(weights, state, data, round_num)
        prepare = functions.prepare_client or (lambda *_: ())
        prepared = prepare(weights, state, data, round_num)
        return result, functions.predict_as_client(
          weights, prepared, data, data
        )

      return run_in_graph(everything, weights, personal, client)

    found, logits = work(still)
    expected, fed_avg_logits = work(plain)
    assert compare.equal_bits(
      (found.update, found.loss), (expected.update, expected.loss)
    )
    assert compare.equal_bits(logits, fed_avg_logits)
    programs, program_logits = work(program)
    assert compare.equal_bits(
      (programs.update, programs.loss), (expected.update, expected.loss)
    )
    own = programs.client_state.personal
    kept = found.client_state.personal
    # The last tensors of the model.
    assert compare.equal_bits(kept, own[-len(kept) :])
    assert len(kept) == (4 if ala_layers == 0 else 2)
    # There clients predict with what they have trained.
    assert not compare.equal_bits(program_logits, fed_avg_logits)


class TestPrediction:
  def test_client_predicts_with_what_the_next_round_starts_from(
    self,
    model,
    client,
    weights,
    personal,
    mixture,
    learn,
    run_in_graph,
    compare,
  ):
    hparams = make_hparams()
    state = make_state(personal.head, mixture, 0)
    prepared = run_in_graph(
      fed_ala.build(model, hparams).prepare_client,
      weights,
      state,
      client,
      np.int32(ROUND),
    )
    learned = learn(hparams, weights, state, client)
    assert not compare.equal_bits(learned.mixture, mixture)
    compare.assert_close(
      prepared, mixed(weights, personal, learned.mixture), 1e-6
    )

  def test_program_predicts_with_the_trained_model(
    self, model, client, weights, personal, oracle, run_in_graph
  ):
    functions = fed_ala.build(model, make_hparams(variant="program"))

    def predict(weights, personal, data):
      state = functions.initial_client_state(data.seed, personal)
      prepared = functions.prepare_client(
        weights, state, data, tf.constant(ROUND)
      )
      return functions.predict_as_client(weights, prepared, data, data)

    logits = run_in_graph(predict, weights, personal, client)
    np.testing.assert_allclose(
      logits, oracle.predict(personal, client.x), atol=1e-5
    )

  def test_who_never_took_part_predicts_as_the_server(
    self, model, client, weights, run_in_graph, compare
  ):
    for variant in ("published", "program"):
      functions = fed_ala.build(model, make_hparams(variant=variant))

      def prepare(weights, data, functions=functions):
        state = functions.initial_client_state(data.seed, weights)
        return functions.prepare_client(
          weights, state, data, tf.constant(ROUND)
        )

      assert compare.equal_bits(run_in_graph(prepare, weights, client), weights)
