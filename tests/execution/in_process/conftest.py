"""What the tests of the in-process context share."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import in_process


def _run(context, computation, *arguments):
  with tff.framework.get_context_stack().install(context):
    return computation(*arguments)


@pytest.fixture(scope="session")
def run():
  """Returns `run(context, computation, *arguments)`."""
  return _run


@pytest.fixture(scope="module")
def context():
  return in_process.in_process_context(num_threads=4)


@pytest.fixture(scope="session")
def build_model():
  """Returns a function that builds a small classifier of four features."""

  def build():
    network = tf.keras.Sequential(
      [
        tf.keras.layers.Dense(8, "relu", input_shape=(4,)),
        tf.keras.layers.Dense(3),
      ]
    )
    return tff.learning.models.functional_model_from_keras(
      network,
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=(
        tf.TensorSpec([None, 4], tf.float32),
        tf.TensorSpec([None], tf.int32),
      ),
      metrics_constructor=collections.OrderedDict(
        loss=lambda: tf.keras.metrics.SparseCategoricalCrossentropy(
          from_logits=True
        ),
        accuracy=tf.keras.metrics.SparseCategoricalAccuracy,
      ),
    )

  return build


def _client_datasets(sizes, seed):
  generator = np.random.default_rng(seed)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        generator.normal(size=(size, 4)).astype(np.float32),
        generator.integers(0, 3, size).astype(np.int32),
      )
    ).batch(5)
    for size in sizes
  ]


@pytest.fixture(scope="session")
def client_datasets():
  """Returns `client_datasets(sizes, seed)`: random batches for the model."""
  return _client_datasets
