"""Domain classifiers: gradients against finite differences, in float64."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from tff_shift.algorithms.parts import domain_adversaries

STRENGTH = 0.7


@pytest.fixture(scope="module")
def classifier():
  generator = np.random.default_rng(0)
  shapes = [(4, 3), (3,), (3, 1), (1,)]
  return tuple(generator.normal(size=shape) for shape in shapes)


@pytest.fixture(scope="module")
def batches():
  """Examples of source and target, and their weights."""
  generator = np.random.default_rng(1)
  return (
    generator.normal(size=(5, 6)),
    generator.normal(size=(7, 6)) + 0.5,
    generator.uniform(size=5),
    generator.uniform(size=7),
  )


KERNEL = np.random.default_rng(2).normal(size=(6, 4))


def loss_in_numpy(
  kernel, classifier, source, target, source_weights, target_weights
):
  """L of embeddings tanh(x @ kernel), example by example."""
  kernel1, bias1, kernel2, bias2 = classifier

  def probability(x):
    hidden = np.maximum(np.tanh(x @ kernel) @ kernel1 + bias1, 0)
    return 1 / (1 + np.exp(-(hidden @ kernel2 + bias2)[0]))

  return np.mean(
    [
      -w * np.log(probability(x))
      for x, w in zip(source, source_weights, strict=True)
    ]
  ) + np.mean(
    [
      -w * np.log(1 - probability(x))
      for x, w in zip(target, target_weights, strict=True)
    ]
  )


def test_initial_kernels_fill_the_bounds_of_glorot():
  kernel1, bias1, kernel2, bias2 = domain_adversaries.initial_classifier(
    tf.constant([0, 1]), embedding_size=50, width=100, num_hidden=1
  )
  # sqrt(6 / (50 + 100)) and sqrt(6 / (100 + 1)).
  for kernel, bound in ((kernel1, 0.2), (kernel2, 0.24373334)):
    assert 0.9 * bound < np.max(kernel) < bound
    assert -bound < np.min(kernel) < -0.9 * bound
  assert not np.any(bias1) and not np.any(bias2)


class TestReversedLoss:
  @pytest.fixture(scope="class")
  def found(self, classifier, batches):
    """The loss, and its gradients for the kernel and for the classifier."""
    source, target, *weights = map(tf.constant, batches)
    kernel = tf.constant(KERNEL)
    parts = tuple(map(tf.constant, classifier))
    with tf.GradientTape() as tape:
      tape.watch((kernel, parts))
      loss = domain_adversaries.reversed_loss(
        parts,
        tf.tanh(source @ kernel),
        tf.tanh(target @ kernel),
        tf.constant(STRENGTH, tf.float64),
        *weights,
      )
    return loss, *tape.gradient(loss, (kernel, parts))

  def test_value_is_the_loss(self, found, classifier, batches):
    assert_allclose(
      found[0], loss_in_numpy(KERNEL, classifier, *batches), rtol=1e-12
    )

  def test_backbone_is_sent_up_the_loss(
    self, found, classifier, batches, oracle
  ):
    slopes = oracle.gradient(
      lambda kernel: loss_in_numpy(kernel, classifier, *batches), KERNEL
    )
    assert np.max(np.abs(slopes)) > 1e-2
    assert_allclose(found[1], -STRENGTH * slopes, atol=1e-8)

  def test_classifier_is_sent_down_the_loss(
    self, found, classifier, batches, oracle
  ):
    slopes = oracle.gradient(
      lambda moved: loss_in_numpy(KERNEL, moved, *batches), classifier
    )
    for actual, expected in zip(found[2], slopes, strict=True):
      assert_allclose(actual, expected, atol=1e-8)


def test_domain_loss_examples_count_one_by_default(classifier, batches):
  source, target, *_ = batches
  found = domain_adversaries.domain_loss(
    tuple(map(tf.constant, classifier)),
    np.tanh(source @ KERNEL),
    np.tanh(target @ KERNEL),
  )
  expected = loss_in_numpy(
    KERNEL, classifier, source, target, np.ones(5), np.ones(7)
  )
  assert_allclose(found, expected, rtol=1e-12)


class TestReversalStrength:
  @pytest.mark.parametrize("timestep", [1, 4, 20, 33])
  def test_rises_over_the_time_steps(self, timestep):
    hparams = domain_adversaries.AdversarialHParams(
      domain_weight=0.5, domain_ramp=20
    )
    share = min(timestep / 20, 1)
    assert_allclose(
      domain_adversaries.reversal_strength(hparams, timestep),
      0.5 * (2 / (1 + np.exp(-10 * share)) - 1),
      rtol=1e-5,
    )

  def test_without_a_ramp_is_there_at_once(self):
    hparams = domain_adversaries.AdversarialHParams(
      domain_weight=0.5, domain_ramp=0
    )
    assert domain_adversaries.reversal_strength(hparams, 1) == 0.5
