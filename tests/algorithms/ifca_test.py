"""IFCA: a client trains the best of several models, chosen by its own loss."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import ifca
from tff_shift.algorithms.parts import model_stack
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2
COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": RATE}
HPARAMS = ifca.HParams(num_models=3, **COMMON)


def test_round_agrees_with_the_oracle(
  shared, make_client, oracle, compare, functions
):
  clients = [make_client(i, [6 + i, 5]) for i in range(4)]
  chosen = [
    oracle.example_losses(shared, client).mean(axis=0).argmin()
    for client in clients
  ]
  assert len(set(chosen)) > 1
  results, moved = [], {k: [] for k in range(3)}
  for client, k in zip(clients, chosen, strict=True):
    results.append(functions.train_client(shared, (), client, ROUND))
    # As many steps as domains in each of two iterations.
    batches = oracle.of_training(client, 4, ROUND)
    trained, loss = oracle.descend(
      trees.row(shared, k), oracle.losses(batches), RATE
    )
    assert_allclose(results[-1].loss, loss, rtol=1e-5)
    moved[k].append(trained)
  mean = trees.mean(*[each.update for each in results])
  updated, fractions = functions.update_server(shared, mean, (), 0)
  for k, trained in moved.items():
    expected = trees.mean(*trained) if trained else trees.row(shared, k)
    compare.assert_close(trees.row(updated, k), expected, 1e-5)
    assert_allclose(fractions[k], len(trained) / 4, rtol=1e-6)


def test_of_equal_models_the_first_is_chosen(shared, client, functions):
  same = trees.stack(*[trees.row(shared, 1)] * 3)
  update = functions.train_client(same, (), client, ROUND).update
  assert_array_equal(update.members, [1, 0, 0])
  assert trees.largest(trees.row(update.models, slice(1, None))) == 0


def test_model_with_a_loss_that_is_not_a_number_is_not_chosen(
  shared, client, functions
):
  model = trees.row(shared, 1)
  diverged = trees.scale(model, np.float32(np.nan))
  wrong = trees.stack(diverged, model, diverged)
  update = functions.train_client(wrong, (), client, ROUND).update
  assert_array_equal(update.members, [0, 1, 0])
  assert all(np.all(np.isfinite(w)) for w in trees.leaves(update.models))


def test_client_predicts_with_the_model_of_the_smallest_loss(
  shared, make_client, oracle, functions
):
  client, other = make_client(0, [7]), make_client(1, [7])
  best = oracle.example_losses(shared, client).mean(axis=0).argmin()
  prepared = functions.prepare_client(shared, (), client, ROUND)
  assert_allclose(
    functions.predict_as_client(shared, prepared, client, other),
    oracle.predict(trees.row(shared, best), other.x),
    atol=1e-5,
  )


def test_initial_models_first_is_that_of_the_seed_and_the_others_differ(
  model, shared, run_in_graph, compare, initial
):
  plain = initial(0)
  assert compare.equal_bits(trees.row(shared, 0), plain)
  kernels = shared.backbone[0]
  assert all(
    np.abs(kernels[i] - kernels[j]).max() > 0.1
    for i in range(3)
    for j in range(i)
  )
  # More shared do not change the first ones.
  fewer = run_in_graph(
    lambda seed: model_stack.initial_models(model, 2, seed),
    randomness.server_seed(0),
  )
  more = trees.map(lambda w: w[:2], shared)
  assert compare.equal_bits(fewer, more)
