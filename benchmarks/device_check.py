"""Shows the devices of TFF computations on this machine, and their speed.

  python -m benchmarks.device_check

Runs stock TFF FedAvg with a convolutional network (the workload `stock_cnn` of
`benchmarks.executor_speed`) in the in-process context, and prints

*   the devices that TensorFlow sees;
*   the number of heavy operations on each device, from a round with the log of
    TensorFlow's placer;
*   the numbers of operations, GPU kernels and Python calls into TensorFlow in a
    round, from TensorFlow's profiler;
*   the seconds of a round on those devices, on the CPU alone, and on TFF's C++
    executor, which has no GPU.

Without a GPU it shows the CPU.
"""

import collections
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags
from absl import logging
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import executor_speed
from benchmarks import plain_loop
from tff_shift import execution

_SERVER_DEVICE = flags.DEFINE_string(
  "server_device", None, "Where the server's work runs; default: the GPU."
)
_CLIENT_DEVICES = flags.DEFINE_list(
  "client_devices", None, "Where clients run, in turn; default: every GPU."
)
_PLACE_ONLY = flags.DEFINE_bool(
  "place_only", False, "Run one round with the placer's log and stop."
)

# The operations that take the time of a round, and those that hold the weights.
_HEAVY_OPERATIONS = (
  "Conv2D",
  "Conv2DBackpropFilter",
  "Conv2DBackpropInput",
  "MatMul",
  "VarHandleOp",
  "AssignVariableOp",
)


def _in_process(**devices: object) -> tff.framework.SyncContext:
  return execution.use("in_process", materialize=False, **devices)


def _chosen_devices() -> dict[str, object]:
  return {
    "server_device": _SERVER_DEVICE.value,
    "client_devices": _CLIENT_DEVICES.value,
  }


def _run_with_placer_log() -> None:
  tf.debugging.set_log_device_placement(True)
  with _in_process(**_chosen_devices()):
    executor_speed.build_round("stock_cnn")()


def _print_placement() -> None:
  """Prints on which devices a child process placed the heavy operations."""
  # The log is a setting of the whole process, and is slow.
  command = [sys.executable, "-m", "benchmarks.device_check", "--place_only"]
  if _SERVER_DEVICE.value:
    command.append(f"--server_device={_SERVER_DEVICE.value}")
  if _CLIENT_DEVICES.value:
    command.append(f"--client_devices={','.join(_CLIENT_DEVICES.value)}")
  log = subprocess.run(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    check=True,
  ).stdout
  placed = collections.Counter(
    # The placer prints a line "name: (operation): device" for each node.
    re.findall(r"^\S+: \((\w+)\): /\S*device:(\w+:\d+)$", log, re.MULTILINE)
  )
  for operation in _HEAVY_OPERATIONS:
    devices = ", ".join(
      f"{device} {count} times"
      for (name, device), count in sorted(placed.items())
      if name == operation
    )
    print(f"{operation:22} {devices or 'nowhere'}")


def _count_events(folder: pathlib.Path) -> collections.Counter:
  """Counts the profiler's events by kind."""
  (path,) = folder.rglob("*.xplane.pb")
  space = xplane_pb2.XSpace.FromString(path.read_bytes())
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
  workloads = {
    "stock FedAvg, images": lambda: executor_speed.build_round("stock_cnn"),
    "fed_avg, 100 small clients": lambda: plain_loop.start_fed_avg(100, 4).step,
  }
  with execution.use("in_process", **_chosen_devices()):
    for label, build in workloads.items():
      run_round = build()
      run_round()
      with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
          run_round()
        counts = _count_events(pathlib.Path(folder))
      listed = ", ".join(f"{v} {k}" for k, v in sorted(counts.items()))
      print(f"{label:28} {listed}", flush=True)


def _print_speed() -> None:
  """Prints the seconds of a round on alternating executors."""
  managers = {
    "in process, devices as above": _in_process(**_chosen_devices()),
    "in process, CPU": _in_process(
      server_device="CPU:0", client_devices=["CPU:0"]
    ),
    "C++ executor": execution.use("local"),
  }
  seconds = executor_speed.time_in_turn("stock_cnn", managers)
  for label, each in seconds.items():
    print(f"{statistics.median(each):8.3f} s  {label}")


def main(_) -> None:
  """Prints devices, placement and speed."""
  logging.set_verbosity(logging.WARNING)
  if _PLACE_ONLY.value:
    _run_with_placer_log()
    return
  print(f"TensorFlow {tf.__version__}, TFF {tff.__version__}")
  for device in tf.config.list_physical_devices():
    details = tf.config.experimental.get_device_details(device)
    print(f"{device.device_type}: {details.get('device_name', device.name)}")
  print("\nOperations of one client and the server, by device:")
  _print_placement()
  print("\nWhat a round is made of:")
  _print_launches()
  print("\nMedian of a round (10 clients, 320 images each):", flush=True)
  _print_speed()


if __name__ == "__main__":
  executor_speed.define_flags()
  app.run(main)
