"""FLUX: descriptors and clusters against NumPy and scikit-learn; its limits."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import cluster

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import flux
from tff_shift.algorithms import local as local_algorithm
from tff_shift.learning.aggregators import client_slots

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
HPARAMS = flux.HParams(
  clustering_round=2, max_clusters=4, descriptor_size=3, **COMMON
)
NUM_CLASSES = 3
NOBODY = {"eps": "fixed", "cluster_distance": 0.0}


def described(z, y):
  """A descriptor in NumPy, in float64."""
  rows = [z.mean(axis=0), z.std(axis=0)]
  for statistic in (np.mean, np.std):
    rows += [
      statistic(z[y == c], axis=0) if np.any(y == c) else np.full(3, -1.0)
      for c in range(NUM_CLASSES)
    ]
  return np.stack(rows)


def scaled(descriptors):
  low = descriptors.min(axis=(0, 2))[:, np.newaxis]
  width = descriptors.max(axis=(0, 2))[:, np.newaxis] - low
  return (descriptors - low) / np.where(width, width, 1)


def distances_of(rows):
  flat = rows.reshape(len(rows), -1)
  return np.linalg.norm(flat[:, np.newaxis] - flat, axis=2)


def elbow_of(distances):
  """The point farthest below the line between the ends, by cross products."""
  delta = np.sort(
    (distances + np.diag(np.full(len(distances), np.inf))).min(axis=1)
  )
  run, rise = len(delta) - 1, delta[-1] - delta[0]
  below = [i * rise - (d - delta[0]) * run for i, d in enumerate(delta)]
  return delta[np.argmax(below)]


def dbscan(rows, eps):
  """The clusters of scikit-learn, and each noise point alone."""
  labels = cluster.DBSCAN(eps=eps, min_samples=2).fit_predict(
    rows.reshape(len(rows), -1)
  )
  noise = labels < 0
  labels[noise] = labels.max() + 1 + np.arange(noise.sum())
  return labels


def is_same_partition(one, other):
  return np.array_equal(np.equal.outer(one, one), np.equal.outer(other, other))


def make_rows(seed, number):
  """Descriptors of clients around three centres, and of some far away."""
  generator = np.random.default_rng(seed)
  centres = generator.random((3, 8, 3))
  rows = centres[generator.integers(3, size=number)]
  spread = generator.choice([0.02, 0.3], size=(number, 1, 1), p=[0.8, 0.2])
  return rows + spread * generator.normal(size=rows.shape)


@pytest.fixture(scope="module")
def describe(run_in_graph):
  return lambda z, y: run_in_graph(
    lambda *each: flux.describe(*each, NUM_CLASSES), np.float32(z), np.int32(y)
  )


@pytest.mark.parametrize("classes", [[0, 1, 2], [0, 2], [1]])
def test_descriptor_agrees_with_numpy(describe, classes):
  generator = np.random.default_rng(0)
  z = np.float32(generator.normal(size=(20, 3)))
  y = generator.choice(classes, size=20)
  assert_allclose(describe(z, y), described(z, y), atol=1e-6)


def test_descriptor_of_nothing_is_finite(describe):
  found = describe(np.zeros((0, 3)), np.zeros(0))
  np.testing.assert_array_equal(found, [[0] * 3] * 2 + [[-1] * 3] * 6)


@pytest.fixture(scope="module")
def group(run_in_graph):
  """Returns `group(rows, number, **changes)`."""

  def group(rows, number, **changes):
    hparams = dataclasses.replace(HPARAMS, **changes)
    return run_in_graph(
      lambda each: flux.group(hparams, each, number), np.float32(rows)
    )

  return group


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("eps", [0.2, 0.6, 1.5, None])
def test_clusters_are_those_of_dbscan(group, seed, eps):
  rows = make_rows(seed, 12)
  fixed = {"elbow": "largest_gap"}
  if eps is not None:
    fixed = {"eps": "fixed", "cluster_distance": eps}
  found = group(rows, 12, max_clusters=12, **fixed)
  if eps is None:
    # Rounding up: the distance of the elbow itself connects two clients.
    eps = elbow_of(distances_of(rows)) * (1 + 1e-6)
  assert is_same_partition(found, dbscan(rows, eps))
  # Numbered in the order of their first clients.
  first = [found.tolist().index(each) for each in range(found.max() + 1)]
  assert first == sorted(first)


@pytest.mark.parametrize("most", [1, 2, 4, 7])
def test_clusters_too_many_are_joined_nearest_first(group, most):
  rows = make_rows(1, 9)
  expected = cluster.AgglomerativeClustering(
    n_clusters=most, linkage="single"
  ).fit_predict(rows.reshape(9, -1))
  found = group(rows, 9, max_clusters=most, **NOBODY)
  assert is_same_partition(found, expected)


def test_clusters_one_client_is_a_cluster(group):
  assert group(np.zeros((1, 8, 3)), 4).tolist() == [0]


def test_clusters_centroids_are_means_of_the_rows_without_labels(run_in_graph):
  rows = make_rows(2, 5)
  values = np.zeros((7, 8, 3), np.float32)
  reported = [0, 2, 3, 4, 6]
  values[reported] = rows
  present = np.float32(np.isin(np.arange(7), reported))
  hparams = dataclasses.replace(
    HPARAMS, max_clusters=7, eps="fixed", cluster_distance=1.0
  )
  found = run_in_graph(
    lambda slots: flux.make_clusters(hparams, slots),
    client_slots.Slots(values, present),
  )
  expected = dbscan(scaled(rows), 1.0)
  assert found.assigned[[1, 5]].tolist() == [-1, -1]
  assert is_same_partition(found.assigned[reported], expected)
  for number in set(expected):
    members = expected == number
    label = int(found.assigned[reported][members][0])
    assert found.sizes[label] == members.sum()
    assert_allclose(
      found.centroids[label], scaled(rows)[members, :2].mean(axis=0), atol=1e-5
    )
  assert found.sizes.sum() == 5


def test_clusters_of_one_client_are_local_from_the_round_on(
  start, make_client, compare
):
  data = [make_client(i, [5 + 2 * i, 4]) for i in range(4)]
  run = start(dataclasses.replace(HPARAMS, **NOBODY), data, 2)
  common = start(fed_avg.HParams(**COMMON), data, 2)
  assert run.server_state.weights.clusters.assigned.tolist() == [0, 1, 2, 3]
  alone = start(local_algorithm.HParams(**COMMON), data)
  alone.client_states = [common.server_state.weights] * 4
  alone.server_state = alone.server_state._replace(round_num=np.int32(2))
  alone.round_num = 2
  for _ in range(2):
    assert run.step()["loss"] == alone.step()["loss"]
  # Of four clients, the mean and its division by a quarter are exact.
  for number in range(4):
    assert compare.equal_bits(
      trees.row(run.server_state.weights.models, number),
      alone.client_states[number],
    )


# The inputs of half of the clients are shifted.
TWO_KINDS = dataclasses.replace(HPARAMS, eps="fixed", cluster_distance=1.0)


@pytest.fixture
def data(make_client):
  clients = [make_client(i, [150, 150]) for i in range(6)]
  return [
    client._replace(x=client.x + np.float32(3 * (i % 2)), client_id=np.int32(i))
    for i, client in enumerate(clients)
  ]


def test_two_kinds_are_found_and_have_a_model_each(
  start, data, oracle, compare
):
  run = start(TWO_KINDS, data, 1)
  before = run.server_state.weights
  assert not np.any(before.clusters.sizes)
  run.step()
  weights = run.server_state.weights
  assert weights.clusters.assigned.tolist() == [0, 1] * 3
  assert weights.clusters.sizes.tolist() == [3, 3, 0, 0]
  # Descriptors are of the model that clients received in this round.
  received = trees.row(before.models, 0)
  assert compare.equal_bits(weights.backbone, received.backbone)
  rows = scaled(
    np.stack(
      [
        described(
          oracle.embed(received.backbone, client.x) @ weights.projection,
          client.y,
        )
        for client in data
      ]
    )
  )
  for number in range(2):
    assert_allclose(
      weights.clusters.centroids[number],
      rows[number::2, :2].mean(axis=0),
      atol=1e-5,
    )
  run.step()
  assert_allclose(run.server_state.memory, [0.5, 0.5, 0, 0])
  models = run.server_state.weights.models
  assert not compare.equal_bits(trees.row(models, 0), trees.row(models, 1))
  # Nobody trains the others.
  assert compare.equal_bits(trees.row(models, 2), trees.row(weights.models, 2))
  # Once and for all.
  assert compare.equal_bits(run.server_state.weights.clusters, weights.clusters)


def test_two_kinds_client_that_was_absent_goes_to_the_nearest(
  start, build, data, compare
):
  weights = start(
    TWO_KINDS, data, 3, sampler=lambda known: [0, 1, 2, 3], participation=0.7
  ).server_state.weights
  assert weights.clusters.assigned.tolist() == [0, 1, 0, 1, -1, -1]
  functions = build(TWO_KINDS, num_clients=6)
  for client in (4, 5):
    prepared = functions.prepare_client(weights, (), data[client], 3)
    assert compare.equal_bits(prepared, trees.row(weights.models, client % 2))


def test_two_kinds_nearest_is_chosen_for_each_domain(
  start, build, data, make_client, oracle
):
  weights = start(TWO_KINDS, data, 3).server_state.weights
  functions = build(TWO_KINDS, num_clients=6, predict_with="nearest")
  assert functions.predicts_batches and functions.prepare_client is None
  test = make_client(9, [100, 100])
  test.x[:100] += 3
  expected = [
    oracle.predict(trees.row(weights.models, number), part)
    for number, part in ((1, test.x[:100]), (0, test.x[100:]))
  ]
  assert_allclose(
    functions.predict_as_client(weights, (), data[0], test),
    np.concatenate(expected),
    atol=1e-4,
  )
