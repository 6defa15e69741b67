"""Tests of what is said of a server that is no worker."""

import contextlib
import socket
import threading

import pytest

pytestmark = [pytest.mark.cpp, pytest.mark.slow]


class _Peer(contextlib.AbstractContextManager):
  """Takes connections, and does the same with each."""

  def __init__(self, do):
    self._do, self._open = do, []
    self._listener = socket.create_server(("127.0.0.1", 0))
    self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
    self._thread = threading.Thread(target=self._accept)
    self._thread.start()

  def _accept(self):
    while True:
      try:
        connection, _ = self._listener.accept()
      except OSError:
        return
      self._open.append(connection)
      with contextlib.suppress(OSError):
        self._do(connection)

  def __exit__(self, *exception_details):
    self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()
    self._thread.join()
    for each in self._open:
      each.close()


def _answer_http1(connection):
  connection.recv(1000)
  connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
  connection.close()


class TestOtherProtocols:
  @pytest.mark.parametrize(
    ("do", "seems"),
    [
      (_answer_http1, "an HTTP/1 server"),
      (lambda each: each.sendall(b"\x07\xe3\x99\x10" * 50), "another protocol"),
      (lambda each: each.sendall(b"SSH-2.0-Open\r\n"), "another protocol"),
      (lambda each: each.close(), "close connections at once"),
      (lambda each: None, "never answers"),
    ],
  )
  @pytest.mark.parametrize("has_tls", [False, True])
  def test_who_is_there(self, no_use, trust, do, seems, has_tls, capfd):
    if has_tls and "close" in seems:
      seems = "refuses TLS with this client"
    with _Peer(do) as peer:
      unanswered = "has not answered for 0.2 seconds ("
      no_use(peer, unanswered, seems, **(trust if has_tls else {}))
    assert not capfd.readouterr().err

  def test_no_such_host(self, no_use):
    no_use("no.such.host.invalid:1", "no host of this name")

  def test_port_without_a_listener(self, no_use):
    with socket.socket() as bound:
      bound.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{bound.getsockname()[1]}"
      no_use(address, "nothing seems to listen there")
