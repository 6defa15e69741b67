"""Fed-ADE against its equations in NumPy, and what its options change."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_ade
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms.parts import two_phase_adaptation
from tff_shift.models import split_model
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

NUM_INITIAL = 9
# One batch is all labelled examples, so that a step is a step of the risk.
HPARAMS = fed_ade.HParams(
  batch_size=NUM_INITIAL,
  local_epochs=1,
  head_epochs=2,
  eta_min=0.1,
  eta_max=2.0,
)


def softmax(logits):
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  return exponentials / exponentials.sum(axis=1, keepdims=True)


def cosine(one, other):
  return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.fixture(scope="module")
def pretrained(model, run_in_graph):
  """The model with fixed weights, as after pre-training, and the weights."""
  weights = run_in_graph(model.initial_weights, np.array([3, 4], np.int32))
  names = tf.nest.flatten(model.weight_names())
  values = dict(zip(names, tf.nest.flatten(weights), strict=True))
  return split_model.with_weights(model, values), weights


@pytest.fixture(scope="module")
def clients(make_adapting_client):
  """Two clients, with 4 and 12 unlabelled examples."""
  return [
    make_adapting_client(0, NUM_INITIAL, 4),
    make_adapting_client(1, NUM_INITIAL, 12),
  ]


@pytest.fixture(scope="module")
def algorithm(pretrained, context):
  return algorithms.build(fed_ade, pretrained[0], HPARAMS)


@pytest.fixture(scope="module")
def oracle_round(oracle):
  """Returns `run(weights, client, previous)`: eq. 4, 6 and 9 to 14 in NumPy."""

  def summarize(weights, x):
    embeddings = oracle.embed(weights.backbone, x)
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (
      softmax(oracle.predict(weights, x)).mean(axis=0),
      # An embedding of zeros counts as zero.
      (embeddings / np.where(lengths > 0, lengths, 1)).mean(axis=0),
    )

  def run(pretrained, weights, client):
    q0, z0 = summarize(pretrained, client.x)
    q1, z1 = summarize(weights, client.stream_x)
    signal = ((1 - cosine(q0, q1)) + (1 - cosine(z0, z1)) / 2) / 2
    rate = HPARAMS.eta_min + (HPARAMS.eta_max - HPARAMS.eta_min) * signal
    classes = oracle.estimated_classes(pretrained, client)
    trained, _ = oracle.descend(
      weights,
      [lambda w: oracle.risk(oracle.predict(w, client.x), client.y, classes)],
      rate,
    )
    return trained, rate, classes

  return run


class TestRound:
  """A round of two clients, phase by phase."""

  @pytest.fixture(scope="class")
  def start(self, algorithm, clients):
    run = rounds.Rounds(algorithm, clients, run_seed=0)
    return run.server_state, run.client_states

  @pytest.fixture(scope="class")
  def first(self, algorithm, clients, start):
    return algorithm.phases[0](*start, clients)

  @pytest.fixture(scope="class")
  def expected(self, pretrained, clients, oracle_round):
    _, weights = pretrained
    return [oracle_round(weights, weights, client) for client in clients]

  def test_every_client_starts_from_the_pretrained_model(
    self, pretrained, start, compare
  ):
    _, weights = pretrained
    server_state, client_states = start
    compare.assert_close(server_state.weights, weights.backbone, 0.0)
    for state in client_states:
      compare.assert_close(state.head, weights.head, 0.0)

  def test_rate_and_classes(self, first, expected):
    for state, (_, rate, classes) in zip(first[1], expected, strict=True):
      np.testing.assert_allclose(state.learning_rate, rate, rtol=1e-5)
      np.testing.assert_allclose(state.classes, classes, atol=1e-6)
      assert HPARAMS.eta_min < state.learning_rate < HPARAMS.eta_max

  def test_heads_take_a_step_of_the_risk(self, first, expected, compare):
    for state, (trained, *_) in zip(first[1], expected, strict=True):
      compare.assert_close(state.head, trained.head, 1e-5)

  def test_backbones_are_averaged_by_unlabelled_examples(
    self, first, expected, compare
  ):
    (one, *_), (other, *_) = expected
    compare.assert_close(
      first[0].weights,
      tf.nest.map_structure(
        lambda a, b: (4 * a + 12 * b) / 16, one.backbone, other.backbone
      ),
      1e-5,
    )

  def test_second_phase_moves_heads_alone(
    self, algorithm, clients, first, expected, oracle, compare
  ):
    server_state, client_states, _ = first
    state, states, _ = algorithm.phases[1](server_state, client_states, clients)
    assert int(server_state.round_num) == 0
    assert int(state.round_num) == 1
    compare.assert_close(state.weights, server_state.weights, 0.0)
    for before, after, client, (_, rate, classes) in zip(
      client_states, states, clients, expected, strict=True
    ):
      embeddings = oracle.embed(server_state.weights, client.x)
      head, _ = oracle.descend(
        before.head,
        [
          lambda h, e=embeddings, y=client.y, k=classes: oracle.risk(
            oracle.classify(h, e), y, k
          )
        ]
        * HPARAMS.head_epochs,
        rate,
      )
      compare.assert_close(after.head, head, 1e-5)
      compare.assert_close(after.dynamics, before.dynamics, 0.0)


class TestWhatIsCompared:
  @pytest.fixture(scope="class")
  def states_after(self, build, pretrained, clients, rounds_alone):
    """Returns `run(timesteps, **changes)`: a client's state after each."""

    def run(timesteps, **changes):
      states = rounds_alone(
        build(HPARAMS, **changes, model=pretrained[0]), clients[0], timesteps
      )
      return [state for _, state, _ in states]

    return run

  @pytest.fixture(scope="class")
  def default(self, states_after):
    """Two rounds of one time step and one of the next."""
    return states_after([1, 1, 2])

  def test_rounds_of_one_timestep_have_one_rate(self, default, compare):
    first, second, third = default
    compare.assert_close(first.dynamics, second.dynamics, 0.0)
    assert first.learning_rate == second.learning_rate
    assert second.learning_rate != third.learning_rate
    assert int(third.dynamics.timestep) == 2

  def test_rounds_are_compared_on_demand(self, states_after):
    first, second = states_after([1, 1], compare="rounds")
    # The same batch again: only the model has moved.
    assert second.learning_rate != first.learning_rate
    assert np.any(
      first.dynamics.summaries.probabilities
      != second.dynamics.summaries.probabilities
    )

  def test_same_stream_again_is_no_shift_where_the_model_stays(
    self, states_after
  ):
    first, second = states_after([1, 2], eta_min=0.0, eta_max=1e-30)
    assert first.learning_rate > 0.0
    assert second.learning_rate == 0.0

  def test_other_measure_gives_a_rate_within_the_bounds(
    self, states_after, default
  ):
    (state,) = states_after([1], similarity="bayesian_cpd")
    assert HPARAMS.eta_min <= state.learning_rate <= HPARAMS.eta_max
    assert state.learning_rate != default[0].learning_rate

  def test_noise_of_batches_is_taken_out_on_demand(
    self, states_after, default, pretrained, clients, oracle
  ):
    """Against the cosines of means, corrected in NumPy."""
    (state,) = states_after([1], correct_batch_noise=True)
    _, weights = pretrained

    def rows(x):
      embeddings = oracle.embed(weights.backbone, x)
      lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
      return (
        softmax(oracle.predict(weights, x)),
        embeddings / np.where(lengths > 0, lengths, 1),
      )

    def noise(batch):
      mean = batch.mean(axis=0)
      orthogonal = batch - np.outer(batch @ mean / (mean @ mean), mean)
      size = len(batch)
      return np.sum(orthogonal**2) / (size * (size - 1) * (mean @ mean))

    signals = []
    for pair in zip(rows(clients[0].x), rows(clients[0].stream_x), strict=True):
      noises = [noise(batch) for batch in pair]
      similarity = cosine(*(batch.mean(axis=0) for batch in pair))
      signals.append(1 - similarity * (1 + sum(noises) / 2))
    signal = np.clip((signals[0] + signals[1] / 2) / 2, 0, 1)
    rate = HPARAMS.eta_min + (HPARAMS.eta_max - HPARAMS.eta_min) * signal
    np.testing.assert_allclose(state.learning_rate, rate, rtol=1e-5)
    assert state.learning_rate < default[0].learning_rate
    # What the next step is compared with comes with its noise.
    np.testing.assert_allclose(
      state.dynamics.summaries.noise,
      [noise(batch) for batch in rows(clients[0].stream_x)],
      rtol=1e-5,
    )

  @pytest.mark.parametrize("which", ["use_uncertainty", "use_representation"])
  def test_one_estimator_alone(self, which, states_after, default):
    (state,) = states_after([1], **{which: False})
    assert state.learning_rate != default[0].learning_rate


class TestFixLr:
  def test_is_fed_ade_without_a_range(
    self, build, pretrained, clients, rounds_alone, compare
  ):
    model, _ = pretrained
    shared = {
      field.name: getattr(HPARAMS, field.name)
      for field in dataclasses.fields(two_phase_adaptation.TwoPhaseHParams)
    }
    works = (
      build(fed_ade.HParams(**shared, eta_min=0.3, eta_max=0.3), model=model),
      build(fix_lr.HParams(**shared, learning_rate=0.3), model=model),
    )
    (adaptive,), (fixed,) = (
      rounds_alone(functions, clients[1], [1]) for functions in works
    )
    assert compare.equal_bits(adaptive[0], fixed[0])
    assert compare.equal_bits(adaptive[1].head, fixed[1].head)
