"""ClusteredFL: clusters of clients are split where their updates disagree."""

import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.spatial.distance
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import clustered_fl
from tff_shift.learning.aggregators import client_slots

pytestmark = pytest.mark.slow

RATE = 0.3
ROUND = 2


@pytest.mark.parametrize("linkage", ["single", "complete"])
@pytest.mark.parametrize("seed", range(10))
def test_bisect_agrees_with_scipy(linkage, seed):
  generator = np.random.default_rng(seed)
  vectors = generator.normal(size=(10, 3))
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  cosines = vectors @ vectors.T
  # Others are not in the cluster, at random places.
  members = np.sort(generator.permutation(10)[: 2 + seed % 7])
  part = clustered_fl.bisect(
    tf.constant(cosines), tf.constant(np.isin(np.arange(10), members)), linkage
  ).numpy()
  distances = scipy.spatial.distance.squareform(
    1 - cosines[np.ix_(members, members)], checks=False
  )
  labels = scipy.cluster.hierarchy.cut_tree(
    scipy.cluster.hierarchy.linkage(distances, linkage), 2
  )[:, 0]
  # The first member is in the other part.
  assert_array_equal(np.flatnonzero(part), members[labels != labels[0]])


def slots_of(updates, weights=None, present=None):
  """The slots of clients with the given update vectors."""
  updates = np.float32(updates)
  number = len(updates)
  return client_slots.Slots(
    clustered_fl.Sent(
      # Two tensors: all count.
      (updates[:, :1], updates[:, 1:]),
      np.float32([1] * number if weights is None else weights),
    ),
    np.float32([1] * number if present is None else present),
  )


UPDATES = np.array([[2, 0], [-1, 1], [-1, 0], [1, 0], [-1, -1]])
THRESHOLDS = {
  "num_models": 4,
  "mean_norm": 0.1,
  "longest_norm": 1.5,
  "rounds_before_split": 0,
}


# Clients 0 and 3 against 1, 2 and 4, between them 60 and 180 degrees.
def split_clusters(slots=None, clusters=(0,) * 5, round_num=0, **options):
  return clustered_fl.split(
    clustered_fl.HParams(**(THRESHOLDS | options)),
    tf.constant(clusters, tf.float32),
    slots or slots_of(UPDATES),
    tf.constant(round_num),
  )


def test_split_clients_whose_updates_disagree_are_separated():
  found = split_clusters()
  assert_array_equal(found.clusters, [0, 1, 1, 0, 1])
  assert_array_equal(found.origins, [0, 0, 2, 3])
  # The mean of the updates is 0.
  assert_allclose(found.norms, [[0, 2], [0, 0], [0, 0], [0, 0]], atol=1e-6)


@pytest.mark.parametrize(
  "keeps, splits",
  [
    ({"mean_norm": 0.0}, {}),
    ({"longest_norm": 2.0}, {"longest_norm": 1.99}),
    ({"smallest_split": 6}, {"smallest_split": 5}),
    ({"num_models": 1}, {"num_models": 2}),
    ({"rounds_before_split": 8}, {"rounds_before_split": 7}),
    # The largest cosine between the parts is -1 / sqrt(2).
    ({"gamma": 0.93}, {"gamma": 0.92}),
    # Client 0 counts three times: the mean is (4 / 7, 0).
    ({"slots": slots_of(UPDATES, weights=[3, 1, 1, 1, 1])}, {}),
  ],
)
def test_split_threshold_keeps_the_cluster(keeps, splits):
  result = split_clusters(round_num=7, **keeps)
  assert_array_equal(result.clusters, [0] * 5)
  assert_array_equal(result.origins, range(keeps.get("num_models", 4)))
  # Just beyond it, not.
  result = split_clusters(round_num=7, **splits)
  assert_array_equal(result.clusters, [0, 1, 1, 0, 1])


def test_clusters_are_split_by_the_numbers_of_clients():
  # Cluster 0 has the clients 0, 3, 4, 7; cluster 1 the clients 1, 2, 5, 6.
  updates = np.array([[2, 0], [0, 2], [0, -2], [2, 0]])
  updates = np.concatenate([updates, -updates])
  clusters = [0, 1, 1, 0, 0, 1, 1, 0]
  found = split_clusters(slots_of(updates), clusters)
  assert_array_equal(found.clusters, [0, 1, 3, 0, 2, 3, 1, 2])
  assert_array_equal(found.origins, [0, 1, 0, 1])
  # With room for one more only, the first cluster is split.
  found = split_clusters(slots_of(updates), clusters, num_models=3)
  assert_array_equal(found.clusters, [0, 1, 1, 0, 2, 1, 1, 2])


def test_split_client_that_never_trained_stays():
  updates = np.concatenate([UPDATES, [[0, 0]]])
  slots = slots_of(updates, [1] * 5 + [0], [1] * 5 + [0])
  found = split_clusters(slots, [0] * 6)
  assert_array_equal(found.clusters, [0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_round_agrees_with_the_oracle(
  build, make_client, oracle, compare, weighting, initial
):
  # No more rounds before a split than the round of the oracle.
  functions = build(
    clustered_fl.HParams(
      num_models=4,
      client_weighting=weighting,
      batch_size=4,
      local_steps=2,
      learning_rate=RATE,
    )
  )
  # One example for each of the first three models.
  models = trees.stack(*map(initial, range(4)))
  chosen = [1, 0, 1, 2]
  shared = clustered_fl.Shared(models, np.float32(chosen))
  # Client 3 is not in the cohort.
  clients = [make_client(i, [6 + i, 5]) for i in range(3)]
  results, sizes, moved = [], [], {}
  for client, k in zip(clients, chosen, strict=False):
    results.append(functions.train_client(shared, (), client, ROUND))
    batches = oracle.of_training(client, 4, ROUND)
    trained, loss = oracle.descend(
      trees.row(models, k), oracle.losses(batches), RATE
    )
    assert_allclose(results[-1].loss, loss, rtol=1e-5)
    sizes.append(len(client.y) if weighting == "num_examples" else 1)
    moved.setdefault(k, []).append((sizes[-1], trained))
  mean = trees.map(
    np.float32, trees.mean(*[each.update for each in results], weights=sizes)
  )
  slots = client_slots.total([each.plaintext_sum for each in results], 4)
  memory = functions.initial_memory(np.int32([0, 0]))
  before = trees.map(np.ones_like, memory.last)
  updated, memory = functions.update_server(
    shared, mean, slots, ROUND, memory._replace(last=before)
  )
  for k in range(4):
    expected = trees.row(models, k)
    if k in moved:
      weights, trained = zip(*moved[k], strict=True)
      expected = trees.mean(*trained, weights=weights)
    compare.assert_close(trees.row(updated.models, k), expected, 1e-5)
  assert compare.equal_bits(trees.row(updated.models, 3), trees.row(models, 3))
  assert_array_equal(updated.clusters, chosen)
  assert_array_equal(memory.last.present, [1, 1, 1, 1])
  for client, last in ((2, results[2].update), (3, trees.row(before, 3)[0][0])):
    found = trees.row(memory.last.values.update, client)
    compare.assert_close(found, last, 0)


def test_client_predicts_with_the_model_of_its_cluster(
  build, weights, personal, make_client, oracle
):
  shared = clustered_fl.Shared(
    trees.stack(weights, personal), np.float32([0, 0, 1, 0])
  )
  other = make_client(7, [9])
  for number, expected in ((2, personal), (3, weights)):
    client = make_client(number, [5])
    assert_allclose(
      build(clustered_fl.HParams(num_models=2)).predict_as_client(
        shared, (), client, other
      ),
      oracle.predict(expected, other.x),
      atol=1e-5,
    )
