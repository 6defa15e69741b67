"""Tests of ResNet-18: parameters, and the network against NumPy."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import resnet


def stage_parameters(inputs, channels):
  """Two blocks of two 3x3 convolutions; a scale and an offset per channel."""
  first = 9 * inputs * channels + 9 * channels**2 + 4 * channels
  if inputs != channels:
    first += inputs * channels + 2 * channels
  second = 2 * 9 * channels**2 + 4 * channels
  return first + second


STAGES = (
  stage_parameters(64, 64)
  + stage_parameters(64, 128)
  + stage_parameters(128, 256)
  + stage_parameters(256, 512)
)


@pytest.mark.slow
class TestParameters:
  # All of it is trained, and Keras counts sooner than a model is built.

  def test_imagenet_stem_has_the_published_number(self):
    defaults = inspect.signature(resnet.build).parameters
    trunk = resnet.trunk(
      (224, 224, 3),
      **{each: defaults[each].default for each in ("stem", "width", "groups")},
    )
    stem = 7 * 7 * 3 * 64 + 2 * 64
    assert trunk.count_params() == stem + STAGES == 11_176_512
    assert trunk.output_shape == (None, 512)

  def test_cifar_stem_has_the_published_number(self):
    trunk = resnet.trunk((32, 32, 3), stem="cifar", width=64, groups=16)
    stem = 3 * 3 * 3 * 64 + 2 * 64
    assert trunk.count_params() == stem + STAGES == 11_168_832
    head = keras_parts.linear_head(512, 10)
    assert trunk.count_params() + head.count_params() == 11_173_962


@pytest.fixture(scope="module")
def small():
  """With a size that is even in some layers and odd in others."""
  return resnet.build(
    (20, 20, 3), stem="cifar", width=4, groups=2, input_dtype=tf.float32
  )


@pytest.mark.long
def test_last_layer_is_the_last_convolution_with_its_normalization(small):
  last = np.array(small.backbone.names)[list(small.last_backbone_layer())]
  assert last.tolist() == [
    "stage4.block2.layer2_convolution/kernel",
    "stage4.block2.layer2_normalization/gamma",
    "stage4.block2.layer2_normalization/beta",
  ]


def max_pool(x):
  """Maximum of 3x3 positions, at stride 2, nothing counted outside."""
  x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
  windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
  return windows[:, ::2, ::2].max((-2, -1))


def forward(numpy, x, stem):
  """The embedding, with NumPy."""
  if stem == "imagenet":
    x = max_pool(numpy.relu(numpy.layer(x, "stem", 2)))
  else:
    x = numpy.relu(numpy.layer(x, "stem"))
  for stage in (1, 2, 3, 4):
    for block in (1, 2):
      name = f"stage{stage}.block{block}"
      halves = stage > 1 and block == 1
      y = numpy.relu(numpy.layer(x, f"{name}.layer1", 2 if halves else 1))
      y = numpy.layer(y, f"{name}.layer2")
      shortcut = numpy.layer(x, f"{name}.shortcut", 2) if halves else x
      x = numpy.relu(y + shortcut)
  return x.mean((1, 2))


@pytest.mark.long
@pytest.mark.parametrize("stem, size", [("imagenet", 38), ("cifar", 20)])
def test_embedding_agrees_with_numpy(stem, size, small, reference):
  # Sizes that are even in some layers and odd in others: padding differs.
  model = small
  if small.input_shape != (size, size, 3):
    model = resnet.build(
      (size, size, 3), stem=stem, width=4, groups=2, input_dtype=tf.float32
    )
  numpy = reference(model, groups=2)
  x = np.random.default_rng(0).random((2, size, size, 3), np.float32)
  expected = forward(numpy, x, stem)

  assert expected.shape == (2, 32)
  assert_close(numpy.embed(x), expected, 1e-3, 1e-4)
