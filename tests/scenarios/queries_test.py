"""Asking a federation in batches, beside asking each client by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies

from tests.fixtures.arrays import normal
from tff_shift import algorithms
from tff_shift.algorithms import local
from tff_shift.data import client_dataset
from tff_shift.learning import guidance
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp
from tff_shift.scenarios.guidance import queries

NUM_CLIENTS = 3
NUM_CLASSES = 4
# Fewer than are asked, so that batches are filled up.
NUM_QUERIES = 5
QUERIES = normal(0, 12, 2)


MODEL = mlp.build((2,), num_classes=NUM_CLASSES, width=6, head_width=5)


DATA = [
  client_dataset.ClientDataset.from_arrays(
    x=QUERIES,
    y=np.zeros(len(QUERIES), np.int32),
    domain_sizes=np.array([len(QUERIES)], np.int32),
    seed=randomness.client_seed(0, client),
    client_id=np.int32(client),
  )
  for client in range(NUM_CLIENTS)
]


@pytest.fixture(scope="module")
def build(context):
  """Returns `build(prepare)`: clients with a model of their own, as drawn."""
  del context
  algorithm = algorithms.build(
    local, MODEL, local.HParams(), num_queries=NUM_QUERIES
  )
  assert algorithm.guidance.prepare is None

  def build_federation(prepare=None):
    state = algorithm.initialize(randomness.server_seed(0))
    guided = algorithm.guidance._replace(prepare=prepare)
    return queries.Federation(
      dataclasses.replace(algorithm, guidance=guided),
      state,
      algorithm.initialize_client(state, [client.seed for client in DATA]),
      DATA,
    )

  return build_federation


@pytest.fixture(scope="module")
def federation(build):
  return build()


@pytest.fixture(scope="module")
def predictions(run_in_graph):
  """What each client predicts of each query, [clients, queries]."""
  found = np.array(
    [
      np.argmax(
        run_in_graph(
          lambda seed, x: MODEL.predict(MODEL.initial_weights(seed), x),
          client.seed,
          QUERIES,
        ),
        axis=1,
      )
      for client in DATA
    ]
  )
  # Otherwise tests would not tell them apart.
  assert (found != found[0]).any(axis=0).sum() > 3
  return found


@pytest.mark.slow
def test_clients_prepare_once(federation, build):
  count = []

  def prepare(state, states, given):
    count.append(state)
    assert given == DATA
    # Each takes the model of the next.
    return [*states[1:], states[0]]

  asked = build(prepare)
  routes = np.arange(len(QUERIES), dtype=np.int32) % NUM_CLIENTS
  np.testing.assert_array_equal(
    asked.answer(QUERIES, routes).classes,
    federation.answer(QUERIES, (routes + 1) % NUM_CLIENTS).classes,
  )
  np.testing.assert_array_equal(asked.vote(QUERIES), federation.vote(QUERIES))
  assert len(count) == 1


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
  strategies.lists(strategies.integers(-1, NUM_CLIENTS), max_size=len(QUERIES))
)
@example([])
@example([2] * NUM_QUERIES)
@example([2] * (NUM_QUERIES + 1))
def test_only_the_routed_client_answers(federation, predictions, routes):
  routes = np.array(routes, np.int32)
  answers = federation.answer(QUERIES[: len(routes)], routes)
  np.testing.assert_array_equal(answers.routes, routes)
  assert answers.classes.dtype == np.int32
  expected = [
    predictions[route, query]
    if 0 <= route < NUM_CLIENTS
    else guidance.NO_CLIENT
    for query, route in enumerate(routes)
  ]
  np.testing.assert_array_equal(answers.classes, np.array(expected, np.int32))


def test_without_a_guide_routes_are_asked_for(federation):
  assert not federation.can_guide
  with pytest.raises(ValueError, match="local has no guide"):
    federation.answer(QUERIES)


@pytest.mark.parametrize("number", [0, 1, len(QUERIES)])
def test_majority_wins_and_the_lowest_class_a_tie(
  federation, predictions, number
):
  assert any(len(set(column)) == NUM_CLIENTS for column in predictions.T)
  expected = [
    np.bincount(column, minlength=NUM_CLASSES).argmax()
    for column in predictions[:, :number].T
  ]
  np.testing.assert_array_equal(
    federation.vote(QUERIES[:number]), np.array(expected, np.int32)
  )
