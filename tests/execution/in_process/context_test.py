"""Tests of the context: errors, installation, and rounds of FedAvg."""

import asyncio
import collections
import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tests.fixtures import tables
from tests.fixtures.computations import AT_CLIENTS
from tests.fixtures.computations import multiply
from tff_shift.execution import in_process

INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


def test_unsupported_block_is_named(run, context):
  pytest.importorskip("jax", reason="JAX: only beside TensorFlow 2.14")
  with pytest.raises(NotImplementedError, match="kind xla"):
    run(context, tff.jax.computation(lambda x: x + 1, np.int32), 1)


def _reference_variable():
  variable = tf.compat.v1.Variable(0.0, use_resource=False)
  return variable.assign_add(1.0)


def _one_shot_iterator():
  data = tf.data.Dataset.range(3)
  return tf.compat.v1.data.make_one_shot_iterator(data).get_next()


def _accumulator():
  accumulator = tf.compat.v1.ConditionalAccumulator(tf.float32, shape=())
  return accumulator.take_grad(1)


@pytest.mark.parametrize(
  "function, operation",
  [
    (_reference_variable, "VariableV2"),
    (_one_shot_iterator, "OneShotIterator"),
    (_accumulator, "ConditionalAccumulator"),
  ],
)
def test_operation_whose_state_clients_would_share_is_named(
  run, context, function, operation
):
  work = tff.tensorflow.computation(function)

  @tff.federated_computation()
  def computation():
    return tff.federated_eval(work, tff.CLIENTS)

  with pytest.raises(NotImplementedError, match=f"{operation}, whose state"):
    run(context, computation)


@pytest.mark.parametrize(
  "options, message",
  tables.cases("""
{"num_threads": 0}
    num_threads must be 1 or more; got 0
{"default_num_clients": -1}
    default_num_clients
{"server_device": "GPU:7"}
    /device:CPU:0.*got 'GPU:7'
{"client_devices": ["toaster"]}
    /device:CPU:0.*got 'toaster'
{"client_devices": []}
    at least one
"""),
)
def test_bad_options(options, message):
  with pytest.raises(ValueError, match=message):
    in_process.in_process_context(**options)


def test_with_block_restores_the_former_context(context):
  stack = tff.framework.get_context_stack()
  former = stack.current
  with context as entered:
    assert stack.current is entered is context
    with context:  # Again, within itself.
      assert multiply(2.0, 3.0) == 6.0
    assert stack.current is context
  assert stack.current is former
  with pytest.raises(KeyError), context:
    raise KeyError
  assert stack.current is former


def test_one_import_and_trace_for_each_block(run):
  @tff.federated_computation(AT_CLIENTS)
  def sum_of_squares(values):
    return tff.federated_sum(tff.federated_map(multiply, (values, values)))

  context = in_process.in_process_context()
  for _ in range(3):
    assert run(context, sum_of_squares, [1.0, 2.0, 3.0]) == 14.0
  # The square, the zero to start from, and the addition.
  assert (context.num_imports, context.num_traces) == (3, 3)
  # A computation's functions go with it.
  del sum_of_squares
  gc.collect()
  assert (context.num_imports, context.num_traces) == (0, 0)


def leaves(value):
  return tree.flatten(in_process.to_numpy(value))


@pytest.mark.slow
class TestRounds:
  """Federated averaging over rounds, on this context alone."""

  @pytest.fixture(scope="class")
  def process(self, build_model):
    return tff.learning.algorithms.build_weighted_fed_avg(
      build_model(),
      tff.learning.optimizers.build_sgdm(0.1),
      tff.learning.optimizers.build_sgdm(1.0, 0.9),
    )

  @pytest.fixture(scope="class")
  def start(self, run, process):
    return run(in_process.in_process_context(), process.initialize)

  @pytest.fixture(scope="class")
  def train(self, run, process, start, client_datasets):
    def train_rounds(context, num_rounds):
      outputs = []
      state = start
      for seed in range(num_rounds):
        datasets = client_datasets([20, 13, 7, 0, 9], seed)
        outputs.append(run(context, process.next, state, datasets))
        state = outputs[-1].state
      return outputs

    return train_rounds

  def test_same_bits_for_any_number_of_threads(self, train):
    expected = None
    for num_threads in (1, 2, 5, 2):
      context = in_process.in_process_context(num_threads=num_threads)
      found = [leaf.tobytes() for leaf in leaves(train(context, 3))]
      expected = expected or found
      assert found == expected

  def test_tensors_are_carried_as_they_are(self, run, process, train):
    tensor_context = in_process.in_process_context(materialize=False)
    found = train(tensor_context, 2)
    expected = train(in_process.in_process_context(), 2)
    assert all(isinstance(leaf, tf.Tensor) for leaf in tree.flatten(found))
    tree.map_structure(
      np.testing.assert_array_equal, in_process.to_numpy(found), expected
    )
    # A state that only passes through is the very same object.
    state = found[-1].state
    same = tff.federated_computation(
      lambda state: state, process.next.type_signature.parameter[0]
    )
    passed = run(tensor_context, same, state)
    assert all(
      ours is theirs
      for ours, theirs in zip(
        tree.flatten(passed), tree.flatten(state), strict=True
      )
    )

  def test_asynchronous_and_mergeable_forms(
    self, run, process, start, client_datasets
  ):
    datasets = client_datasets([20, 13, 7], seed=0)
    expected = run(
      in_process.in_process_context(), process.next, start, datasets
    )
    asynchronous = in_process.async_in_process_context()
    found = asyncio.run(run(asynchronous, process.next, start, datasets))
    tree.map_structure(np.testing.assert_array_equal, found, expected)
    mergeable = tff.backends.native.create_mergeable_comp_execution_context(
      [asynchronous, in_process.async_in_process_context()]
    )
    merged = run(mergeable, process.next, start, datasets)
    for ours, theirs in zip(
      tree.flatten(merged), tree.flatten(expected), strict=True
    ):
      # Two partial sums are added: another order of the same numbers.
      np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def linear_regression():
  @tf.function
  def predict(weights, x, training):
    (kernel, bias), _ = weights
    return tf.matmul(x, kernel) + bias

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, 1], np.float32), np.float32(0)), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
      tf.square(output - label)
    ),
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(
      lambda: collections.OrderedDict(
        loss=tf.keras.metrics.MeanSquaredError(),
        n=tff.learning.metrics.NumExamplesCounter(),
      )
    ),
    input_spec=(
      tf.TensorSpec([None, 2], tf.float32),
      tf.TensorSpec([None, 1], tf.float32),
    ),
  )


@pytest.mark.slow
def test_one_model_in_two_processes(run, context):
  """Functions of loops, in an order that TensorFlow cannot import in line."""
  model = linear_regression()
  x = np.float32([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
  data = (
    tf.data.Dataset.from_tensor_slices((x, np.float32([[0], [0], [1], [1]])))
    .repeat(2)
    .batch(3)
  )
  norms = []
  for strength in (0.01, 1.0):
    process = tff.learning.algorithms.build_weighted_fed_prox(
      model,
      proximal_strength=strength,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    state = run(context, process.initialize)
    output = run(context, process.next, state, [data])
    # A computation too: outside of `run`, TFF would start its own executor.
    weights = run(context, process.get_model_weights, output.state)
    kernel, bias = weights.trainable
    norms.append(np.hypot(np.linalg.norm(kernel), bias))
  assert norms[0] > norms[1] > 0


@pytest.mark.slow
def test_clients_with_fused_batch_normalization_run_one_by_one(run):
  """Its kernel corrupts memory if batches of two sizes run concurrently."""

  @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 8]))
  def normalize(x):
    # Each example is a channel, as in Keras's layer normalisation.
    size = tf.shape(x)[0]
    y, *_ = tf.compat.v1.nn.fused_batch_norm(
      x[tf.newaxis, :, :, tf.newaxis],
      tf.ones([size]),
      tf.zeros([size]),
      epsilon=0.01,
      data_format="NCHW",
    )
    return tf.reduce_sum(tf.abs(y))

  total = tff.federated_computation(
    lambda values: tff.federated_sum(tff.federated_map(normalize, values)),
    tff.FederatedType(normalize.type_signature.parameter, tff.CLIENTS),
  )
  generator = np.random.default_rng(0)
  context = in_process.in_process_context(num_threads=8)
  for _ in range(300):
    data = [
      generator.normal(size=(size, 8)).astype(np.float32)
      for size in generator.integers(1, 99, 8)
    ]
    expected = sum(
      np.sum(
        np.abs(x - x.mean(1, keepdims=True))
        / np.sqrt(x.var(1, keepdims=True) + 0.01)
      )
      for x in data
    )
    np.testing.assert_allclose(run(context, total, data), expected, rtol=1e-4)
