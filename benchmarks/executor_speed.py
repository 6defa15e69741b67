"""Times a round in process, on TFF's C++ executor, and without TFF.

  python -m benchmarks.executor_speed
  python -m benchmarks.executor_speed --workloads=tiny --rounds=500

The executors alternate, and each ratio is the median over repetitions of the
ratio within a repetition: ratios are reproducible on a machine, seconds vary
from day to day. Run it on an idle machine.

Workloads:
  cnn: 10 clients with 320 RGB images of 32x32 each, as dense arrays, take 10
    SGD steps on batches of 32 with a convolutional network of 70,378
    parameters; then the mean. Also the same in plain TensorFlow, with clients
    in sequence, in a separate process with TensorFlow's default settings.
  stock_cnn: the same with stock TFF FedAvg on `tf.data`.
  small_clients: 100 clients with 64 examples each, stock FedAvg, dense network.
  tiny: 8 clients with 32 examples each, the same network.
  large_state: 20 clients with a personal state of a million floats each.
"""

import concurrent.futures
import contextlib
import functools
import gc
import multiprocessing
import os
import pathlib
import statistics
import time
import types
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags
from absl import logging

from benchmarks import plain_cnn
from tff_shift import execution

FLAGS = flags.FLAGS

# Before the first repetition: tracing, and TensorFlow's lazy initialisation.
_WARM_UP_ROUNDS = 2

_BATCH = 32
_STEPS = 10
_RATE = 0.05
_IMAGE = (32, 32, 3)
_CNN_SHAPES = (
  *((3, 3, 3, 32), (32,), (3, 3, 32, 32), (32,)),
  *((3, 3, 32, 64), (64,), (3, 3, 64, 64), (64,)),
  *((64, 64), (64,), (64, 10), (10,)),
)


def define_flags() -> None:
  """Defines the flags; not on import, because binaries use some names."""
  flags.DEFINE_list(
    "workloads",
    ["cnn", "stock_cnn", "small_clients", "tiny", "large_state"],
    "Comma-separated workloads to time.",
  )
  flags.DEFINE_integer("repetitions", 7, "Repetitions of each executor.", 1)
  flags.DEFINE_integer(
    "num_threads", None, "Parallel clients in process. Default: one per core."
  )
  flags.DEFINE_integer(
    "rounds",
    0,
    "Instead of timing, runs this number of rounds in process and prints the"
    " resident size at round 50 and at the end.",
  )


def _cnn_data() -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
  """Returns initial weights, and the images and labels of 10 clients."""
  generator = np.random.default_rng(0)
  weights = [
    generator.normal(0.0, 0.1 if len(shape) > 1 else 0.0, shape)
    for shape in _CNN_SHAPES
  ]
  size = _BATCH * _STEPS
  return (
    [weight.astype(np.float32) for weight in weights],
    [generator.integers(0, 256, (size, *_IMAGE), np.uint8) for _ in range(10)],
    [generator.integers(0, 10, size, np.int32) for _ in range(10)],
  )


def _train_cnn(weights, images, labels):
  """A client's work: SGD over its batches in order."""

  def step(index, current):
    batch = slice(index * _BATCH, (index + 1) * _BATCH)
    with tf.GradientTape() as tape:
      tape.watch(current)
      loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
          labels[batch],
          plain_cnn.logits(
            current, tf.ensure_shape(images[batch], [_BATCH, *_IMAGE])
          ),
        )
      )
    gradients = tape.gradient(loss, current)
    return index + 1, tuple(
      weight - _RATE * gradient
      for weight, gradient in zip(current, gradients, strict=True)
    )

  return tf.while_loop(
    lambda index, _: index < _STEPS,
    step,
    (0, tuple(weights)),
    parallel_iterations=1,
  )[1]


def _build_cnn() -> Callable[[], object]:
  weights, images, labels = _cnn_data()
  weights_type = tff.StructWithPythonType(
    [tff.TensorType(np.float32, shape) for shape in _CNN_SHAPES], list
  )
  images_type = tff.TensorType(np.uint8, [None, *_IMAGE])
  labels_type = tff.TensorType(np.int32, [None])
  train = tff.tensorflow.computation(
    _train_cnn, (weights_type, images_type, labels_type)
  )

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(images_type, tff.CLIENTS),
    tff.FederatedType(labels_type, tff.CLIENTS),
  )
  def one_round(weights, images, labels):
    return tff.federated_mean(
      tff.federated_map(
        train, (tff.federated_broadcast(weights), images, labels)
      )
    )

  return lambda: one_round(weights, images, labels)


def _build_stock(
  network: tf.keras.Model, num_clients: int, num_examples: int, batch: int
) -> Callable[[], object]:
  """Returns a round of stock FedAvg on random examples."""
  shape = network.input_shape[1:]
  model = tff.learning.models.functional_model_from_keras(
    network,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    (
      tf.TensorSpec([None, *shape], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model,
    tff.learning.optimizers.build_sgdm(_RATE),
    tff.learning.optimizers.build_sgdm(1.0),
  )
  generator = np.random.default_rng(0)
  datasets = [
    tf.data.Dataset.from_tensor_slices(
      (
        generator.random((num_examples, *shape), np.float32),
        generator.integers(0, 10, num_examples, np.int32),
      )
    ).batch(batch)
    for _ in range(num_clients)
  ]
  state = process.initialize()
  return lambda: process.next(state, datasets)


def _build_stock_cnn() -> Callable[[], object]:
  layers = tf.keras.layers
  network = tf.keras.Sequential(
    [
      layers.InputLayer(_IMAGE),
      layers.Conv2D(32, 3, 1, "same", activation="relu"),
      layers.Conv2D(32, 3, 2, "same", activation="relu"),
      layers.Conv2D(64, 3, 2, "same", activation="relu"),
      layers.Conv2D(64, 3, 1, "same", activation="relu"),
      layers.GlobalAveragePooling2D(),
      layers.Dense(64, activation="relu"),
      layers.Dense(10),
    ]
  )
  return _build_stock(network, 10, _BATCH * _STEPS, _BATCH)


def _dense_network() -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer((64,)),
      tf.keras.layers.Dense(64, activation="relu"),
      tf.keras.layers.Dense(10),
    ]
  )


def _build_large_state() -> Callable[[], object]:
  size = 1_000_000
  state_type = tff.FederatedType((np.float32, [size]), tff.CLIENTS)

  @tff.federated_computation(
    state_type, tff.FederatedType(np.float32, tff.SERVER)
  )
  def one_round(states, step):
    update = tff.tensorflow.computation(
      lambda state, step: state + step, ((np.float32, [size]), np.float32)
    )
    new_states = tff.federated_map(
      update, (states, tff.federated_broadcast(step))
    )
    norm = tff.tensorflow.computation(
      lambda state: tf.norm(state), (np.float32, [size])
    )
    return new_states, tff.federated_mean(tff.federated_map(norm, new_states))

  carried = [np.zeros(size, np.float32)] * 20

  def run():
    # States are passed from round to round, as in a driver.
    nonlocal carried
    carried, norm = one_round(carried, 1.0)
    return norm

  return run


_BUILDERS = {
  "cnn": _build_cnn,
  "stock_cnn": _build_stock_cnn,
  "small_clients": lambda: _build_stock(_dense_network(), 100, 64, 16),
  "tiny": lambda: _build_stock(_dense_network(), 8, 32, 16),
  "large_state": _build_large_state,
}


class _PlainCnn:
  """The workload `cnn` in plain TensorFlow, in a separate process."""

  _function = None
  _tensors = None

  @classmethod
  def run(cls) -> float:
    """Runs a round in this process and returns its seconds."""
    if cls._function is None:
      cls._tensors = tf.nest.map_structure(tf.constant, _cnn_data())

      @tf.function
      def one_round(weights, images, labels):
        trained = []
        for client in zip(images, labels, strict=True):
          with tf.control_dependencies(trained[-1] if trained else ()):
            own = list(map(tf.identity, weights))
            trained.append(_train_cnn(own, *client))
        return [
          tf.add_n(parts) / len(images) for parts in zip(*trained, strict=True)
        ]

      cls._function = one_round
    start = time.perf_counter()
    for weight in cls._function(*cls._tensors):
      weight.numpy()
    return time.perf_counter() - start


def build_round(name: str) -> Callable[[], object]:
  """Returns a function that runs a round of a workload in TFF's context."""
  return _BUILDERS[name]()


def time_in_turn(
  name: str,
  managers: Mapping[str, contextlib.AbstractContextManager],
  others: Mapping[str, Callable[[], float]] = types.MappingProxyType({}),
) -> dict[str, list[float]]:
  """Times a workload on several alternating executors.

  Args:
    name: The workload.
    managers: The executors, as `execution.use` returns them.
    others: Functions that run a round by other means and return its seconds.

  Returns:
    The seconds of each repetition, for each executor and each of `others`.
  """

  def timed(context, run):
    with tff.framework.get_context_stack().install(context):
      start = time.perf_counter()
      run()
      return time.perf_counter() - start

  with contextlib.ExitStack() as stack:
    trials = {}
    for label, manager in managers.items():
      context = stack.enter_context(manager)
      # Rebuilt for each executor: a round may have its own state.
      trials[label] = functools.partial(timed, context, build_round(name))
    trials.update(others)
    for run in trials.values():
      for _ in range(_WARM_UP_ROUNDS):
        run()
    seconds = {label: [] for label in trials}
    for _ in range(FLAGS.repetitions):
      for label, run in trials.items():
        gc.collect()
        seconds[label].append(run())
    return seconds


def _compare(name: str) -> None:
  """Times one workload on all executors and prints a line for each."""
  num_threads = FLAGS.num_threads
  managers = {
    "in process": execution.use(
      "in_process", max_concurrent_clients=num_threads
    ),
    "in process, tensors kept": execution.use(
      "in_process", max_concurrent_clients=num_threads, materialize=False
    ),
    "C++ executor": execution.use("local"),
  }
  with contextlib.ExitStack() as stack:
    others = {}
    if name == "cnn":
      process = stack.enter_context(
        concurrent.futures.ProcessPoolExecutor(
          1, multiprocessing.get_context("spawn")
        )
      )
      others["plain TensorFlow"] = lambda: process.submit(
        _PlainCnn.run
      ).result()
    seconds = time_in_turn(name, managers, others)
  base = seconds["in process"]
  for label, each in seconds.items():
    ratio = statistics.median(
      other / own for other, own in zip(each, base, strict=True)
    )
    print(
      f"{name:14} {statistics.median(each):9.4f} s {ratio:7.2f}  {label}",
      flush=True,
    )


def _resident_megabytes() -> float:
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
  return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _watch_memory(name: str) -> None:
  """Prints the resident size, imports and traces over many rounds."""
  with execution.use(
    "in_process", max_concurrent_clients=FLAGS.num_threads
  ) as context:
    run = build_round(name)
    for number in range(1, FLAGS.rounds + 1):
      run()
      if number in (50, FLAGS.rounds):
        print(
          f"{name:14} round {number:4}: {_resident_megabytes():.1f} MB, "
          f"{context.num_imports} imports, {context.num_traces} traces",
          flush=True,
        )


def main(_) -> None:
  """Times the workloads, or watches memory."""
  # TFF logs at each compilation which small graphs it did not optimise.
  logging.set_verbosity(logging.WARNING)
  unknown = set(FLAGS.workloads) - set(_BUILDERS)
  if unknown:
    raise app.UsageError(
      f"--workloads takes {', '.join(_BUILDERS)}; got {', '.join(unknown)}"
    )
  if FLAGS.rounds:
    for name in FLAGS.workloads:
      _watch_memory(name)
    return
  print(f"medians of {FLAGS.repetitions}; ratios to the round in process")
  for name in FLAGS.workloads:
    _compare(name)


if __name__ == "__main__":
  define_flags()
  app.run(main)
