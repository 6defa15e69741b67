"""Batch normalisation in every algorithm: whose the statistics are."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import batch_statistics
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models import split_model
from tff_shift.testing import forms

layers = tf.keras.layers
NAMES = [n for n in algorithms.names() if algorithms.running_statistics(n)]


@functools.cache
def make_model():
  """The contract's model, with batch normalisation in the backbone."""
  return guided_model.with_guide(
    split_model.build_split_model(
      "normalized",
      backbone=lambda: tf.keras.Sequential(
        [
          layers.InputLayer((5,)),
          layers.Dense(8, name="layer1"),
          layers.BatchNormalization(momentum=0.5, name="norm"),
          layers.ReLU(),
        ]
      ),
      head=lambda: tf.keras.Sequential(
        [layers.InputLayer((8,)), layers.Dense(3, name="layer2")]
      ),
      input_dtype=tf.float32,
    ),
    num_clients=forms.NUM_CLIENTS,
    width=7,
  )


def model_for(name):
  """Of an algorithm that leaves statistics as they are, a trained model."""
  model = make_model()
  if algorithms.running_statistics(name) != algorithm_lib.FIXED:
    return model
  given = zip(
    tf.nest.flatten(model.weight_names()),
    tf.nest.flatten(model.initial_weights(randomness.server_seed(0))),
    strict=True,
  )
  return split_model.with_weights(
    model,
    {
      **dict(given),
      **{key: value + 0.5 for key, value in model.statistics.items()},
    },
  )


def run(name, data_of, **options):
  """Two rounds; the algorithm, its states and its data."""
  hparams = dataclasses.replace(forms.hparams(name), **options)
  algorithm = algorithms.build(name, model_for(name), hparams)
  data = data_of(algorithm)
  state = algorithm.initialize(randomness.server_seed(0))
  clients = algorithm.initialize_client(state, [each.seed for each in data])
  for _ in range(2):
    for phase in algorithm.phases:
      state, clients, _ = phase(state, clients, data)
  return algorithm, state, clients, data


@pytest.fixture(params=forms.parameters(NAMES))
def name(request):
  return request.param


@pytest.fixture
def data_of(client_data):
  """Makes the data of clients 0 to 2."""
  return lambda algorithm: [
    client_data.make(algorithm, client, more=client) for client in range(3)
  ]


@pytest.mark.slow
def test_statistics_move_where_they_are_kept(
  name, data_of, make_client, context
):
  kept = algorithms.running_statistics(name)
  algorithm, state, clients, data = run(name, data_of)
  own = [state.weights] if kept.server else []
  own += clients if kept.client else []
  found = [each for each in own if each.statistics]
  assert len(found) == len(own)
  initial = model_for(name).statistics
  for each in found:
    values = tf.nest.flatten(each.statistics)
    assert len(values) % len(initial) == 0
    for value, start in zip(values, tuple(initial.values()) * 2, strict=False):
      assert np.isfinite(value).all()
      assert np.any(np.abs(value - start) > 1e-3)
  if not own:
    everything = tf.nest.map_structure(np.asarray, [state.weights, clients])
    assert not isinstance(everything[0], batch_statistics.Normalized)
  to_predict = [make_client(9, [6])] * len(data)
  metrics = algorithm.evaluate_clients(state, clients, data, to_predict)
  assert np.isfinite(metrics["loss"]).all()
  assert sum(metrics["loss"]) > 0


@pytest.mark.slow
def test_one_client_is_the_same_whatever_is_personal(
  name, data_of, make_client, context
):
  kept, found = algorithms.running_statistics(name), {}
  for personal_norm in ("none", "statistics", "all"):
    try:
      algorithm, state, clients, data = run(
        name, lambda built: data_of(built)[:1], personal_norm=personal_norm
      )
    except (ValueError, TypeError) as error:
      # Nothing to choose, or a server that needs them; by name.
      assert personal_norm != "none" or not kept.server
      assert "personal_norm" in str(error)
      continue
    found[personal_norm] = algorithm.evaluate_clients(
      state, clients, data, [make_client(9, [6])]
    )
  for each in found.values():
    for key, value in each.items():
      np.testing.assert_allclose(
        value, found["none"][key], rtol=1e-3, atol=1e-4, err_msg=key
      )


def domain_means(data):
  """The mean of each domain's examples."""
  ends = np.cumsum(data.domain_sizes)
  return [
    np.mean(part, axis=0) for part in np.split(np.float64(data.x), ends[:-1])
  ]


@pytest.fixture(scope="module")
def normalizes_inputs():
  """Momentum 0.5, and nothing before what is normalised."""
  return split_model.build_split_model(
    "inputs",
    backbone=lambda: tf.keras.Sequential(
      [
        layers.InputLayer((5,)),
        layers.BatchNormalization(momentum=0.5, name="norm"),
      ]
    ),
    head=lambda: tf.keras.Sequential(
      [layers.InputLayer((5,)), layers.Dense(3, name="last")]
    ),
    input_dtype=tf.float32,
  )


@pytest.fixture
def train_once(normalizes_inputs, make_client, context):
  """Returns `train(name, **hparams)`, a round of one client, a step a domain.

  A batch holds each example of the domain.
  """

  def train(name, rounds=1, **hparams):
    data = make_client(3, [6, 6])
    algorithm = algorithms.build(
      name,
      normalizes_inputs,
      algorithms.get(name).HParams(
        batch_size=6, local_steps=1, learning_rate=0.1, **hparams
      ),
    )
    state = algorithm.initialize(randomness.server_seed(0))
    clients = algorithm.initialize_client(state, [data.seed])
    for _ in range(rounds):
      for phase in algorithm.phases:
        state, clients, _ = phase(state, clients, [data])
    return state.weights, domain_means(data)

  return train


def test_each_representation_of_fed_evolve_sees_its_own_domain(train_once):
  weights, (earlier, later) = train_once("fed_evolve")
  close = {"rtol": 1e-5, "atol": 1e-6}
  np.testing.assert_allclose(
    weights.statistics["phi"][0], 0.5 * earlier, **close
  )
  np.testing.assert_allclose(weights.statistics["psi"][0], 0.5 * later, **close)


def test_first_domain_of_fed_evp_moves_statistics_too(train_once):
  """It stands in a branch of a condition."""
  weights, (first, second) = train_once("fed_evp")
  np.testing.assert_allclose(
    weights.statistics[0], 0.25 * first + 0.5 * second, rtol=1e-5, atol=1e-6
  )


def test_teacher_of_cfed_is_the_model_at_the_end_of_a_domain(train_once):
  """All steps of a round are in the current domain: here two."""
  options = {
    "task_rounds": 4,
    "server_steps": 0,
    "review_share": 0.0,
    "public_examples": 6,
  }
  weights, (first, _) = train_once("cfed", **options)
  np.testing.assert_allclose(
    weights.statistics["model"][0], 0.75 * first, rtol=1e-5, atol=1e-6
  )
  np.testing.assert_array_equal(weights.statistics["teacher"][0], np.zeros(5))
  weights, _ = train_once("cfed", rounds=2, **options)
  for one, other in zip(*weights.statistics.values(), strict=True):
    np.testing.assert_array_equal(one, other)
  np.testing.assert_allclose(
    weights.statistics["teacher"][0],
    (1 - 0.5**4) * first,
    rtol=1e-5,
    atol=1e-6,
  )


def test_distillation_at_the_server_moves_its_statistics(train_once):
  options = {"task_rounds": 2, "review_share": 0.0, "public_examples": 6}
  without, _ = train_once("cfed", server_steps=0, **options)
  with_it, _ = train_once(
    "cfed", server_steps=1, distil_from="first_domain", **options
  )
  assert np.all(
    np.not_equal(with_it.statistics["model"], without.statistics["model"])
  )


class TestRefusals:
  def test_server_that_needs_them(self):
    with pytest.raises(ValueError, match="with fed_drm: its server"):
      algorithms.build(
        "fed_drm",
        make_model(),
        dataclasses.replace(forms.hparams("fed_drm"), personal_norm="all"),
      )

  def test_nothing_to_choose(self):
    with pytest.raises(ValueError, match="only personal models"):
      algorithms.build(
        "local",
        make_model(),
        dataclasses.replace(forms.hparams("local"), personal_norm="statistics"),
      )

  def test_fixed_statistics_that_nobody_has_trained(self):
    with pytest.raises(ValueError, match="initial 0 and 1, which normalise"):
      algorithms.build("fix_lr", make_model())

  def test_layers_of_a_client_s_own(self, context):
    model = split_model.build_split_model(
      "own",
      backbone=lambda: tf.keras.Sequential(
        [layers.InputLayer((5,)), layers.Dense(4, name="first")]
      ),
      head=lambda: tf.keras.Sequential(
        [
          layers.InputLayer((4,)),
          layers.BatchNormalization(name="norm"),
          layers.Dense(3, name="last"),
        ]
      ),
      input_dtype=tf.float32,
    )
    options = {"head": "classifier", "local_steps": 1}
    hparams = algorithms.get("fed_rep").HParams(**options)
    with pytest.raises(ValueError, match="personal layers have batch"):
      algorithms.build("fed_rep", model, hparams)
    hparams = dataclasses.replace(hparams, personal_norm="statistics")
    algorithms.build("fed_rep", model, hparams)
