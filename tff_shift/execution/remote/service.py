"""A remote worker in Python: TFF's executor service, in process.

TFF's own worker is a C++ program for Linux on x86-64 that computes on the CPU.
This one runs wherever TensorFlow does, on a GPU if there is one, and computes
with the same kernels as the executor `in_process`:

    python -m experiments.workers --executor=in_process

A driver asks for an executor with a number of clients, creates values in it
(data, computations, results of calls), asks for some of them, and disposes of
values and executors (`tensorflow_federated/proto/v0/executor.proto`). Values
stay as they were sent, NumPy values in TFF structures; a call is answered when
it has been computed.

Errors. A computation that fails answers INTERNAL with TensorFlow's words, like
TFF's worker; the driver then looks for the client. RESOURCE_EXHAUSTED is a lack
of memory, FAILED_PRECONDITION an executor that this process does not have: it
was started anew, and the driver sends everything again.
"""

# The methods of the service have TFF's names.
# ruff: noqa: N802

import argparse
import concurrent.futures
import functools
import hashlib
import itertools
import pathlib
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import cachetools
import grpc
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc

# TFF has these two without a public name.
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.types import type_serialization

from tff_shift.execution import in_process
from tff_shift.execution import worker_executors
from tff_shift.execution.in_process import devices

# Requests that are answered at the same time: a computation, signs of life and
# rehearsals for each of several drivers.
_NUM_REQUESTS = 32
# Computations that stay compiled, whether or not a driver still has them: their
# graphs are sent again for other numbers of clients.
_NUM_COMPUTATIONS = 256
# TensorFlow's message is behind the name of a node and this, which TFF's worker
# does not have.
_BEFORE_WORDS = "<stack traces unavailable>"
# gRPC transmits messages of errors in headers of at most 8 KiB.
_MOST_CHARACTERS = 2000


class _GoneError(LookupError):
  """An executor or a value is not here (any longer)."""


class _Held(NamedTuple):
  """A value of an executor, and its type."""

  value: Any
  type_spec: tff.Type


class _Executor:
  """The values of an executor, by their ids.

  Attributes:
    num_clients: The number of clients that the arguments of a call leave open.
    values: The values.
  """

  # Of all executors: a reference is never another executor's value.
  _ids = map(str, itertools.count())

  def __init__(self, num_clients: int):
    self.num_clients = num_clients
    self.values: dict[str, _Held] = {}

  def put(self, value: Any, type_spec: tff.Type) -> executor_pb2.ValueRef:
    """Holds a value until it is disposed of; returns the reference to it."""
    reference = executor_pb2.ValueRef(id=next(self._ids))
    self.values[reference.id] = _Held(value, type_spec)
    return reference

  def get(self, reference: executor_pb2.ValueRef) -> _Held:
    """Returns a value."""
    if reference.id not in self.values:
      raise _GoneError(f"there is no value {reference.id}")
    return self.values[reference.id]


def _answered(method: Callable[[Any, Any], Any]) -> Callable[..., Any]:
  """Answers a request with its result, or with a status and one message."""

  @functools.wraps(method)
  def answer(self, request, context):
    problem: BaseException
    try:
      return method(self, request)
    except _GoneError as error:
      code, problem = grpc.StatusCode.FAILED_PRECONDITION, error
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
      code, problem = grpc.StatusCode.RESOURCE_EXHAUSTED, error
    except Exception as error:
      code, problem = grpc.StatusCode.INTERNAL, error
    # A client's number among those of this worker would be read as its number
    # among all of them.
    if isinstance(problem, in_process.ClientError) and problem.__cause__:
      problem = problem.__cause__
      if isinstance(problem, tf.errors.ResourceExhaustedError):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    words = str(problem).rpartition(_BEFORE_WORDS)[2].strip()
    words = words or type(problem).__name__
    return context.abort(code, words[:_MOST_CHARACTERS])

  return answer


class ExecutorService(executor_pb2_grpc.ExecutorGroupServicer):
  """Serves executors, all of which compute in one in-process context.

  The methods are those of TFF's service; gRPC calls them in several threads.
  """

  def __init__(self, context: in_process.InProcessContext):
    """Makes a service without executors.

    Args:
      context: Runs the computations; its results are NumPy values.
    """
    self._context = context
    self._executors: dict[str, _Executor] = {}
    self._computations = cachetools.LRUCache(_NUM_COMPUTATIONS)
    self._lock = threading.Lock()

  @property
  def num_values(self) -> int:
    """The number of values that all executors hold."""
    with self._lock:
      return sum(len(each.values) for each in self._executors.values())

  @_answered
  def GetExecutor(self, request):
    """Makes an executor for a number of clients."""
    cardinalities = value_serialization.deserialize_cardinalities(
      request.cardinalities
    )
    # Not a number: one of a former process must not be found.
    name = uuid.uuid4().hex
    with self._lock:
      self._executors[name] = _Executor(cardinalities.get(tff.CLIENTS, 0))
    return executor_pb2.GetExecutorResponse(
      executor=executor_pb2.ExecutorId(id=name)
    )

  @_answered
  def CreateValue(self, request):
    """Holds a value that is sent."""
    executor = self._executor(request)
    held = self._read(request.value)
    return executor_pb2.CreateValueResponse(value_ref=executor.put(*held))

  @_answered
  def CreateStruct(self, request):
    """Makes a structure of values."""
    executor = self._executor(request)
    parts = [
      (element.name or None, executor.get(element.value_ref))
      for element in request.element
    ]
    return executor_pb2.CreateStructResponse(
      value_ref=executor.put(*_structure(parts))
    )

  @_answered
  def CreateSelection(self, request):
    """Takes an element of a structure."""
    executor = self._executor(request)
    value, type_spec = executor.get(request.source_ref)
    return executor_pb2.CreateSelectionResponse(
      value_ref=executor.put(value[request.index], type_spec[request.index])
    )

  @_answered
  def CreateCall(self, request):
    """Runs a computation."""
    executor = self._executor(request)
    function, type_spec = executor.get(request.function_ref)
    argument = None
    if request.HasField("argument_ref"):
      argument, _ = executor.get(request.argument_ref)
    result = self._context.invoke(function, argument, executor.num_clients)
    return executor_pb2.CreateCallResponse(
      value_ref=executor.put(result, type_spec.result)
    )

  @_answered
  def Compute(self, request):
    """Returns a value."""
    value, type_spec = self._executor(request).get(request.value_ref)
    proto, _ = value_serialization.serialize_value(value, type_spec)
    return executor_pb2.ComputeResponse(value=proto)

  @_answered
  def Dispose(self, request):
    """Forgets values."""
    executor = self._executor(request)
    for reference in request.value_ref:
      executor.values.pop(reference.id, None)
    return executor_pb2.DisposeResponse()

  @_answered
  def DisposeExecutor(self, request):
    """Forgets an executor and all of its values."""
    with self._lock:
      self._executors.pop(request.executor.id, None)
    return executor_pb2.DisposeExecutorResponse()

  def _executor(self, request) -> _Executor:
    with self._lock:
      executor = self._executors.get(request.executor.id)
    if executor is None:
      raise _GoneError(f"there is no executor {request.executor.id}")
    return executor

  def _read(self, proto: executor_pb2.Value) -> _Held:
    """Reads a value that was sent."""
    match proto.WhichOneof("value"):
      case "computation":
        computation = self._computation(proto.computation)
        return _Held(computation, computation.type_signature)
      case "struct":
        return _structure(
          [
            (element.name or None, self._read(element.value))
            for element in proto.struct.element
          ]
        )
      case "federated":
        # TFF's reader wants a client, and all arrays of one shape.
        type_spec = type_serialization.deserialize_type(
          computation_pb2.Type(federated=proto.federated.type)
        )
        members = [self._read(member).value for member in proto.federated.value]
        return _Held(members[0] if type_spec.all_equal else members, type_spec)
    return _Held(*value_serialization.deserialize_value(proto))

  def _computation(
    self, proto: computation_pb2.Computation
  ) -> tff.framework.ConcreteComputation:
    """Returns the same object for the same computation: it is compiled once."""
    key = hashlib.blake2b(proto.SerializeToString(deterministic=True)).digest()
    with self._lock:
      computation = self._computations.get(key)
      if computation is None:
        computation = self._computations[key] = (
          tff.framework.ConcreteComputation(
            computation_proto=proto,
            context_stack=tff.framework.get_context_stack(),
          )
        )
    return computation


def _structure(parts: Sequence[tuple[str | None, _Held]]) -> _Held:
  """Returns a structure of values."""
  return _Held(
    tff.structure.Struct((name, held.value) for name, held in parts),
    tff.StructType(
      [
        (name, held.type_spec) if name else held.type_spec
        for name, held in parts
      ]
    ),
  )


def _context(
  number: int, num_workers: int, num_threads: int
) -> in_process.InProcessContext:
  """Returns the context of one of the workers of a machine.

  Args:
    number: Its number.
    num_workers: Their number; they share the GPUs, or else the cores.
    num_threads: The number of concurrent clients; 0 or less: all that the
      worker's share allows.
  """
  gpus = tf.config.list_physical_devices("GPU")
  num_sharing = 1
  if gpus:
    share = gpus[number::num_workers] or [gpus[number % len(gpus)]]
    num_sharing = -(-num_workers // len(gpus))
    tf.config.set_visible_devices(share, "GPU")
  elif num_threads < 1:
    num_threads = max(1, devices.num_cores() // num_workers)
  context = in_process.in_process_context(
    num_threads=num_threads if num_threads > 0 else None
  )
  if context.batch_memory is not None:
    context.batch_memory //= num_sharing
  return context


def tls_credentials(
  certificate: str, key: str, client_authority: str | None
) -> grpc.ServerCredentials:
  """Returns those of a server that terminates TLS."""
  read = [pathlib.Path(path).read_bytes() for path in (key, certificate)]
  authority = client_authority and pathlib.Path(client_authority).read_bytes()
  return grpc.ssl_server_credentials([tuple(read)], authority, bool(authority))


def serve(
  service: ExecutorService,
  address: str,
  credentials: grpc.ServerCredentials | None = None,
) -> tuple[grpc.Server, int]:
  """Starts a server.

  Args:
    service: The service.
    address: The `host:port` to listen on; port 0: a free one.
    credentials: Those of TLS; None: no encryption.

  Returns:
    The server, and its port.

  Raises:
    RuntimeError: If the address is taken or not of this machine.
  """
  server = grpc.server(
    concurrent.futures.ThreadPoolExecutor(_NUM_REQUESTS),
    options=worker_executors.CHANNEL_OPTIONS,
  )
  executor_pb2_grpc.add_ExecutorGroupServicer_to_server(service, server)
  if credentials is None:
    port = server.add_insecure_port(address)
  else:
    port = server.add_secure_port(address, credentials)
  server.start()
  return server, port


def main(arguments: Sequence[str]) -> None:
  """Serves until the process is ended; `local.python_worker` has the flags."""
  parser = argparse.ArgumentParser(prog="worker", allow_abbrev=False)
  for name in ("port", "number", "num_workers"):
    parser.add_argument(f"--{name}", type=int, required=True)
  # As of TFF's worker.
  parser.add_argument("--max_concurrent_computation_calls", type=int, default=0)
  for name in ("host", "certificate", "key", "client_authority"):
    parser.add_argument(f"--{name}")
  options = parser.parse_args(arguments)
  # Python would wait for the threads that compute.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  credentials = None
  if options.certificate:
    credentials = tls_credentials(
      options.certificate, options.key, options.client_authority
    )
  context = _context(
    options.number,
    options.num_workers,
    options.max_concurrent_computation_calls,
  )
  server, _ = serve(
    ExecutorService(context), f"{options.host}:{options.port}", credentials
  )
  server.wait_for_termination()


if __name__ == "__main__":
  main(sys.argv[1:])
