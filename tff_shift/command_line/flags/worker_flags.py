"""The flags of the executor `remote`, the fields of `RemoteWorkers`."""

import dataclasses

from absl import flags

from tff_shift import execution


def define_flags() -> None:
  """Defines the flags that all binaries have for remote workers."""
  flags.DEFINE_list(
    "workers",
    None,
    "For --executor=remote: comma-separated host:port of its workers.",
  )
  flags.DEFINE_float(
    "worker_timeout",
    None,
    "For --executor=remote: seconds of silence, or without an answer to any"
    " request but the one to compute, after which a worker counts as lost."
    " Default: 60.",
  )
  flags.DEFINE_float(
    "compute_timeout",
    None,
    "For --executor=remote: seconds after which a worker that still computes"
    " counts as lost. Default: none, as long as it gives signs of life.",
  )
  flags.DEFINE_enum(
    "on_worker_failure",
    None,
    execution.ON_WORKER_FAILURE,
    "For --executor=remote, when a worker is lost in the middle of a run:"
    " repeat its clients' work on the other workers (default), or stop.",
  )
  flags.DEFINE_string(
    "worker_certificate",
    None,
    "For --executor=remote: a PEM file with the authority that has signed the"
    " workers' certificates; connections are then encrypted. Default: they"
    " are not.",
  )
  flags.DEFINE_string(
    "worker_client_certificate",
    None,
    "For --executor=remote: a PEM file with the certificate to show the"
    " workers. Default: none.",
  )
  flags.DEFINE_string(
    "worker_client_key",
    None,
    "For --executor=remote: a PEM file with the key of"
    " --worker_client_certificate.",
  )


def chosen() -> execution.RemoteWorkers | None:
  """Returns the workers of the flags; None for another executor than `remote`.

  Returns:
    The workers, checked.

  Raises:
    ValueError: If a flag is wrong, is missing, or belongs to another executor.
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
