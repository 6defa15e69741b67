"""Remote workers (--executor=remote): flags, the fields of `RemoteWorkers`."""

import dataclasses

from absl import flags

from tff_shift import execution


def define_flags() -> None:
  """Defines the flags of remote workers."""
  flags.DEFINE_list(
    "workers",
    None,
    "Comma-separated host:port of the workers.",
  )
  flags.DEFINE_float(
    "worker_timeout",
    None,
    "Seconds without any sign of life, or without an answer to a request other"
    " than the one to compute, after which a worker counts as lost. Default:"
    " 60.",
  )
  flags.DEFINE_float(
    "compute_timeout",
    None,
    "Seconds after which a worker that is still computing counts as lost."
    " Default: no limit while it shows signs of life.",
  )
  flags.DEFINE_enum(
    "on_worker_failure",
    None,
    execution.ON_WORKER_FAILURE,
    "If a worker is lost during a run: repeat its clients' work on the other"
    " workers (default), or stop.",
  )
  flags.DEFINE_string(
    "worker_certificate",
    None,
    "PEM file of the authority that signed the workers' certificates; encrypts"
    " connections. Default: no encryption.",
  )
  flags.DEFINE_string(
    "worker_client_certificate",
    None,
    "PEM file of the client certificate for the workers. Default: none.",
  )
  flags.DEFINE_string(
    "worker_client_key",
    None,
    "PEM file of the key of --worker_client_certificate.",
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
