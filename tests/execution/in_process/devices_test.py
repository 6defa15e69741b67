"""Tests of where operations run."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tff_shift.execution.in_process import devices

ROOT = Path(__file__).parents[3]
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

PLACEMENT_SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
tf.debugging.set_log_device_placement(True)
tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices("CPU")[0],
  [tf.config.LogicalDeviceConfiguration()] * 3,
)
import tensorflow_federated as tff
from tff_shift.execution import in_process

# Before any computation: defining one may start TensorFlow's runtime.
context = in_process.in_process_context("CPU:0", ["CPU:1", "CPU:2"])

@tff.tensorflow.computation(
  (np.float32, [2, 2]), tff.SequenceType((np.float32, [None, 2]))
)
def client_work(weights, batches):
  total = tf.Variable(tf.zeros([2, 2]))
  def step(state, batch):
    total.assign_add(tf.matmul(batch, batch @ weights, transpose_a=True))
    return state + 1
  with tf.control_dependencies([batches.reduce(0, step)]):
    return tf.linalg.inv(total.read_value() + tf.eye(2))

@tff.federated_computation(
  tff.FederatedType((np.float32, [2, 2]), tff.SERVER),
  tff.FederatedType(tff.SequenceType((np.float32, [None, 2])), tff.CLIENTS),
)
def one_round(weights, data):
  results = tff.federated_map(
    client_work, (tff.federated_broadcast(weights), data)
  )
  server_work = tff.tensorflow.computation(lambda x: tf.linalg.det(x))
  return tff.federated_map(server_work, tff.federated_sum(results))

datasets = [
  tf.data.Dataset.from_tensor_slices(np.eye(2, dtype=np.float32)).batch(1)
] * 3
with context:
  # Each client: (I + I)^-1 = I / 2. The sum is 1.5 I, with determinant 2.25.
  print("RESULT", one_round(np.eye(2, dtype=np.float32), datasets))
  print("IMPORTS", context.num_imports)
print("THREADS", tf.config.threading.get_intra_op_parallelism_threads())
print("OPTIONS", tf.config.optimizer.get_experimental_options())
"""


BATCHES_SCRIPT = """
import numpy as np
import tensorflow as tf
tf.debugging.set_log_device_placement(True)
tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices("CPU")[0],
  [tf.config.LogicalDeviceConfiguration()] * 3,
)
import tensorflow_federated as tff
from tff_shift.execution import in_process

CPUS = ["CPU:0", "CPU:1", "CPU:2"]
contexts = [
  in_process.in_process_context(
    "CPU:0", devices, batch_clients=True, clients_per_batch=most
  )
  for devices, most in ((CPUS[1:], 0), (CPUS, 2), (CPUS[:1], 2))
]

@tff.tensorflow.computation((np.float32, [None]))
def client_work(values):
  return tf.linalg.norm(values)

@tff.federated_computation(
  tff.FederatedType((np.float32, [None]), tff.CLIENTS)
)
def norms(values):
  result = tff.federated_map(client_work, values)
  return result, tff.federated_mean(result), tff.federated_max(result)

values = [np.full(n, 2, np.float32) for n in (1, 4, 4, 9, 4, 9, 0)]
for context in contexts:
  with context:
    result, mean, largest = norms(values)
  assert result == [2, 4, 4, 6, 4, 6, 0], result
  np.testing.assert_allclose(mean, 26 / 7)
  assert largest == 6
  assert context.forms == {"norms": "batch"}
  print("DONE", flush=True)
"""


def test_what_the_caller_said_of_remapping_stays():
  options = tf.config.optimizer
  former = options.get_experimental_options().get("remapping", False)
  options.set_experimental_options({"remapping": True})
  try:
    devices.choose("CPU:0", ["CPU:0"])
    assert options.get_experimental_options()["remapping"]
  finally:
    options.set_experimental_options({"remapping": former})


@pytest.mark.parametrize(
  "given, expected", [({}, "true"), ({_GROWTH: "false"}, "false")]
)
def test_tensorflow_is_not_to_reserve_a_whole_gpu(given, expected):
  # Models are built before a context exists, and start TensorFlow's runtime.
  program = (
    "import os, sys; import tff_shift;"
    f" print(os.environ[{_GROWTH!r}], 'tensorflow' in sys.modules)"
  )
  others = {k: v for k, v in os.environ.items() if k != _GROWTH}
  finished = subprocess.run(
    [sys.executable, "-c", program],
    cwd=ROOT,
    env=others | given,
    capture_output=True,
    text=True,
    check=True,
  )
  assert finished.stdout.split() == [expected, "False"]


def placements(output):
  """Returns the devices of each operation, as the placer prints them."""
  found = collections.defaultdict(set)
  for operation, device in re.findall(
    # The node's name, operation and device.
    r"^\S+: \((\w+)\): /job:localhost.*/device:(CPU:\d)$",
    output,
    re.MULTILINE,
  ):
    found[operation].add(device)
  return found


def printed(script):
  """Returns what a script prints: devices are settled once for a process."""
  finished = subprocess.run(
    [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
  )
  assert finished.returncode == 0, finished.stderr[-2000:]
  return finished.stdout


@pytest.mark.slow
def test_each_device_has_batches_of_its_own():
  first, second, third, _ = printed(BATCHES_SCRIPT).split("DONE")
  assert placements(first)["Sqrt"] == {"CPU:1", "CPU:2"}
  assert placements(second)["Sqrt"] == {"CPU:0", "CPU:1", "CPU:2"}
  assert placements(third)["Sqrt"] == {"CPU:0"}


@pytest.mark.long
def test_placer_puts_each_operation_where_it_was_asked_for():
  output = printed(PLACEMENT_SCRIPT)
  assert "RESULT 2.25" in output
  # Client work on two devices; zero, addition and determinant on the server.
  assert "IMPORTS 5" in output
  # Clients side by side leave one thread to each operation.
  assert "THREADS 1" in output
  assert "'remapping': False" in output
  found = placements(output)
  for operation in (
    *("MatMul", "MatrixInverse", "VarHandleOp", "AssignAddVariableOp"),
    "ReadVariableOp",
  ):
    assert found[operation] == {"CPU:1", "CPU:2"}, operation
  assert found["MatrixDeterminant"] == {"CPU:0"}
  assert found["IteratorGetNextAsOptional"] == {"CPU:0"}
