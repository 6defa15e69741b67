"""Tests of the linear model."""

from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import normal
from tff_shift.models.networks import linear


def test_logits_are_linear_in_the_input(reference):
  model = linear.build(input_shape=(2, 3), num_classes=4)
  assert model.backbone.num_parameters == 0
  assert model.num_parameters == 6 * 4 + 4
  assert model.embedding_size == 6
  numpy = reference(model)
  x = normal(0, 7, 2, 3)
  expected = numpy.linear(x.reshape(7, 6), "layer", "head")
  assert_close(numpy.predict(x), expected, 1e-5, 1e-5)
