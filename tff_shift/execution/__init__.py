"""Where TensorFlow Federated computations run.

    from tff_shift import execution

    with execution.use("auto"):
      state = process.initialize()
      result = process.next(state, client_data)

Importing this package is cheap; TensorFlow Federated is imported by `use`.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_shift import arguments
from tff_shift.execution.errors import WorkerError
from tff_shift.execution.remote_workers import ON_WORKER_FAILURE
from tff_shift.execution.remote_workers import RemoteWorkers

if TYPE_CHECKING:
  import tensorflow_federated as tff

__all__ = [
  "EXECUTORS",
  "MOST_BYTES_SENT",
  "ON_WORKER_FAILURE",
  "RemoteWorkers",
  "WorkerError",
  "check_bytes_sent",
  "use",
]

# What `use` accepts; the values of the binaries' flag `--executor`.
EXECUTORS = ("auto", "in_process", "local", "remote")

# Of what is sent to another process with every call, such as frozen weights.
MOST_BYTES_SENT = 256 * 2**20


@atexit.register
def _let_default_context_go() -> None:
  """Replaces TFF's default context while the interpreter is still whole.

  Its end is a `__del__` that needs modules of Python; at the very end of the
  process these are gone, and every program that has imported TFF and never used
  the default context would end with the traceback of an AttributeError.
  """
  tff = sys.modules.get("tensorflow_federated")
  if tff is not None:
    tff.framework.set_default_context(tff.test.create_runtime_error_context())


def check_bytes_sent(executor: str, num_bytes: int) -> None:
  """Refuses weights that are too large to be sent with every call.

  In process they are passed on without a copy, whatever their size.

  Args:
    executor: One of `EXECUTORS`.
    num_bytes: Of the frozen weights of a model.

  Raises:
    ValueError: If another process would be sent more than `MOST_BYTES_SENT`.
  """
  if executor in ("local", "remote") and num_bytes > MOST_BYTES_SENT:
    raise ValueError(
      f"the executor {executor} would be sent the model's frozen weights,"
      f" {num_bytes / 2**20:.0f} MiB, with every call, and takes at most"
      f" {MOST_BYTES_SENT // 2**20} MiB; use the executor in_process"
    )


def use(
  executor: str = "auto",
  *,
  max_concurrent_clients: int | None = None,
  server_device: str | None = None,
  client_devices: Sequence[str] | None = None,
  default_num_clients: int = 0,
  materialize: bool = True,
  remote_workers: RemoteWorkers | None = None,
) -> contextlib.AbstractContextManager[tff.framework.SyncContext]:
  """Returns a context manager that runs the TFF computations of its block.

  Args:
    executor: `in_process` runs them with the TensorFlow of this process, on a
      GPU if there is one; `local` on TFF's C++ worker, a child process without
      GPU; `remote` on TFF's workers on other machines, clients dealt out over
      them; `auto` is `in_process`.
    max_concurrent_clients: How many clients run side by side. By default as
      many as there are CPU cores (`in_process`), or all of a round (`local`).
      Workers of `remote` are told when they are started.
    server_device: For `in_process`: where the server's work runs, e.g. `GPU:0`;
      by default the first GPU, or else the CPU.
    client_devices: For `in_process`: where the clients' work runs, dealt out in
      turn; by default every GPU, or else the CPU.
    default_num_clients: The number of clients where the arguments of a
      computation do not tell it.
    materialize: For `in_process`: whether results are NumPy values (as with
      `local`) or stay tensors on their device, which spares a driver that
      carries a state from round to round the conversion in both directions;
      `in_process.to_numpy` then makes NumPy values of them.
    remote_workers: For `remote`, which must have it: the workers.

  Returns:
    A context manager; entering it makes the context TFF's current one, for
    this thread, and leaving it brings back the former one.

  Raises:
    ValueError: If `executor` is not one of `EXECUTORS`, a setting is given that
      it does not have, or a value is out of range.
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
        "max_concurrent_clients is a setting of the remote workers: they are"
        " told when they are started"
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
  )
