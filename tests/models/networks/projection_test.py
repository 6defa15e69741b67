"""Tests of the layers of guided models, against NumPy."""

import numpy as np

from tff_shift.models import parts
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import projection

SEED = np.array([1, 2], np.int32)


def make_part(keras_model):
  return keras_parts.make_part(keras_model, parts.HEAD)


def test_client_branch_agrees_with_numpy(run_in_graph):
  part = make_part(projection.client_branch(3, 4, 5))
  generator = np.random.default_rng(0)
  kernel, bias, gamma, beta, kernel2, bias2 = weights = tuple(
    generator.normal(size=shape).astype(np.float32) for shape in part.shapes
  )
  x = generator.normal(size=(6, 3)).astype(np.float32)

  linear = x @ kernel + bias
  centred = linear - linear.mean(1, keepdims=True)
  deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
  hidden = np.maximum(centred / deviation * gamma + beta, 0)
  expected = hidden @ kernel2 + bias2

  logits = run_in_graph(lambda x: part(weights, x), x)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_target_branch_is_the_client_branch_without_its_last_layer():
  target = make_part(projection.target_branch(3, 4))
  client = make_part(projection.client_branch(3, 4, 5))
  assert target.names == client.names[:-2]
  assert target.shapes == client.shapes[:-2]


def test_kernel_starts_with_variance_two_over_inputs(run_in_graph):
  part = make_part(projection.head(50, 400))
  kernel, bias = run_in_graph(part.initial_weights, SEED)
  # Five standard errors of the variance of 20,000 normal numbers.
  assert abs(kernel.var() * 50 / 2 - 1) < 5 * np.sqrt(2 / kernel.size)
  # A normal distribution cut off at two deviations has none beyond 2.3.
  assert np.abs(kernel).max() > 3 * np.sqrt(2 / 50)
  np.testing.assert_array_equal(bias, 0)
