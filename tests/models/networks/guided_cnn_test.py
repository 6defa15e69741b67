"""Tests of the small network with a guide: parameters, and against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.models.networks import guided_cnn


def test_parameters_are_counted_by_hand():
  model = guided_cnn.build()
  # Convolutions without bias, each with a scale and an offset per channel.
  trunk = (25 * 3 * 16 + 2 * 16) + (9 * 16 * 32 + 2 * 32)
  trunk += 9 * 32 * 64 + 2 * 64
  projection = (4 * 4 * 64 + 1) * 64 + 2 * 64
  assert model.num_parameters == trunk + projection + 65 * 10
  assert model.num_guided_parameters == (
    model.num_parameters + projection + 65 * 8
  )
  assert model.num_guided_parameters == 157_090
  assert model.trunk_size == 9
  assert model.embedding_size == 64


@pytest.mark.slow
def test_features_agree_with_numpy(run_in_graph, reference):
  # 9, 5, 3 and 2 positions on a side.
  model = guided_cnn.build(
    (9, 9, 2), channels=(4, 8, 8), groups=2, width=4, input_dtype=tf.float32
  )
  numpy = reference(model, groups=2)
  x = np.random.default_rng(0).random((3, 9, 9, 2), np.float32)
  expected = x
  for layer in ("layer1", "layer2", "layer3"):
    expected = numpy.relu(numpy.layer(expected, layer, 2))
  assert expected.shape == (3, 2, 2, 8)

  weights = numpy.weights.backbone[: model.trunk_size]
  features = run_in_graph(lambda x: model.trunk(weights, x), x)
  np.testing.assert_allclose(
    features, expected.reshape(3, -1), rtol=1e-3, atol=1e-4
  )
