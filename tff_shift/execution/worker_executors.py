"""TFF executors on a worker at the other end of a gRPC channel."""

import contextlib
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow_federated as tff

from tff_shift.execution import errors

# For channels to a worker.
CHANNEL_OPTIONS = [
  # Model weights and client data exceed gRPC's default of 4 MB.
  ("grpc.max_receive_message_length", -1),
  ("grpc.max_send_message_length", -1),
  # gRPC would use the proxy of `http_proxy` even for this machine.
  ("grpc.enable_http_proxy", 0),
]


# Disposed values may be gone, and the channel closed (a ValueError): such an
# error would come from a finalizer, at any time, and is irrelevant.
_NOT_WORTH_A_WORD = (grpc.RpcError, errors.WorkerError, ValueError)


class UnreadableResultError(ValueError):
  """A worker's result is not a value of its declared type."""


class _WorkerStub(tff.framework.RemoteExecutorGrpcStub):
  """Sends the requests of an executor to a worker."""

  def __init__(self, channel: grpc.Channel):
    # TFF's stub would watch the channel's readiness, which is known anyway: a
    # thread of gRPC would poll it five times a second and keep it alive after
    # the end of the context.
    channel.subscribe = lambda callback, try_to_connect=False: None
    super().__init__(channel)

  def dispose(self, request):
    with contextlib.suppress(*_NOT_WORTH_A_WORD):
      return super().dispose(request)

  def dispose_executor(self, request):
    with contextlib.suppress(*_NOT_WORTH_A_WORD):
      return super().dispose_executor(request)


class _WorkerExecutor(tff.framework.RemoteExecutor):
  """Validates a worker's results."""

  def __init__(self, stub: _WorkerStub, num_clients: int):
    super().__init__(stub)
    self._num_clients = num_clients

  async def _compute(self, value_ref, type_spec):
    try:
      value = await super()._compute(value_ref, type_spec)
      _check(value, type_spec, self._num_clients)
    except (grpc.RpcError, errors.WorkerError):
      raise
    except Exception as error:
      raise UnreadableResultError(str(error)) from error
    return value


def _check(value: Any, type_spec: tff.Type, num_clients: int) -> None:
  """Raises a `ValueError` if a result is not of its type: TFF trusts it."""
  if isinstance(type_spec, tff.StructType):
    for position, (_, element) in enumerate(
      tff.structure.iter_elements(type_spec)
    ):
      _check(value[position], element, num_clients)
  elif isinstance(type_spec, tff.FederatedType):
    members = [value]
    if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
      members = value
      if len(members) != num_clients:
        raise ValueError(f"{len(members)} clients instead of {num_clients}")
    for member in members:
      _check(member, type_spec.member, num_clients)
  elif isinstance(type_spec, tff.TensorType) and type_spec.dtype.kind != "U":
    found = np.asarray(value)
    expected = type_spec.shape
    if found.dtype != type_spec.dtype or not (
      expected is None
      or (
        len(expected) == found.ndim and all(map(_agree, expected, found.shape))
      )
    ):
      raise ValueError(f"{found.dtype}{list(found.shape)}, not {type_spec}")


def _agree(expected: int | None, found: int) -> bool:
  return expected is None or expected == found


class WorkerExecutorFactory(tff.framework.ResourceManagingExecutorFactory):
  """Makes the executors that send the parts of a computation to a worker.

  TFF repeats an invocation for ever when the connection is lost, and requests
  an executor each time. The check in `create_executor` turns a dead worker into
  an error.
  """

  def __init__(
    self,
    channel: grpc.Channel,
    check_running: Callable[[], None],
    default_num_clients: int,
  ):
    """Makes a factory.

    Args:
      channel: The channel to the worker, see `CHANNEL_OPTIONS`.
      check_running: Raises an error if the worker cannot be used.
      default_num_clients: The number of clients if the arguments of a
        computation do not determine it.
    """
    super().__init__(self._connected_executor)
    self._stub = _WorkerStub(channel)
    self._check_running = check_running
    self._default_num_clients = default_num_clients
    self._made = weakref.WeakSet()

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Returns an executor for a number of clients, if the worker is usable."""
    self._check_running()
    return super().create_executor(cardinalities)

  def close(self) -> None:
    """Makes the worker release the executors and all values."""
    for executor in list(self._made):
      executor.close()

  def _connected_executor(
    self, cardinalities: Mapping[tff.framework.PlacementLiteral, int]
  ) -> tff.framework.RemoteExecutor:
    cardinalities = {tff.CLIENTS: self._default_num_clients, **cardinalities}
    executor = _WorkerExecutor(self._stub, cardinalities[tff.CLIENTS])
    executor.set_cardinalities(cardinalities)
    self._made.add(executor)
    return executor
