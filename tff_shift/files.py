"""Files that are read whole or refused, and replaced in one step."""

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator
from typing import IO

# No file that is read whole is larger, so that a mistaken path fails at once.
MAX_BYTES = 2**30

_KINDS = {
  stat.S_IFDIR: "a folder",
  stat.S_IFIFO: "a named pipe",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}


class WriteError(OSError):
  """A file cannot be written, as on a full disk; the message is one line."""

  def __init__(self, path: pathlib.Path, reason: str):
    super().__init__(f"{path} cannot be written: {reason}")
    self.strerror = reason


def read_bytes(
  path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> bytes:
  """Reads a regular file.

  Args:
    path: The file. A link is followed.
    max_bytes: The largest size that is read.

  Returns:
    The content.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is no regular file, is larger than `max_bytes`, or cannot
      be read; one line that begins with the path.
  """
  try:
    # Opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
      _check_regular(path, os.fstat(descriptor), max_bytes)
    except ValueError:
      os.close(descriptor)
      raise
    with os.fdopen(descriptor, "rb") as file:
      return file.read()
  except FileNotFoundError:
    raise
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def check_regular(path: str | os.PathLike[str]) -> None:
  """Refuses what a library must not open, such as a named pipe.

  Args:
    path: The file. A link is followed.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is no regular file; one line that begins with the path.
  """
  try:
    found = os.stat(path)
  except FileNotFoundError:
    raise
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error
  _check_regular(path, found, found.st_size)


def _check_regular(
  path: str | os.PathLike[str], found: os.stat_result, max_bytes: int
) -> None:
  if not stat.S_ISREG(found.st_mode):
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    raise ValueError(f"{path} is {kind}; a file must be in its place")
  if found.st_size > max_bytes:
    raise ValueError(
      f"{path} has {found.st_size:,} bytes; at most {max_bytes:,} are read"
    )


def read_text(path: str | os.PathLike[str]) -> str:
  """Reads a UTF-8 file, see `read_bytes`.

  Args:
    path: The file.

  Returns:
    The text.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it cannot be read, or is not UTF-8; one line that begins with
      the path.
  """
  content = read_bytes(path)
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path} is not UTF-8 text (byte {error.start:,})"
    ) from error


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


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
  """Opens a new file that takes the place of `path` when the block ends.

  A reader sees the old file or the new one, never half. The temporary file has
  an unpredictable name in the same folder and is created exclusively, so that
  nothing is written through a link that somebody planted; a link at `path`
  itself is replaced, not followed. The file has the mode that the umask gives.

  Args:
    path: The file.

  Yields:
    The file, open for writing bytes.

  Raises:
    WriteError: If it cannot be written; the old file is kept.
  """
  path = pathlib.Path(path)
  temporary = temporary_path(path)
  flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
  with writing(path):
    descriptor = os.open(temporary, flags, 0o666)
    try:
      with os.fdopen(descriptor, "wb") as file:
        yield file
      os.replace(temporary, path)
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def temporary_path(path: pathlib.Path) -> pathlib.Path:
  """Returns an unpredictable name beside `path`: `.<name>.<hex>.tmp`."""
  # A file system takes names of 255 bytes.
  return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
  """Replaces a file by UTF-8 text, see `replacing`.

  Args:
    path: The file.
    text: Its new content.

  Raises:
    WriteError: If it cannot be written; the old file is kept.
  """
  with replacing(path) as file:
    file.write(text.encode("utf-8"))
