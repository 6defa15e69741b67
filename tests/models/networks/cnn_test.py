"""Tests of the convolutional network for digits and letters."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.models.networks import cnn


def test_parameters_are_those_of_table_7():
  model = cnn.build()
  convolutions = (9 * 1 * 64 + 64) + (9 * 64 * 128 + 128)
  convolutions += 2 * (9 * 128 * 128 + 128)
  normalizations = 2 * (64 + 3 * 128)
  assert model.backbone.num_parameters == convolutions + normalizations
  assert 2 * model.backbone.num_parameters == 741_120
  assert model.head.num_parameters == 128 * 64 + 64 * 10
  assert model.num_parameters == 379_392


@pytest.mark.slow
def test_forward_pass_agrees_with_numpy(reference):
  # 9, 5, 3 and 2 positions: Keras pads these equally on both sides.
  model = cnn.build(
    (9, 9, 2),
    num_classes=3,
    channels=(8, 16, 16, 24),
    head_width=5,
    input_dtype=tf.float32,
  )
  numpy = reference(model, epsilon=1e-3)
  x = np.random.default_rng(0).random((3, 9, 9, 2), np.float32)
  expected = x
  for layer, groups, strides in (
    ("layer1", 1, 2),
    ("layer2", 2, 2),
    ("layer3", 2, 2),
    ("layer4", 3, 1),
  ):
    expected = numpy.relu(numpy.layer(expected, layer, strides, groups))
  assert expected.shape == (3, 2, 2, 24)
  hidden = numpy.relu(numpy.linear(expected.mean((1, 2)), "layer5", "head"))
  expected = numpy.linear(hidden, "layer6", "head")

  assert_close(numpy.predict(x), expected, 1e-4, 1e-5)
