"""Diagnosis of a worker's problem, in one line."""

import contextlib
import socket
import ssl
import time

import grpc

from tff_shift._util import shown_names
from tff_shift.execution import errors
from tff_shift.execution import remote_workers

# Limit for a server's message, which may be a page of HTML or a trace.
_MOST_CHARACTERS = 300
# Time limit of each step of `who_listens`, in seconds.
_PATIENCE = 1.0

# The first bytes of an HTTP/2 client: the preface, and empty settings.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_BYTES_OF_FRAME = 9
_SETTINGS_FRAME = 4
# The first bytes of a TLS record: an alert or a handshake.
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")

_ANOTHER_KIND = (
  "it seems to be a gRPC server of another kind, or a worker of another version"
  " of TFF"
)
_NOT_LET_IN = "it, or a proxy before it, seems not to let this client in"
_SEEMS = {
  grpc.StatusCode.UNIMPLEMENTED: _ANOTHER_KIND,
  grpc.StatusCode.PERMISSION_DENIED: _NOT_LET_IN,
  grpc.StatusCode.UNAUTHENTICATED: _NOT_LET_IN,
  grpc.StatusCode.RESOURCE_EXHAUSTED: (
    "it seems to have no memory left, or a proxy before it a limit"
  ),
}
_BROKEN = "it seems to be broken, or of another version of TFF"
_COMPUTATION_FAILS = "the computation seems to fail there"


class WorkerLostError(errors.WorkerError):
  """A worker does not answer; another one may take over its work."""


class ComputationError(errors.WorkerError):
  """A worker answers that a computation fails.

  Attributes:
    task: The index of the computation among those that were run together.
  """

  task = 0


class UnavailableError(errors.WorkerError):
  """A worker is temporarily unavailable; the message has request and reason."""


def one_line(text: str) -> str:
  """Returns a text as one line of bounded length, safe for a terminal."""
  return shown_names.shortened(shown_names.line(text), _MOST_CHARACTERS)


def has_no_answer(error: grpc.RpcError) -> bool:
  """Returns whether an error is of gRPC itself, not of a server."""
  return (
    error.code()
    in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    # Newer gRPC checks the name in a certificate a second time, at each call.
    or "match SSL server name" in (error.details() or "")
  )


def status(error: grpc.RpcError) -> str:
  """Returns a gRPC error's code and the server's message."""
  return one_line(f"{error.code().name}: {error.details()}")


def refusal(
  address: str, request: str, error: grpc.RpcError, *, computes: bool = False
) -> errors.WorkerError:
  """Returns the error of a worker that answers a request with an error.

  Args:
    address: The worker's `host:port`.
    request: The request.
    error: The answer.
    computes: Whether the request computes: its computation is then the probable
      cause, unless the error's code says otherwise.
  """
  kind, seems = errors.WorkerError, _SEEMS.get(error.code(), _BROKEN)
  if computes and error.code() not in _SEEMS:
    kind, seems = ComputationError, _COMPUTATION_FAILS
  return kind(
    f"the worker {address} answers {request} with {status(error)}; {seems}"
  )


def unreadable(address: str, request: str, reason: str) -> str:
  """Describes a worker whose answer is not a message of TFF."""
  return (
    f"the worker {address} answers {request} with what cannot be read"
    f" ({one_line(reason)}); {_BROKEN}"
  )


def who_listens(
  address: str, settings: remote_workers.RemoteWorkers
) -> str | None:
  """Finds out what is at the address of a worker without signs of life.

  It takes a few seconds at most.

  Args:
    address: The worker's `host:port`.
    settings: The certificates.

  Returns:
    What the worker seems to be, as the end of a sentence; None if unknown.
  """
  host, _, port = address.rpartition(":")
  place = host.strip("[]"), int(port)
  try:
    if settings.worker_certificate is None:
      return _without_tls(place)
    return _with_tls(place, settings)
  except socket.gaierror:
    return "there seems to be no host of this name"
  except ConnectionRefusedError:
    return "nothing seems to listen there"
  except OSError:
    return None


def _connect(place: tuple[str, int]) -> socket.socket:
  return socket.create_connection(place, _PATIENCE)


def _first_bytes(connection: socket.socket) -> bytes | None:
  """Returns a server's answer to HTTP/2; None if there is none in time."""
  with contextlib.suppress(ConnectionError):
    connection.sendall(_HTTP2_PREFACE)
  data = b""
  deadline = time.monotonic() + _PATIENCE
  try:
    while len(data) < _BYTES_OF_FRAME and time.monotonic() < deadline:
      received = connection.recv(_BYTES_OF_FRAME - len(data))
      if not received:
        break
      data += received
  except TimeoutError:
    return data or None
  except ConnectionError:
    pass
  return data


def _protocol(data: bytes | None) -> str | None:
  """Identifies a server by its first bytes; None if it may be a gRPC server."""
  if data is None:
    return "it seems to take connections, and never answers"
  if not data:
    return "it seems to close connections at once, as no gRPC server does"
  if data.startswith(b"HTTP/"):
    return "it seems to be an HTTP/1 server, not a gRPC server"
  if data[3:4] == bytes([_SETTINGS_FRAME]) and data[5:9] == b"\0\0\0\0":
    return None
  return "it seems to speak another protocol than gRPC"


def _without_tls(place: tuple[str, int]) -> str | None:
  with _connect(place) as connection:
    data = _first_bytes(connection)
  if not data or data.startswith(_TLS_RECORDS):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
      contextlib.suppress(OSError),
      _connect(place) as connection,
      context.wrap_socket(connection),
    ):
      return "it seems to want TLS (worker_certificate)"
  return _protocol(data)


def _with_tls(
  place: tuple[str, int], settings: remote_workers.RemoteWorkers
) -> str | None:
  context = ssl.create_default_context(cafile=settings.worker_certificate)
  context.set_alpn_protocols(["h2"])
  # Python asks for it from 3.13 on, gRPC does not.
  context.verify_flags &= ~ssl.VERIFY_X509_STRICT
  if settings.worker_client_certificate is not None:
    context.load_cert_chain(
      settings.worker_client_certificate, settings.worker_client_key
    )
  host, _ = place
  with _connect(place) as connection:
    try:
      with context.wrap_socket(connection, server_hostname=host) as encrypted:
        if encrypted.selected_alpn_protocol() != "h2":
          return "it seems to be a TLS server that does not offer h2 (ALPN)"
        data = _first_bytes(encrypted)
        # A server decides on client certificates after the handshake.
        if data != b"":
          return _protocol(data)
    except ssl.SSLCertVerificationError as error:
      if _lacks_names(place, context):
        return "its certificate is refused: it has no subjectAltName"
      return f"its certificate is refused: {one_line(error.verify_message)}"
    except TimeoutError:
      return _protocol(None)
    except (ssl.SSLError, ConnectionError):
      pass
  with _connect(place) as connection:
    data = _first_bytes(connection)
  if data and not data.startswith(_TLS_RECORDS):
    return _protocol(data) or "it seems to be a worker without TLS"
  if settings.worker_client_certificate is None:
    return (
      "it refuses TLS with this client, or wants its certificate"
      " (worker_client_certificate)"
    )
  return "it refuses TLS with this client, or its certificate"


def _lacks_names(place: tuple[str, int], context: ssl.SSLContext) -> bool:
  """Returns whether a certificate is valid except for missing names."""
  context.check_hostname = False
  try:
    with (
      _connect(place) as connection,
      context.wrap_socket(connection) as encrypted,
    ):
      return "subjectAltName" not in encrypted.getpeercert()
  except OSError:
    return False
