"""Tests of the perceptron for the circle."""

from tests.fixtures.arrays import assert_close
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


def test_forward_pass_agrees_with_numpy(reference):
  model = mlp.build(width=6, head_width=5)
  numpy = reference(model)
  x = expected = normal(0, 7, 2)
  for part, layer in (
    *(("backbone", "layer1"), ("backbone", "layer2"), ("backbone", "layer3")),
    ("head", "layer4"),
  ):
    expected = numpy.relu(numpy.linear(expected, layer, part))
  expected = numpy.linear(expected, "layer5", "head")

  assert_close(numpy.predict(x), expected, 1e-4, 1e-5)
