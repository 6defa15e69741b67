"""Who answers a query: routes by hand, and computations by type."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies
from hypothesis.extra import numpy as numpy_strategies

from tff_shift import algorithms
from tff_shift.algorithms import fed_drm
from tff_shift.data import client_dataset
from tff_shift.learning import guidance
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models.networks import mlp


def route(logits, sizes):
  return tf.nest.map_structure(
    np.array,
    guidance.route(
      tf.constant(logits, tf.float32), tf.constant(sizes, tf.float32)
    ),
  )


def test_probabilities_by_hand():
  # Odds of 3 : 1 between clients of 30 and of 10 examples are even odds.
  routing = route([[np.log(3.0), 0.0]], [30.0, 10.0])
  np.testing.assert_allclose(
    routing["uncorrected_probabilities"], [[0.75, 0.25]], rtol=1e-6
  )
  np.testing.assert_allclose(routing["probabilities"], [[0.5, 0.5]], rtol=1e-6)


def test_correction_changes_the_route():
  routing = route([[np.log(2.0), 0.0]], [30.0, 10.0])
  assert routing["uncorrected_routes"] == [0]
  assert routing["routes"] == [1]


def test_lowest_client_wins_a_tie():
  routing = route([[1.0, 2.0, 2.0]], [5.0, 5.0, 5.0])
  assert routing["routes"] == [1]
  assert routing["uncorrected_routes"] == [1]


def test_client_without_examples_is_no_route():
  routing = route([[9.0, 1.0, 0.0]], [0.0, 5.0, 5.0])
  assert routing["routes"] == [1]
  assert routing["probabilities"][0, 0] == 0
  assert np.isfinite(routing["probabilities"]).all()


@settings(max_examples=30)
@given(
  numpy_strategies.arrays(
    np.float32, (3, 4), elements=strategies.floats(-30, 30, width=32)
  ),
  numpy_strategies.arrays(np.float32, 4, elements=strategies.integers(1, 1000)),
)
def test_routing_is_a_distribution_and_deterministic(logits, sizes):
  routing = route(logits, sizes)
  for prefix in ("", "uncorrected_"):
    probabilities = routing[f"{prefix}probabilities"]
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    chosen = probabilities[range(3), routing[f"{prefix}routes"]]
    assert (chosen == probabilities.max(axis=1)).all()
  again = route(logits, sizes)
  for name, value in routing.items():
    np.testing.assert_array_equal(value, again[name])


@pytest.mark.parametrize("prefix", ["", "uncorrected_"])
def test_no_query_has_no_route(prefix):
  routing = route(np.zeros((0, 4)), np.ones(4))
  assert routing[f"{prefix}probabilities"].shape == (0, 4)
  assert routing[f"{prefix}routes"].shape == (0,)


X = np.float32([[1, 2], [-3, 1], [0, 0]])


@pytest.fixture(scope="module")
def build(context):
  """Returns `build(weighting)`: FedDRM of two clients for three queries."""
  del context

  @functools.cache
  def build_once(weighting):
    model = guided_model.with_guide(
      mlp.build((2,), num_classes=2, width=3, head_width=3),
      num_clients=2,
      width=3,
    )
    hparams = fed_drm.HParams(client_weighting=weighting)
    return algorithms.build("fed_drm", model, hparams, num_queries=len(X))

  return build_once


def make_data(*sizes):
  return [
    client_dataset.ClientDataset.from_arrays(
      x=np.zeros([size, 2], np.float32),
      y=np.zeros([size], np.int32),
      seed=randomness.client_seed(0, client),
      client_id=client,
    )
    for client, size in enumerate(sizes)
  ]


@pytest.mark.long
@pytest.mark.parametrize(
  "weighting, shares",
  [
    pytest.param("num_examples", [0.9, 0.1], marks=pytest.mark.slow),
    ("uniform", [0.5, 0.5]),
  ],
)
def test_correction_is_that_of_the_weights_in_training(
  build, weighting, shares
):
  algorithm = build(weighting)
  state = algorithm.initialize(randomness.server_seed(0))
  routing = algorithm.guidance.guide(state, make_data(18, 2), X)
  expected = np.array(routing["uncorrected_probabilities"]) / shares
  expected /= expected.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(routing["probabilities"], expected, rtol=1e-5)


@pytest.mark.slow
def test_client_that_predicts_no_numbers_neither_answers_nor_votes(build):
  algorithm, data = build("uniform"), make_data(2, 2)
  state = algorithm.initialize(randomness.server_seed(0))
  states = algorithm.initialize_client(state, [each.seed for each in data])

  def predict_only(chosen):
    """The last bias of the other client is NaN, the chosen one's class 1."""
    biases = [np.full([2], np.nan, np.float32)] * 2
    biases[chosen] = np.float32([-1e6, 1e6])
    return [
      (*head[:-1], bias) for head, bias in zip(states, biases, strict=True)
    ]

  for chosen in (0, 1):
    heads = predict_only(chosen)
    routes = np.int32([0, 1, 0])
    np.testing.assert_array_equal(
      algorithm.guidance.answer(state, heads, data, X, routes),
      np.where(routes == chosen, 1, guidance.NO_CLIENT),
    )
    # A vote for the first class, as of the largest of NaN, would win the tie.
    np.testing.assert_array_equal(
      algorithm.guidance.vote(state, heads, data, X), [1, 1, 1]
    )
  silent = [(*head[:-1], np.full([2], np.nan, np.float32)) for head in states]
  np.testing.assert_array_equal(
    algorithm.guidance.vote(state, silent, data, X), [guidance.NO_CLIENT] * 3
  )
