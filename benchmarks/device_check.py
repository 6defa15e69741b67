"""Shows the devices of federated rounds on this machine, and their speed.

  python -m benchmarks.device_check

Prints

*   the devices that TensorFlow sees;
*   the number of heavy operations on each device, from a round with the log of
    TensorFlow's placer;
*   the numbers of operations, GPU kernels and Python calls into TensorFlow in a
    round, from TensorFlow's profiler;
*   the seconds of a round of many small clients in plain TensorFlow, one client
    after the other and all in one batch, on each kind of device;
*   the seconds of a round of stock FedAvg (the workload `stock_cnn` of
    `benchmarks.executor_speed`) in the in-process context, on the CPU alone,
    and on TFF's C++ executor, which has no GPU.

A number is printed only if it was measured. Without a GPU, the CPU's are. What
needs TFF is left out where TFF is not installed: TensorFlow is sufficient, of
any version and Python.
"""

import collections
import contextlib
import importlib
import importlib.util
import operator
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from benchmarks import plain_clients

# The operations that take the time of a round, and those that hold the weights.
_HEAVY_OPERATIONS = (
  "Conv2D",
  "Conv2DBackpropFilter",
  "Conv2DBackpropInput",
  "MatMul",
  "BatchMatMulV2",
  "VarHandleOp",
  "AssignVariableOp",
)
_WARM_UP_ROUNDS = 2
_HAS_TFF = importlib.util.find_spec("tensorflow_federated") is not None


def _in_process(**options: object) -> contextlib.AbstractContextManager:
  from tff_shift import execution

  return execution.use("in_process", **options)


def _chosen_devices() -> dict[str, object]:
  return {
    "server_device": flags.FLAGS.server_device,
    "client_devices": flags.FLAGS.client_devices,
  }


def _plain_round(
  num_clients: int, *, in_one_batch: bool, device: str | None = None
) -> Callable[[], None]:
  """Returns a round in plain TensorFlow; it chooses the device if None."""
  with tf.device(device):
    run = plain_clients.build_round(num_clients, in_one_batch=in_one_batch)
    weights = plain_clients.initial_weights()

  def run_round():
    with tf.device(device):
      for each in run(weights):
        each.numpy()

  return run_round


def _workloads() -> dict[str, Callable[[], Callable[[], object]]]:
  """Returns functions that build a round, by label."""
  found = {
    f"plain TensorFlow, 100 small clients, {label}": (
      lambda batch=batch: _plain_round(100, in_one_batch=batch)
    )
    for label, batch in (("in a loop", False), ("in one batch", True))
  }
  if _HAS_TFF:
    from benchmarks import executor_speed
    from benchmarks import plain_loop

    found |= {
      "stock FedAvg, images": lambda: executor_speed.build_round("stock_cnn"),
      "fed_avg, 100 small clients": lambda: (
        plain_loop.start_fed_avg(100, 4).step
      ),
    }
  return found


def _context() -> contextlib.AbstractContextManager:
  """Returns the context of what TFF runs, on the devices of the flags."""
  if not _HAS_TFF:
    return contextlib.nullcontext()
  return _in_process(**_chosen_devices())


def _run_with_placer_log() -> None:
  tf.debugging.set_log_device_placement(True)
  with _context():
    for label, build in _workloads().items():
      print(f"\nworkload {label}", flush=True)
      build()()


def _print_placement() -> None:
  """Prints on which devices a child process placed the heavy operations."""
  # The log is a setting of the whole process, and is slow.
  command = [sys.executable, "-m", "benchmarks.device_check", "--place_only"]
  if flags.FLAGS.server_device:
    command.append(f"--server_device={flags.FLAGS.server_device}")
  if flags.FLAGS.client_devices:
    command.append(f"--client_devices={','.join(flags.FLAGS.client_devices)}")
  log = subprocess.run(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    check=True,
  ).stdout
  _, *parts = re.split(r"^workload (.*)$", log, flags=re.MULTILINE)
  for label, part in zip(parts[::2], parts[1::2], strict=True):
    placed = collections.Counter(
      # The placer prints a line "name: (operation): device" for each node.
      re.findall(r"^\S+: \((\w+)\): /\S*device:(\w+:\d+)$", part, re.MULTILINE)
    )
    listed = ", ".join(
      f"{name} {device} {count} times"
      for (name, device), count in sorted(placed.items())
      if name in _HEAVY_OPERATIONS
    )
    print(f"{label}: {listed or 'the log names no heavy operation'}")


def _profiles() -> Any:
  """Returns the protocol buffer of the profiler's files, if there is one."""
  for package in ("tensorflow.tsl", "tensorflow.core"):
    with contextlib.suppress(ImportError):
      return importlib.import_module(
        f"{package}.profiler.protobuf.xplane_pb2"
      ).XSpace
  return None


def count_events(run_round: Callable[[], object]) -> dict[str, int] | None:
  """Counts the profiler's events of a round by kind.

  Args:
    run_round: Runs the round.

  Returns:
    The counts; None if this TensorFlow does not show them.
  """
  profiles = _profiles()
  if profiles is None:
    return None
  with tempfile.TemporaryDirectory() as folder:
    with tf.profiler.experimental.Profile(folder):
      run_round()
    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    space = profiles.FromString(path.read_bytes())
  counts = collections.Counter()
  for plane in space.planes:
    names = {k: each.name for k, each in plane.event_metadata.items()}
    for line in plane.lines:
      for event in line.events:
        name = names[event.metadata_id]
        if plane.name.startswith("/device:GPU"):
          counts["GPU kernels and copies"] += line.name.startswith("Stream")
        elif name.startswith("TFE_Py_Execute"):
          counts["calls into TensorFlow"] += 1
        elif re.fullmatch(r"[^ ]*:[A-Z]\w*(#.*)?", name):
          counts["operations"] += 1
  return counts


def _print_launches() -> None:
  """Prints the numbers of operations and calls in one round."""
  with _context():
    for label, build in _workloads().items():
      run_round = build()
      run_round()
      counts = count_events(run_round)
      listed = "not measured: this TensorFlow cannot read its profiles"
      if counts is not None:
        listed = ", ".join(f"{v:,} {k}" for k, v in sorted(counts.items()))
      print(f"{label}: {listed}", flush=True)


def compare_loop_and_batch(
  num_clients: int, device: str, repetitions: int
) -> tuple[float, float, float]:
  """Times small clients one after the other and in one batch, in turns.

  Args:
    num_clients: The number of clients.
    device: The device.
    repetitions: The number of turns, after two that are not measured.

  Returns:
    The median seconds of loop and batch, and the median ratio of a turn.
  """
  rounds = [
    _plain_round(num_clients, in_one_batch=batch, device=device)
    for batch in (False, True)
  ]
  turns = []
  for _ in range(_WARM_UP_ROUNDS + repetitions):
    turns.append([])
    for run in rounds:
      start = time.perf_counter()
      run()
      turns[-1].append(time.perf_counter() - start)
  loops, batches = zip(*turns[_WARM_UP_ROUNDS:], strict=True)
  ratios = map(operator.truediv, batches, loops)
  return tuple(map(statistics.median, (loops, batches, ratios)))


def _print_loop_and_batch(repetitions: int) -> None:
  print("| clients | device | loop, s | batch, s | batch / loop |")
  print("| --- | --- | --- | --- | --- |")
  kinds = {each.device_type for each in tf.config.list_logical_devices()}
  for count in map(int, flags.FLAGS.num_clients):
    for kind in sorted(kinds & {"CPU", "GPU"}):
      loop, batch, ratio = compare_loop_and_batch(
        count, f"{kind}:0", repetitions
      )
      print(
        f"| {count:,} | {kind} | {loop:.4f} | {batch:.4f} | {ratio:.4f} |",
        flush=True,
      )


def _print_speed() -> None:
  """Prints the seconds of a round of TFF on alternating executors."""
  from benchmarks import executor_speed
  from tff_shift import execution

  on_cpu = {"server_device": "CPU:0", "client_devices": ["CPU:0"]}
  managers = {
    "in process, CPU": _in_process(materialize=False, **on_cpu),
    "C++ executor": execution.use("local"),
  }
  if tf.config.list_physical_devices("GPU"):
    on_gpu = _in_process(materialize=False, **_chosen_devices())
    managers = {"in process, GPU": on_gpu} | managers
  seconds = executor_speed.time_in_turn("stock_cnn", managers)
  for label, each in seconds.items():
    print(f"{statistics.median(each):8.3f} s  {label}")


def main(_) -> None:
  """Prints devices, placement and speed."""
  logging.set_verbosity(logging.WARNING)
  if flags.FLAGS.place_only:
    _run_with_placer_log()
    return
  tff_version = "not installed: what needs it is left out"
  if _HAS_TFF:
    import tensorflow_federated as tff

    tff_version = tff.__version__
  print(
    f"Python {platform.python_version()}, TensorFlow {tf.__version__}, TFF"
    f" {tff_version}"
  )
  for device in tf.config.list_physical_devices():
    details = tf.config.experimental.get_device_details(device)
    print(f"{device.device_type}: {details.get('device_name', device.name)}")
  print("\nOperations of one client and the server, by device:")
  _print_placement()
  print("\nWhat a round is made of:")
  _print_launches()
  threads = tf.config.threading.get_intra_op_parallelism_threads()
  print(
    "\nMedian of a round of small clients in plain TensorFlow (threads of an"
    f" operation: {threads or 'all'}):"
  )
  _print_loop_and_batch(flags.FLAGS.repetitions)
  if _HAS_TFF:
    print("\nMedian of a round of stock FedAvg (10 clients, 320 images each):")
    _print_speed()


if __name__ == "__main__":
  flags.DEFINE_string(
    "server_device", None, "Where the server's work runs; default: the GPU."
  )
  flags.DEFINE_list(
    "client_devices", None, "Where clients run, in turn; default: every GPU."
  )
  flags.DEFINE_list(
    "num_clients", ["10", "100", "1000"], "Clients of the loop and the batch."
  )
  flags.DEFINE_bool(
    "place_only", False, "Run one round with the placer's log and stop."
  )
  flags.DEFINE_integer("repetitions", 7, "Turns of each.", lower_bound=1)
  app.run(main)
