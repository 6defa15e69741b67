"""Tests of the perceptron for the circle."""

import numpy as np

from tests.fixtures.arrays import normal
from tff_shift.models.networks import mlp


def test_parameters_are_those_of_appendix_d():
  model = mlp.build()
  # 2x256, 256x256, 256x256; 256x64, 64x2; each with biases.
  backbone = (2 * 256 + 256) + 2 * (256 * 256 + 256)
  head = (256 * 64 + 64) + (64 * 2 + 2)
  assert model.backbone.num_parameters == backbone
  assert model.head.num_parameters == head
  assert model.num_parameters == 148_930


def test_forward_pass_agrees_with_numpy(run_in_graph, reference):
  model = mlp.build(width=6, head_width=5)
  numpy = reference(model)
  x = expected = normal(0, 7, 2)
  for part, layer in (
    *(("backbone", "layer1"), ("backbone", "layer2"), ("backbone", "layer3")),
    ("head", "layer4"),
  ):
    expected = numpy.relu(numpy.linear(expected, layer, part))
  expected = numpy.linear(expected, "layer5", "head")

  logits = run_in_graph(lambda x: model.predict(numpy.weights, x), x)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
