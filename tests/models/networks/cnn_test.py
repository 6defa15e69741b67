"""Tests of the convolutional network for digits and letters."""

import numpy as np
import pytest
import tensorflow as tf

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
def test_forward_pass_agrees_with_numpy(run_in_graph, reference):
  # 9, 5, 3 and 2 positions: Keras pads these equally on both sides.
  model = cnn.build(
    (9, 9, 2),
    num_classes=3,
    channels=(8, 16, 16, 24),
    head_width=5,
    input_dtype=tf.float32,
  )
  values = reference.random_weights(model, seed=1)
  x = np.random.default_rng(0).random((3, 9, 9, 2), np.float32)

  expected = x
  for layer, groups, strides in (
    ("layer1", 1, 2),
    ("layer2", 2, 2),
    ("layer3", 2, 2),
    ("layer4", 3, 1),
  ):
    kernel, bias, gamma, beta = (
      values[f"backbone/{layer}_{weight}"]
      for weight in (
        "convolution/kernel",
        "convolution/bias",
        "normalization/gamma",
        "normalization/beta",
      )
    )
    expected = reference.convolve(expected, kernel, strides) + bias
    expected = reference.relu(
      reference.normalize(expected, groups, gamma, beta, epsilon=1e-3)
    )
  assert expected.shape == (3, 2, 2, 24)
  hidden = reference.relu(expected.mean((1, 2)) @ values["head/layer5/kernel"])
  expected = hidden @ values["head/layer6/kernel"]

  weights = tf.nest.map_structure(values.get, model.weight_names())
  logits = run_in_graph(lambda x: model.predict(weights, x), x)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
