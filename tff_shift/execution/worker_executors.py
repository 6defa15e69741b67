"""TFF executors on a worker at the other end of a gRPC channel."""

import contextlib
import weakref
from collections.abc import Callable
from collections.abc import Mapping

import grpc
import tensorflow_federated as tff

# For channels that lead to a worker.
CHANNEL_OPTIONS = [
  # Model weights and client data exceed gRPC's default of 4 MB.
  ("grpc.max_receive_message_length", -1),
  ("grpc.max_send_message_length", -1),
  # gRPC would ask the proxy named in `http_proxy` even for this machine.
  ("grpc.enable_http_proxy", 0),
]


class _WorkerStub(tff.framework.RemoteExecutorGrpcStub):
  """Sends the requests of an executor to a worker."""

  def __init__(self, channel: grpc.Channel):
    # TFF's stub would watch the channel to tell whether it is ready, which is
    # known without: a thread of gRPC would poll it five times a second, and
    # would keep it and go on when the context has long ended.
    channel.subscribe = lambda callback, try_to_connect=False: None
    super().__init__(channel)

  # What is disposed of may be gone, and the channel closed (a ValueError): the
  # error would come from a finalizer, at any time, and interest nobody.

  def dispose(self, request):
    with contextlib.suppress(grpc.RpcError, ValueError):
      return super().dispose(request)

  def dispose_executor(self, request):
    with contextlib.suppress(grpc.RpcError, ValueError):
      return super().dispose_executor(request)


class WorkerExecutorFactory(tff.framework.ResourceManagingExecutorFactory):
  """Makes the executors that send the parts of a computation to a worker.

  TFF repeats an invocation for ever when the connection is lost, and asks for
  an executor each time. The check there turns a dead worker into an error.
  """

  def __init__(
    self,
    channel: grpc.Channel,
    check_running: Callable[[], None],
    default_num_clients: int,
  ):
    """Makes a factory.

    Args:
      channel: Leads to the worker, see `CHANNEL_OPTIONS`.
      check_running: Raises an error if the worker cannot be used.
      default_num_clients: The number of clients where the arguments of a
        computation do not tell it.
    """
    super().__init__(self._connected_executor)
    self._stub = _WorkerStub(channel)
    self._check_running = check_running
    self._default_num_clients = default_num_clients
    self._made = weakref.WeakSet()

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Returns an executor for so many clients, if the worker can be used."""
    self._check_running()
    return super().create_executor(cardinalities)

  def close(self) -> None:
    """Tells the worker that the executors, and all values, can be let go."""
    for executor in list(self._made):
      executor.close()

  def _connected_executor(
    self, cardinalities: Mapping[tff.framework.PlacementLiteral, int]
  ) -> tff.framework.RemoteExecutor:
    executor = tff.framework.RemoteExecutor(self._stub)
    executor.set_cardinalities(
      {tff.CLIENTS: self._default_num_clients, **cardinalities}
    )
    self._made.add(executor)
    return executor
