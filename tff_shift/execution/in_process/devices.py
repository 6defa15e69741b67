"""The devices and threads that computations run on in this process."""

import contextlib
import os
from collections.abc import Sequence

import tensorflow as tf

# TensorFlow's only account of the memory of a GPU.
from tensorflow.python.client import device_lib

from tff_shift._util import memory


def choose(
  server_device: str | None, client_devices: Sequence[str] | None
) -> tuple[str, list[str]]:
  """Returns the full names of the devices to use.

  Starts TensorFlow's runtime. If clients run on the CPU and the runtime was not
  started before, each operation is limited to one thread, unless
  `tf.config.threading.set_intra_op_parallelism_threads` was called: concurrent
  clients with one thread each take less time than sequential clients with all
  threads. In this case, TensorFlow also does not fuse a layer's product, bias
  and activation (`remapping`), unless configured otherwise: fused operations
  rearrange weights, which does not pay off for weights that every step changes.

  Args:
    server_device: The device of the server's work, e.g. `GPU:0`; None for the
      first GPU, or the CPU if TensorFlow sees no GPU.
    client_devices: The devices of the clients' work; None for every GPU, or the
      CPU if TensorFlow sees no GPU.

  Returns:
    The server's device, and the clients' devices.

  Raises:
    ValueError: If there is no device of such a name, or no client device.
  """
  gpus = tf.config.list_physical_devices("GPU")
  for gpu in gpus:
    # Allocating all memory at once would leave none to other processes. The
    # setting cannot be changed once the runtime has started.
    with contextlib.suppress(RuntimeError):
      tf.config.experimental.set_memory_growth(gpu, True)
  if client_devices is None:
    on_cpu = not gpus
  else:
    on_cpu = all("CPU" in device.upper() for device in client_devices)
  if on_cpu and not tf.config.threading.get_intra_op_parallelism_threads():
    with contextlib.suppress(RuntimeError):
      tf.config.threading.set_intra_op_parallelism_threads(1)
  if (
    on_cpu and "remapping" not in tf.config.optimizer.get_experimental_options()
  ):
    tf.config.optimizer.set_experimental_options({"remapping": False})

  default_devices = [
    device.name for device in tf.config.list_logical_devices("GPU")
  ] or ["CPU:0"]
  if server_device is None:
    server_device = default_devices[0]
  if client_devices is None:
    client_devices = default_devices
  if not client_devices:
    raise ValueError("client_devices must name at least one device; got none")
  return _full_name(server_device), [
    _full_name(device) for device in client_devices
  ]


def default_num_threads(client_devices: Sequence[str]) -> int:
  """Returns the default number of concurrent clients."""
  if all("CPU" in device for device in client_devices):
    return num_cores()
  # One client keeps a GPU busy while another one waits for the host.
  return 2 * len(client_devices)


def num_cores() -> int:
  """Returns the number of cores that this process may use."""
  # macOS has no such limit.
  if not hasattr(os, "sched_getaffinity"):
    return os.cpu_count() or 1
  return len(os.sched_getaffinity(0))


def memory_of(device: str) -> int:
  """Returns the memory in bytes that clients on a device may take."""
  if "CPU" in device:
    return memory.limit() // 2
  # Without what other processes had taken when the runtime started. A part of
  # a GPU, as configured by the caller, is not listed.
  limits = {
    listed.name: listed.memory_limit
    for listed in device_lib.list_local_devices()
    if listed.device_type != "CPU"
  }
  place = device[device.index("/device:") :]
  return limits.get(place, min(limits.values())) * 3 // 4


def _full_name(device: str) -> str:
  """Returns a device's name as TensorFlow lists it."""
  available = [each.name for each in tf.config.list_logical_devices()]
  try:
    name = tf.DeviceSpec.from_string(device).to_string()
  except ValueError:
    name = device
  if name not in available:
    raise ValueError(
      f"a device must be one of {', '.join(available)}; got {device!r}"
    )
  return name
