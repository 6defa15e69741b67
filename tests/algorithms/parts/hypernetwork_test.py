"""Tests of the hypernetwork: its size and its start."""

import numpy as np
import pytest

from tests.fixtures import arrays
from tests.fixtures import trees
from tff_shift.algorithms.parts import hypernetwork
from tff_shift.models.networks import mlp

SEED = np.array([7, -8], np.int32)


@pytest.fixture(scope="module")
def model():
  return mlp.build((2,), num_classes=2, width=3, head_width=3)


def build(model, input_size=3, width=4, num_hidden=2):
  return hypernetwork.Hypernetwork(model, input_size, width, num_hidden)


@pytest.mark.parametrize("num_hidden", [1, 3])
def test_work_network_number_of_parameters(model, run_in_graph, num_hidden):
  network = build(model, num_hidden=num_hidden)
  phi = run_in_graph(network.initial_weights, SEED)
  assert len(phi.hidden) == num_hidden
  assert network.num_parameters == sum(w.size for w in trees.leaves(phi))
  # 2*3+3, twice 3*3+3, 3*3+3 and 3*2+2 weights of the model.
  hidden = {1: 16, 3: 16 + 20 + 20}[num_hidden]
  assert network.num_parameters == hidden + 5 * 53


@pytest.mark.slow
@pytest.mark.parametrize("num_hidden", [1, 3])
def test_initial_weights_every_vector_gives_nearly_the_initial_model(
  model, run_in_graph, num_hidden
):
  network = build(model, input_size=32, width=64, num_hidden=num_hidden)
  initial = trees.leaves(run_in_graph(model.initial_weights, SEED))
  phi = run_in_graph(network.initial_weights, SEED)
  for layer, expected in zip(phi.output, initial, strict=True):
    np.testing.assert_array_equal(layer.bias, expected)
  weights = [
    run_in_graph(network, phi, vector) for vector in arrays.normal(0, 2, 32)
  ]
  number = sum(w.size for w in initial)
  for made in weights:
    square = trees.squared_distance(trees.leaves(made), initial) / number
    assert 0.005 < np.sqrt(square) < 0.02
  for one, other in trees.pairs(*weights):
    assert np.any(one != other)


def test_initial_weights_layers_of_equal_shape_are_drawn_apart(
  model, run_in_graph
):
  # All hidden layers have one shape, and so have three of the outputs.
  phi = run_in_graph(build(model, 4, num_hidden=3).initial_weights, SEED)
  kernels = [layer.kernel for layer in (*phi.hidden, *phi.output)]
  first_numbers = [kernel.ravel()[0] for kernel in kernels]
  assert len(set(first_numbers)) == len(kernels)
