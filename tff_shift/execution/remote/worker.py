"""A worker on another machine: its channel, and the watch over its health."""

import concurrent.futures
import pathlib
import threading
import time

import grpc
import tensorflow_federated as tff

from tff_shift.execution import errors
from tff_shift.execution import remote_workers
from tff_shift.execution import worker_executors

# How long to wait between two looks at a worker's health, in seconds.
_LONGEST_PAUSE = 1.0
# How long the last chance of a silent worker lasts at least, in seconds.
_LAST_CHANCE = 1.0

_CHANNEL_OPTIONS = [
  *worker_executors.CHANNEL_OPTIONS,
  # gRPC would wait up to two minutes before it tries again to connect to a
  # worker that is started anew.
  ("grpc.initial_reconnect_backoff_ms", 100),
  ("grpc.max_reconnect_backoff_ms", 1000),
  # Channels to the same address would share a connection, and its fate.
  ("grpc.use_local_subchannel_pool", 1),
]

# A method that the service does not have: gRPC answers for any server process
# that runs, without a trace in the worker.
_ASK_FOR_A_SIGN = "/tensorflow_federated.v0.ExecutorGroup/SignOfLife"


class WorkerLostError(errors.WorkerError):
  """A worker has been silent for too long."""


class RemoteWorker:
  """A worker, which runs one computation after the other.

  Attributes:
    address: Its `host:port`.
    ready: Done with the first sign of life, or with a `WorkerLostError`.
  """

  def __init__(
    self,
    address: str,
    settings: remote_workers.RemoteWorkers,
    default_num_clients: int,
  ):
    """Connects to a worker and begins to watch it.

    Args:
      address: Its `host:port`.
      settings: The waiting time and certificates.
      default_num_clients: The number of clients where the arguments of a
        computation do not tell it.
    """
    self.address = address
    self.ready = concurrent.futures.Future()
    self._timeout = settings.worker_timeout
    self._channel = _connect(address, settings)
    self._sign_of_life = self._channel.unary_unary(_ASK_FOR_A_SIGN)
    self._executors = worker_executors.WorkerExecutorFactory(
      self._channel, self.check_running, default_num_clients
    )
    # No compiler: what comes here is compiled, once for all workers.
    self._context = tff.framework.SyncExecutionContext(
      self._executors,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    self._lock = threading.Lock()
    self._unfinished: set[concurrent.futures.Future] = {self.ready}
    self._end: str | None = None
    self._stopping = threading.Event()
    self._watch_thread = threading.Thread(
      target=self._watch, name=f"watch {address}", daemon=True
    )
    self._watch_thread.start()

  def check_running(self) -> None:
    """Raises a `WorkerLostError` if the worker is lost or was left."""
    if self._end is not None:
      raise WorkerLostError(self._end)

  def submit(
    self, computation: tff.framework.ConcreteComputation, argument: object
  ) -> concurrent.futures.Future:
    """Begins to run a computation.

    Args:
      computation: The computation, in the form of `mergeable`.
      argument: Its argument, or None if it has none.

    Returns:
      A future of the result. It is done at the latest when the worker is lost,
      then with a `WorkerLostError`; nobody waits for the call that hangs.
    """
    future = concurrent.futures.Future()
    with self._lock:
      if self._end is not None:
        future.set_exception(WorkerLostError(self._end))
        return future
      self._unfinished.add(future)
    # Not of a pool, which Python would wait for before it ends.
    threading.Thread(
      target=self._run,
      args=(future, computation, argument),
      name=f"computation on {self.address}",
      daemon=True,
    ).start()
    return future

  def stop(self) -> None:
    """Lets go of the worker, which goes on; safe to call again."""
    if self._end is None:
      # In a thread: a worker that computes may not answer before it is done.
      farewell = threading.Thread(
        target=self._executors.close,
        name=f"farewell to {self.address}",
        daemon=True,
      )
      farewell.start()
      farewell.join(_LAST_CHANCE)
    self._stopping.set()
    self._leave(f"the connection to the worker {self.address} was closed")
    self._watch_thread.join()

  def _run(self, future, computation, argument) -> None:
    """Runs a computation and tells its future."""
    try:
      result, error = self._context.invoke(computation, argument), None
    except BaseException as raised:
      result, error = None, raised
    with self._lock:
      if future not in self._unfinished:
        return
      self._unfinished.remove(future)
    if error is None:
      future.set_result(result)
    else:
      future.set_exception(error)

  def _watch(self) -> None:
    """Asks for signs of life until they fail to come, or the end."""
    pause = min(_LONGEST_PAUSE, self._timeout / 4)
    last_sign = time.monotonic()
    while True:
      left = last_sign + self._timeout - time.monotonic()
      # The last chance is a whole one, and comes when the time is up: it may
      # have been this process that was stopped for so long.
      problem = self._problem(max(left, _LAST_CHANCE))
      if problem is None:
        last_sign = time.monotonic()
        self._tell_ready()
      elif left <= 0 and not self._stopping.is_set():
        self._leave(
          f"the worker {self.address} has not answered for"
          f" {self._timeout:g} seconds ({problem})"
        )
        return
      left = last_sign + self._timeout - time.monotonic()
      if self._stopping.wait(max(0.0, min(pause, left))):
        return

  def _problem(self, seconds: float) -> str | None:
    """Returns why no sign of life came in so many seconds; None if one did."""
    try:
      self._sign_of_life(b"", timeout=seconds)
    except grpc.RpcError as error:
      if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return None
      return " ".join(f"{error.code().name}: {error.details()}".split())
    except ValueError:
      return "the channel is closed"
    return None

  def _tell_ready(self) -> None:
    """Says that the worker is there, at the first sign of life."""
    with self._lock:
      is_first = self.ready in self._unfinished
      self._unfinished.discard(self.ready)
    if is_first:
      self.ready.set_result(None)

  def _leave(self, reason: str) -> None:
    """Closes the channel: calls that hang fail, and all futures are done."""
    with self._lock:
      if self._end is not None:
        return
      self._end = reason
      unfinished, self._unfinished = self._unfinished, set()
    for future in unfinished:
      future.set_exception(WorkerLostError(reason))
    self._channel.close()


def _connect(
  address: str, settings: remote_workers.RemoteWorkers
) -> grpc.Channel:
  """Opens a channel, encrypted if there is a certificate to check."""
  if settings.worker_certificate is None:
    return grpc.insecure_channel(address, _CHANNEL_OPTIONS)
  names = (
    settings.worker_certificate,
    settings.worker_client_key,
    settings.worker_client_certificate,
  )
  return grpc.secure_channel(
    address,
    grpc.ssl_channel_credentials(
      *(name and pathlib.Path(name).read_bytes() for name in names)
    ),
    _CHANNEL_OPTIONS,
  )
