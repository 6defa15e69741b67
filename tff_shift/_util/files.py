"""Reads files safely and replaces files atomically."""

import contextlib
import io
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import IO

# The maximum size of a file that is read as a whole: wrong paths fail early.
MAX_BYTES = 2**30

_KINDS = {
  stat.S_IFDIR: "a folder",
  stat.S_IFIFO: "a named pipe",
  stat.S_IFSOCK: "a socket",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
}


class WriteError(OSError):
  """A file cannot be written, for example on a full disk; one line."""

  def __init__(self, path: str | os.PathLike[str], reason: str):
    super().__init__(f"{path} cannot be written: {reason}")
    self.strerror = reason


def read_bytes(
  path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> bytes:
  """Reads a regular file.

  Args:
    path: The file. Links are followed.
    max_bytes: The maximum size.

  Returns:
    The content.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If it is not a regular file, is larger than `max_bytes`, or
      cannot be read; one line that begins with the path.
  """
  with reading(path, max_bytes=max_bytes) as file:
    # Files of /proc have the size 0 and any content.
    content = file.read(max_bytes + 1)
  if len(content) > max_bytes:
    raise ValueError(f"{path} has more than {max_bytes:,} bytes")
  return content


@contextlib.contextmanager
def reading(
  path: str | os.PathLike[str], *, max_bytes: int | None = None
) -> Iterator[io.BufferedReader]:
  """Opens a regular file for reading bytes.

  Args:
    path: The file. Links are followed.
    max_bytes: The maximum size. None: no limit.

  Yields:
    The open file.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If it is not a regular file, is larger than `max_bytes`, or
      cannot be read; one line that begins with the path.
  """
  try:
    # Opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
      _check_regular(path, os.fstat(descriptor), max_bytes)
      with os.fdopen(descriptor, "rb", closefd=False) as file:
        yield file
    finally:
      os.close(descriptor)
  except FileNotFoundError:
    raise
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def check_regular(path: str | os.PathLike[str]) -> None:
  """Checks that a file is regular, before a library opens it.

  Args:
    path: The file. Links are followed.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If it is not a regular file, for example a named pipe; one line
      that begins with the path.
  """
  try:
    found = os.stat(path)
  except FileNotFoundError:
    raise
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error
  _check_regular(path, found, found.st_size)


def _check_regular(
  path: str | os.PathLike[str], found: os.stat_result, max_bytes: int | None
) -> None:
  if not stat.S_ISREG(found.st_mode):
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    raise ValueError(f"{path} is {kind}; it must be a file")
  if max_bytes is not None and found.st_size > max_bytes:
    raise ValueError(
      f"{path} has {found.st_size:,} bytes; at most {max_bytes:,} are read"
    )


def read_text(
  path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> str:
  """Reads a UTF-8 file.

  Args:
    path: The file. Links are followed.
    max_bytes: The maximum size.

  Returns:
    The text.

  Raises:
    FileNotFoundError: If the file does not exist.
    ValueError: If it cannot be read, or is not UTF-8; one line that begins with
      the path.
  """
  content = read_bytes(path, max_bytes=max_bytes)
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path} is not UTF-8 text (byte {error.start:,})"
    ) from error


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
  """Converts errors of writing a file or folder to a `WriteError`."""
  try:
    yield
  except WriteError:
    # It already names the file.
    raise
  except Exception as error:
    reason = _write_failure(error)
    if reason is None:
      raise
    raise WriteError(path, reason) from error


def _write_failure(error: Exception) -> str | None:
  """Returns the reason of a write error, or None for other errors."""
  if isinstance(error, shutil.Error):
    # Errors of many files: (source, destination, reason).
    return str(error.args[0][-1][-1])
  if isinstance(error, OSError):
    return error.strerror or str(error)
  # Imported here because it takes seconds. Its errors only occur after import.
  import tensorflow as tf

  if isinstance(error, tf.errors.OpError):
    # A node, the path, "; ", the reason, and further lines.
    first, *_ = error.message.rpartition("}} ")[2].strip().splitlines() or [""]
    return first.partition(" [Op:")[0].rpartition("; ")[2]
  return None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
  """Opens a temporary file that replaces `path` at the end of the block.

  Readers see either the old or the new file. A link at `path` is replaced, not
  followed. The umask determines the file mode.

  Yields:
    The temporary file, open for writing bytes.

  Raises:
    WriteError: If the file cannot be written; the old file is kept.
  """
  path = pathlib.Path(path)
  temporary = temporary_path(path)
  with writing(path):
    try:
      with open(temporary, "xb") as file:
        yield file
      os.replace(temporary, path)
    finally:
      temporary.unlink(missing_ok=True)


def temporary_path(path: pathlib.Path) -> pathlib.Path:
  """Returns an unpredictable path next to `path`: `.<name>.<hex>.tmp`."""
  # File systems allow names of 255 bytes.
  return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")


def temporary_pattern(name: str) -> str:
  """Returns a pattern of `pathlib.Path.glob` for temporary paths of a name."""
  return f".{name}.{'[0-9a-f]' * 16}.tmp"


@contextlib.contextmanager
def replacing_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Creates a folder that replaces `folder` at the end of the block.

  For a moment neither the old nor the new folder exists.

  Args:
    folder: The folder. It may be missing, a link or a file.

  Yields:
    The new, empty folder.

  Raises:
    WriteError: If the folder, or a file in it, cannot be written; the old one
      is kept.
  """
  temporary = temporary_path(folder)
  with writing(folder):
    os.mkdir(temporary)
    try:
      yield temporary
      remove(folder)
      os.rename(temporary, folder)
    finally:
      remove(temporary)


def remove(path: pathlib.Path) -> None:
  """Removes a file, a link or a folder with its content, if it exists."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def make_folder(folder: pathlib.Path, *parts: str) -> pathlib.Path:
  """Creates a folder and its parents, if they are missing.

  Args:
    folder: A folder.
    *parts: The path of the folder to create within `folder`, as names.

  Returns:
    The created folder.

  Raises:
    WriteError: If a folder cannot be created.
  """
  path = folder.joinpath(*parts)
  with writing(path):
    path.mkdir(parents=True, exist_ok=True)
  return path


def check_writable(folder: pathlib.Path) -> None:
  """Checks that a folder can be created and written; leaves no files.

  Args:
    folder: The folder, which need not exist.

  Raises:
    WriteError: If it cannot be written.
  """
  with writing(folder):
    while not folder.exists():
      folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as probe:
      probe.write(b"\0")


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
  """Replaces a file atomically by UTF-8 text.

  Raises:
    WriteError: If the file cannot be written; the old file is kept.
  """
  with replacing(path) as file:
    file.write(text.encode("utf-8"))
