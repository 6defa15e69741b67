"""FeSEM: k-means of the clients' models, with the server models for centres."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fe_sem

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = fe_sem.HParams(num_models=3, **COMMON)


def between(shared, one, other, fraction):
  """A model on the way from one centre to another, of one that has trained."""
  return fe_sem.ClientState(
    trees.map(
      lambda w: np.float32((1 - fraction) * w[one] + fraction * w[other]),
      shared,
    ),
    np.bool_(True),
  )


def test_round_agrees_with_the_oracle(
  shared, make_client, oracle, compare, functions
):
  clients = [make_client(i, [6 + i, 5]) for i in range(4)]
  states = [
    between(shared, *each)
    for each in [(0, 1, 0.4), (0, 1, 0.6), (1, 0, 0.1), (0, 2, 0.3)]
  ]
  nearest = [0, 1, 1, 0]
  results, trained = [], []
  for client, state, k in zip(clients, states, nearest, strict=True):
    assert k == np.argmin(
      [
        trees.squared_distance(state.weights, trees.row(shared, each))
        for each in range(3)
      ]
    )
    results.append(functions.train_client(shared, state, client, ROUND))
    batches = oracle.of_training(client, 4, ROUND)
    weights, loss = oracle.descend(
      trees.row(shared, k), oracle.losses(batches), RATE
    )
    np.testing.assert_allclose(results[-1].loss, loss, rtol=1e-5)
    compare.assert_close(results[-1].client_state.weights, weights, 1e-5)
    assert results[-1].client_state.has_trained
    trained.append(weights)
  mean = trees.mean(*[each.update for each in results])
  updated, fractions = functions.update_server(shared, mean, (), 0)
  np.testing.assert_array_equal(fractions, [0.5, 0.5, 0])
  for k in range(2):
    # A centre is the mean of its clients' models.
    expected = trees.mean(
      *[own for own, at in zip(trained, nearest, strict=True) if at == k]
    )
    compare.assert_close(trees.row(updated, k), expected, 1e-5)
  assert compare.equal_bits(trees.row(updated, 2), trees.row(shared, 2))


def test_round_first_centre_is_that_of_the_smallest_loss(
  shared, make_client, oracle, compare, functions
):
  client = make_client(0, [7])
  losses = oracle.example_losses(shared, client).mean(axis=0)
  first = functions.initial_client_state(client.seed, shared)
  for state, expected in (
    (first, np.argmin(losses)),
    (between(shared, np.argmax(losses), 0, 0.0), np.argmax(losses)),
  ):
    prepared = functions.prepare_client(
      shared, trees.map(np.asarray, state), client, 0
    )
    assert compare.equal_bits(prepared, trees.row(shared, expected))
