"""Tests of the hypernetwork: what it gives, its derivative, its start."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms.parts import hypernetwork
from tff_shift.models.networks import mlp

INPUT_SIZE, WIDTH = 3, 4
SEED = np.array([7, -8], np.int32)


@pytest.fixture(scope="module")
def model():
  return mlp.build((2,), num_classes=2, width=3, head_width=3)


def build(model, input_size=INPUT_SIZE, width=WIDTH, num_hidden=2):
  return hypernetwork.Hypernetwork(model, input_size, width, num_hidden)


@pytest.fixture(scope="module")
def network(model):
  return build(model)


def perturb(weights, generator):
  """Moves weights so far that no bias is 0 and no kernel small."""
  return tf.nest.map_structure(
    lambda w: (w + generator.normal(0, 0.5, w.shape)).astype(np.float32),
    weights,
  )


@pytest.fixture(scope="module")
def point(network, run_in_graph):
  """Weights, a vector and a direction, all at random."""
  generator = np.random.default_rng(3)
  phi = perturb(run_in_graph(network.initial_weights, SEED), generator)
  r = generator.normal(size=INPUT_SIZE).astype(np.float32)
  weights = run_in_graph(network, phi, r)
  return types.SimpleNamespace(
    phi=phi,
    r=r,
    weights=weights,
    direction=perturb(tf.nest.map_structure(np.zeros_like, weights), generator),
  )


class TestWorkNetwork:
  def test_weights_agree_with_numpy(self, point):
    features = np.float64(point.r)
    for kernel, bias in point.phi.hidden:
      features = np.maximum(features @ kernel + bias, 0)
    assert np.any(features > 0)
    flat = tf.nest.flatten(point.weights)
    for found, (kernel, bias) in zip(flat, point.phi.output, strict=True):
      expected = bias + np.tensordot(features, kernel, axes=1)
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

  @pytest.mark.parametrize("num_hidden", [1, 3])
  def test_number_of_parameters(self, model, run_in_graph, num_hidden):
    network = build(model, num_hidden=num_hidden)
    phi = run_in_graph(network.initial_weights, SEED)
    assert len(phi.hidden) == num_hidden
    assert network.num_parameters == sum(w.size for w in tf.nest.flatten(phi))
    # 2*3+3, twice 3*3+3, 3*3+3 and 3*2+2 weights of the model.
    hidden = {1: 16, 3: 16 + 20 + 20}[num_hidden]
    assert network.num_parameters == hidden + 5 * 53


RATE = np.float32(0.25)


def pull_back(network):
  """Returns `(phi, r, direction) -> the products with the direction`."""
  return lambda phi, r, direction: network.with_pull_back(phi, r)[1](
    direction, RATE
  )


def point_of(point):
  return point.phi, point.r, point.direction


class TestPullBack:
  def test_weights_are_those_of_a_call(self, network, point, run_in_graph):
    weights = run_in_graph(
      lambda *each: network.with_pull_back(*each)[0], point.phi, point.r
    )
    for found, expected in zip(
      *map(tf.nest.flatten, (weights, point.weights)), strict=True
    ):
      np.testing.assert_array_equal(found, expected)

  @pytest.mark.slow
  def test_agrees_with_the_full_jacobian(self, network, point, run_in_graph):
    def full_jacobian(phi, r):
      with tf.GradientTape() as tape:
        tape.watch((phi, r))
        flat = tf.concat(
          [tf.reshape(w, [-1]) for w in tf.nest.flatten(network(phi, r))], 0
        )
      return tape.jacobian(flat, (phi, r), experimental_use_pfor=False)

    jacobian = run_in_graph(full_jacobian, point.phi, point.r)
    by_phi, by_r = run_in_graph(pull_back(network), *point_of(point))
    product = tf.nest.map_structure(lambda each: each / RATE, by_phi), by_r
    direction = np.concatenate(
      [w.ravel() for w in tf.nest.flatten(point.direction)]
    )
    tf.nest.assert_same_structure(product, (point.phi, point.r))
    for found, by_weight, value in zip(
      *map(tf.nest.flatten, (product, jacobian, (point.phi, point.r))),
      strict=True,
    ):
      assert by_weight.shape == (*direction.shape, *value.shape)
      assert np.any(by_weight != 0)
      np.testing.assert_allclose(
        found, np.tensordot(direction, by_weight, axes=1), rtol=1e-4, atol=1e-5
      )


class TestInitialWeights:
  @pytest.mark.slow
  @pytest.mark.parametrize("num_hidden", [1, 3])
  def test_every_vector_gives_nearly_the_initial_model(
    self, model, run_in_graph, num_hidden
  ):
    network = build(model, input_size=32, width=64, num_hidden=num_hidden)
    initial = tf.nest.flatten(run_in_graph(model.initial_weights, SEED))
    phi = run_in_graph(network.initial_weights, SEED)
    for layer, expected in zip(phi.output, initial, strict=True):
      np.testing.assert_array_equal(layer.bias, expected)
    vectors = np.random.default_rng(0).normal(size=(2, 32))
    weights = [
      tf.nest.flatten(run_in_graph(network, phi, r.astype(np.float32)))
      for r in vectors
    ]
    for made in weights:
      spread = np.concatenate(
        [(w - v).ravel() for w, v in zip(made, initial, strict=True)]
      )
      assert 0.005 < np.sqrt(np.mean(spread**2)) < 0.02
    for one, other in zip(*weights, strict=True):
      assert np.any(one != other)

  def test_layers_of_equal_shape_are_drawn_apart(self, model, run_in_graph):
    # All hidden layers have one shape, and so have three of the outputs.
    phi = run_in_graph(build(model, WIDTH, num_hidden=3).initial_weights, SEED)
    kernels = [layer.kernel for layer in (*phi.hidden, *phi.output)]
    first_numbers = [kernel.ravel()[0] for kernel in kernels]
    assert len(set(first_numbers)) == len(kernels)
