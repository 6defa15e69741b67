"""FedCCFA: balanced examples and the alignment of features against NumPy."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_array_equal

from tff_shift.algorithms import fed_ccfa
from tff_shift.data import client_dataset

HPARAMS = fed_ccfa.HParams(
  entropy_divisor=4.0, alignment_start=3, temperature=0.5
)


def draw_balanced(counts, most, seed=0):
  y = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
  data = client_dataset.ClientDataset.from_arrays(
    x=np.arange(len(y), dtype=np.float32)[:, np.newaxis],
    y=y,
    domain_sizes=np.array([len(y)], np.int32),
    seed=np.zeros(2, np.int32),
  )
  found = fed_ccfa.balance_examples(
    data, most, len(counts), tf.constant([1, seed])
  )
  places = found.x.numpy()[:, 0].astype(int)
  # No example comes twice, and each has its class.
  assert len(set(places)) == len(places)
  assert_array_equal(found.y, y[places])
  return places, np.bincount(found.y, minlength=len(counts))


@pytest.mark.parametrize(
  "counts, most, expected",
  [
    ([9, 7, 6], 5, [5, 5, 5]),
    ([9, 2, 6], 5, [2, 2, 2]),
    ([9, 0, 3], 5, [3, 0, 3]),
    ([0, 8, 0], 5, [0, 5, 0]),
    ([0, 0, 0], 5, [0, 0, 0]),
  ],
)
def test_balanced_examples_classes_are_equally_many(counts, most, expected):
  _, found = draw_balanced(counts, most)
  assert_array_equal(found, expected)


def test_balanced_examples_another_seed_draws_others():
  draws = {tuple(sorted(draw_balanced([20, 20], 5, i)[0])) for i in range(5)}
  assert len(draws) == 5


@pytest.mark.parametrize(
  "classes", [[0.2, 0.3, 0.5], [0.25, 0.0, 0.75], [0.0, 1.0, 0.0]]
)
def test_alignment_weight_entropy_counts_the_classes_there_are(classes):
  never = dataclasses.replace(HPARAMS, entropy_divisor=0.0)
  found, zero = (
    fed_ccfa.alignment_weight(hparams, tf.constant(classes), tf.constant(3))
    for hparams in (HPARAMS, never)
  )
  entropy = scipy.stats.entropy(classes)
  np.testing.assert_allclose(found, entropy / 4, rtol=1e-5, atol=1e-9)
  assert zero == 0


def test_without_anchors_there_is_no_pull():
  embeddings = tf.random.stateless_normal([6, 4], [0, 0])
  with tf.GradientTape() as tape:
    tape.watch(embeddings)
    loss = fed_ccfa.alignment_loss(
      HPARAMS, tf.zeros([3, 4]), embeddings, tf.range(6) % 3, tf.ones([3])
    )
  assert loss == 0
  assert not np.any(tape.gradient(loss, embeddings))
