"""FedPOE: weights, draws and losses of the ensemble by hand."""

import numpy as np
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.algorithms import fed_poe

HPARAMS = fed_poe.HParams(
  meta_rate=0.5, snapshot_period=3, max_snapshots=4, num_draws=2
)


def probabilities(seed, *shape):
  values = np.random.default_rng(seed).uniform(0.1, 1, (*shape, 3))
  return (values / values.sum(axis=-1, keepdims=True)).astype(np.float32)


# Three snapshots are known, the first and the third are drawn.
ENSEMBLE = fed_poe.Ensemble(
  losses=tuple(map(tf.constant, (1.0, 2.0, 0.5, 0.25))),
  snapshot_losses=tf.constant([1.0, 3.0, 0.0, 0.0]),
  drawn=tf.constant([1.0, 0.0, 1.0, 0.0]),
  num_snapshots=tf.constant(3),
)


def test_at_the_start_all_count_alike():
  own, federated, first = probabilities(0, 3, 5)
  found = fed_poe.mix(
    HPARAMS,
    fed_poe.initial_ensemble(HPARAMS),
    fed_poe.Probabilities(own, federated, np.stack([first] * 4)),
  )
  tuned = (own + federated) / 2
  assert_allclose(found.tuned, tuned, rtol=1e-6)
  assert_allclose(found.total, (tuned + first) / 2, rtol=1e-6)


PROBABILITIES = np.array([0.5, 0.3, 0.2, 0.0], np.float32)


def test_draws_chances_of_small_probabilities_keep_their_digits():
  found = fed_poe.importance_weighted(
    np.ones(3, np.float32), tf.constant([1.0, 1e-9, 0.5]), [1.0, 1.0, 0.0], 8
  )
  # The last one was not drawn.
  assert_allclose(found, [1, 1 / 8e-9, 0], rtol=1e-5)


def test_draws_have_their_probabilities():
  seeds = tf.stack([tf.zeros(2000, tf.int32), tf.range(2000)], axis=1)
  draw_all = tf.function(
    lambda: tf.map_fn(
      lambda seed: fed_poe.draw(PROBABILITIES, 2, seed),
      seeds,
      fn_output_signature=tf.float32,
    )
  )
  drawn = draw_all().numpy()
  # At least one is, and at most two are.
  assert set(drawn.sum(axis=1)) == {1.0, 2.0}
  chances = 1 - (1 - PROBABILITIES) ** 2
  # Five standard deviations.
  assert_allclose(drawn.mean(axis=0), chances, atol=0.056)
  assert drawn[:, 3].max() == 0


def test_snapshots_new_one_has_the_losses_of_the_federated_model():
  seed = tf.constant([0, 1])
  late = fed_poe.admit_and_draw(HPARAMS, ENSEMBLE, 8, seed)
  assert late.num_snapshots == 3
  assert_array_equal(late.snapshot_losses, [1, 3, 0, 0])
  later = fed_poe.admit_and_draw(HPARAMS, ENSEMBLE, 9, seed)
  assert later.num_snapshots == 4
  assert_array_equal(later.snapshot_losses, [1, 3, 0, 2])


def test_snapshots_unknown_ones_are_not_drawn():
  first = fed_poe.initial_ensemble(HPARAMS)
  for number in range(20):
    found = fed_poe.admit_and_draw(HPARAMS, first, 2, tf.constant([0, number]))
    assert_array_equal(found.drawn, [1, 0, 0, 0])


def test_snapshots_client_knows_what_the_server_has():
  """In each round it counts the snapshots of the rounds before."""
  table, ensemble = tf.zeros([4, 1]), fed_poe.initial_ensemble(HPARAMS)
  for round_num in range(15):
    ensemble = fed_poe.admit_and_draw(
      HPARAMS, ensemble, round_num, tf.constant([0, round_num])
    )
    there = 1 + np.count_nonzero(table)
    assert ensemble.num_snapshots == there
    table = fed_poe.keep_snapshot(HPARAMS, table, tf.ones([1]), round_num)
