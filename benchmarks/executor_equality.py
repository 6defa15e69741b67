"""Compares the results of all executors, and the speed of remote workers.

  python -m benchmarks.executor_equality
  python -m benchmarks.executor_equality --algorithms=fed_ade --workloads=
  python -m benchmarks.executor_equality --gpu
  python -m benchmarks.executor_equality --states=FILE.npz
  python -m benchmarks.executor_equality --compare=FILE.npz

The table has the largest difference between an executor and `local`, over all
results of all computations of an algorithm in two rounds. On every executor,
each computation starts from the previous results of `local`, so differences do
not accumulate. Integers and the order of clients must be equal. `bits` says
whether results of two Python workers are those of `in_process`.

Then remote workers alternate with the local executor on the workloads of
`benchmarks.executor_speed`; the last number is the largest resident size of the
workers. All workers share the cores of this machine: the
ratio shows the cost of distributing a round, not the gain of several machines.

With `--gpu`, the default devices are compared with the CPU instead, in process,
again from the CPU's previous results. A computation is repeated on the devices:
`repeated` is the largest difference of the two results, 0 if they have the same
bits. TF32 is off. Without a GPU all differences are 0.

`--states` writes the results after three rounds in process into a file, and
`--compare`, with other releases of TensorFlow, Python or NumPy, says which have
the same bits.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_speed
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.execution import local
from tff_shift.execution.in_process import values
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models.networks import mlp

FLAGS = flags.FLAGS

# Two or three workers get different numbers of five clients.
_NUM_CLIENTS = 5
_NUM_CLASSES = 3
_NUM_EVALUATION_DOMAINS = 4
_NUM_QUERIES = 6
_TOLERANCE = 1e-5
_NUM_COMPARED_ROUNDS = 3
# Few steps, so that a round is short, at rates that change all weights.
_HPARAMS = {
  "batch_size": 4,
  "local_steps": 2,
  "learning_rate": 0.2,
  "smallest_rate": 0.01,
  "eta_min": 0.1,
  "eta_max": 0.3,
  "meta_learning_rate": 0.2,
  # The examples are not images.
  "augmentation": "none",
}


class Call(NamedTuple):
  """A call of a computation and its result.

  Attributes:
    name: The computation's name, with the round if there are several.
    computation: The computation.
    arguments: Its arguments.
    result: Its result.
  """

  name: str
  computation: tff.Computation
  arguments: tuple[Any, ...]
  result: Any


def build(name: str) -> algorithm_lib.FederatedAlgorithm:
  """Builds an algorithm with a small model, for five clients.

  Args:
    name: The algorithm's name.

  Returns:
    The algorithm, built for queries if it can answer them.
  """
  module = algorithms.get(name)
  hparams = module.HParams()
  model = mlp.build((5,), num_classes=_NUM_CLASSES, width=8, head_width=6)
  # Without normalisation these would have nothing to adapt, and refuse.
  if (
    getattr(hparams, "personal_norm", "none") != "none"
    or getattr(hparams, "adapted", None) == "norm"
    or hasattr(hparams, "statistics_of")
  ):
    layers = tf.keras.layers
    model = models.from_keras(
      tf.keras.Sequential(
        [
          layers.Dense(8, activation="relu", input_shape=(5,)),
          # As after training: not the mean of 0 and the variance of 1.
          layers.BatchNormalization(
            moving_mean_initializer=tf.keras.initializers.Constant(0.1),
            moving_variance_initializer=tf.keras.initializers.Constant(0.8),
          ),
          layers.Dense(_NUM_CLASSES),
        ]
      )
    )
  model = guided_model.with_guide(model, num_clients=_NUM_CLIENTS, width=7)
  hparams = dataclasses.replace(
    hparams, **{k: v for k, v in _HPARAMS.items() if hasattr(hparams, k)}
  )
  return algorithms.build(
    module,
    model,
    hparams,
    num_clients=_NUM_CLIENTS,
    num_evaluation_domains=_NUM_EVALUATION_DOMAINS,
    num_queries=_NUM_QUERIES if "guidance" in module.SCENARIOS else None,
  )


def make_data(
  data_type: tff.Type, client: int, purpose: int, domain_sizes: Sequence[int]
) -> Any:
  """Makes random data of a client.

  Args:
    data_type: The type of the clients' data.
    client: The client's id.
    purpose: Different numbers give different data.
    domain_sizes: The number of examples of each domain; a stream has two more
      examples than the first domain.

  Returns:
    The data, in the type's own container.
  """
  kind = data_type.python_container
  shape = data_type.x.shape[1:]
  generator = np.random.default_rng([client, purpose])
  num_examples = sum(domain_sizes)

  def draw(number):
    kind = values.tensor_dtype(data_type.x).as_numpy_dtype
    if np.issubdtype(kind, np.integer):
      return generator.integers(0, 50, (number, *shape), kind)
    return generator.normal(size=(number, *shape)).astype(np.float32)

  fields = {
    "x": draw(num_examples),
    "y": np.arange(num_examples, dtype=np.int32) % _NUM_CLASSES,
    "domain_sizes": np.array(domain_sizes, np.int32),
    "num_examples": np.int32(num_examples),
    "seed": randomness.client_seed(0, client),
    "client_id": np.int32(client),
    "stream_x": draw(domain_sizes[0] + 2),
    "timestep": np.int32(1),
  }
  if "confusion" in kind._fields:
    size = data_type.confusion.shape
    confusion = np.eye(*size) + 0.1 * generator.random(size)
    confusion /= confusion.sum(axis=0)
    fields["confusion"] = confusion.astype(np.float32)
  if "representation" in kind._fields:
    fields["representation"] = generator.normal(
      size=data_type.representation.shape
    ).astype(np.float32)
  return kind(**{name: fields[name] for name in kind._fields})


def run_all(
  algorithm: algorithm_lib.FederatedAlgorithm,
  beside_rounds: Collection[str] = (
    "evaluate_clients",
    "evaluate_each_client",
    "evaluate_server",
    "request",
    "guide",
    "answer",
    "vote",
  ),
  num_rounds: int = 2,
  num_sizes: int = _NUM_CLIENTS,
  num_clients: int = _NUM_CLIENTS,
) -> list[Call]:
  """Calls the computations of an algorithm.

  Args:
    algorithm: The result of `build`.
    beside_rounds: The computations to call after the rounds, if they exist.
    num_rounds: The number of rounds.
    num_sizes: How many different numbers of examples the clients have.
    num_clients: The number of clients.

  Returns:
    The calls, in TFF's current context.
  """
  calls = []

  def call(name, computation, *arguments):
    result = computation(*arguments)
    calls.append(Call(name, computation, arguments, result))
    return result

  signature = algorithm.evaluate_clients.type_signature.parameter
  data, to_predict = (
    [
      make_data(
        kind.member,
        client,
        purpose,
        # Some clients have more examples than others.
        [4 + client % num_sizes] + [5] * (num_domains - 1),
      )
      for client in range(num_clients)
    ]
    for purpose, (kind, num_domains) in enumerate(
      [(signature[2], 3), (signature[3], _NUM_EVALUATION_DOMAINS)]
    )
  )
  state = call("initialize", algorithm.initialize, randomness.server_seed(0))
  states = call(
    "initialize_client",
    algorithm.initialize_client,
    state,
    [each.seed for each in data],
  )
  for round_num in range(num_rounds):
    if "timestep" in data[0]._fields:
      data = [each._replace(timestep=np.int32(round_num + 1)) for each in data]
    for position, phase in enumerate(algorithm.phases):
      name = f"phase {position + 1} of round {round_num + 1}"
      state, states, _ = call(name, phase, state, states, data)
  others = {
    "evaluate_clients": (
      algorithm.evaluate_clients,
      state,
      states,
      data,
      to_predict,
    ),
    "evaluate_each_client": (
      algorithm.evaluate_each_client,
      state,
      states,
      data,
      to_predict,
    ),
    "evaluate_server": (
      algorithm.evaluate_server,
      state,
      data,
      to_predict[1],
    ),
  }
  if algorithm.request is not None:
    (size,) = algorithm.request.type_signature.parameter[1].member.shape
    content = np.linspace(-1, 1, size, dtype=np.float32)
    others["request"] = algorithm.request, state, content
  if algorithm.guidance is not None:
    generator = np.random.default_rng(0)
    queries = generator.normal(size=(_NUM_QUERIES, 5)).astype(np.float32)
    routes = np.arange(_NUM_QUERIES, dtype=np.int32) % _NUM_CLIENTS
    guidance = algorithm.guidance
    prepared = states
    if guidance.prepare is not None:
      prepared = call("prepare", guidance.prepare, state, states, data)
    others |= {
      "guide": (guidance.guide, state, data, queries),
      "answer": (guidance.answer, state, prepared, data, queries, routes),
      "vote": (guidance.vote, state, prepared, data, queries),
    }
  for name, (computation, *arguments) in others.items():
    if name in beside_rounds and computation is not None:
      call(name, computation, *arguments)
  return calls


def largest_difference(found: Any, expected: Any) -> float:
  """Compares two results.

  Args:
    found: A result.
    expected: Another one, in the same containers.

  Returns:
    The largest absolute difference; infinity if an integer, a NaN or a shape
    differs; 0 for results without numbers.
  """
  tf.nest.assert_same_structure(found, expected)
  differences = [0.0]
  for one, other in zip(
    tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
  ):
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
      return np.inf
    if not np.issubdtype(one.dtype, np.floating):
      differences.append(0.0 if np.array_equal(one, other) else np.inf)
    elif not np.array_equal(np.isnan(one), np.isnan(other)):
      return np.inf
    elif one.size:
      differences.append(float(np.nanmax(np.nan_to_num(np.abs(one - other)))))
  return max(differences)


@contextlib.contextmanager
def started_workers(
  num_workers: int, in_python: bool = False
) -> Iterator[list[local.Worker]]:
  """Starts workers on this machine for a `with` block, TFF's or in Python."""
  settings = {}
  if in_python:
    settings["command"] = local.python_worker(num_workers=num_workers)
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(local.Worker.start(**settings))
      for _ in range(num_workers)
    ]


def _use(workers: Sequence[local.Worker]):
  """Returns the executor of workers."""
  return execution.use(
    "remote",
    remote_workers=execution.RemoteWorkers(
      [worker.address for worker in workers]
    ),
  )


def _has_bits(found: Any, expected: Any) -> bool:
  """Returns whether two results have the same bits."""
  return all(
    np.asarray(one).tobytes() == np.asarray(other).tobytes()
    for one, other in zip(
      tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
    )
  )


def _compare_results(names: list[str]) -> bool:
  """Prints the table; returns whether all executors agree."""
  with contextlib.ExitStack() as stack:
    managers = {
      "in_process": execution.use("in_process"),
      "local": execution.use("local"),
    }
    for number in (2, 3):
      workers = stack.enter_context(started_workers(number))
      managers[f"remote, {number}"] = _use(workers)
    managers["Python, 2"] = _use(stack.enter_context(started_workers(2, True)))
    contexts = {}
    for label, manager in managers.items():
      # Computations must not run in a context that happens to be installed.
      contexts[label] = stack.enter_context(manager)
    install = tff.framework.get_context_stack().install
    print(f"{'algorithm':12}" + "".join(f"{each:>22}" for each in contexts))
    worst = 0.0
    for name in names:
      algorithm = build(name)
      with install(contexts["local"]):
        calls = run_all(algorithm)
      cells, results = [], {}
      for label, context in contexts.items():
        with install(context):
          results[label] = [call.computation(*call.arguments) for call in calls]
        differences = {
          call.name: largest_difference(result, call.result)
          for call, result in zip(calls, results[label], strict=True)
        }
        largest = max(differences, key=differences.get)
        value = differences[largest]
        worst = max(worst, value)
        cells.append(f"{value:.1e} {largest[:12]}" if value else "0")
      is_equal = _has_bits(results["Python, 2"], results["in_process"])
      print(
        f"{name:12}"
        + "".join(f"{each:>22}" for each in cells)
        + f"  {len(calls)} calls, bits {'equal' if is_equal else 'differ'}",
        flush=True,
      )
  print(f"largest difference {worst:.1e}, allowed {_TOLERANCE:.0e}")
  return worst <= _TOLERANCE


def _compare_devices(names: list[str]) -> None:
  """Prints a line for each algorithm: the default devices beside the CPU."""
  tf.config.experimental.enable_tensor_float_32_execution(False)
  install = tff.framework.get_context_stack().install
  with (
    execution.use("in_process") as devices,
    execution.use(
      "in_process", server_device="CPU:0", client_devices=["CPU:0"]
    ) as cpu,
  ):
    print(f"{'algorithm':12} {'to CPU':>8} {'repeated':>8}  computation")
    for name in names:
      algorithm = build(name)
      with install(cpu):
        calls = run_all(algorithm)
      to_cpu, repeated = {}, 0.0
      with install(devices):
        for call in calls:
          first, second = (call.computation(*call.arguments) for _ in range(2))
          to_cpu[call.name] = largest_difference(first, call.result)
          repeated = max(repeated, largest_difference(second, first))
      largest = max(to_cpu, key=to_cpu.get)
      print(
        f"{name:12} {to_cpu[largest]:8.1e} {repeated:8.1e}  {largest}",
        flush=True,
      )


def _numbers_of(name: str) -> dict[str, np.ndarray]:
  """Returns the numbers of an algorithm's results by computation and place."""
  with execution.use("in_process"):
    calls = run_all(build(name), num_rounds=_NUM_COMPARED_ROUNDS)
  return {
    f"{name}/{call.name}/{place}": np.asarray(value)
    for call in calls
    for place, value in enumerate(tf.nest.flatten(call.result))
  }


def _write_states(names: list[str], path: str) -> None:
  numbers = {}
  for name in names:
    numbers |= _numbers_of(name)
  np.savez(path, **numbers)


def _compare_states(names: list[str], path: str) -> None:
  """Prints a line for each algorithm: the same bits, or the difference."""
  with np.load(path) as file:
    print(f"{'algorithm':16} {'difference':>10}  computation")
    for name in names:
      differences = {}
      for key, value in _numbers_of(name).items():
        if value.tobytes() != file[key].tobytes():
          differences[key] = largest_difference(value, file[key])
      if not differences:
        print(f"{name:16} {'equal':>10}", flush=True)
        continue
      largest = max(differences, key=differences.get)
      computation = largest.split("/")[1]
      print(
        f"{name:16} {differences[largest]:10.1e}  {computation}", flush=True
      )


def _compare_speed(workloads: list[str]) -> None:
  """Prints the seconds of a round on remote workers and the local executor."""
  print("median seconds per round; median ratio to local in a repetition")
  for name in workloads:
    with contextlib.ExitStack() as stack:
      managers, workers = {"local": execution.use("local")}, {}
      for label, number, in_python in (
        ("remote, 1", 1, False),
        ("remote, 2", 2, False),
        ("Python, 2", 2, True),
      ):
        workers[label] = stack.enter_context(started_workers(number, in_python))
        managers[label] = _use(workers[label])
      seconds = executor_speed.time_in_turn(name, managers)
      megabytes = {
        label: max(
          psutil.Process(worker.pid).memory_info().rss for worker in of_kind
        )
        / 1e6
        for label, of_kind in workers.items()
      }
    for label, each in seconds.items():
      ratio = statistics.median(
        own / other for own, other in zip(each, seconds["local"], strict=True)
      )
      print(
        f"{name:14} {label:10} {statistics.median(each):9.4f} s {ratio:7.2f}"
        + (f" {megabytes[label]:6.0f} MB" if label in megabytes else ""),
        flush=True,
      )


def main(_) -> None:
  """Compares results, then speed."""
  # TFF logs at each compilation which small graphs it did not optimise.
  logging.set_verbosity(logging.WARNING)
  names = FLAGS.algorithms or algorithms.names()
  if FLAGS.gpu:
    _compare_devices(names)
    return
  if FLAGS.states:
    _write_states(names, FLAGS.states)
    return
  if FLAGS.compare:
    _compare_states(names, FLAGS.compare)
    return
  if names != ["none"] and not _compare_results(names):
    raise SystemExit(1)
  _compare_speed([name for name in FLAGS.workloads if name])


if __name__ == "__main__":
  executor_speed.define_flags()
  flags.DEFINE_list(
    "algorithms",
    [],
    "Algorithms to compare, comma-separated. Default: all; none: none.",
  )
  flags.DEFINE_bool("gpu", False, "Compare the default devices with the CPU.")
  flags.DEFINE_string("states", None, "File for the results of three rounds.")
  flags.DEFINE_string("compare", None, "File of --states to compare with.")
  FLAGS.set_default("workloads", ["cnn", "tiny", "large_state"])
  app.run(main)
