"""Who answers a query: routes by hand, and computations by type."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import clients
from tff_shift import algorithms
from tff_shift.algorithms import fed_drm
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


@pytest.mark.parametrize(
  "logits, sizes, routes, probabilities",
  [
    # Odds of 3 : 1 between clients of 30 and of 10 examples are even odds.
    ([[np.log(3), 0]], [30, 10], [[0], [0]], [[[3 / 4, 1 / 4]], [[1 / 2] * 2]]),
    # The correction changes the route.
    ([[np.log(2), 0]], [30, 10], [[0], [1]], [[[2 / 3, 1 / 3]], [[0.4, 0.6]]]),
    # The lowest client wins a tie.
    ([[-99, 0, 0]], [5, 5, 5], [[1], [1]], [[[0, 1 / 2, 1 / 2]]] * 2),
    # A client without examples is no route.
    (
      [[9, 1, 0]],
      [0, 5, 5],
      [[0], [1]],
      [[[0.99954, 3.4e-4, 1.2e-4]], [[0, 0.7311, 0.2689]]],
    ),
    # No query has none.
    (np.zeros((0, 4)), np.ones(4), np.zeros((2, 0)), np.zeros((2, 0, 4))),
  ],
)
def test_routes_by_hand(logits, sizes, routes, probabilities):
  routing = route(logits, sizes)
  for prefix, chosen, p in zip(
    ("uncorrected_", ""), routes, probabilities, strict=True
  ):
    assert_array_equal(routing[f"{prefix}routes"], chosen)
    assert_allclose(routing[f"{prefix}probabilities"], p, atol=1e-4)


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
  return list(itertools.starmap(clients.make, enumerate(sizes)))


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
  assert_allclose(routing["probabilities"], expected, rtol=1e-5)


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
    assert_array_equal(
      algorithm.guidance.answer(state, heads, data, X, routes),
      np.where(routes == chosen, 1, guidance.NO_CLIENT),
    )
    # A vote for the first class, as of the largest of NaN, would win the tie.
    assert_array_equal(
      algorithm.guidance.vote(state, heads, data, X), [1, 1, 1]
    )
  silent = [(*head[:-1], np.full([2], np.nan, np.float32)) for head in states]
  assert_array_equal(
    algorithm.guidance.vote(state, silent, data, X), [guidance.NO_CLIENT] * 3
  )
