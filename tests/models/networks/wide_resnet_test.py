"""Tests of the wide residual network: parameters, and against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.models.networks import wide_resnet

pytestmark = pytest.mark.slow


def stage_parameters(inputs, channels):
  """Two blocks; each convolution is 3x3 and comes after a normalisation."""
  first = 2 * inputs + 9 * inputs * channels
  first += 2 * channels + 9 * channels**2
  first += inputs * channels  # The 1x1 convolution of the shortcut.
  second = 2 * (2 * channels + 9 * channels**2)
  return first + second


@pytest.fixture(scope="module")
def small():
  """Returns `small(widening_factor)`, each built once."""
  return functools.cache(
    lambda widening_factor: wide_resnet.build(
      (10, 10, 3),
      depth=10,
      widening_factor=widening_factor,
      groups=4,
      input_dtype=tf.float32,
    )
  )


def test_parameters_are_those_of_wrn_16_2():
  model = wide_resnet.build((32, 32, 3))
  backbone = 9 * 3 * 16
  backbone += stage_parameters(16, 32)
  backbone += stage_parameters(32, 64)
  backbone += stage_parameters(64, 128)
  backbone += 2 * 128
  assert model.backbone.num_parameters == backbone
  assert model.num_parameters == backbone + 128 * 2 + 2
  assert model.num_parameters == 690_642
  assert model.embedding_size == 128
  # The depth is the number of convolutions.
  kernels = [n for n in model.backbone.names if n.endswith("/kernel")]
  assert len(kernels) == 16


@pytest.mark.parametrize("widening_factor", [1, 2])
def test_embedding_agrees_with_numpy(widening_factor, small, reference):
  numpy = reference(small(widening_factor), groups=4)
  convolve = numpy.convolution
  x = np.random.default_rng(0).random((2, 10, 10, 3), np.float32)

  def activate(x, name):
    return numpy.relu(numpy.normalization(x, name))

  expected = convolve(x, "stem")
  for stage in (1, 2, 3):
    name, strides = f"stage{stage}.block1", 1 if stage == 1 else 2
    activated = activate(expected, f"{name}.layer1")
    y = convolve(activated, f"{name}.layer1", strides)
    y = convolve(activate(y, f"{name}.layer2"), f"{name}.layer2")
    if stage > 1 or widening_factor > 1:
      expected = convolve(activated, f"{name}.shortcut", strides)
    expected = expected + y
  expected = activate(expected, f"{name}.layer2_last").mean((1, 2))

  assert expected.shape == (2, 64 * widening_factor)
  assert_close(numpy.embed(x), expected, 1e-3, 1e-4)
