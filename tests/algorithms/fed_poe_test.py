"""FedPOE: a client's round and the server's step against NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_poe
from tff_shift.models import split_model

pytestmark = pytest.mark.slow


STREAM = 9, 7
RATE = 0.3
# A batch is all examples; there is room for three snapshots.
HPARAMS = fed_poe.HParams(
  batch_size=9,
  learning_rate=RATE,
  meta_rate=0.5,
  snapshot_period=2,
  max_snapshots=3,
  num_draws=2,
)
# Two snapshots are known, both were drawn.
ENSEMBLE = fed_poe.Ensemble(
  losses=tuple(map(np.float32, (1.0, 2.0, 0.5, 0.25))),
  snapshot_losses=np.array([0.2, 0.9, 0.0], np.float32),
  drawn=np.array([1, 1, 0], np.float32),
  num_snapshots=np.int32(2),
)


# What examples of the three classes have counted so far.
PAST = np.array([3.0, 0.5, 2.0], np.float32)


@pytest.fixture(scope="module")
def heads(weights):
  """L, F and three snapshots, all different."""
  return [
    trees.scale(weights.head, np.float32(factor))
    for factor in (1.5, 0.8, 1.0, -0.5, 3.0)
  ]


@pytest.fixture(scope="module")
def server(heads):
  _, federated, *snapshots = heads
  return fed_poe.Weights(federated, trees.stack(*snapshots))


@pytest.fixture(scope="module")
def state(heads):
  return fed_poe.ClientState(heads[0], ENSEMBLE, fed_poe.Past(PAST, ()))


@pytest.fixture(scope="module")
def probabilities_of(oracle, weights, heads):
  """Returns `probabilities_of(x)`: those of L, F and the snapshots."""

  def predict(x):
    embeddings = oracle.embed(weights.backbone, x)
    return [oracle.softmax(oracle.classify(h, embeddings)) for h in heads]

  return predict


def of_classes(probabilities, y):
  return probabilities[np.arange(len(y)), y]


def mixed(of_models):
  """The three levels of `ENSEMBLE` in NumPy."""

  def blend(losses, values):
    weights = np.exp(-0.5 * np.array(losses))
    return np.average(values, axis=0, weights=weights)

  tuned = blend(ENSEMBLE.losses[:2], of_models[:2])
  stored = blend(ENSEMBLE.snapshot_losses[:2], of_models[2:4])
  return tuned, stored, blend(ENSEMBLE.losses[2:], [tuned, stored])


@pytest.fixture(scope="module")
def result(server, state, client, functions):
  return functions.train_client(server, state, client, 2)


@pytest.fixture(scope="module")
def classes(oracle, weights, client):
  return oracle.estimated_classes(weights, client)


def test_round_losses_are_of_before_training(
  result, client, classes, probabilities_of, oracle
):
  of_models = probabilities_of(client.x)
  tuned, stored, _ = mixed(of_models)
  own, federated, first, second, tuned, stored = (
    oracle.risk(np.log(values), client.y, classes)
    for values in (*of_models[:4], tuned, stored)
  )
  found = result.client_state.ensemble
  expected = np.add(ENSEMBLE.losses, (own, federated, tuned, stored))
  assert_allclose(found.losses, expected, rtol=1e-5)
  shares = np.exp(-0.5 * np.array([0.2, 0.9]))
  chances = 1 - (1 - shares / shares.sum()) ** 2
  assert_allclose(
    found.snapshot_losses[:2],
    [0.2, 0.9] + np.array([first, second]) / chances,
    rtol=1e-5,
  )


def test_round_own_and_federated_head_take_a_step_each(
  result, heads, weights, client, classes, oracle, compare
):
  embeddings = oracle.embed(weights.backbone, client.x)

  def risk(head):
    return oracle.risk(oracle.classify(head, embeddings), client.y, classes)

  (own, loss), (federated, other_loss) = (
    oracle.descend(head, [risk], RATE) for head in heads[:2]
  )
  compare.assert_close(result.client_state.own, own, 1e-5)
  update = trees.subtract(federated, heads[1])
  compare.assert_close(result.update, update, 1e-5)
  assert_allclose(result.loss, (loss + other_loss) / 2, rtol=1e-5)


def test_round_snapshot_of_the_rounds_before_joins(
  build, server, state, result, probabilities_of, client, classes, functions
):
  # After two rounds there are two snapshots, after four three.
  assert result.client_state.ensemble.num_snapshots == 2
  later = functions.train_client(server, state, client, 4)
  ensemble = later.client_state.ensemble
  assert ensemble.num_snapshots == 3
  # It has its own losses, of all rounds: those of this round and of before.
  counts = np.bincount(client.y, minlength=3)
  weights = PAST + classes * len(client.y) / counts
  losses = -np.log(of_classes(probabilities_of(client.x)[4], client.y))
  assert_allclose(
    ensemble.snapshot_losses[2], np.mean(weights[client.y] * losses), rtol=1e-5
  )
  assert_allclose(later.client_state.past.class_weights, weights, rtol=1e-5)
  # Or those of the federated models of the rounds.
  later = build(HPARAMS, snapshot_losses="federated").train_client(
    server, state._replace(past=()), client, 4
  )
  ensemble = later.client_state.ensemble
  assert ensemble.snapshot_losses[2] == ensemble.losses[1]


def test_server_adds_the_mean_and_keeps_a_snapshot(server, compare, functions):
  update = trees.map(np.ones_like, server.federated)
  moved = trees.add(server.federated, update)
  for round_num, place in ((0, None), (1, 1), (2, None), (3, 2), (5, None)):
    updated = functions.update_server(server, update, (), round_num)
    compare.assert_close(updated.federated, moved, 0.0)
    expected = trees.map(np.copy, server.snapshots)
    if place is not None:
      for table, new in zip(expected, moved, strict=True):
        table[place] = new
    compare.assert_close(updated.snapshots, expected, 0.0)


def test_predictions_are_a_mixture_of_all_models(
  server, state, client, probabilities_of, make_client, functions
):
  examples = make_client(4, [6])
  logits = functions.predict_as_client(server, state, client, examples)
  _, _, total = mixed(probabilities_of(examples.x))
  assert_allclose(np.exp(logits), total, rtol=1e-4)


def test_pseudo_labels_are_those_of_the_mixture(
  build, server, state, client, probabilities_of
):
  result = build(
    HPARAMS,
    stream_labels="pseudo",
    snapshot_losses="federated",
    batch_size=len(client.stream_x),
  ).train_client(server, state._replace(past=()), client, 1)
  of_models = probabilities_of(client.stream_x)
  y = mixed(of_models)[2].argmax(axis=1)
  assert_allclose(
    result.client_state.ensemble.losses[0],
    1 - np.mean(np.log(of_classes(of_models[0], y))),
    rtol=1e-5,
  )


@pytest.mark.parametrize("room", [100, 20])
def test_new_snapshot_is_scored_on_past_pseudo_labels(
  build, server, state, client, probabilities_of, room
):
  functions = build(HPARAMS, stream_labels="pseudo", past_examples=room)
  first = functions.initial_client_state(client.seed, server)
  state = state._replace(past=first.past)
  n, labels = len(client.stream_x), []
  streams = [np.roll(client.stream_x, k, axis=1) for k in range(5)]
  for number, x in enumerate(streams):
    state = functions.train_client(
      server, state, client._replace(stream_x=x), number
    ).client_state
    labels.append(state.past.kept.y[:n])
  # All, or the latest ones for all.
  x = np.concatenate(streams[::-1])[:room]
  y = np.concatenate(labels[::-1])[:room]
  assert_allclose(
    state.ensemble.snapshot_losses[2],
    -5 * np.mean(np.log(of_classes(probabilities_of(x)[4], y))),
    rtol=1e-4,
  )


def test_all_weights_are_trained_on_demand(
  build, client, weights, oracle, compare
):
  functions = build(HPARAMS, trained="all", max_snapshots=1)
  server = functions.initial_weights(client.seed)
  assert isinstance(server.federated, split_model.SplitWeights)
  state = functions.initial_client_state(client.seed, server)
  result = functions.train_client(server, state, client, 0)
  classes = oracle.estimated_classes(weights, client)

  def risk(weights):
    logits = oracle.predict(weights, client.x)
    return oracle.risk(logits, client.y, classes)

  expected, _ = oracle.descend(weights, [risk], RATE)
  compare.assert_close(result.client_state.own, expected, 1e-5)
