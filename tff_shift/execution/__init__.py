"""Execution contexts for TensorFlow Federated computations.

Importing this package is cheap; TensorFlow Federated is imported by `use`.

Examples:
  >>> import tensorflow_federated as tff
  >>> @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  ... def total(values):
  ...   return tff.federated_sum(values)
  >>> with ts.execution.use("in_process"):
  ...   print(int(total([1, 2, 3])))
  6
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_shift._util import arguments
from tff_shift.execution.errors import NotBatchedError
from tff_shift.execution.errors import WorkerError
from tff_shift.execution.remote_workers import ON_WORKER_FAILURE
from tff_shift.execution.remote_workers import RemoteWorkers

if TYPE_CHECKING:
  import tensorflow_federated as tff

__all__ = [
  "EXECUTORS",
  "MOST_BYTES_SENT",
  "ON_WORKER_FAILURE",
  "NotBatchedError",
  "RemoteWorkers",
  "WorkerError",
  "batch_memory",
  "check_bytes_sent",
  "keep_batch_memory",
  "use",
]

# The values of `use` and of the binaries' flag `--executor`.
EXECUTORS = ("auto", "in_process", "local", "remote")

# Limit for data that every call sends to another process (frozen weights).
MOST_BYTES_SENT = 256 * 2**20


def check_bytes_sent(executor: str, num_bytes: int) -> None:
  """Refuses weights that are too large to be sent with every call.

  The executor in_process passes them without a copy, at any size.

  Args:
    executor: One of `EXECUTORS`.
    num_bytes: The size of the model's frozen weights.

  Raises:
    ValueError: If more than `MOST_BYTES_SENT` would be sent to another process.
  """
  if executor in ("local", "remote") and num_bytes > MOST_BYTES_SENT:
    raise ValueError(
      f"the executor {executor} would be sent the model's frozen weights,"
      f" {num_bytes / 2**20:.0f} MiB, with every call, and takes at most"
      f" {MOST_BYTES_SENT // 2**20} MiB; use the executor in_process"
    )


def batch_memory() -> int | None:
  """Returns the memory of the batches of the current context, in bytes.

  It determines the number of clients of a batch, and thereby the last bits of
  results. None: its clients do not run in batches.
  """
  return getattr(_current_context(), "batch_memory", None)


def keep_batch_memory(value: int | None) -> None:
  """Lets the current context run batches as an earlier one did.

  Args:
    value: Its `batch_memory`.
  """
  context = _current_context()
  if hasattr(context, "batch_memory"):
    context.batch_memory = value


def batch_convolutions() -> str | None:
  """Returns how the clients of the current context's batches convolve float32.

  It determines last bits, and follows from devices and from oneDNN: `groups` or
  `patches`, see `in_process.convolutions`. None: there are no batches.
  """
  return getattr(_current_context(), "batch_convolutions", None)


def _current_context() -> tff.framework.SyncContext:
  import tensorflow_federated as tff

  return tff.framework.get_context_stack().current


def use(
  executor: str = "auto",
  *,
  max_concurrent_clients: int | None = None,
  server_device: str | None = None,
  client_devices: Sequence[str] | None = None,
  default_num_clients: int = 0,
  materialize: bool = True,
  batch_clients: bool | str = "auto",
  clients_per_batch: int = 0,
  compile_clients: bool = False,
  remote_workers: RemoteWorkers | None = None,
) -> contextlib.AbstractContextManager[tff.framework.SyncContext]:
  """Returns a context manager that runs the TFF computations of its block.

  Args:
    executor: `in_process` runs them with the TensorFlow of this process, on a
      GPU if there is one; `local` on TFF's C++ worker, a child process without
      GPU; `remote` on TFF's workers on other machines, which share the clients;
      `auto` is `in_process`.
    max_concurrent_clients: The number of clients that run concurrently. By
      default the number of CPU cores (`in_process`), or all clients of a round
      (`local`). For `remote`, set it when workers are started.
    server_device: For `in_process`: the device of the server's work, e.g.
      `GPU:0`; by default the first GPU, or the CPU.
    client_devices: For `in_process`: the devices of the clients' work, assigned
      in turn; by default every GPU, or the CPU.
    default_num_clients: The number of clients if the arguments of a computation
      do not determine it.
    materialize: For `in_process`: whether results are NumPy values (as with
      `local`) or stay tensors on their device. The latter avoids conversions in
      drivers that carry a state from round to round; `in_process.to_numpy`
      converts them to NumPy values.
    batch_clients: For `in_process`: whether clients run in batches, each
      operation once for many clients. `"auto"`: on GPUs, where this takes far
      less time. Results are those of the other forms up to rounding.
      `context.forms` tells which computation took which form; what cannot run
      in batches is said in the log, or is an error (True).
    clients_per_batch: For `in_process`: the number of clients of a batch at
      most; 0: the largest power of two whose work fits in memory.
    compile_clients: For `in_process`: whether XLA compiles batches, also on a
      CPU. It takes seconds for each new number of clients and of their
      examples; what it cannot compile is said in the log.
    remote_workers: The workers, required for `remote`.

  Returns:
    A context manager; entering it makes the context TFF's current one in this
    thread, and leaving it restores the former one.

  Raises:
    ValueError: If `executor` is not one of `EXECUTORS`, a setting does not
      apply to it, or a value is out of range.
  """
  arguments.choice("executor", executor, EXECUTORS)
  if max_concurrent_clients is not None and max_concurrent_clients < 1:
    raise ValueError(
      f"max_concurrent_clients must be 1 or more; got {max_concurrent_clients}"
    )
  in_process_settings = {
    "server_device": server_device is not None,
    "client_devices": client_devices is not None,
    "materialize": not materialize,
    "batch_clients": batch_clients != "auto",
    "clients_per_batch": clients_per_batch != 0,
    "compile_clients": compile_clients,
  }
  if executor in ("local", "remote"):
    for name, is_given in in_process_settings.items():
      if is_given:
        raise ValueError(f"{name} is a setting of the executor in_process")
  if (executor == "remote") != (remote_workers is not None):
    raise ValueError(
      "remote_workers must be given for the executor remote, and for no other"
    )
  if executor == "remote":
    if max_concurrent_clients is not None:
      raise ValueError(
        "max_concurrent_clients is a setting of the remote workers: set it when"
        " they are started"
      )
    from tff_shift.execution import remote

    return remote.remote_context(remote_workers, default_num_clients)
  if executor == "local":
    from tff_shift.execution import local

    return local.local_context(
      -1 if max_concurrent_clients is None else max_concurrent_clients,
      default_num_clients,
    )
  from tff_shift.execution import in_process

  return in_process.in_process_context(
    server_device,
    client_devices,
    max_concurrent_clients,
    default_num_clients=default_num_clients,
    materialize=materialize,
    batch_clients=batch_clients,
    clients_per_batch=clients_per_batch,
    compile_clients=compile_clients,
  )
