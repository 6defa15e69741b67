"""The workers of the executor `remote`, and the handling of failures."""

import dataclasses
import re
from collections.abc import Sequence

from tff_shift._util import arguments
from tff_shift._util import pem

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
    if self.worker_certificate is not None:
      pem.check_certificate("worker_certificate", self.worker_certificate)
    if self.worker_client_certificate is not None:
      pem.check_key(
        *("worker_client_certificate", self.worker_client_certificate),
        *("worker_client_key", self.worker_client_key),
      )
