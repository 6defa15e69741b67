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
from tff_shift.data import schedules
from tff_shift.shift import dynamics

pytestmark = pytest.mark.slow

NUM_CLIENTS, NUM_CLASSES, NUM_TIMESTEPS = 20, 10, 16


def rank_correlation(schedule, batch_size):
  """Spearman's correlation over clients; batch_size None: no noise."""
  omega = schedules.omega(schedule, NUM_TIMESTEPS, seed=0)
  uniform = np.full(NUM_CLASSES, 1 / NUM_CLASSES)
  targets = partition.dirichlet_proportions(NUM_CLIENTS, NUM_CLASSES, 0.1, 0)
  measured, true = [], []
  for client, target in enumerate(targets):
    truth = np.outer(1 - omega, uniform) + np.outer(omega, target)
    seen = truth
    if batch_size is not None:
      generator = np.random.default_rng([client, batch_size])
      seen = generator.multinomial(batch_size, truth) / batch_size
    seen = tf.constant(seen, tf.float32)
    signals = [
      dynamics.uncertainty_dynamics(before, after)
      for before, after in itertools.pairwise(seen)
    ]
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
