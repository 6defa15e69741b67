"""Writing of files: whole or not at all, and with errors of one line."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


class WriteError(OSError):
  """A file cannot be written, as on a full disk; the message is one line."""

  def __init__(self, path: pathlib.Path, reason: str):
    super().__init__(f"{path} cannot be written: {reason}")
    self.strerror = reason


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Makes the errors of writing a file or folder a `WriteError`."""
  try:
    yield
  except Exception as error:
    reason = _write_failure(error)
    if reason is None:
      raise
    raise WriteError(path, reason) from error


def _write_failure(error: Exception) -> str | None:
  """Returns why a file was not written; None for an error of another kind."""
  if isinstance(error, OSError):
    return error.strerror or str(error)
  # Imported here because it takes seconds; who gets its errors has done so.
  import tensorflow as tf

  if isinstance(error, tf.errors.OpError):
    return " ".join(error.message.split())
  return None


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file so that a reader sees the old or the new one, never half.

  Args:
    path: The file.
    text: What it is to hold.

  Raises:
    WriteError: If it cannot be written; the old file is kept.
  """
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    with writing(path):
      temporary.write_text(text, encoding="utf-8")
      os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)
