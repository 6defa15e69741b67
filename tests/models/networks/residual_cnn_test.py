"""Tests of the small residual network: parameters, and it against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.models.networks import residual_cnn

pytestmark = pytest.mark.slow

# Even in two blocks and odd in the last.
SHAPE = (28, 28, 2)


@pytest.fixture(scope="module")
def small():
  return residual_cnn.build(
    SHAPE, num_classes=5, width=4, groups=2, input_dtype=tf.float32
  )


def test_number_for_cifar10_is_counted_by_hand():
  model = residual_cnn.build((32, 32, 3), num_classes=10, width=16)
  # A 3x3 convolution with a scale and an offset per channel; in a block, two of
  # these and a 1x1 convolution with scale and offset.
  stem = 9 * 3 * 16 + 2 * 16
  block1 = 9 * 16 * 32 + 9 * 32 * 32 + 16 * 32 + 6 * 32
  block2 = 9 * 32 * 64 + 9 * 64 * 64 + 32 * 64 + 6 * 64
  block3 = 9 * 64 * 128 + 9 * 128 * 128 + 64 * 128 + 6 * 128
  assert model.backbone.num_parameters == stem + block1 + block2 + block3
  assert model.num_parameters == 302_864 + 128 * 10 + 10
  assert model.embedding_size == 128


def forward(numpy, x):
  """The embedding, with NumPy."""
  x = numpy.relu(numpy.layer(x, "stem"))
  for name in ("block1", "block2", "block3"):
    y = numpy.relu(numpy.layer(x, f"{name}.layer1", 2))
    y = numpy.layer(y, f"{name}.layer2")
    x = numpy.relu(y + numpy.layer(x, f"{name}.shortcut", 2))
  return x.mean((1, 2))


def test_embedding_and_logits_agree_with_numpy(small, reference):
  numpy = reference(small, groups=2)
  x = np.random.default_rng(0).random((2, *SHAPE), np.float32)
  embedding = forward(numpy, x)
  assert embedding.shape == (2, 32)
  assert_close(numpy.embed(x), embedding, 1e-3, 1e-4)
  logits = numpy.linear(embedding, "classifier", "head")
  assert_close(numpy.predict(x), logits, 1e-3, 1e-4)
