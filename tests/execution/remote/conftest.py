"""What the tests of remote workers share: real ones on loopback."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator

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
def nothing_is_left() -> Iterator[None]:
  """Fails if a process has been left, or a thread that watches or computes."""
  before = psutil.Process().children(recursive=True)
  yield
  now = psutil.Process().children(recursive=True)
  assert [process for process in now if process not in before] == []
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


@pytest.fixture(scope="module")
def workers() -> Iterator[list[local.Worker]]:
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(local.Worker.start()) for _ in range(3)]


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

  def __init__(self, port: int, tls: ssl.SSLContext | None = None):
    self._target, self._tls = ("127.0.0.1", port), tls
    self._listener = socket.create_server(("127.0.0.1", 0))
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
  """Returns `proxy(port, tls=None)`, which passes connections on to a worker.

  It is to be used in a `with` block, and knows its `num_connections`.
  """
  return _Proxy
