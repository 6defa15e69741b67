"""Batch normalisation in rounds: FedAvg, SiloBN and FedBN against NumPy."""

import dataclasses
import functools
import types

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift import models
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.execution import local
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories

layers = tf.keras.layers
MOMENTUM, EPSILON, RATE, STEPS = 0.9, 1e-3, 0.5, 2
CLASSES = 2


@pytest.fixture(scope="module")
def model():
  """Normalised features and a linear classifier without bias."""
  return models.from_keras(
    keras_models.sequential(
      (3,),
      layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON),
      layers.Dense(CLASSES, use_bias=False),
    )
  )


def make_client(client, size):
  """All batches hold each example alike, so that batches do not matter."""
  generator = np.random.default_rng(client)
  x = generator.normal(client, 1 + client, (size, 3)).astype(np.float32)
  return client_dataset.ClientDataset.from_arrays(
    x=x,
    y=np.arange(size, dtype=np.int32) % CLASSES,
    seed=randomness.client_seed(0, client),
    client_id=client,
  )


SIZE = 6
DATA = [make_client(client, SIZE) for client in range(2)]


def train(weights, statistics, data, trained=(True, True, True)):
  """Local steps of one client, in NumPy; new weights and statistics."""
  rates = [RATE * each for each in trained]
  gamma, beta, kernel = (np.float64(each) for each in weights)
  mean, variance = (np.float64(each) for each in statistics)
  x, y = np.float64(data.x), np.eye(CLASSES)[data.y]
  for _ in range(STEPS):
    batch_mean, batch_variance = x.mean(axis=0), x.var(axis=0)
    normed = (x - batch_mean) / np.sqrt(batch_variance + EPSILON)
    features = normed * gamma + beta
    slope = (scipy.special.softmax(features @ kernel, axis=1) - y) / len(y)
    of_features = slope @ kernel.T
    gamma, beta, kernel = (
      gamma - rates[0] * (of_features * normed).sum(axis=0),
      beta - rates[1] * of_features.sum(axis=0),
      kernel - rates[2] * features.T @ slope,
    )
    # Vectors: by the biased variance, as in Keras.
    mean = MOMENTUM * mean + (1 - MOMENTUM) * batch_mean
    variance = MOMENTUM * variance + (1 - MOMENTUM) * batch_variance
  return (gamma, beta, kernel), (mean, variance)


def predict(weights, statistics, x):
  gamma, beta, kernel = weights
  mean, variance = statistics
  return ((x - mean) / np.sqrt(variance + EPSILON) * gamma + beta) @ kernel


def pooled(statistics, counts):
  mean, square = (
    np.average(each, axis=0, weights=counts)
    for each in zip(*((m, v + m**2) for m, v in statistics), strict=True)
  )
  return mean, square - mean**2


def simulate(personal_norm, rounds, kernel, data=DATA, counts=None):
  """What the rounds should give: server's weights and clients' models."""
  weights = (np.ones(3), np.zeros(3), kernel)
  statistics = (np.zeros(3), np.ones(3))
  trained = [(weights, statistics)] * len(data)

  def models_of_clients():
    return [
      (
        (*personal[:2], weights[2]) if personal_norm == "all" else weights,
        statistics if personal_norm == "none" else moments,
      )
      for personal, moments in trained
    ]

  for _ in range(rounds):
    trained = [
      train(*model, client)
      for model, client in zip(models_of_clients(), data, strict=True)
    ]
    if personal_norm == "none":
      statistics = pooled([moments for _, moments in trained], counts)
    weights = tuple(
      np.average(column, axis=0, weights=counts)
      for column in zip(*(personal for personal, _ in trained), strict=True)
    )
    if personal_norm == "all":
      weights = (np.ones(3), np.zeros(3), weights[2])
  return {"weights": weights, "statistics": statistics}, models_of_clients()


def assert_predictions(algorithm, state, clients, own):
  """Clients predict as models (weights, statistics) in NumPy."""
  x = make_client(7, 5)
  for client, (weights, statistics) in enumerate(own):
    logits = algorithm.spec.predict_as_client(
      state.weights, clients[client], DATA[client], x
    )
    assert_allclose(
      logits, predict(weights, statistics, x.x), rtol=1e-4, atol=1e-4
    )


def hparams(**options):
  return fed_avg.HParams(
    batch_size=SIZE, local_steps=STEPS, learning_rate=RATE, **options
  )


def run_rounds(algorithm, rounds, data=DATA):
  state = algorithm.initialize(randomness.server_seed(0))
  clients = algorithm.initialize_client(state, [each.seed for each in data])
  for _ in range(rounds):
    for phase in algorithm.phases:
      state, clients, _ = phase(state, clients, data)
  return state, clients


COLUMNS = {
  "pressure": (101_325, 20),
  "frequency": (50, 0.02),
  "kelvin": (293.15, 0.05),
  "latitude": (47.37, 0.01),
  "meter": (250_000, 100),
  "year": (2021, 1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds", [1, 3])
def test_variances_far_from_zero(model, fed_avg_with, num_rounds):
  """In a first round, the means of clients are far from the server's."""
  algorithm = fed_avg_with("none")
  names = tuple(COLUMNS)
  for first in (0, 3):
    means, deviations = np.transpose(
      [COLUMNS[name] for name in names[first : first + 3]]
    )
    data = []
    for client in range(3):
      rng = np.random.default_rng(client)
      x = np.float32(
        means + deviations * rng.normal(0.2 * client, 1, (SIZE, 3))
      )
      data.append(make_client(client, SIZE)._replace(x=x))
    state, _ = run_rounds(algorithm, num_rounds, data)
    # They do not depend on the kernel.
    expected, _ = simulate("none", num_rounds, np.zeros((3, CLASSES)), data)
    mean, variance = expected["statistics"]
    found = state.weights.statistics
    assert_allclose(found[0], mean, rtol=1e-6)
    # The clients' means have a relative rounding error of 1e-7.
    assert_allclose(found[1], variance, rtol=1e-3)


def assert_close(found, expected, atol=1e-5):
  for one, other in zip(found, expected, strict=True):
    assert_allclose(one, other, rtol=1e-4, atol=atol)


@pytest.fixture(scope="module")
def fed_avg_with(model, context):
  """Returns `build(personal_norm)`, which gives FedAvg."""
  return functools.cache(
    lambda personal_norm: algorithms.build(
      "fed_avg", model, hparams(personal_norm=personal_norm)
    )
  )


@pytest.mark.slow
@pytest.mark.parametrize("personal_norm", ["none", "statistics", "all"])
def test_rounds_agree_with_numpy(personal_norm, fed_avg_with):
  algorithm = fed_avg_with(personal_norm)
  initial = algorithm.initialize(randomness.server_seed(0)).weights
  state, clients = run_rounds(algorithm, 3)
  expected, of_clients = simulate(
    personal_norm, 3, np.asarray(initial.weights.head[0])
  )
  found = (*state.weights.weights.backbone, *state.weights.weights.head)
  assert_close(found, expected["weights"])
  if personal_norm == "none":
    assert algorithm.is_stateless
    assert_close(state.weights.statistics, expected["statistics"])
  else:
    assert algorithm.evaluate_server is None
  assert_predictions(algorithm, state, clients, of_clients)


@pytest.mark.slow
def test_fed_bn_is_fed_avg_with_all_of_it_personal(model, fed_avg_with):
  module = algorithms.get("fed_bn")
  values = dataclasses.asdict(hparams()) | {"personal_norm": "all"}
  one, _ = run_rounds(
    algorithms.build("fed_bn", model, module.HParams(**values)), 2
  )
  other, _ = run_rounds(fed_avg_with("all"), 2)
  assert module.HParams().personal_norm == "all"
  trees.assert_equal(one.weights, other.weights)


def own_models(rounds, initial):
  """Each client's model that is trained alone, in NumPy."""
  start = (np.ones(3), np.zeros(3), np.asarray(initial.weights.head[0]))
  found = []
  for data in DATA:
    own = start, (np.zeros(3), np.ones(3))
    for _ in range(rounds):
      own = train(*own, data)
    found.append(own)
  return found


@pytest.mark.long
@pytest.mark.parametrize(
  "name, options",
  [
    ("ditto", {"ditto_lambda": 0.0}),
    ("apfl", {"mixture_weight": 1.0, "adapt_mixture": False}),
  ],
)
def test_models_of_two_kinds_agree_with_numpy(name, options, model, context):
  """The server's is that of FedAvg; one that nothing pulls is trained alone."""
  values = dataclasses.asdict(hparams()) | options
  algorithm = algorithms.build(
    name, model, algorithms.get(name).HParams(**values)
  )
  initial = algorithm.initialize(randomness.server_seed(0)).weights
  state, clients = run_rounds(algorithm, 3)
  expected, _ = simulate("none", 3, np.asarray(initial.weights.head[0]))
  assert_close(state.weights.statistics, expected["statistics"])
  # A client that comes later starts from the server's.
  (late,) = algorithm.initialize_client(state, [randomness.client_seed(0, 9)])
  for one, other in zip(late.statistics, state.weights.statistics, strict=True):
    assert np.any(one != 0)
    np.testing.assert_array_equal(one, other)
  own = own_models(3, initial)
  for client, (_, statistics) in zip(clients, own, strict=True):
    assert_close(client.statistics, statistics)
  assert_predictions(algorithm, state, clients, own)


@pytest.mark.slow
def test_personal_head_on_shared_statistics_agrees_with_numpy(model, context):
  """FedRep: steps on the head move the statistics of the backbone, too."""
  algorithm = algorithms.build(
    "fed_rep",
    model,
    algorithms.get("fed_rep").HParams(
      head_steps=STEPS, **dataclasses.asdict(hparams())
    ),
  )
  state = algorithm.initialize(randomness.server_seed(0))
  clients = algorithm.initialize_client(state, [each.seed for each in DATA])
  kernels = [np.asarray(each[0]) for each in clients]
  shared, statistics = (np.ones(3), np.zeros(3)), (np.zeros(3), np.ones(3))
  for _ in range(2):
    trained = []
    for client, data in enumerate(DATA):
      head, moved = train(
        (*shared, kernels[client]), statistics, data, (False, False, True)
      )
      trained.append(train(head, moved, data, (True, True, False)))
      kernels[client] = head[2]
    shared = tuple(
      np.mean([w[each] for w, _ in trained], axis=0) for each in range(2)
    )
    statistics = pooled([s for _, s in trained], [1.0, 1.0])
  state, clients = run_rounds(algorithm, 2)
  assert_close(
    (*state.weights.weights, *state.weights.statistics), (*shared, *statistics)
  )
  assert_predictions(
    algorithm,
    state,
    clients,
    [((*shared, kernel), statistics) for kernel in kernels],
  )


@pytest.mark.slow
def test_statistics_are_weighted_by_examples(model, context):
  data = [make_client(0, SIZE), make_client(1, 3 * SIZE)]
  algorithm = algorithms.build(
    "fed_avg",
    model,
    dataclasses.replace(
      hparams(client_weighting="num_examples"), batch_size=3 * SIZE
    ),
  )
  state, _ = run_rounds(algorithm, 1, data)
  initial = algorithm.initialize(randomness.server_seed(0)).weights
  # A batch of the smaller client holds each of its examples three times.
  expected, _ = simulate(
    "none", 1, np.asarray(initial.weights.head[0]), data, [1.0, 3.0]
  )
  assert_close(state.weights.statistics, expected["statistics"])


@pytest.mark.slow
def test_a_client_without_examples_counts_nowhere(fed_avg_with):
  algorithm = fed_avg_with("none")
  alone, _ = run_rounds(algorithm, 2, DATA[:1])
  beside, _ = run_rounds(algorithm, 2, [DATA[0], make_client(1, 0)])
  for one, other in trees.pairs(alone.weights, beside.weights):
    assert_allclose(one, other, 1e-6, 1e-6)


@pytest.mark.slow
def test_nothing_that_trains_touches_statistics(model, fed_avg_with):
  """Decay, momentum and a proximal term move weights alone."""
  fed_prox = algorithms.build(
    "fed_prox",
    model,
    algorithms.get("fed_prox").HParams(
      batch_size=SIZE,
      local_steps=STEPS,
      learning_rate=0.1,
      momentum=0.9,
      weight_decay=0.5,
      mu=2.0,
    ),
  )
  plain, heavy = (
    run_rounds(each, 1)[0].weights.statistics
    for each in (fed_avg_with("none"), fed_prox)
  )
  # What is normalised are the inputs, which no weight stands before.
  trees.assert_equal(plain, heavy)


@pytest.mark.slow
def test_noise_does_not_reach_the_scale_that_new_clients_start_from(
  model, context
):
  aggregator = factories.build("dp", clients_per_round=100)
  algorithm = algorithms.build(
    "fed_avg", model, hparams(personal_norm="all"), aggregator=aggregator
  )
  state, _ = run_rounds(algorithm, 1)
  trees.assert_equal(state.weights.weights.backbone, (np.ones(3), np.zeros(3)))


class TestRefusals:
  def test_algorithm_that_does_not_say_whose_they_are(self, model, refusal):
    module = types.ModuleType("of_a_user")
    module.HParams, module.build = fed_avg.HParams, fed_avg.build
    told = refusal(algorithms.build, module, model)
    assert "of_a_user is not allowed with model" in told

  @pytest.mark.slow
  def test_aggregators_that_hide_or_clip(self, model, refusal):
    aggregator = factories.build("robust")
    assert "means of clients' activations" in refusal(
      algorithms.build, "fed_avg", model, hparams(), aggregator=aggregator
    )
    # Without statistics at the server, nothing is in the way.
    options = hparams(personal_norm="statistics")
    algorithms.build("fed_avg", model, options, aggregator=aggregator)

  def test_choice_that_means_nothing(self, refusal):
    plain = models.build("mlp", input_shape=(3,), num_classes=2)
    options = hparams(personal_norm="all")
    told = refusal(algorithms.build, "fed_avg", plain, options)
    assert told.startswith("personal_norm=all is not allowed")


@pytest.mark.slow
@pytest.mark.cpp
def test_rounds_agree_with_the_cpp_executor(fed_avg_with):
  algorithm = fed_avg_with("statistics")
  here = run_rounds(algorithm, 2)
  with local.local_context():
    there = run_rounds(algorithm, 2)
  for one, other in trees.pairs(here, there):
    assert_allclose(one, other, rtol=1e-5, atol=1e-6)
