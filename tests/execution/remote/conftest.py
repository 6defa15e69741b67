"""What the tests of remote workers share: real ones on loopback."""

import concurrent.futures
import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import execution
from tff_shift.execution import local

# Far above what a sign of life takes, even on a machine that has much to do.
TIMEOUT = 2.0
# Far below what a hang lasts.
DEADLINE = 60.0


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(shared_processes) -> Iterator[None]:
  """Fails if a process has been left, or a thread that watches or computes."""
  before = psutil.Process().children(recursive=True)
  yield
  now = psutil.Process().children(recursive=True)
  left = [process for process in now if process not in before]
  assert [each for each in left if each.pid not in shared_processes] == []
  # The call of a lost worker ends by itself, but not before it is given up.
  deadline = time.monotonic() + DEADLINE
  for thread in threads_of_workers():
    thread.join(max(0.0, deadline - time.monotonic()))
  assert threads_of_workers() == []


def threads_of_workers() -> list[threading.Thread]:
  """Returns the threads that watch workers or wait for what they compute."""
  return [
    thread
    for thread in threading.enumerate()
    if thread.name.startswith(("watch ", "computation on "))
  ]


@pytest.fixture(
  scope="session",
  params=["worker_binary", pytest.param("in_process", marks=pytest.mark.slow)],
)
def start_worker(request) -> Callable[..., local.Worker]:
  """Starts a worker, of TFF or in Python; takes what `Worker.start` does."""
  if request.param == "worker_binary":
    return local.Worker.start
  command = local.python_worker(num_workers=2)
  return functools.partial(local.Worker.start, command=command)


@pytest.fixture(scope="session")
def workers(start_worker, shared_processes) -> Iterator[list[local.Worker]]:
  """Three workers, which no test ends: to start them takes many seconds."""
  with (
    contextlib.ExitStack() as stack,
    concurrent.futures.ThreadPoolExecutor() as pool,
  ):
    started = [pool.submit(start_worker) for _ in range(3)]
    entered = [stack.enter_context(each.result()) for each in started]
    for worker in entered:
      # Its process, and that which ends it.
      supervisor = psutil.Process(worker.pid).ppid()
      shared_processes.update((worker.pid, supervisor))
    yield entered


def _use(workers, **settings):
  addresses = [getattr(worker, "address", worker) for worker in workers]
  settings = {"worker_timeout": TIMEOUT, **settings}
  return execution.use(
    "remote", remote_workers=execution.RemoteWorkers(addresses, **settings)
  )


@pytest.fixture(scope="session")
def use():
  """Returns `use(workers, **settings)`, which gives their executor.

  The workers are `Worker`s, or whatever else has an `address`, or addresses.
  """
  return _use


@tff.tensorflow.computation(np.int64)
def _count_up_to(limit):
  number = tf.while_loop(
    lambda number: number < limit,
    lambda number: number + 1,
    [tf.constant(0, tf.int64)],
  )[0]
  return number, tf.cast(number, tf.float32) / 3.0


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def _count(limits):
  """A round: what clients keep, and the mean of what they send."""
  own, sent = tff.federated_map(_count_up_to, limits)
  return own, tff.federated_mean(sent)


@tff.tensorflow.computation(np.float32, np.float32)
def _subtract(a, b):
  return a - b


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _center(values):
  mean = tff.federated_mean(values)
  centered = tff.federated_map(
    _subtract, (values, tff.federated_broadcast(mean))
  )
  return centered, mean


@pytest.fixture(scope="session")
def subtract():
  """Returns a computation without placement."""
  return _subtract


@pytest.fixture(scope="session")
def center():
  """Returns a computation: clients subtract the mean of all their numbers.

  It gives what each has then, and the mean.
  """
  return _center


@pytest.fixture(scope="session")
def count():
  """Returns a computation: clients count up to limits that they are given.

  It gives what each has counted, and the mean of a third of that.
  """
  return _count


@pytest.fixture(scope="session")
def count_up_to():
  """Returns what a client computes in `count`."""
  return _count_up_to


class _Proxy(contextlib.AbstractContextManager):
  """Passes connections on to a worker, and ends TLS if asked to."""

  def __init__(
    self, port: int, tls: ssl.SSLContext | None = None, own_port: int = 0
  ):
    self._target, self._tls = ("127.0.0.1", port), tls
    self._listener = socket.create_server(("127.0.0.1", own_port))
    self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
    self.num_connections = 0
    self._sockets = []
    self._threads = [threading.Thread(target=self._accept)]
    self._threads[0].start()

  def _accept(self):
    while True:
      try:
        client, _ = self._listener.accept()
      except OSError:
        return
      thread = threading.Thread(target=self._serve, args=(client,))
      self._threads.append(thread)
      thread.start()

  def _serve(self, client):
    with contextlib.suppress(OSError):
      if self._tls is not None:
        client = self._tls.wrap_socket(
          client, server_side=True, do_handshake_on_connect=False
        )
      # Known from the start: a client that is gone may leave this end waiting.
      self._sockets.append(client)
      if self._tls is not None:
        client.do_handshake()
      worker = socket.create_connection(self._target)
      self._sockets.append(worker)
      self.num_connections += 1
      back = threading.Thread(target=self._copy, args=(worker, client))
      back.start()
      self._copy(client, worker)
      back.join()
    client.close()

  def _copy(self, source, target):
    with contextlib.suppress(OSError):
      while data := source.recv(65536):
        target.sendall(data)
    for end in (source, target):
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

  def break_connections(self):
    for each in self._sockets:
      with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)

  def __exit__(self, *exception_details):
    self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()
    self.break_connections()
    for thread in self._threads:
      thread.join()
    for each in self._sockets:
      each.close()


@pytest.fixture(scope="session")
def proxy():
  """Returns `proxy(port, tls=None, own_port=0)`, which leads to a worker.

  It is to be used in a `with` block, and knows its `num_connections`.
  """
  return _Proxy


class _Misbehaving(contextlib.AbstractContextManager):
  """A gRPC server that passes requests on to a worker, or misbehaves.

  Attributes:
    faults: What happens instead, by the name of the method; of "*", for all
      others: a status code is the answer, and so are bytes, seconds are slept
      before the request is passed on, None is never an answer.
    counts: How many requests there were, by the name of the method.
  """

  def __init__(self, worker_address, faults):
    self.faults, self.counts = dict(faults), {}
    self._end = threading.Event()
    self._channel = grpc.insecure_channel(
      worker_address, [("grpc.enable_http_proxy", 0)]
    )
    self._pool = concurrent.futures.ThreadPoolExecutor(32)
    self._server = grpc.server(self._pool)
    port = self._server.add_insecure_port("127.0.0.1:0")
    self.address = f"127.0.0.1:{port}"
    self._server.add_generic_rpc_handlers([self])
    self._server.start()

  def service(self, details):
    """Returns how a method is served; gRPC calls it."""
    name = details.method.rpartition("/")[2]
    if name == "SignOfLife" and not {name, "*"} & self.faults.keys():
      return None
    return grpc.unary_unary_rpc_method_handler(
      lambda request, context: self._answer(details.method, request, context)
    )

  def _answer(self, method, request, context):
    name = method.rpartition("/")[2]
    self.counts[name] = self.counts.get(name, 0) + 1
    fault = self.faults.get(name, self.faults.get("*", 0.0))
    if isinstance(fault, grpc.StatusCode):
      context.abort(fault, "so it\nis \x1b[31m here")
    if isinstance(fault, bytes):
      return fault
    if self._end.wait(fault):
      context.abort(grpc.StatusCode.CANCELLED, "the test has ended")
    try:
      return self._channel.unary_unary(method)(request)
    except grpc.RpcError as error:
      context.abort(error.code(), error.details())

  def __exit__(self, *exception_details):
    self._end.set()
    self._server.stop(None).wait()
    self._channel.close()
    self._pool.shutdown()


@pytest.fixture(scope="session")
def misbehaving():
  """Returns `misbehaving(worker_address, faults)`, see `_Misbehaving`."""
  return _Misbehaving


@contextlib.contextmanager
def _refused(address, *parts):
  start = time.monotonic()
  with pytest.raises(execution.WorkerError) as error:
    yield
  message = str(error.value)
  assert message.startswith(f"the worker {address} ")
  assert message.isprintable()
  for part in parts:
    assert part in message
  assert time.monotonic() - start < DEADLINE


@pytest.fixture(scope="session")
def refused():
  """Returns `refused(address, *parts)`, whose `with` must raise an error.

  It is one line that names the worker and has the parts, in time.
  """
  return _refused


@pytest.fixture(scope="session")
def no_use():
  """Returns `no_use(server, *parts, **settings)`: `use` of it is refused.

  The error is one line that names the server and has the parts.
  """

  def check(server, *parts, worker_timeout=0.2, **settings):
    address = getattr(server, "address", server)
    with (
      _refused(address, *parts),
      _use([server], worker_timeout=worker_timeout, **settings),
    ):
      pass

  return check


@pytest.fixture(scope="session")
def trust(certificates):
  """The setting with which a worker's certificate is verified."""
  return {"worker_certificate": str(certificates / "authority.crt")}


@pytest.fixture(scope="session")
def shown(certificates):
  """The settings with which a client shows who it is."""
  return {
    "worker_client_certificate": str(certificates / "client.crt"),
    "worker_client_key": str(certificates / "client.key"),
  }


@pytest.fixture(scope="session")
def tls(certificates):
  """Returns `tls(name="server", *, asks_who=False)`, a server's side of TLS."""

  def make(name="server", *, asks_who=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
      certificates / f"{name}.crt", certificates / f"{name}.key"
    )
    context.set_alpn_protocols(["h2"])
    if asks_who:
      context.verify_mode = ssl.CERT_REQUIRED
      context.load_verify_locations(certificates / "authority.crt")
    return context

  return make
