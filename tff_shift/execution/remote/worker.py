"""A worker on another machine: its channel and its health check."""

import asyncio
import concurrent.futures
import contextlib
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import tensorflow_federated as tff

# Its values have no public name.
from tensorflow_federated.python.core.impl.executors import remote_executor

from tff_shift.execution import errors
from tff_shift.execution import remote_workers
from tff_shift.execution import worker_executors
from tff_shift.execution.in_process import values
from tff_shift.execution.remote import bounded_channel
from tff_shift.execution.remote import diagnosis

# Time between two health checks of a worker, in seconds.
_LONGEST_PAUSE = 1.0
# Minimum length of the last chance of a silent worker, in seconds.
_LAST_CHANCE = 1.0
# Waiting time before a computation is sent again: initial, and maximum.
_SHORTEST_WAIT = 0.1
_LONGEST_WAIT = 2.0

_CHANNEL_OPTIONS = [
  *worker_executors.CHANNEL_OPTIONS,
  # By default gRPC waits up to two minutes before it reconnects to a restarted
  # worker.
  ("grpc.initial_reconnect_backoff_ms", 100),
  ("grpc.max_reconnect_backoff_ms", 1000),
  # Time limit of a connection attempt, by default 20 seconds. A proxy that is
  # being stopped may accept a connection and never answer.
  ("grpc.min_reconnect_backoff_ms", 5000),
  # Otherwise channels to the same address share a connection and its failures.
  ("grpc.use_local_subchannel_pool", 1),
]

# What a worker does at a time; it gets the `RemoteWorker`.
Task = Callable[["RemoteWorker"], object]

# A method that the service does not have: gRPC answers for any running server
# process, without a trace in the worker.
_ASK_FOR_A_SIGN = "/tensorflow_federated.v0.ExecutorGroup/SignOfLife"


@tff.federated_computation(np.int32)
def _return(number):
  """Returns its argument: the computation of a rehearsal."""
  return number


async def _create(
  executor: tff.framework.RemoteExecutor, value: Any, type_spec: tff.Type
) -> remote_executor.RemoteValue:
  """Sends a value, except for what is on the worker.

  The parts of a structure are sent one by one, since those that do not change
  are sent only once.
  """
  if isinstance(value, remote_executor.RemoteValue):
    return value
  if isinstance(value, tff.structure.Struct):
    parts = [
      (name, await _create(executor, part, element))
      for part, (name, element) in zip(
        value, tff.structure.iter_elements(type_spec), strict=True
      )
    ]
    return await executor.create_struct(tff.structure.Struct(parts))
  return await executor.create_value(
    tff.tensorflow.transform_args(value), type_spec
  )


class Work:
  """The work of some clients, whose result stays on the worker.

  Attributes:
    worker: The worker that has the result; None before `compute`.
  """

  def __init__(
    self, computation: tff.framework.ConcreteComputation, argument: object
  ):
    """Prepares the work.

    Args:
      computation: The computation, in the form of `mergeable`.
      argument: Its argument, which determines the number of clients.
    """
    self.worker: RemoteWorker | None = None
    self._computation, self._argument = computation, argument
    self._num_clients = values.count_clients(
      argument, computation.type_signature.parameter
    )
    self._executor: Any = None
    self._result: remote_executor.RemoteValue | None = None

  def compute(self, worker: "RemoteWorker") -> None:
    """Does the work; a task."""
    self._executor = worker.executor(self._num_clients)
    self._result = worker.call(
      self._num_clients, self._computation, self._argument
    )
    self.worker = worker

  def add_to(
    self, total: object, function: tff.framework.ConcreteComputation
  ) -> Task:
    """Returns a task that uses the result and forgets it.

    Args:
      total: The total of the clients before.
      function: `<total, result of the work> -> result of the task`.

    Returns:
      The task. It does the work again if its worker, or the worker's process,
      is another one by now.
    """

    def add(worker):
      if self._executor is not worker.executor(self._num_clients):
        self.compute(worker)
      result = worker.call(
        self._num_clients,
        function,
        tff.structure.Struct.unnamed(total, self._result),
      )
      value = asyncio.run(result.compute())
      del result
      self._result = None
      self._executor.flush()
      return tff.types.type_to_py_container(
        tff.tensorflow.transform_result(value), function.type_signature.result
      )

    return add


class RemoteWorker:
  """A worker, which runs computations one after the other.

  Attributes:
    address: Its `host:port`.
    ready: Done when the worker has shown that it works, or with a
      `WorkerLostError`.
  """

  def __init__(
    self,
    address: str,
    settings: remote_workers.RemoteWorkers,
    default_num_clients: int,
  ):
    """Connects to a worker and starts its health check.

    Args:
      address: Its `host:port`.
      settings: The timeouts and certificates.
      default_num_clients: The number of clients if the arguments of a
        computation do not determine it.
    """
    self.address = address
    self.ready = concurrent.futures.Future()
    self._settings = settings
    self._timeout = settings.worker_timeout
    self._channel = _connect(address, settings)
    self._sign_of_life = self._channel.unary_unary(_ASK_FOR_A_SIGN)
    self._requests = bounded_channel.BoundedChannel(
      self._channel, address, settings, self._leave
    )
    self._executors = worker_executors.WorkerExecutorFactory(
      self._requests, self.check_running, default_num_clients
    )
    self._rehearsals = worker_executors.WorkerExecutorFactory(
      bounded_channel.BoundedChannel(
        self._channel, address, settings, self._leave, is_rehearsal=True
      ),
      self.check_running,
      default_num_clients,
    )
    # No compiler: computations are already compiled, once for all workers.
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
    """Raises a `WorkerLostError` if the worker is lost or released."""
    if self._end is not None:
      raise diagnosis.WorkerLostError(self._end)

  def submit(self, task: Task) -> concurrent.futures.Future:
    """Starts a task.

    Args:
      task: The task; it is run again if the connection was lost.

    Returns:
      A future of its result. If the worker is lost, it fails with a
      `WorkerLostError`; nothing waits for the hanging call.
    """
    future = concurrent.futures.Future()
    with self._lock:
      if self._end is not None:
        future.set_exception(diagnosis.WorkerLostError(self._end))
        return future
      self._unfinished.add(future)
    # Not in a pool, for which Python would wait before it ends.
    threading.Thread(
      target=self._run,
      args=(future, task),
      name=f"computation on {self.address}",
      daemon=True,
    ).start()
    return future

  def stop(self) -> None:
    """Releases the worker, which keeps running; safe to call again."""
    if self._end is None:
      # In a thread: a computing worker may not answer before it is done.
      farewell = threading.Thread(
        target=self._executors.close,
        name=f"farewell to {self.address}",
        daemon=True,
      )
      farewell.start()
      farewell.join(_LAST_CHANCE)
    self._leave(f"the connection to the worker {self.address} was closed")
    self._watch_thread.join()

  def invoke(
    self, computation: tff.framework.ConcreteComputation, argument: object
  ) -> object:
    """Runs a computation and returns its result; only within a task.

    Args:
      computation: The computation, in the form of `mergeable`.
      argument: Its argument, or None if it has none.

    Returns:
      The result.
    """
    return self._context.invoke(computation, argument)

  def executor(self, num_clients: int | None) -> tff.framework.RemoteExecutor:
    """Returns the executor for a number of clients, the same while it lasts."""
    return self._executors.create_executor({tff.CLIENTS: num_clients})

  def call(
    self,
    num_clients: int | None,
    computation: tff.framework.ConcreteComputation,
    argument: object,
  ) -> remote_executor.RemoteValue:
    """Runs a computation whose result stays on the worker; within a task.

    Args:
      num_clients: The number of clients.
      computation: The computation, in the form of `mergeable`.
      argument: Its argument, which may have parts that are on the worker.

    Returns:
      A reference to the result.
    """
    executor = self.executor(num_clients)

    async def call():
      return await executor.create_call(
        await executor.create_value(computation, computation.type_signature),
        await _create(executor, argument, computation.type_signature.parameter),
      )

    try:
      return asyncio.run(call())
    except Exception:
      self._executors.clean_up_executor({tff.CLIENTS: num_clients})
      raise

  def _run(self, future, task) -> None:
    """Runs a task and sets its future."""
    try:
      result, error = self._compute(task), None
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

  def _compute(self, task) -> object:
    """Runs a task, and again while the connection is lost.

    The time without a connection is limited: it counts from the first failed
    request, without the time in which the worker computes.
    """
    wait, spent, last = _SHORTEST_WAIT, 0.0, None
    while True:
      computed = self._requests.seconds_computing
      try:
        return task(self)
      except worker_executors.UnreadableResultError as error:
        raise errors.WorkerError(
          diagnosis.unreadable(self.address, "Compute", str(error))
        ) from error
      except diagnosis.UnavailableError as error:
        now = time.monotonic()
        if last is not None:
          computed = self._requests.seconds_computing - computed
          spent += now - last - computed
        last = now
        if spent > self._timeout:
          reason = self._silence(error)
          self._leave(reason)
          raise diagnosis.WorkerLostError(reason) from error
      self._stopping.wait(wait)
      wait = min(2 * wait, _LONGEST_WAIT)

  def _watch(self) -> None:
    """Checks for signs of life until they fail or the worker is released."""
    pause = min(_LONGEST_PAUSE, self._timeout / 4)
    last_sign = last_rehearsal = time.monotonic()
    while self._end is None:
      problem = None
      left = last_sign + self._timeout - time.monotonic()
      try:
        # The last chance has its full length and comes after the timeout, since
        # this process itself may have been suspended.
        self._check_sign_of_life(max(left, _LAST_CHANCE))
        if self._is_rehearsal_due(last_rehearsal):
          self._rehearse()
          last_rehearsal = time.monotonic()
        last_sign = time.monotonic()
        self._mark_ready()
      except diagnosis.UnavailableError as error:
        problem = error
        if left <= 0:
          self._leave(self._silence(problem))
      except errors.WorkerError as error:
        self._leave(str(error))
      # Unexpected errors: otherwise `ready` would never be done.
      except Exception as error:
        self._leave(diagnosis.one_line(str(error)))
      left = last_sign + self._timeout - time.monotonic()
      self._pause(max(0.0, min(pause, left)), problem)

  def _check_sign_of_life(self, seconds: float) -> None:
    """Raises an error if there is no sign of life within some seconds."""
    try:
      self._sign_of_life(b"", timeout=seconds)
    except grpc.RpcError as error:
      if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return
      # A restarting proxy may answer anything for a while.
      if diagnosis.has_no_answer(error) or self.ready.done():
        raise diagnosis.UnavailableError(diagnosis.status(error)) from error
      raise diagnosis.refusal(self.address, "a sign of life", error) from error

  def _is_rehearsal_due(self, last: float) -> bool:
    """Returns whether a rehearsal is due beside the signs of life.

    Every gRPC server gives signs of life, even if its computation hangs.
    """
    since = self._requests.computing_since
    return not self.ready.done() or (
      since is not None and time.monotonic() - max(since, last) > self._timeout
    )

  def _rehearse(self) -> None:
    """Makes the worker call a computation that takes no time.

    The result is not requested, since computing it may take any time.
    """
    executor = self._rehearsals.create_executor({})

    async def call():
      function = await executor.create_value(_return, _return.type_signature)
      argument = await executor.create_value(
        np.int32(0), _return.type_signature.parameter
      )
      await executor.create_call(function, argument)

    try:
      asyncio.run(call())
    finally:
      self._rehearsals.clean_up_executor({})

  def _silence(self, problem: diagnosis.UnavailableError) -> str:
    """Describes a worker that has been unavailable for too long."""
    reason = (
      f"the worker {self.address} has not answered for"
      f" {self._timeout:g} seconds ({problem})"
    )
    seems = None
    if not self.ready.done():
      seems = diagnosis.who_listens(self.address, self._settings)
    return reason if seems is None else f"{reason}; {seems}"

  def _pause(
    self, seconds: float, problem: diagnosis.UnavailableError | None
  ) -> None:
    """Waits for some seconds, or until the worker is released."""
    end = time.monotonic() + seconds
    if problem is not None:
      # gRPC checks for a connection slowly, and over TLS may never notice it,
      # unless a call waits for it.
      with contextlib.suppress(grpc.RpcError, ValueError):
        self._sign_of_life(b"", timeout=seconds, wait_for_ready=True)
    self._stopping.wait(max(0.0, end - time.monotonic()))

  def _mark_ready(self) -> None:
    """Marks the worker as ready, at the first sign of life."""
    with self._lock:
      is_first = self.ready in self._unfinished
      self._unfinished.discard(self.ready)
    if is_first:
      self.ready.set_result(None)

  def _leave(self, reason: str) -> None:
    """Closes the channel: hanging calls fail, and all futures are done."""
    with self._lock:
      if self._end is not None:
        return
      self._end = reason
      unfinished, self._unfinished = self._unfinished, set()
    self._stopping.set()
    for future in unfinished:
      future.set_exception(diagnosis.WorkerLostError(reason))
    self._channel.close()


def _connect(
  address: str, settings: remote_workers.RemoteWorkers
) -> grpc.Channel:
  """Opens a channel, encrypted if there is a certificate."""
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
