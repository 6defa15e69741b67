"""How well cumulative S_unc ranks clients by their true cumulative shift.

No network: q is the class distribution itself, or that of a batch drawn from
it, so that nothing but the noise of batches stands between S and the truth.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tff_shift.data import partition
from tff_shift.data.shifts import schedules
from tff_shift.shift import batch_noise
from tff_shift.shift import dynamics

pytestmark = pytest.mark.slow

NUM_CLIENTS, NUM_CLASSES, NUM_TIMESTEPS = 20, 10, 16


@tf.function
def _signals(seen):
  """S_unc of each step, of the q_t in order."""
  return tf.stack(
    [
      dynamics.uncertainty_dynamics(before, after)
      for before, after in itertools.pairwise(tf.unstack(seen))
    ]
  )


@tf.function
def _corrected(signals, counts):
  """S_unc without noise, of batches of examples whose classes are certain."""
  noise = [
    batch_noise.noise_of_direction(tf.repeat(tf.eye(NUM_CLASSES), each, axis=0))
    for each in tf.unstack(counts)
  ]
  corrected = [
    batch_noise.correct(signal, *pair)
    for signal, pair in zip(
      tf.unstack(signals), itertools.pairwise(noise), strict=True
    )
  ]
  # As Fed-ADE does: what is negative is cut off in each S.
  return tf.maximum(tf.stack(corrected), 0.0)


def rank_correlation(schedule, batch_size, *, corrected=False, seed=0):
  """Spearman's correlation over clients; batch_size None: no noise."""
  omega = schedules.omega(schedule, NUM_TIMESTEPS, seed=seed)
  uniform = np.full(NUM_CLASSES, 1 / NUM_CLASSES)
  targets = partition.dirichlet_proportions(NUM_CLIENTS, NUM_CLASSES, 0.1, seed)
  measured, true = [], []
  for client, target in enumerate(targets):
    seen = truth = np.outer(1 - omega, uniform) + np.outer(omega, target)
    if batch_size is not None:
      generator = np.random.default_rng([seed, client, batch_size])
      counts = generator.multinomial(batch_size, truth)
      seen = counts / batch_size
    signals = _signals(tf.constant(seen, tf.float32))
    if corrected:
      signals = _corrected(signals, tf.constant(counts))
    measured.append(np.sum(signals))
    true.append(np.abs(np.diff(truth, axis=0)).sum())
  return stats.spearmanr(measured, true).correlation


@pytest.mark.parametrize("schedule", schedules.names())
def test_without_noise_s_ranks_clients_by_their_shift(schedule):
  assert rank_correlation(schedule, None) > 0.8


@pytest.mark.parametrize("schedule", ["sine", "square"])
def test_jumps_are_seen_through_the_noise_of_small_batches(schedule):
  assert rank_correlation(schedule, 50) > 0.4


def test_slow_drift_drowns_in_the_noise_of_small_batches():
  # Few classes are less noise, and those who drift furthest end with few.
  assert rank_correlation("linear", 50) < 0
  assert rank_correlation("linear", 20_000) > 0.7


@pytest.mark.parametrize(
  "schedule, batch_size, least_gain",
  [("linear", 50, 0.1), ("linear", 500, 0.3), ("square", 50, -0.05)],
)
def test_correction_for_noise_measures_better_or_as_well(
  schedule, batch_size, least_gain
):
  gains = [
    rank_correlation(schedule, batch_size, corrected=True, seed=seed)
    - rank_correlation(schedule, batch_size, seed=seed)
    for seed in range(3)
  ]
  assert np.mean(gains) > least_gain
