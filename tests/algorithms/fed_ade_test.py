"""Fed-ADE against its equations in NumPy, and what its options change."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift.algorithms import fed_ade
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms.parts import two_phase_adaptation

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


def cosine(one, other):
  return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.fixture(scope="module")
def pretrained(model, initial):
  """The model with fixed weights, as after pre-training, and the weights."""
  weights = initial(np.array([3, 4], np.int32))
  return keras_models.fixed(model, weights), weights


@pytest.fixture(scope="module")
def clients(make_adapting_client):
  """Two clients, with 4 and 12 unlabelled examples."""
  return [
    make_adapting_client(0, NUM_INITIAL, 4),
    make_adapting_client(1, NUM_INITIAL, 12),
  ]


@pytest.fixture(scope="module")
def summarize(oracle):
  """Returns `summarize(weights, x)`: predictions and directions, by example."""

  def summarize(weights, x):
    embeddings = oracle.embed(weights.backbone, x)
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (
      oracle.softmax(oracle.predict(weights, x)),
      # An embedding of zeros counts as zero.
      embeddings / np.where(lengths > 0, lengths, 1),
    )

  return summarize


# A round of two clients, phase by phase.
@pytest.fixture(scope="module")
def run(start, pretrained, clients):
  return start(HPARAMS, clients, model=pretrained[0])


@pytest.fixture(scope="module")
def first(run, clients):
  phase, _ = run.algorithm.phases
  return phase(run.server_state, run.client_states, clients)


@pytest.fixture(scope="module")
def expected(pretrained, clients, oracle, summarize):
  """Weights, rates and classes by eq. 4, 6, 9 to 14 in NumPy."""
  _, weights = pretrained

  def run(client):
    (q0, z0), (q1, z1) = (
      [rows.mean(axis=0) for rows in summarize(weights, x)]
      for x in (client.x, client.stream_x)
    )
    signal = ((1 - cosine(q0, q1)) + (1 - cosine(z0, z1)) / 2) / 2
    rate = HPARAMS.eta_min + (HPARAMS.eta_max - HPARAMS.eta_min) * signal
    classes = oracle.estimated_classes(weights, client)
    trained, _ = oracle.descend(
      weights,
      [lambda w: oracle.risk(oracle.predict(w, client.x), client.y, classes)],
      rate,
    )
    return trained, rate, classes

  return [run(client) for client in clients]


def test_round_first_phase(first, expected, compare):
  for state, (trained, rate, classes) in zip(first[1], expected, strict=True):
    assert_allclose(state.learning_rate, rate, rtol=1e-5)
    assert_allclose(state.classes, classes, atol=1e-6)
    assert HPARAMS.eta_min < state.learning_rate < HPARAMS.eta_max
    # Heads take a step of the risk.
    compare.assert_close(state.head, trained.head, 1e-5)
  # Backbones are averaged by unlabelled examples.
  (one, *_), (other, *_) = expected
  mean = trees.mean(one.backbone, other.backbone, weights=[4, 12])
  compare.assert_close(first[0].weights, mean, 1e-5)


def test_round_second_phase_moves_heads_alone(
  run, clients, first, expected, oracle, compare
):
  server_state, client_states, _ = first
  _, phase = run.algorithm.phases
  state, states, _ = phase(server_state, client_states, clients)
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


@pytest.fixture(scope="module")
def states_after(build, pretrained, clients, rounds_alone):
  """Returns `run(timesteps, **changes)`: a client's state after each."""

  def run(timesteps, **changes):
    states = rounds_alone(
      build(HPARAMS, **changes, model=pretrained[0]), clients[0], timesteps
    )
    return [state for _, state, _ in states]

  return run


@pytest.mark.parametrize(
  "option",
  [
    {"similarity": "bayesian_cpd"},
    {"use_uncertainty": False},
    {"use_representation": False},
  ],
  ids=str,
)
def test_other_measure_gives_another_rate_within_the_bounds(
  option, states_after, default
):
  (state,) = states_after([1], **option)
  assert HPARAMS.eta_min <= state.learning_rate <= HPARAMS.eta_max
  assert state.learning_rate != default[0].learning_rate


@pytest.fixture(scope="module")
def default(states_after):
  """Two rounds of one time step and one of the next."""
  return states_after([1, 1, 2])


def test_rounds_of_one_timestep_have_one_rate(default, compare):
  first, second, third = default
  compare.assert_close(first.dynamics, second.dynamics, 0.0)
  assert first.learning_rate == second.learning_rate
  assert second.learning_rate != third.learning_rate
  assert int(third.dynamics.timestep) == 2


def test_rounds_are_compared_on_demand(states_after):
  first, second = states_after([1, 1], compare="rounds")
  # The same batch again: only the model has moved.
  assert second.learning_rate != first.learning_rate
  assert np.any(
    first.dynamics.summaries.probabilities
    != second.dynamics.summaries.probabilities
  )


def test_same_stream_again_is_no_shift_where_the_model_stays(states_after):
  first, second = states_after([1, 2], eta_min=0.0, eta_max=1e-30)
  assert first.learning_rate > 0.0
  assert second.learning_rate == 0.0


def test_noise_of_batches_is_taken_out_on_demand(
  states_after, default, pretrained, clients, summarize
):
  """Against the cosines of means, corrected in NumPy."""
  (state,) = states_after([1], correct_batch_noise=True)
  _, weights = pretrained

  def noise(batch):
    mean = batch.mean(axis=0)
    orthogonal = batch - np.outer(batch @ mean / (mean @ mean), mean)
    size = len(batch)
    return np.sum(orthogonal**2) / (size * (size - 1) * (mean @ mean))

  signals = []
  client = clients[0]
  before, stream = (summarize(weights, x) for x in (client.x, client.stream_x))
  for pair in zip(before, stream, strict=True):
    noises = [noise(batch) for batch in pair]
    similarity = cosine(*(batch.mean(axis=0) for batch in pair))
    signals.append(1 - similarity * (1 + sum(noises) / 2))
  signal = np.clip((signals[0] + signals[1] / 2) / 2, 0, 1)
  rate = HPARAMS.eta_min + (HPARAMS.eta_max - HPARAMS.eta_min) * signal
  assert_allclose(state.learning_rate, rate, rtol=1e-5)
  assert state.learning_rate < default[0].learning_rate
  # What the next step is compared with comes with its noise.
  assert_allclose(
    state.dynamics.summaries.noise,
    [noise(batch) for batch in stream],
    rtol=1e-5,
  )


def test_fix_lr_is_fed_ade_without_a_range(
  build, pretrained, clients, rounds_alone, compare
):
  model, _ = pretrained
  shared = {
    field.name: getattr(HPARAMS, field.name)
    for field in dataclasses.fields(two_phase_adaptation.TwoPhaseHParams)
  }
  (adaptive,), (fixed,) = (
    rounds_alone(build(hparams, model=model), clients[1], [1])
    for hparams in (
      fed_ade.HParams(**shared, eta_min=0.3, eta_max=0.3),
      fix_lr.HParams(**shared, learning_rate=0.3),
    )
  )
  assert compare.equal_bits(adaptive[0], fixed[0])
  assert compare.equal_bits(adaptive[1].head, fixed[1].head)
