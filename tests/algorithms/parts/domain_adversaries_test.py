"""Domain classifiers: gradients against finite differences, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms.parts import domain_adversaries


def test_initial_kernels_fill_the_bounds_of_glorot():
  kernel1, bias1, kernel2, bias2 = domain_adversaries.initial_classifier(
    tf.constant([0, 1]), embedding_size=50, width=100, num_hidden=1
  )
  # sqrt(6 / (50 + 100)) and sqrt(6 / (100 + 1)).
  for kernel, bound in ((kernel1, 0.2), (kernel2, 0.24373334)):
    assert 0.9 * bound < np.max(kernel) < bound
    assert -bound < np.min(kernel) < -0.9 * bound
  assert not np.any(bias1) and not np.any(bias2)


@pytest.mark.parametrize("timestep", [1, 4, 20, 33])
def test_reversal_strength_rises_over_the_time_steps(timestep):
  hparams = domain_adversaries.AdversarialHParams(
    domain_weight=0.5, domain_ramp=20
  )
  share = min(timestep / 20, 1)
  np.testing.assert_allclose(
    domain_adversaries.reversal_strength(hparams, timestep),
    0.5 * (2 / (1 + np.exp(-10 * share)) - 1),
    rtol=1e-5,
  )
