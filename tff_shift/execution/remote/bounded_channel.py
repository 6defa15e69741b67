"""A gRPC channel with deadlines and one-line errors."""

import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import message

from tff_shift.execution import errors
from tff_shift.execution import remote_workers
from tff_shift.execution.remote import diagnosis

# Slower connections than this are not supported: 1 MiB per second.
_BYTES_PER_SECOND = 2**20
# The health check of a worker must report first: it knows whether the worker is
# reachable.
_AFTER_THE_WATCH = 2.0

# A request was lost, or reached a restarted worker, which does not have the
# earlier values.
_AGAIN = frozenset(
  {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION}
)

# Requests that last as long as a computation: TFF's worker answers the call of
# an aggregating computation when it is done, otherwise the request for the
# result.
_COMPUTING = frozenset({"CreateCall", "Compute"})


class BoundedChannel:
  """The part of a channel that TFF's stub uses: requests with one answer.

  Each request has a deadline, which TFF's stub does not set: `worker_timeout`,
  plus a second for each MiB sent. (gRPC gives signs of life even if a handler
  hangs.) Requests that compute have `compute_timeout`.

  Attributes:
    computing_since: When the request that computes now was sent; or None.
    seconds_computing: The total time of such requests.
  """

  def __init__(
    self,
    channel: grpc.Channel,
    address: str,
    settings: remote_workers.RemoteWorkers,
    on_lost: Callable[[str], None],
    *,
    is_rehearsal: bool = False,
  ):
    """Makes a channel.

    Args:
      channel: The channel to the worker.
      address: The worker's `host:port`, for messages.
      settings: The timeouts.
      on_lost: Called with the reason when the worker is given up.
      is_rehearsal: Whether calls compute nothing, and have the deadline of
        other requests.
    """
    self._channel = channel
    self._address = address
    self._settings = settings
    self._on_lost = on_lost
    self._is_rehearsal = is_rehearsal
    self._lost: str | None = None
    self.computing_since: float | None = None
    self.seconds_computing = 0.0

  def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
    """Does nothing: the stub need not know when the channel is ready."""

  def unary_unary(
    self,
    method: str,
    request_serializer: Callable[[Any], bytes],
    response_deserializer: Callable[[bytes], Any],
  ) -> Callable[[Any], Any]:
    """Returns a function that sends a request and returns the answer.

    It raises a `WorkerLostError` if the worker does not answer in time, an
    `UnavailableError` if the request may be sent again, and a `WorkerError` if
    the worker refuses it or the answer cannot be read; each of one line.
    """
    # Of bytes: gRPC would log the traceback of an unreadable answer.
    send = self._channel.unary_unary(method)
    name = method.rpartition("/")[2]
    computes = name in _COMPUTING and not self._is_rehearsal

    def request(value):
      if self._lost is not None:
        # Not from a finalizer, whose thread may hold any lock.
        if name != "Dispose":
          self._on_lost(self._lost)
        raise diagnosis.WorkerLostError(self._lost)
      data = request_serializer(value)
      timeout = self._settings.compute_timeout
      if not computes:
        timeout = self._settings.worker_timeout + _AFTER_THE_WATCH
        timeout += len(data) / _BYTES_PER_SECOND
      start = time.monotonic()
      if computes:
        self.computing_since = start
      try:
        answer = send(data, timeout=timeout)
      except grpc.RpcError as error:
        seconds = time.monotonic() - start
        raise self._fault(name, computes, seconds, error) from error
      finally:
        if computes:
          self.computing_since = None
          self.seconds_computing += time.monotonic() - start
      try:
        answer = response_deserializer(answer)
        if not answer.ByteSize() and not name.startswith("Dispose"):
          raise message.DecodeError("an empty answer")
      except message.DecodeError as error:
        raise errors.WorkerError(
          diagnosis.unreadable(self._address, name, str(error))
        ) from error
      return answer

    return request

  def _fault(
    self, name: str, computes: bool, seconds: float, error: grpc.RpcError
  ) -> errors.WorkerError:
    code = error.code()
    if code in _AGAIN:
      return diagnosis.UnavailableError(f"{name}: {diagnosis.status(error)}")
    if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
      return diagnosis.refusal(self._address, name, error, computes=computes)
    reason = (
      f"the worker {self._address} has not answered {name} for"
      f" {seconds:.1f} seconds"
    )
    if computes:
      reason += ", the limit for what computes (compute_timeout)"
    # An executor is released while its clients may still compute. Values are
    # released by finalizers, which may run anywhere: the next request reports.
    if name == "Dispose":
      self._lost = reason
    elif name != "DisposeExecutor":
      self._on_lost(reason)
    return diagnosis.WorkerLostError(reason)
