"""Batch normalisation in every algorithm: whose the statistics are."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import keras_models
from tests.fixtures import refusals
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import batch_statistics
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.testing import forms

layers = tf.keras.layers
NAMES = [n for n in algorithms.names() if algorithms.running_statistics(n)]


@functools.cache
def make_model():
  """The contract's model, with batch normalisation in the backbone."""
  return guided_model.with_guide(
    keras_models.split(
      (5,),
      lambda: [
        layers.Dense(8, name="layer1"),
        layers.BatchNormalization(momentum=0.5, name="norm"),
        layers.ReLU(),
      ],
      lambda: [layers.Dense(3, name="layer2")],
    ),
    num_clients=forms.NUM_CLIENTS,
    width=7,
  )


def model_for(name):
  """Of an algorithm that leaves statistics as they are, a trained model."""
  model = make_model()
  if algorithms.running_statistics(name) != algorithm_lib.FIXED:
    return model
  weights = model.initial_weights(randomness.server_seed(0))
  statistics = {key: value + 0.5 for key, value in model.statistics.items()}
  return keras_models.fixed(model, weights, statistics)


def build(name, **options):
  hparams = dataclasses.replace(forms.hparams(name), **options)
  return algorithms.build(
    name, model_for(name), hparams, num_clients=forms.NUM_CLIENTS
  )


def run(algorithm, data):
  """Two rounds; the states of the server and of the clients after each."""
  state = algorithm.initialize(randomness.server_seed(0))
  clients = algorithm.initialize_client(state, [each.seed for each in data])
  for _ in range(2):
    for phase in algorithm.phases:
      state, clients, _ = phase(state, clients, data)
    yield state, clients


def wrapped(name):
  """The optional functions that are wrapped for the statistics."""
  if algorithms.running_statistics(name) == algorithm_lib.FIXED:
    return []
  build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
  functions = build(make_model(), forms.hparams(name))
  return [
    field
    for field in ("guide_queries", "personalize_client", "prepare_client")
    if getattr(functions, field)
  ]


def parameters():
  """All algorithms; unmarked is one of each kind, and one of each function."""
  firsts = {}
  for name in NAMES:
    firsts.setdefault(algorithms.running_statistics(name), name)
  for name in [*firsts.values(), *NAMES]:
    for field in wrapped(name):
      firsts.setdefault(field, name)
  others = pytest.mark.every_algorithm
  return [
    name if name in firsts.values() else pytest.param(name, marks=others)
    for name in NAMES
  ]


@pytest.fixture(scope="module", params=parameters())
def name(request):
  return request.param


@pytest.fixture(scope="module")
def plain(name, context):
  return build(name)


@pytest.fixture(scope="module")
def data(plain, client_data):
  """The data of clients 0 to 2."""
  return [client_data.make(plain, client, more=client) for client in range(3)]


@pytest.mark.long
def test_statistics_move_where_they_are_kept(name, plain, data, make_client):
  kept = algorithms.running_statistics(name)
  _, (state, clients) = run(plain, data)
  own = [state.weights] if kept.server else []
  own += clients if kept.client else []
  found = [each for each in own if each.statistics]
  assert len(found) == len(own)
  initial = model_for(name).statistics
  for each in found:
    values = trees.leaves(each.statistics)
    assert len(values) % len(initial) == 0
    for value, start in zip(values, tuple(initial.values()) * 2, strict=False):
      assert np.isfinite(value).all()
      assert np.any(np.abs(value - start) > 1e-3)
  if not own:
    everything = trees.map(np.asarray, [state.weights, clients])
    assert not isinstance(everything[0], batch_statistics.Normalized)
  to_predict = [make_client(9, [6])] * len(data)
  metrics = plain.evaluate_clients(state, clients, data, to_predict)
  assert np.isfinite(metrics["loss"]).all()
  assert sum(metrics["loss"]) > 0


@pytest.mark.slow
@pytest.mark.every_algorithm
def test_one_client_is_the_same_whatever_is_personal(
  name, plain, data, make_client
):
  built = {"none": plain}
  for personal_norm in ("statistics", "all"):
    try:
      built[personal_norm] = build(name, personal_norm=personal_norm)
    except (ValueError, TypeError) as error:
      # Nothing to choose, or a server that needs them; by name.
      assert "personal_norm" in str(error)
  if len(built) == 1:
    return
  first, *others = (
    algorithm.evaluate_clients(
      *[*run(algorithm, data[:1])][1], data[:1], [make_client(9, [6])]
    )
    for algorithm in built.values()
  )
  for each in others:
    for key, value in each.items():
      assert_allclose(value, first[key], rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.fixture
def train(make_client, context):
  """Returns `train(name, **hparams)`, rounds of one client, a step a domain.

  It gives the weights after each of two rounds, and the mean of each domain's
  examples, all of which a batch holds. Nothing is before what is normalised.
  """
  model = keras_models.split(
    (5,),
    lambda: [layers.BatchNormalization(momentum=0.5, name="norm")],
    lambda: [layers.Dense(3, name="last")],
  )

  def train(name, **hparams):
    data = make_client(3, [6, 6])
    algorithm = algorithms.build(
      name,
      model,
      algorithms.get(name).HParams(
        batch_size=6, local_steps=1, learning_rate=0.1, **hparams
      ),
    )
    weights = [state.weights for state, _ in run(algorithm, [data])]
    ends = np.cumsum(data.domain_sizes)[:-1]
    domains = np.split(np.float64(data.x), ends)
    return weights, [domain.mean(axis=0) for domain in domains]

  return train


CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.slow
def test_each_representation_of_fed_evolve_sees_its_own_domain(train):
  (weights, _), (earlier, later) = train("fed_evolve")
  assert_allclose(weights.statistics["phi"][0], 0.5 * earlier, **CLOSE)
  assert_allclose(weights.statistics["psi"][0], 0.5 * later, **CLOSE)


@pytest.mark.slow
def test_first_domain_of_fed_evp_moves_statistics_too(train):
  """It stands in a branch of a condition."""
  (weights, _), (first, second) = train("fed_evp")
  assert_allclose(weights.statistics[0], 0.25 * first + 0.5 * second, **CLOSE)


@pytest.mark.long
def test_teacher_of_cfed_is_the_model_at_the_end_of_a_domain(train):
  """All steps of a round are in the current domain: here two."""
  options = {"task_rounds": 4, "review_share": 0.0, "public_examples": 6}
  (earlier, later), (first, _) = train("cfed", server_steps=0, **options)
  assert_allclose(earlier.statistics["model"][0], 0.75 * first, **CLOSE)
  assert_array_equal(earlier.statistics["teacher"][0], np.zeros(5))
  for one, other in zip(*later.statistics.values(), strict=True):
    assert_array_equal(one, other)
  assert_allclose(later.statistics["teacher"][0], (1 - 0.5**4) * first, **CLOSE)
  # Distillation at the server moves the statistics of its model.
  (distilled, _), _ = train(
    "cfed", server_steps=1, distil_from="first_domain", **options
  )
  assert np.all(
    np.not_equal(distilled.statistics["model"], earlier.statistics["model"])
  )


@pytest.mark.parametrize(
  "name, options, message",
  [
    ("fed_drm", {"personal_norm": "all"}, "with fed_drm: its server"),
    ("local", {"personal_norm": "statistics"}, "only personal models"),
    # Fixed statistics that nobody has trained.
    ("fix_lr", {}, "initial 0 and 1, which normalise"),
  ],
)
def test_what_nobody_has_or_needs_is_refused(name, options, message):
  hparams = dataclasses.replace(forms.hparams(name), **options)
  with refusals.refused(message):
    algorithms.build(name, make_model(), hparams)


@pytest.mark.slow
def test_layers_of_a_client_s_own_have_statistics_of_its_own(context):
  model = keras_models.split(
    (5,),
    lambda: [layers.Dense(4, name="first")],
    lambda: [
      layers.BatchNormalization(name="norm"),
      layers.Dense(3, name="last"),
    ],
  )
  hparams = algorithms.hparams("fed_rep", head="classifier", local_steps=1)
  with refusals.refused("personal layers have batch"):
    algorithms.build("fed_rep", model, hparams)
  hparams = dataclasses.replace(hparams, personal_norm="statistics")
  algorithms.build("fed_rep", model, hparams)
