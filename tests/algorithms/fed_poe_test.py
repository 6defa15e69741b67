"""FedPOE: a client's round and the server's step against NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift.algorithms import fed_poe
from tff_shift.models import split_model

pytestmark = pytest.mark.slow


NUM_EXAMPLES = 9
RATE = 0.3
# A batch is all examples; there is room for three snapshots.
HPARAMS = fed_poe.HParams(
  batch_size=NUM_EXAMPLES,
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
def client(make_adapting_client):
  return make_adapting_client(0, NUM_EXAMPLES, 7)


@pytest.fixture(scope="module")
def pretrained(client, initial):
  return initial(client.seed)


@pytest.fixture(scope="module")
def heads(pretrained):
  """L, F and three snapshots, all different."""
  return [
    trees.scale(pretrained.head, np.float32(factor))
    for factor in (1.5, 0.8, 1.0, -0.5, 3.0)
  ]


@pytest.fixture(scope="module")
def arguments(heads, client):
  own, federated, *snapshots = heads
  return (
    fed_poe.Weights(federated, trees.stack(*snapshots)),
    fed_poe.ClientState(own, ENSEMBLE, fed_poe.Past(PAST, ())),
    client,
  )


def mixed(of_models, ensemble):
  """The three levels in NumPy."""

  def blend(losses, values):
    weights = np.exp(-0.5 * np.array(losses))
    return np.tensordot(weights / weights.sum(), np.stack(values), 1)

  drawn = np.array(ensemble.drawn) > 0
  tuned = blend(ensemble.losses[:2], of_models[:2])
  stored = blend(
    np.array(ensemble.snapshot_losses)[drawn], np.array(of_models[2:])[drawn]
  )
  return tuned, stored, blend(ensemble.losses[2:], [tuned, stored])


class TestRound:
  @pytest.fixture(scope="class")
  def result(self, arguments, functions):
    return functions.train_client(*arguments, 2)

  @pytest.fixture(scope="class")
  def embeddings(self, oracle, pretrained, client):
    return oracle.embed(pretrained.backbone, client.x)

  @pytest.fixture(scope="class")
  def risk(self, oracle, pretrained, client):
    """The risk of probabilities of the labelled examples, class by class."""
    classes = oracle.estimated_classes(pretrained, client)
    return lambda probabilities: sum(
      share * -np.mean(np.log(probabilities[client.y == c, c]))
      for c, share in enumerate(classes)
    )

  def test_losses_are_of_before_training(
    self, result, heads, embeddings, oracle, risk
  ):
    of_models = [oracle.softmax(oracle.classify(h, embeddings)) for h in heads]
    tuned, stored, _ = mixed(of_models, ENSEMBLE)
    found = result.client_state.ensemble
    expected = [
      before + risk(values)
      for before, values in zip(
        ENSEMBLE.losses, (*of_models[:2], tuned, stored), strict=True
      )
    ]
    assert_allclose(found.losses, expected, rtol=1e-5)
    shares = np.exp(-0.5 * np.array([0.2, 0.9]))
    chances = 1 - (1 - shares / shares.sum()) ** 2
    assert_allclose(
      found.snapshot_losses[:2],
      [0.2, 0.9] + np.array([risk(of_models[2]), risk(of_models[3])]) / chances,
      rtol=1e-5,
    )

  def test_own_and_federated_head_take_a_step_each(
    self, result, heads, embeddings, oracle, risk, compare
  ):
    losses = []
    for head, found in zip(
      heads,
      (
        result.client_state.own,
        trees.add(heads[1], result.update),
      ),
      strict=False,
    ):
      expected, loss = oracle.descend(
        head,
        [lambda h: risk(oracle.softmax(oracle.classify(h, embeddings)))],
        RATE,
      )
      compare.assert_close(found, expected, 1e-5)
      losses.append(loss)
    assert_allclose(result.loss, np.mean(losses), rtol=1e-5)

  def test_snapshot_of_the_rounds_before_joins(
    self,
    build,
    arguments,
    result,
    heads,
    embeddings,
    oracle,
    pretrained,
    client,
    functions,
  ):
    # After two rounds there are two snapshots, after four three.
    assert result.client_state.ensemble.num_snapshots == 2
    later = functions.train_client(*arguments, 4)
    ensemble = later.client_state.ensemble
    assert ensemble.num_snapshots == 3
    # It has its own losses, of all rounds: those of this round and of before.
    classes = oracle.estimated_classes(pretrained, client)
    counts = np.bincount(client.y, minlength=3)
    weights = PAST + classes * len(client.y) / counts
    probabilities = oracle.softmax(oracle.classify(heads[4], embeddings))
    losses = -np.log(probabilities[np.arange(len(client.y)), client.y])
    assert_allclose(
      ensemble.snapshot_losses[2],
      np.mean(weights[client.y] * losses),
      rtol=1e-5,
    )
    assert_allclose(later.client_state.past.class_weights, weights, rtol=1e-5)
    # Or those of the federated models of the rounds.
    weights, state, data = arguments
    later = build(HPARAMS, snapshot_losses="federated").train_client(
      weights, state._replace(past=()), data, 4
    )
    ensemble = later.client_state.ensemble
    assert ensemble.snapshot_losses[2] == ensemble.losses[1]


def test_server_adds_the_mean_and_keeps_a_snapshot(
  arguments, compare, functions
):
  weights, *_ = arguments
  update = trees.map(np.ones_like, weights.federated)
  moved = trees.map(lambda w: w + 1, weights.federated)
  for round_num, place in ((0, None), (1, 1), (2, None), (3, 2), (5, None)):
    updated = functions.update_server(weights, update, (), round_num)
    compare.assert_close(updated.federated, moved, 0.0)
    expected = trees.map(np.copy, weights.snapshots)
    if place is not None:
      for table, new in zip(expected, moved, strict=True):
        table[place] = new
    compare.assert_close(updated.snapshots, expected, 0.0)


def test_predictions_are_a_mixture_of_all_models(
  arguments, heads, pretrained, oracle, make_client, functions
):
  examples = make_client(4, [6])
  logits = functions.predict_as_client(*arguments, examples)
  embeddings = oracle.embed(pretrained.backbone, examples.x)
  of_models = [oracle.softmax(oracle.classify(h, embeddings)) for h in heads]
  _, _, total = mixed(of_models, ENSEMBLE)
  assert_allclose(np.exp(logits), total, rtol=1e-4)


class TestOptions:
  def test_pseudo_labels_are_those_of_the_mixture(
    self, build, arguments, heads, pretrained, client, oracle
  ):
    weights, state, data = arguments
    result = build(
      HPARAMS,
      stream_labels="pseudo",
      snapshot_losses="federated",
      batch_size=len(client.stream_x),
    ).train_client(weights, state._replace(past=()), data, 1)
    embeddings = oracle.embed(pretrained.backbone, client.stream_x)
    of_models = [oracle.softmax(oracle.classify(h, embeddings)) for h in heads]
    y = mixed(of_models, ENSEMBLE)[2].argmax(axis=1)
    assert_allclose(
      result.client_state.ensemble.losses[0],
      1 - np.mean(np.log(of_models[0][np.arange(len(y)), y])),
      rtol=1e-5,
    )

  @pytest.mark.parametrize("room", [100, 20])
  def test_new_snapshot_is_scored_on_past_pseudo_labels(
    self, build, arguments, heads, pretrained, client, oracle, room
  ):
    functions = build(HPARAMS, stream_labels="pseudo", past_examples=room)
    weights, state, _ = arguments
    first = functions.initial_client_state(client.seed, weights)
    state = state._replace(past=first.past)
    n, labels = len(client.stream_x), []
    streams = [np.roll(client.stream_x, k, axis=1) for k in range(5)]
    for number, x in enumerate(streams):
      state = functions.train_client(
        weights, state, client._replace(stream_x=x), number
      ).client_state
      labels.append(state.past.kept.y[:n])
    # All, or the latest ones for all.
    x = np.concatenate(streams[::-1])[:room]
    y = np.concatenate(labels[::-1])[:room]
    embeddings = oracle.embed(pretrained.backbone, x)
    probabilities = oracle.softmax(oracle.classify(heads[4], embeddings))
    assert_allclose(
      state.ensemble.snapshot_losses[2],
      -5 * np.mean(np.log(probabilities[np.arange(len(y)), y])),
      rtol=1e-4,
    )

  def test_all_weights_are_trained_on_demand(
    self, build, client, pretrained, oracle, compare
  ):
    functions = build(HPARAMS, trained="all", max_snapshots=1)
    weights = functions.initial_weights(client.seed)
    assert isinstance(weights.federated, split_model.SplitWeights)
    state = functions.initial_client_state(client.seed, weights)
    result = functions.train_client(weights, state, client, 0)
    classes = oracle.estimated_classes(pretrained, client)

    def risk(weights):
      logits = oracle.predict(weights, client.x)
      return oracle.risk(logits, client.y, classes)

    expected, _ = oracle.descend(pretrained, [risk], RATE)
    compare.assert_close(result.client_state.own, expected, 1e-5)
