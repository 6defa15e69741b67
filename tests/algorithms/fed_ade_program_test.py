"""The variants of Fed-ADE's released program: numbers, NumPy, limits."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift.algorithms import fed_ade
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms.parts import adaptation
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.shift import change_point
from tff_shift.shift import dynamics

pytestmark = pytest.mark.slow

layers = tf.keras.layers

PROGRAM = fed_ade.HParams(variant="program", eta_min=0.1, eta_max=2.0)
STREAM = 6, 8
# Rates that move no weight, but whose multiples are known.
TINY = 1e-30
EPSILON, MOMENTUM = 1e-3, 0.8


def linear(kernel, head):
  """A linear backbone without bias, and a linear head."""
  kernel, head = np.float32(kernel), np.float32(head)
  model = keras_models.split(
    kernel.shape[:1],
    lambda: [layers.Dense(kernel.shape[1], use_bias=False)],
    lambda: [layers.Dense(head.shape[1])],
  )
  return keras_models.fixed(
    model, ((kernel,), (head, np.zeros(head.shape[1], np.float32)))
  )


def client_with(stream_x, num_classes, timestep=1):
  stream_x = np.float32(stream_x)
  return adaptation.AdaptationData(
    x=stream_x[:1],
    y=np.zeros(1, np.int32),
    stream_x=stream_x,
    timestep=np.int32(timestep),
    confusion=np.eye(num_classes, dtype=np.float32),
    seed=randomness.client_seed(0, 0),
    client_id=np.int32(0),
  )


STATISTICS = {
  "backbone/norm/moving_mean": np.float32([0.1, -0.2, 0.3, 0.0]),
  "backbone/norm/moving_variance": np.float32([1.5, 0.7, 1.0, 2.0]),
}


def layered(dropout=0.0):
  """A backbone with batch normalisation, as after pre-training."""
  model = keras_models.split(
    (5,),
    lambda: [
      layers.Dense(4),
      layers.BatchNormalization(
        epsilon=EPSILON, momentum=MOMENTUM, name="norm"
      ),
      layers.LeakyReLU(0.1),
      layers.Dropout(dropout),
    ],
    lambda: [layers.Dense(3)],
  )
  weights = model.initial_weights(tf.constant([3, 4]))
  return keras_models.fixed(model, weights, STATISTICS)


@pytest.fixture(scope="module")
def normalized():
  return layered()


# Numbers computed from the program's equations by hand.
def test_numbers_signals_and_rates():
  previous = tf.constant([4.0, 2.0, 1.0, 1.0]) / 8
  labels = [0, 0, 1, 1, 2, 2, 2, 3]
  histogram = dynamics.label_histogram(5.0 * tf.one_hot(labels, 4))
  assert_allclose(histogram, np.array([2, 2, 3, 1]) / 8)
  reference = tf.constant([0.6, 0.8, 0.0])
  direction = dynamics.direction_of_mean(
    tf.constant([[2.0, 0.0, 1.0], [4.0, 6.0, 1.0]])
  )
  assert_allclose(direction, [0.6882472, 0.6882472, 0.2294157], atol=1e-6)
  labels = dynamics.uncertainty_dynamics(previous, histogram)
  assert_allclose(labels, 0.19596975, atol=1e-6)
  embeddings = dynamics.representation_dynamics(reference, direction)
  assert_allclose(embeddings, 0.01822696, atol=1e-6)
  signal = dynamics.combine(labels, embeddings)
  assert_allclose(signal, 0.10709835, atol=1e-6)
  rate = dynamics.learning_rate(signal, 1e-5, 1e-3)
  assert_allclose(rate, 1.1602737e-4, rtol=1e-6)
  assert_allclose(
    dynamics.move_reference(reference, direction, 0.1),
    [0.61083207, 0.79142554, 0.02301721],
    atol=1e-6,
  )


def test_labels_and_embeddings_have_their_own_states(build, rounds_alone):
  model = linear(np.eye(2), np.zeros([2, 3]))
  batches = [[1, 0]], [[0, 1]], [[0, 1]]
  hparams = dataclasses.replace(PROGRAM, similarity="bayesian_cpd")
  found = rounds_alone(
    build(hparams, model=model, running_statistics="fixed"),
    client_with(batches[0], 3),
    [client_with(x, 3, t) for t, x in enumerate(batches, start=1)],
  )
  expected = change_point.initial_state(3)
  for _, state, _ in found:
    # All labels are the first class.
    labels = tf.constant([1.0, 0.0, 0.0])
    _, expected = change_point.observe(expected, labels, labels)
    for one, other in zip(
      state.dynamics.last.uncertainty, expected, strict=True
    ):
      assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
  ("changes", "entropies", "slope"),
  [
    (
      {},
      [0.47376848, 0.44663307, 0.42025785, 0.38395142, 0.34902616],
      1.06629708,
    ),
    (
      {"order": "all_first"},
      [0.47376848, 0.43676187, 0.39944276, 0.37353833, 0.34947376],
      1.06267806,
    ),
  ],
)
def test_order_of_the_steps(
  build, changes, entropies, slope, rounds_alone, oracle
):
  model = linear([[1.0]], [[1.0, 0.0]])
  data = client_with([[1.0], [2.0]], 2)
  ((_, state, loss),) = rounds_alone(
    build(
      fix_lr.HParams(
        variant="program",
        running_statistics="fixed",
        learning_rate=0.1,
        **changes,
      ),
      model=model,
    ),
    data,
    [1],
  )
  assert_allclose(loss, np.mean(entropies[:4]), atol=1e-6)
  ((kernel,), (head, bias)) = state.weights
  assert_allclose(kernel, [[slope]], atol=1e-6)
  if not changes:
    assert_allclose(head, [[1.11966956, 1 - 1.11966956]], atol=1e-6)
    assert_allclose(bias, [0.08029589, -0.08029589], atol=1e-6)
  logits = data.stream_x @ kernel @ head + bias
  assert_allclose(oracle.entropy(logits), entropies[4], atol=1e-6)


class Oracle:
  """A client of the program with batch normalisation, in NumPy, float64."""

  def __init__(self, model, oracle, hparams):
    self.weights = trees.map(
      np.float64, model.initial_weights(tf.constant([0, 0]))
    )
    self.mean, self.variance = map(np.float64, STATISTICS.values())
    self.histogram = self.reference = None
    self.hparams = hparams
    self._oracle = oracle

  def embed(self, weights, x, by_batch):
    kernel, bias, gamma, beta = weights.backbone
    x = x @ kernel + bias
    mean, variance = self.mean, self.variance
    if by_batch:
      mean, variance = x.mean(axis=0), x.var(axis=0)
    self.moments = mean, variance
    x = gamma * (x - mean) / np.sqrt(variance + EPSILON) + beta
    return np.where(x > 0, x, 0.1 * x)

  def predict(self, weights, x, by_batch=True):
    kernel, bias = weights.head
    return self.embed(weights, x, by_batch) @ kernel + bias

  def move(self):
    """Moves the running statistics towards the last batch."""
    for name, moment in zip(("mean", "variance"), self.moments, strict=True):
      old = getattr(self, name)
      setattr(self, name, MOMENTUM * old + (1 - MOMENTUM) * moment)

  def entropy(self, weights, x):
    return self._oracle.entropy(self.predict(weights, x))

  def round(self, x, timestep):
    """Returns the rate and the mean entropy of the steps."""
    logits = self.predict(self.weights, x)
    self.move()
    histogram = np.bincount(logits.argmax(axis=1), minlength=3) / len(x)
    # By the statistics that have just moved.
    direction = self.embed(self.weights, x, by_batch=False).mean(axis=0)
    direction /= np.linalg.norm(direction)
    is_first = self.reference is None
    if is_first:
      self.reference = direction
    if is_first or timestep == 1:
      self.histogram = histogram
    labels = 1 - self.histogram @ histogram / (
      np.linalg.norm(self.histogram) * np.linalg.norm(histogram)
    )
    embeddings = np.clip((1 - self.reference @ direction) / 2, 0, 1)
    low, high = self.hparams.eta_min, self.hparams.eta_max
    rate = low + (labels + embeddings) / 2 * (high - low)
    share = self.hparams.reference_share
    self.reference = (1 - share) * self.reference + share * direction
    self.reference /= np.linalg.norm(self.reference)
    self.histogram = histogram
    values = []
    for moves in (False, True):
      chosen = split_model.SplitWeights((moves,) * 4, (True,) * 2)
      for _ in range(self.hparams.stream_steps):
        gradient = self._oracle.gradient(
          lambda weights: self.entropy(weights, x), self.weights, chosen
        )
        values.append(self.entropy(self.weights, x))
        self.move()
        self.weights = trees.add(self.weights, gradient, -rate)
    return rate, np.mean(values)


def test_rounds_agree_with_numpy(
  build, normalized, client, oracle, rounds_alone, make_client
):
  """Four rounds; in the second time step a client takes part twice."""
  generator = np.random.default_rng(8)
  batches = [
    client._replace(
      stream_x=generator.normal(scale=2, size=(8, 5)).astype(np.float32),
      timestep=np.int32(timestep),
    )
    for timestep in (1, 2, 3)
  ]
  data = [batches[0], batches[1], batches[1], batches[2]]
  hparams = dataclasses.replace(PROGRAM, reference_share=0.3)
  functions = build(hparams, model=normalized)
  result = rounds_alone(functions, client, data)
  expected = Oracle(normalized, oracle, hparams)
  rates = []
  for (_, state, loss), each in zip(result, data, strict=True):
    rate, entropy = expected.round(np.float64(each.stream_x), each.timestep)
    rates.append(rate)
    assert_allclose(state.rate, rate, rtol=1e-5)
    assert_allclose(loss, entropy, rtol=1e-5)
    assert_allclose(
      state.dynamics.last.summaries.probabilities, expected.histogram, atol=1e-6
    )
    assert_allclose(
      state.dynamics.last.summaries.direction, expected.reference, atol=1e-5
    )
    for value, other in trees.pairs(
      (state.weights, state.statistics),
      (expected.weights, (expected.mean, expected.variance)),
    ):
      assert_allclose(value, other, rtol=1e-5, atol=1e-5)
  assert result[0][1].rate == np.float32(PROGRAM.eta_min)
  assert len(set(rates)) == 4
  means = [state.learning_rate for _, state, _ in result]
  assert_allclose(
    means, [rates[0], rates[1], np.mean(rates[1:3]), rates[3]], rtol=1e-4
  )
  # Clients predict with their running statistics.
  (backbone, state, _), examples = result[-1], make_client(9, [6])
  expected.mean, expected.variance = state.statistics
  assert_allclose(
    functions.predict_as_client(backbone, state, client, examples),
    expected.predict(state.weights, examples.x, by_batch=False),
    rtol=1e-4,
    atol=1e-5,
  )


def test_equal_bounds_are_a_fixed_rate(
  build, normalized, client, rounds_alone, compare
):
  """Whatever is measured: the bits of FixLR with the same updates."""
  expected = rounds_alone(
    build(
      fix_lr.HParams(variant="program", learning_rate=0.3), model=normalized
    ),
    client,
    [1, 2, 2],
  )
  for summary, reference in (("softmax", "ema"), ("histogram", "last")):
    functions = build(
      PROGRAM,
      model=normalized,
      eta_min=0.3,
      eta_max=0.3,
      summary=summary,
      reference=reference,
    )
    found = rounds_alone(functions, client, [1, 2, 2])
    for (_, state, loss), (_, fixed_state, fixed_loss) in zip(
      found, expected, strict=True
    ):
      assert compare.equal_bits(state.weights, fixed_state.weights)
      assert compare.equal_bits(state.statistics, fixed_state.statistics)
      assert compare.equal_bits(loss, fixed_loss)
      assert state.learning_rate == np.float32(0.3)


def test_a_client_does_not_depend_on_others(
  start, normalized, make_adapting_client, compare
):
  data = [make_adapting_client(i, 6, 8 + i) for i in range(3)]
  together, alone = (
    start(PROGRAM, part, 2, model=normalized) for part in (data, data[-1:])
  )
  assert len(together.algorithm.phases) == 1
  assert compare.equal_bits(together.client_states[-1], alone.client_states[-1])
  # The server has a mean, which nobody receives.
  initial = normalized.initial_backbone(data[0].seed)
  assert not compare.equal_bits(
    together.server_state.weights, trees.map(np.asarray, initial)
  )


class TestSwitches:
  """What single switches change in the method of the paper."""

  PROGRAM = types.MappingProxyType(
    {
      "objective": "entropy",
      "order": "head_first",
      "share": "nothing",
      "running_statistics": "moving",
      "summary": "histogram",
      "reference": "ema",
    }
  )

  @pytest.fixture(scope="class")
  def after(self, build, normalized, client, rounds_alone):
    """Returns `run(**changes)`: the weights and state after three rounds."""

    def run(**changes):
      hparams = fed_ade.HParams(
        eta_min=0.1, eta_max=0.5, local_epochs=1, head_epochs=1, **changes
      )
      functions = build(hparams, model=normalized)
      *_, (weights, state, _) = rounds_alone(functions, client, [1, 2, 2])
      return weights, state

    return run

  @pytest.mark.long
  def test_each_changes_what_a_client_has(self, after, compare):
    result = [after(), *(after(**{k: v}) for k, v in self.PROGRAM.items())]
    assert all(np.isfinite(state.learning_rate) for _, state in result)
    for one, other in itertools.combinations(result, 2):
      assert not compare.equal_bits(one, other)

  def test_all_of_them_are_the_program(self, after, compare):
    assert compare.equal_bits(after(variant="program"), after(**self.PROGRAM))
    assert compare.equal_bits(
      after(),
      after(
        variant="program",
        objective="risk",
        order="all_first",
        share="backbone",
        running_statistics="fixed",
        summary="softmax",
        reference="last",
      ),
    )


def test_dropout_is_drawn_for_each_round(build, client, rounds_alone):
  """At rate 0 the same batch has other labels, and the model predicts alike."""
  model = layered(dropout=0.5)
  functions = build(
    PROGRAM, model=model, eta_min=0.0, eta_max=TINY, use_representation=False
  )
  found = rounds_alone(functions, client, [1, 2, 2, 2])
  assert any(state.rate > 0 for _, state, _ in found)
  histograms = [
    state.dynamics.last.summaries.probabilities for _, state, _ in found
  ]
  assert len({each.tobytes() for each in histograms}) > 1
  again = rounds_alone(functions, client, [1, 2, 2, 2])
  assert [state.rate for _, state, _ in found] == [
    state.rate for _, state, _ in again
  ]
