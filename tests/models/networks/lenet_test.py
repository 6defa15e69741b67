"""Tests of LeNet with a guide, at all four depths of sharing."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tff_shift.models.networks import lenet

pytestmark = pytest.mark.slow

SEED = np.array([1, 2], np.int32)
SHARING = ("none", "shallow", "mid", "deep")


@pytest.fixture(scope="module")
def models():
  """As published; 32, 28, 14, 10 and 5 positions on a side."""
  return {
    sharing: lenet.build(sharing=sharing, input_dtype=tf.float32)
    for sharing in SHARING
  }


@pytest.fixture(scope="module")
def numpy(models, reference):
  """Weights by name, the same for all depths."""
  return reference(models["deep"])


X = np.random.default_rng(0).random((3, 32, 32, 3), np.float32)


@pytest.mark.parametrize(
  "sharing, guided, trunk_size",
  [
    ("none", 2_081_554, 0),
    ("shallow", 2_079_058, 4),
    ("mid", 2_027_666, 8),
    ("deep", 1_075_090, 16),
  ],
)
def test_parameters_are_the_published_numbers(
  models, sharing, guided, trunk_size
):
  model = models[sharing]
  assert model.num_guided_parameters == guided
  # Without the client branch all are one network: what is not doubled, less
  # the projection and the linear layer of the clients.
  assert model.num_parameters == 1_075_090 - (257 * 128 + 256) - 129 * 8
  assert model.trunk_size == trunk_size
  assert model.embedding_size == 128


def test_class_logits_agree_with_numpy(numpy):
  def convolve(x, layer, groups):
    # Without a border: what a border of two adds is cut off.
    x = numpy.convolution(x, layer)[:, 2:-2, 2:-2]
    x = numpy.relu(numpy.normalization(x, layer, groups))
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))

  expected = convolve(convolve(X, "layer1", 8), "layer2", 16).reshape(3, -1)
  assert expected.shape == (3, 5 * 5 * 64)
  for layer in ("layer3", "layer4", "projection"):
    x = numpy.linear(expected, f"{layer}_linear")
    # Layer normalisation is group normalisation at one position in one group.
    normalized = numpy.normalization(x[:, None, None], layer)
    expected = numpy.relu(normalized[:, 0, 0])
  expected = numpy.linear(expected, "classifier", "head")

  assert_close(numpy.predict(X), expected, 1e-3, 1e-4)


def test_copies_of_shared_weights_give_what_sharing_gives(
  models, numpy, run_in_graph
):
  deep = models["deep"]
  generator = np.random.default_rng(2)
  client_branch = tuple(
    generator.normal(size=shape).astype(np.float32)
    for shape in deep.client_branch.shapes
  )
  weights = numpy.weights
  branches = {}
  for sharing, model in models.items():
    assert model.weight_names() == deep.weight_names()
    shared = weights.backbone[model.trunk_size : deep.trunk_size]
    branches[sharing] = shared + client_branch
    shapes = tuple(w.shape for w in branches[sharing])
    assert model.client_branch.shapes == shapes
  *found, expected = run_in_graph(
    lambda x: [
      models[sharing].predict_both(weights, branches[sharing], x)
      for sharing in SHARING
    ],
    X,
  )
  for both in found:
    trees.assert_close(both, expected, 1e-5, 1e-5)


def test_weights_start_uniformly_up_to_one_over_the_root_of_inputs(
  models, run_in_graph
):
  model = models["deep"]
  weights = dict(
    zip(
      model.backbone.names,
      run_in_graph(model.initial_backbone, SEED),
      strict=True,
    )
  )
  layers = [n.split("/")[0] for n in weights if n.endswith("/kernel")]
  assert len(layers) == 5
  for layer in layers:
    kernel, bias = weights[f"{layer}/kernel"], weights[f"{layer}/bias"]
    bound = 1 / np.sqrt(np.prod(kernel.shape[:-1]))
    assert np.abs(kernel).max() <= bound
    assert np.abs(bias).max() <= bound
    # Of n uniform numbers all stay below 0.75 with probability 0.75^n; n >= 32.
    assert np.abs(kernel).max() > 0.9 * bound
    assert np.abs(bias).max() > 0.75 * bound
