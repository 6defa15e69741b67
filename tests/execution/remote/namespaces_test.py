"""Tests of workers with a network stack of their own, as on other machines.

Each worker is in a network namespace, at the other end of a pair of virtual
devices; no packet leaves this machine. Namespaces have no name: they, and the
devices with them, end with the worker and this process, however these end.
"""

import contextlib
import ctypes
import dataclasses
import ipaddress
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

import psutil
import pytest

from tff_shift.execution import local

pytestmark = [pytest.mark.cpp, pytest.mark.slow]

# Far below what a hang lasts.
DEADLINE = 60.0

# `CLONE_NEWNET` of <sched.h>.
_NETWORK = 0x40000000


def _ip(*arguments: str) -> None:
  subprocess.run(
    ["ip", *arguments], check=True, stderr=subprocess.PIPE, text=True
  )


def _call(name: str, *arguments: int) -> None:
  """Calls a function of the C library that returns 0, or sets `errno`."""
  if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
    number = ctypes.get_errno()
    raise OSError(number, f"{name}: {os.strerror(number)}")


class Namespace:
  """A network without connections, but for those that are made.

  `with namespace:` puts this thread in there, and the processes it starts.
  """

  def __init__(self, file: BinaryIO, outside: BinaryIO):
    self._file, self._outside = file, outside

  @classmethod
  @contextlib.contextmanager
  def make(cls) -> Iterator["Namespace"]:
    own = "/proc/thread-self/ns/net"
    with open(own, "rb") as outside, contextlib.ExitStack() as stack:
      _call("unshare", _NETWORK)
      try:
        file = stack.enter_context(open(own, "rb"))
      finally:
        _call("setns", outside.fileno(), _NETWORK)
      yield cls(file, outside)

  def __enter__(self) -> None:
    _call("setns", self._file.fileno(), _NETWORK)

  def __exit__(self, *exception_details: object) -> None:
    _call("setns", self._outside.fileno(), _NETWORK)


@dataclasses.dataclass(frozen=True)
class Host:
  """A worker in a namespace, at an address that can be reached from here."""

  namespace: Namespace
  worker: local.Worker
  device: str
  address: str

  def set_link(self, state: str) -> None:
    """Sets the link `up` or `down`: then packets are lost without notice."""
    # At this end the route would go as well, and packets elsewhere.
    with self.namespace:
      _ip("link", "set", self.device, state)


@contextlib.contextmanager
def _started_host(number: int) -> Iterator[Host]:
  # Names and addresses are this process's own: tests run side by side. The
  # addresses are those for tests of networks (RFC 2544), four for each link.
  near, far = f"tff{os.getpid()}-{number}", "far"
  first = ipaddress.ip_address("198.18.0.0") + (
    8 * (os.getpid() % 2**14) + 4 * number
  )
  with contextlib.ExitStack() as stack:
    namespace = stack.enter_context(Namespace.make())
    with namespace:
      _ip("link", "set", "lo", "up")
      worker = stack.enter_context(local.Worker.start())
    peer = ("peer", "name", far, "netns", str(worker.pid))
    _ip("link", "add", near, "type", "veth", *peer)
    stack.callback(_ip, "link", "delete", near)
    _ip("address", "add", f"{first + 1}/30", "dev", near)
    _ip("link", "set", near, "up")
    with namespace:
      _ip("address", "add", f"{first + 2}/30", "dev", far)
      _ip("link", "set", far, "up")
    yield Host(namespace, worker, far, f"{first + 2}:{worker.port}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
  if shutil.which("ip") is None:
    pytest.skip("connecting hosts needs the program ip (iproute2)")
  try:
    with Namespace.make() as namespace, namespace:
      _ip("link", "add", "type", "veth")
  except (AttributeError, OSError) as error:
    pytest.skip(f"no network namespace can be made: {error}")
  except subprocess.CalledProcessError as error:
    pytest.skip(f"no virtual link can be made: {error.stderr.strip()}")
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(_started_host(number)) for number in range(2)]


@pytest.fixture
def check(count, center):
  """Returns `check()`, which has clients compute twice: alone and together."""

  def compute():
    assert count([3, 6, 9, 6, 6]) == ([3, 6, 9, 6, 6], 2.0)
    assert center([1.0, 2.0, 3.0, 6.0]) == ([-2.0, -1.0, 0.0, 3.0], 3.0)

  return compute


class TestHosts:
  def test_each_has_a_network_of_its_own(self, hosts):
    places = [os.readlink("/proc/self/ns/net")]
    for host in hosts:
      places.append(os.readlink(f"/proc/{host.worker.pid}/ns/net"))
      with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", host.worker.port))
    assert len(set(places)) == 3

  def test_compute_together(self, hosts, check, use):
    with use(hosts):
      check()

  def test_link_that_comes_back(self, hosts, check, use, caplog):
    with use(hosts, worker_timeout=DEADLINE):
      hosts[1].set_link("down")
      back = threading.Timer(1.0, hosts[1].set_link, ["up"])
      back.start()
      check()
      back.join()
    assert not caplog.records

  def test_link_that_goes_in_the_middle(self, hosts, check, use, caplog):
    worker = psutil.Process(hosts[1].worker.pid)

    def break_link():
      hosts[1].set_link("down")
      worker.resume()

    with use(hosts):
      # It gets its part, and cannot answer before the link is down.
      worker.suspend()
      fault = threading.Timer(0.5, break_link)
      fault.start()
      start = time.monotonic()
      check()
      assert 2.0 < time.monotonic() - start < DEADLINE
      fault.join()
      check()
    (record,) = caplog.records
    assert record.message.startswith(
      f"the worker {hosts[1].address} has not answered for 2 seconds"
    )
    assert record.message.endswith(f"other workers: {hosts[0].address}")
    hosts[1].set_link("up")
    with use(hosts):
      check()
