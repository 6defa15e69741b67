"""The workers of the executor `remote`, and the handling of failures."""

import dataclasses
import os
import re
import ssl
from collections.abc import Sequence

from tff_shift._util import arguments

# The values of `RemoteWorkers.on_worker_failure`.
ON_WORKER_FAILURE = ("repeat", "stop")

# gRPC counts milliseconds in int32.
_SHORTEST, _LONGEST = 0.001, 1_000_000
_ADDRESS = re.compile(r"([^\s:\[\]/]+|\[[0-9a-fA-F:.]+\]):(\d+)")


@dataclasses.dataclass(frozen=True)
class RemoteWorkers:
  """TFF workers on this or other machines, and how to use them.

  Attributes:
    workers: The workers' addresses, `host:port` (IPv6: `[host]:port`), one or
      more, all different. Clients are assigned to them in this order.
    worker_timeout: Seconds without a sign of life until a worker counts as
      lost, above 0. It limits every request except the one for the result of a
      computation.
    compute_timeout: Seconds of computing until a worker counts as lost, above
      0. None: no limit while it gives signs of life.
    on_worker_failure: What happens when a worker is lost. `repeat`: the others
      take over its work; `stop`: a `WorkerError`.
    worker_certificate: A PEM file with the certificates of the authorities that
      signed the workers' certificates. None: no encryption.
    worker_client_certificate: A PEM file with the client's certificate and its
      chain, to authenticate at the workers. None: no authentication.
    worker_client_key: A PEM file with the key of `worker_client_certificate`.

  Raises:
    ValueError: If a value is not allowed, or a file has another content.
    FileNotFoundError: If a file does not exist.
  """

  workers: Sequence[str]
  worker_timeout: float = 60.0
  compute_timeout: float | None = None
  on_worker_failure: str = "repeat"
  worker_certificate: str | None = None
  worker_client_certificate: str | None = None
  worker_client_key: str | None = None

  def __post_init__(self):
    object.__setattr__(self, "workers", tuple(self.workers))
    if not self.workers:
      raise ValueError("workers must be one host:port or more; got none")
    for address in self.workers:
      match = _ADDRESS.fullmatch(address)
      if match is None or not 0 < int(match[2]) < 2**16:
        raise ValueError(f"workers must each be host:port; got {address!r}")
    if len(set(self.workers)) != len(self.workers):
      raise ValueError(
        f"workers must all be different; got {','.join(self.workers)}"
      )
    for name in ("worker_timeout", "compute_timeout"):
      seconds = getattr(self, name)
      if name == "compute_timeout" and seconds is None:
        continue
      if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError(
          f"{name} must be seconds above 0, from {_SHORTEST} to {_LONGEST}; got"
          f" {seconds}"
        )
    arguments.choice(
      "on_worker_failure", self.on_worker_failure, ON_WORKER_FAILURE
    )
    if bool(self.worker_client_certificate) != bool(self.worker_client_key):
      raise ValueError(
        "worker_client_certificate and worker_client_key must be given together"
      )
    if self.worker_client_certificate and not self.worker_certificate:
      raise ValueError(
        "worker_client_certificate must come with worker_certificate: without"
        " it there is no encryption"
      )
    for name in (
      "worker_certificate",
      "worker_client_certificate",
      "worker_client_key",
    ):
      path = getattr(self, name)
      if path is not None and not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: there is no file {path}")
    for name in ("worker_certificate", "worker_client_certificate"):
      if getattr(self, name) is not None:
        _check_certificate(name, getattr(self, name))
    if self.worker_client_key is not None:
      _check_key(self.worker_client_certificate, self.worker_client_key)


def _check_certificate(name: str, path: str) -> None:
  """Refuses files with which gRPC would never connect."""
  try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
  except OSError as error:  # Errors of TLS are OSErrors too.
    raise ValueError(
      f"{name}: {path} holds no certificate that can be read"
      f" ({_reason(error)}); a PEM file is wanted, which begins with"
      " -----BEGIN CERTIFICATE-----"
    ) from error


def _check_key(certificate: str, key: str) -> None:
  """Refuses files without a key, with a password, or with another key."""
  try:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
      # Without a password argument, OpenSSL would prompt for one.
      certificate,
      key,
      password="",
    )
  except OSError as error:
    raise ValueError(
      f"worker_client_key: {key} holds no key of {certificate} that can be read"
      f" ({_reason(error)}); a PEM file is wanted, without a password, which"
      " begins with -----BEGIN PRIVATE KEY-----"
    ) from error


def _reason(error: OSError) -> str:
  """Returns why a file was refused, without the line of Python's source."""
  return error.strerror.partition(" (_ssl")[0]
