"""What the tests of the in-process context share."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import in_process
from tff_shift.execution.in_process import vectorization

# Of a difference, relative to the largest number. In float32, 32 roundings: the
# order of sums differs between forms and processors.
_TOLERANCES = {
  tf.float32: 32 * np.finfo(np.float32).eps,
  tf.float64: 1e-12,
}


def _run(context, computation, *arguments):
  with tff.framework.get_context_stack().install(context):
    return computation(*arguments)


@pytest.fixture(scope="session")
def run():
  """Returns `run(context, computation, *arguments)`."""
  return _run


def _in_a_batch(function, stacked):
  """Returns the results of clients, and what ran client by client."""
  # The executor does not know the number of clients.
  signature = [
    tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in stacked
  ]

  @tf.function(input_signature=signature, autograph=False)
  def run(*stacked):
    return vectorization.map_clients(
      lambda i: function(*(tf.gather(each, i) for each in stacked)),
      tf.shape(stacked[0])[0],
    )

  with vectorization.Notes() as notes:
    found = run(*stacked)
  return found, notes.looped


def _check_batch(function, *stacked, reference=None, looped=()):
  found, notes = _in_a_batch(function, stacked)
  assert notes == set(looped)
  reference = tf.function(reference or function, autograph=False)
  each = [
    reference(*map(tf.constant, row)) for row in zip(*stacked, strict=True)
  ]
  for one, other in zip(found, zip(*each, strict=True), strict=True):
    other = np.stack(other)
    assert one.shape == other.shape and one.dtype == other.dtype
    difference = np.max(np.abs(one - other), initial=0)
    size = max(1, np.max(np.abs(other), initial=0))
    assert difference <= _TOLERANCES.get(one.dtype, 0) * size


@pytest.fixture(scope="session")
def check_batch():
  """Returns `check_batch(function, *stacked, reference, looped)`.

  It compares a function of clients in a batch with a loop over clients: of the
  same function, or of a reference. Operations in `looped` run in a loop in the
  batch too, and no others.
  """
  return _check_batch


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
