"""The network of Fed-ADE's program: parameters, and it against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.models import modes
from tff_shift.models.networks import mini_resnet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small():
  return mini_resnet.build(
    (9, 9, 3), num_classes=5, width=4, input_dtype=tf.float32
  )


def test_number_of_parameters_is_the_programs():
  model = mini_resnet.build()
  # Two 3x3 convolutions, the shortcut, and a scale and an offset for each.
  block1 = 9 * 3 * 32 + 9 * 32 * 32 + 3 * 32 + 6 * 32
  block2 = 9 * 32 * 64 + 9 * 64 * 64 + 32 * 64 + 6 * 64
  block3 = 9 * 64 * 128 + 9 * 128 * 128 + 64 * 128 + 6 * 128
  assert model.backbone.num_parameters == block1 + block2 + block3
  assert model.head.num_parameters == 128 * 64 + 64 + 64 * 10 + 10 == 8_906
  assert model.num_parameters == 307_146
  assert model.embedding_size == 128
  assert len(model.statistics) == 2 * 9


def forward(numpy, statistics, x):
  """The embedding in evaluation, with NumPy."""

  def layer(x, name, strides):
    x = numpy.convolution(x, name, strides)
    name = f"{name}_normalization"
    mean, variance = (
      statistics[f"backbone/{name}/moving_{kind}"]
      for kind in ("mean", "variance")
    )
    x = (x - mean) / np.sqrt(variance + 1e-5)
    return x * numpy.weight(f"{name}/gamma") + numpy.weight(f"{name}/beta")

  for name, strides in ("block1", 1), ("block2", 2), ("block3", 2):
    y = layer(x, f"{name}.layer1", strides)
    y = layer(leaky(y), f"{name}.layer2", 1)
    x = numpy.relu(y + layer(x, f"{name}.shortcut", strides))
  return x.mean((1, 2))


def leaky(x):
  return np.where(x > 0, x, 0.01 * x)


def test_evaluation_agrees_with_numpy(small, run_in_graph, reference):
  numpy = reference(small)
  weights = numpy.weights
  generator = np.random.default_rng(0)
  statistics = {
    name: generator.uniform(0.5, 1.5, np.shape(value)).astype(np.float32)
    for name, value in small.statistics.items()
  }
  x = generator.random((2, 9, 9, 3), np.float32)

  def embed_and_classify(x):
    with modes.with_statistics(statistics, are_fixed=True):
      embedding = small.embed(weights.backbone, x)
    return embedding, small.classify(weights.head, embedding)

  embedding, logits = run_in_graph(embed_and_classify, x)
  expected = forward(numpy, statistics, x)
  assert_close(embedding, expected, 1e-3, 1e-4)
  hidden = leaky(numpy.linear(expected, "hidden", "head"))
  assert_close(logits, numpy.linear(hidden, "classifier", "head"), 1e-3, 1e-4)


def test_training_drops_and_moves_statistics(small, run_in_graph):
  weights = small.initial_weights(tf.constant([1, 2]))

  def in_training(x, seed):
    with modes.with_statistics(small.statistics) as moved:
      with modes.training(lambda: seed):
        logits = small.predict(weights, x)
      return logits, dict(moved)

  x = np.random.default_rng(0).random((8, 9, 9, 3), np.float32)
  one, moved = run_in_graph(in_training, x, np.int32([1, 2]))
  other, _ = run_in_graph(in_training, x, np.int32([1, 3]))
  assert np.any(one != other)
  first = "backbone/block1.shortcut_normalization/moving_mean"
  kernel = weights.backbone[
    small.backbone.names.index("block1.shortcut_convolution/kernel")
  ]
  # The share of the batch is a tenth; the start is 0.
  assert_close(
    moved[first], 0.1 * x.mean((0, 1, 2)) @ kernel.numpy()[0, 0], 1e-4, 1e-6
  )
