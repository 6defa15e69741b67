"""Remote workers (--executor=remote): flags, the fields of `RemoteWorkers`."""

import dataclasses

from absl import flags

from tff_shift import execution
from tff_shift.command_line import configuration

GROUP = "execution"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of remote workers."""

  workers: tuple[str, ...] | None = configuration.setting(
    None, "Comma-separated host:port of the workers."
  )
  worker_timeout: float | None = configuration.setting(
    None,
    "Seconds without any sign of life, or without an answer to a request other"
    " than the one to compute, after which a worker counts as lost. Default:"
    " 60.",
  )
  compute_timeout: float | None = configuration.setting(
    None,
    "Seconds after which a worker that is still computing counts as lost."
    " Default: no limit while it shows signs of life.",
  )
  on_worker_failure: str | None = configuration.setting(
    None,
    "If a worker is lost during a run: repeat its clients' work on the other"
    " workers (default), or stop.",
    choices=execution.ON_WORKER_FAILURE,
  )
  worker_certificate: str | None = configuration.setting(
    None,
    "PEM file of the authority that signed the workers' certificates; encrypts"
    " connections. Default: no encryption.",
  )
  worker_client_certificate: str | None = configuration.setting(
    None,
    "PEM file of the client certificate for the workers. Default: none.",
  )
  worker_client_key: str | None = configuration.setting(
    None, "PEM file of the key of --worker_client_certificate."
  )


def chosen() -> execution.RemoteWorkers | None:
  """Returns the workers of the flags, checked.

  Returns:
    The workers. None for other executors.

  Raises:
    ValueError: If a flag is wrong or missing, or set for another executor.
    FileNotFoundError: If a file is missing.
  """
  values = {
    field.name: flags.FLAGS[field.name].value
    for field in dataclasses.fields(execution.RemoteWorkers)
  }
  given = {name: value for name, value in values.items() if value is not None}
  if flags.FLAGS.executor != "remote":
    if given:
      raise ValueError(f"--{min(given)} belongs to --executor=remote")
    return None
  if "workers" not in given:
    raise ValueError("--executor=remote needs --workers=host:port,...")
  try:
    return execution.RemoteWorkers(**given)
  except ValueError as error:
    raise ValueError(f"--{error}") from error
