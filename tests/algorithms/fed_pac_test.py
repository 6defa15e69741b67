"""FedPAC: features are aligned, and heads are made of all heads."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import fed_pac
from tff_shift.algorithms import fed_rep
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.models import split_model
from tff_shift.testing import forms

pytestmark = pytest.mark.slow


COMMON = {
  "head_steps": 1,
  "local_steps": 2,
  "batch_size": 4,
  "learning_rate": 0.3,
}
HPARAMS = fed_pac.HParams(alignment_weight=0.7, **COMMON)
ROUND = 5


@pytest.fixture(scope="module")
def personal(functions, shared):
  return functions.initial_client_state(randomness.client_seed(0, 0), shared)


@pytest.fixture(scope="module")
def client(make_client):
  # Number 2, without examples of class 1.
  return make_client(2, [11], y=[0, 2, 2] * 3 + [0, 2])


def test_client_backbone_goes_towards_the_centroids(
  functions, shared, personal, client, oracle, compare
):
  centroids = np.float32(np.random.default_rng(0).normal(size=(3, 8)))
  # Nobody had class 2: it takes the client's own mean.
  centroids[2] = 0
  features = oracle.embed(shared.backbone, client.x)
  targets = centroids.copy()
  targets[2] = features[client.y == 2].mean(axis=0)
  result = functions.train_client(
    shared._replace(centroids=centroids), personal, client, ROUND
  )

  def align(batch):
    (classify,) = oracle.losses([batch])
    return lambda w: classify(w) + 0.7 * np.mean(
      (oracle.embed(w.backbone, batch.x) - targets[batch.y]) ** 2
    )

  weights = split_model.SplitWeights(shared.backbone, personal.head)
  weights, _ = oracle.descend(
    weights, oracle.losses(oracle.of_training(client, 1, ROUND, 0)), 0.3, "head"
  )
  weights, loss = oracle.descend(
    weights,
    [align(b) for b in oracle.of_training(client, 2, ROUND, 1)],
    0.3,
    "backbone",
  )
  compare.assert_close(result.client_state.head, weights.head, 1e-5)
  oracle.check(result, shared.backbone, weights.backbone, loss)
  assert result.client_state.loss == result.loss


def test_client_sends_statistics_of_before_and_centroids_of_after(
  functions, shared, personal, client, oracle
):
  result = functions.train_client(shared, personal, client, ROUND)
  ((h, v, head), number), class_sums = result.plaintext_sum
  assert number == 3
  features = oracle.embed(shared.backbone, client.x)
  expected = [features[client.y == k].sum(axis=0) / 11 for k in range(3)]
  assert_allclose(h, expected, atol=1e-5)
  v_expected = np.sum(features**2) / 11 - np.sum(np.square(expected))
  assert_allclose(v, v_expected / 11, rtol=1e-4)
  trees.map(assert_array_equal, head, result.client_state.head)
  trained = trees.add(shared.backbone, result.update)
  features = oracle.embed(trained, client.x)
  sums = [features[client.y == k].sum(axis=0) for k in range(3)]
  assert_allclose(class_sums[:, :-1], sums, atol=1e-4)
  assert_array_equal(class_sums[:, -1], [4, 0, 7])


@pytest.mark.parametrize(
  "changes, centroid",
  [
    ({"alignment_weight": 0.0}, 1),
    # In round 0 there is nothing to align to.
    ({}, 0),
    ({"variant": "program", "backbone_mu": 0.0}, None),
  ],
)
def test_without_alignment_it_trains_as_fed_rep_bit_for_bit(
  build, shared, personal, client, compare, changes, centroid
):
  expected = build(fed_rep.HParams(**COMMON)).train_client(
    shared.backbone, personal.head, client, ROUND
  )
  train = build(HPARAMS, **changes).train_client
  if centroid is None:
    result = train(shared.backbone, personal.head, client, ROUND)
    assert compare.equal_bits(result, expected)
    return
  centroids = np.full_like(shared.centroids, centroid)
  result = train(shared._replace(centroids=centroids), personal, client, ROUND)
  assert compare.equal_bits(
    (result.update, result.client_state.head, result.loss),
    (expected.update, expected.client_state, expected.loss),
  )


def test_server_combines_heads_and_renews_centroids(
  functions, shared, personal, make_client, compare
):
  clients = [make_client(i, [6 + i], y=[0, 2] * 3 + [0] * i) for i in (0, 2)]
  results = [
    functions.train_client(shared, personal, each, ROUND) for each in clients
  ]
  sent = client_slots.total(
    [each.plaintext_sum for each in results], forms.NUM_CLIENTS
  )
  mean = trees.map(np.ones_like, shared.backbone)
  before = shared._replace(
    centroids=np.arange(24, dtype=np.float32).reshape(3, 8)
  )
  after = functions.update_server(before, mean, sent, 0)
  compare.assert_close(after.backbone, [w + 1 for w in shared.backbone], 1e-6)
  sums = np.sum([each.plaintext_sum[1] for each in results], axis=0)
  assert_allclose(
    after.centroids[[0, 2]], sums[[0, 2], :-1] / sums[[0, 2], -1:], rtol=1e-5
  )
  assert_array_equal(after.centroids[1], before.centroids[1])
  # Of two clients: a minimises a^2 (v_0 + d) + (1 - a)^2 v_2, a for the
  # other's head and d = |h_0 - h_2|^2, that is v / (v + v' + d).
  h, v = (np.asarray(each)[[0, 2]] for each in sent[0].values[:2])
  share = v / (v.sum() + np.sum((h[0] - h[1]) ** 2))
  heads = [each.client_state.head for each in results]
  assert 0.01 < share.min() < share.max() < 0.99
  for one, own, other, a in (
    (0, *heads, share[0]),
    (2, *heads[::-1], share[1]),
  ):
    result = functions.personalize_client(
      after, personal._replace(loss=np.float32(3)), make_client(one, [6]), 0
    )
    mixed = trees.mean(own, other, weights=[1 - a, a])
    compare.assert_close(result.client_state.head, mixed, 1e-5)
    assert result.loss == 3
  # The other two have not taken part.
  for rows, old in zip(after.heads, shared.heads, strict=True):
    assert_array_equal(rows[[1, 3]], old[[1, 3]])


def test_program_term_is_half_mu_times_the_squared_distance(
  build, shared, personal, client, oracle, compare
):
  found, plain = (
    build(HPARAMS, variant="program", backbone_mu=mu, local_steps=3)
    for mu in (1.5, 0.0)
  )
  assert found.update_server is found.personalize_client is None
  found, plain = (
    functions.train_client(shared.backbone, personal.head, client, ROUND)
    for functions in (found, plain)
  )
  assert compare.equal_bits(found.client_state, plain.client_state)

  def loss_of(batch):
    (classify,) = oracle.losses([batch])
    return lambda w: classify(w) + 0.75 * trees.squared_distance(
      w.backbone, shared.backbone
    )

  expected, loss = oracle.descend(
    split_model.SplitWeights(shared.backbone, found.client_state),
    [loss_of(b) for b in oracle.of_training(client, 3, ROUND, 1)],
    0.3,
    "backbone",
  )
  oracle.check(found, shared.backbone, expected.backbone, loss)
