"""Batch normalisation in rounds: FedAvg, SiloBN and FedBN against NumPy."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift import models
from tff_shift.algorithms import fed_avg
from tff_shift.execution import local
from tff_shift.learning import aggregation
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.testing import forms

layers = tf.keras.layers
MOMENTUM, EPSILON, RATE, STEPS = 0.9, 1e-3, 0.5, 2
CLASSES = 2


@pytest.fixture(scope="module")
def model():
  """Normalised features and a linear classifier without bias."""
  return models.from_keras(
    tf.keras.Sequential(
      [
        layers.InputLayer((3,)),
        layers.BatchNormalization(
          momentum=MOMENTUM, epsilon=EPSILON, name="norm"
        ),
        layers.Dense(CLASSES, use_bias=False, name="last"),
      ]
    )
  )


def make_client(client, size):
  """All batches hold each example alike, so that batches do not matter."""
  generator = np.random.default_rng(client)
  x = generator.normal(client, 1 + client, (size, 3)).astype(np.float32)
  return local_training.ClientData(
    x=x,
    y=np.arange(size, dtype=np.int32) % CLASSES,
    domain_sizes=np.int32([size]),
    seed=randomness.client_seed(0, client),
    client_id=np.int32(client),
  )


SIZE = 6
DATA = [make_client(client, SIZE) for client in range(2)]


def softmax(logits):
  exp = np.exp(logits - logits.max(axis=1, keepdims=True))
  return exp / exp.sum(axis=1, keepdims=True)


def train(weights, statistics, data):
  """Local steps of one client, in NumPy; new weights and statistics."""
  gamma, beta, kernel = (np.float64(each) for each in weights)
  mean, variance = (np.float64(each) for each in statistics)
  x, y = np.float64(data.x), np.eye(CLASSES)[data.y]
  for _ in range(STEPS):
    batch_mean, batch_variance = x.mean(axis=0), x.var(axis=0)
    normed = (x - batch_mean) / np.sqrt(batch_variance + EPSILON)
    features = normed * gamma + beta
    slope = (softmax(features @ kernel) - y) / len(y)
    of_features = slope @ kernel.T
    gamma, beta, kernel = (
      gamma - RATE * (of_features * normed).sum(axis=0),
      beta - RATE * of_features.sum(axis=0),
      kernel - RATE * features.T @ slope,
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
  means, variances = zip(*statistics, strict=True)
  mean = np.average(means, axis=0, weights=counts)
  squares = [v + m**2 for m, v in statistics]
  del variances
  return mean, np.average(squares, axis=0, weights=counts) - mean**2


def simulate(personal_norm, rounds, data=DATA, counts=None):
  """What the rounds should give: server's weights and clients' models."""
  kernel = None
  state = {"statistics": (np.zeros(3), np.ones(3)), "weights": None}
  own = [(np.zeros(3), np.ones(3)) for _ in data]
  own_norm = [(np.ones(3), np.zeros(3)) for _ in data]
  counts = counts or [1.0] * len(data)

  def start(initial):
    nonlocal kernel
    kernel = initial
    state["weights"] = (np.ones(3), np.zeros(3), kernel)

  def of_client(client):
    weights, statistics = state["weights"], state["statistics"]
    if personal_norm == "all":
      weights = (*own_norm[client], weights[2])
    if personal_norm != "none":
      statistics = own[client]
    return weights, statistics

  def run(initial):
    start(initial)
    for _ in range(rounds):
      trained = [
        train(*of_client(client), each) for client, each in enumerate(data)
      ]
      if personal_norm == "none":
        state["statistics"] = pooled([s for _, s in trained], counts)
      own[:] = [s for _, s in trained]
      own_norm[:] = [w[:2] for w, _ in trained]
      means = tuple(
        np.average([w[each] for w, _ in trained], axis=0, weights=counts)
        for each in range(3)
      )
      if personal_norm == "all":
        means = (np.ones(3), np.zeros(3), means[2])
      state["weights"] = means
    return state, [of_client(client) for client in range(len(data))]

  return run


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


@pytest.mark.parametrize("personal_norm", ["none", "statistics", "all"])
def test_rounds_agree_with_numpy(personal_norm, model, context):
  algorithm = algorithms.build(
    "fed_avg", model, hparams(personal_norm=personal_norm)
  )
  initial = algorithm.initialize(randomness.server_seed(0)).weights
  state, clients = run_rounds(algorithm, 3)
  expected, of_clients = simulate(personal_norm, 3)(
    np.asarray(initial.weights.head[0])
  )
  found = (*state.weights.weights.backbone, *state.weights.weights.head)
  for one, other in zip(found, expected["weights"], strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
  if personal_norm == "none":
    assert algorithm.is_stateless
    for one, other in zip(
      state.weights.statistics, expected["statistics"], strict=True
    ):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
  else:
    assert algorithm.evaluate_server is None
  x = make_client(7, 5)
  for client, (weights, statistics) in enumerate(of_clients):
    logits = algorithm.work.predict_as_client(
      state.weights, clients[client], DATA[client], x
    )
    np.testing.assert_allclose(
      logits, predict(weights, statistics, x.x), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_fed_bn_is_fed_avg_with_all_of_it_personal(model, context):
  module = algorithms.get("fed_bn")
  values = dataclasses.asdict(hparams()) | {"personal_norm": "all"}
  one, _ = run_rounds(
    algorithms.build("fed_bn", model, module.HParams(**values)), 2
  )
  other, _ = run_rounds(
    algorithms.build("fed_avg", model, hparams(personal_norm="all")), 2
  )
  assert module.HParams().personal_norm == "all"
  for a, b in zip(
    tf.nest.flatten(one.weights), tf.nest.flatten(other.weights), strict=True
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", [n for n in algorithms.names() if algorithms.trains_one_model(n)]
)
def test_one_client_is_the_same_whatever_is_personal(name, model, context):
  x = make_client(7, 5)
  found = []
  for personal_norm in ("none", "statistics", "all"):
    algorithm = algorithms.build(
      name,
      model,
      dataclasses.replace(
        forms.hparams(name), personal_norm=personal_norm, batch_size=SIZE
      ),
    )
    state, clients = run_rounds(algorithm, 2, DATA[:1])
    found.append(algorithm.evaluate_clients(state, clients, DATA[:1], [x]))
  assert np.isfinite(found[0]["loss"]).all()
  for each in found[1:]:
    for key, value in each.items():
      np.testing.assert_allclose(
        value, found[0][key], rtol=1e-4, atol=1e-5, err_msg=key
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
  expected, _ = simulate("none", 1, data, counts=[1.0, 3.0])(
    np.asarray(initial.weights.head[0])
  )
  for one, other in zip(
    state.weights.statistics, expected["statistics"], strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_client_without_examples_counts_nowhere(model, context):
  nobody = DATA[1]._replace(
    x=DATA[1].x[:0], y=DATA[1].y[:0], domain_sizes=np.int32([0])
  )
  algorithm = algorithms.build("fed_avg", model, hparams())
  alone, _ = run_rounds(algorithm, 2, DATA[:1])
  beside, _ = run_rounds(algorithm, 2, [DATA[0], nobody])
  for one, other in zip(
    tf.nest.flatten(alone.weights),
    tf.nest.flatten(beside.weights),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_nothing_that_trains_touches_statistics(model, context):
  """Decay, momentum and a proximal term move weights alone."""
  plain, heavy = (
    run_rounds(algorithms.build(name, model, each), 1)[0].weights.statistics
    for name, each in (
      ("fed_avg", hparams()),
      (
        "fed_prox",
        algorithms.get("fed_prox").HParams(
          batch_size=SIZE,
          local_steps=STEPS,
          learning_rate=0.1,
          momentum=0.9,
          weight_decay=0.5,
          mu=2.0,
        ),
      ),
    )
  )
  # What is normalised are the inputs, which no weight stands before.
  for one, other in zip(plain, heavy, strict=True):
    np.testing.assert_array_equal(one, other)


def test_noise_does_not_reach_the_scale_that_new_clients_start_from(
  model, context
):
  aggregator = aggregation.build("dp", clients_per_round=100)
  algorithm = algorithms.build(
    "fed_avg", model, hparams(personal_norm="all"), aggregator=aggregator
  )
  state, _ = run_rounds(algorithm, 1)
  scale, shift = state.weights.weights.backbone
  np.testing.assert_array_equal(scale, np.ones(3))
  np.testing.assert_array_equal(shift, np.zeros(3))


class TestRefusals:
  def test_algorithm_of_several_models(self, model):
    with pytest.raises(ValueError, match="ditto is not allowed with model"):
      algorithms.build("ditto", model)

  @pytest.mark.parametrize("name", ["dp", "robust", "secure"])
  def test_aggregators_that_hide_or_clip(self, name, model):
    aggregator = aggregation.build(name, clients_per_round=100)
    with pytest.raises(ValueError, match="means of clients' activations"):
      algorithms.build("fed_avg", model, hparams(), aggregator=aggregator)
    algorithms.build(
      "fed_avg",
      model,
      hparams(personal_norm="statistics"),
      aggregator=aggregator,
    )

  def test_choice_that_means_nothing(self):
    plain = models.build("mlp", input_shape=(3,), num_classes=2)
    with pytest.raises(ValueError, match="personal_norm=all is not allowed"):
      algorithms.build("fed_avg", plain, hparams(personal_norm="all"))


@pytest.mark.slow
@pytest.mark.cpp
def test_rounds_agree_with_the_cpp_executor(model, context):
  algorithm = algorithms.build(
    "fed_avg", model, hparams(personal_norm="statistics")
  )
  here = run_rounds(algorithm, 2)
  with local.local_context():
    there = run_rounds(algorithm, 2)
  for one, other in zip(
    tf.nest.flatten(here), tf.nest.flatten(there), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
