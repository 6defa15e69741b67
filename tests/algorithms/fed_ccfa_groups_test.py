"""FedCCFA: groups against the definition, DBSCAN and means in NumPy."""

import itertools

import numpy as np
import pytest
import scipy.spatial
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from sklearn import cluster

from tests.fixtures import trees
from tff_shift.algorithms import fed_ccfa
from tff_shift.learning.aggregators import client_slots

NUM_CLASSES, SIZE = 2, 3


def distances(rows):
  """Pair by pair, client by client."""

  cosines = 1 - scipy.spatial.distance.cdist(rows, rows, "cosine")
  number = len(rows)
  found = np.zeros((number, number))
  for i, j in itertools.permutations(range(number), 2):
    others = np.delete(cosines, [i, j], axis=1)
    found[i, j] = np.mean(np.abs(others[i] - others[j]))
  return found


def scattered_rows(seed, number):
  """Rows near one of three directions."""
  generator = np.random.default_rng(seed)
  centres = generator.normal(size=(3, 4))
  rows = centres[generator.integers(0, 3, number)]
  return (rows + 0.1 * generator.normal(size=rows.shape)).astype(np.float32)


@pytest.mark.parametrize("largest", [0.05, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_dbscan(seed, largest):
  rows = scattered_rows(seed, 9)
  found = fed_ccfa.find_groups(tf.constant(rows), largest, 9)
  labels = cluster.DBSCAN(
    eps=largest, min_samples=1, metric="precomputed"
  ).fit_predict(distances(rows))
  assert_array_equal(found, labels[:, np.newaxis] == labels)


def test_groups_chain_is_one_group():
  """However many steps there are between its ends."""
  angles = np.linspace(0, np.pi / 2, 17)
  rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  found = distances(rows)
  largest = 1.01 * np.max(np.diag(found, 1))
  assert found[0, -1] > 5 * largest
  rows = tf.constant(rows, tf.float32)
  assert np.all(fed_ccfa.find_groups(rows, largest, 17) == 1)


@pytest.mark.parametrize("number", [1, 2])
def test_groups_fewer_than_three_stay_by_themselves(number):
  rows = tf.ones([number, 4])
  found = fed_ccfa.find_groups(rows, 2.0, 10)
  assert_array_equal(found, np.eye(number))


def sent_by(labels, seed=0):
  """What clients of two groups send; the last lacks the last class."""
  generator = np.random.default_rng(seed)
  centres = generator.normal(size=(2, NUM_CLASSES, SIZE + 1))
  number = len(labels)
  means = generator.normal(size=(number, NUM_CLASSES, SIZE))
  means[-1, -1] = 0
  return fed_ccfa.Sent(
    *(
      np.float32(each)
      for each in (
        centres[np.array(labels)],
        generator.normal(size=(number, NUM_CLASSES, SIZE + 1)),
        means,
      )
    )
  )


def test_merge_one_group_has_the_mean_of_all_that_have_the_class():
  sent = sent_by([0, 0, 0, 0])
  found = fed_ccfa.merge(sent, 0.1, 4)
  anchors = sent.means[:, 0].mean(axis=0), sent.means[:3, 1].mean(axis=0)
  for client in range(4):
    assert_allclose(found.rows[client], sent.rows.mean(axis=0), atol=1e-6)
    assert_allclose(found.anchors[client], anchors, atol=1e-6)


def test_merge_classes_have_groups_of_their_own():
  sent = sent_by([0, 1, 0, 1, 1])
  sent.compared[:, 1] = sent.compared[0, 1]
  found = fed_ccfa.merge(sent, 0.1, 5)
  assert_allclose(
    found.rows[0, 0], sent.rows[[0, 2], 0].mean(axis=0), atol=1e-6
  )
  assert_allclose(found.rows[0, 1], sent.rows[:, 1].mean(axis=0), atol=1e-6)


def test_merge_class_that_nobody_has_stays_without_an_anchor():
  sent = sent_by([0, 0, 0])
  sent.means[:, 1] = 0
  found = fed_ccfa.merge(sent, 0.1, 3)
  assert not np.any(found.anchors[:, 1])
  assert np.all(np.any(found.anchors[:, 0], axis=1))


def test_clients_read_what_was_merged_and_others_nothing():
  """The table after round 4, in which clients 1, 2 and 5 took part."""
  sent = sent_by([0, 0, 0])
  head = (tf.zeros([SIZE, NUM_CLASSES]), tf.zeros([NUM_CLASSES]))
  table = fed_ccfa.empty_table(6, head, NUM_CLASSES, SIZE)
  slots = [
    client_slots.place(trees.row(sent, i), client)
    for i, client in enumerate((1, 2, 5))
  ]
  # Of the round before, client 0 has something.
  table = table._replace(written=tf.constant([4.0, 0, 0, 0, 0, 0]))
  written = fed_ccfa.write_table(
    fed_ccfa.HParams(), table, client_slots.total(slots, 6), 4
  )
  merged = fed_ccfa.merge(sent, 0.1, 3)
  for place, client in enumerate((1, 2, 5)):
    found, is_there = fed_ccfa.read_table(written, client, 4)
    assert is_there
    assert_allclose(found.rows, merged.rows[place], atol=1e-6)
    assert_allclose(found.anchors, merged.anchors[place], atol=1e-6)
  for client in (0, 3, 4):
    found, is_there = fed_ccfa.read_table(written, client, 4)
    assert not is_there
    assert not np.any(found.rows) and not np.any(found.anchors)
  assert_array_equal(written.written, [4, 5, 5, 0, 0, 5])
