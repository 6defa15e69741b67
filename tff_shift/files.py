"""Files that are read whole or refused, and replaced in one step."""

import contextlib
import itertools
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
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
# Whoever may write to a folder could have put it there, to have a file
# elsewhere changed.
_LINK = "it is a link, and nothing is written through links; remove it"


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
  with reading(path, max_bytes=max_bytes) as file:
    return file.read()


@contextlib.contextmanager
def reading(
  path: str | os.PathLike[str], *, max_bytes: int | None = None
) -> Iterator[IO[bytes]]:
  """Opens a regular file that need not be read whole, see `read_bytes`.

  Args:
    path: The file. A link is followed.
    max_bytes: The largest size. None: any.

  Yields:
    The file, open for reading bytes.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: See `read_bytes`.
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
  path: str | os.PathLike[str], found: os.stat_result, max_bytes: int | None
) -> None:
  if not stat.S_ISREG(found.st_mode):
    raise ValueError(f"{path} is {_no_file(found)}")
  if max_bytes is not None and found.st_size > max_bytes:
    raise ValueError(
      f"{path} has {found.st_size:,} bytes; at most {max_bytes:,} are read"
    )


def _no_file(found: os.stat_result) -> str:
  kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
  return f"{kind}; a file must be in its place"


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
  except WriteError:
    # It names the very file.
    raise
  except Exception as error:
    reason = _write_failure(error)
    if reason is None:
      raise
    raise WriteError(path, reason) from error


def _write_failure(error: Exception) -> str | None:
  """Returns why a file was not written; None for an error of another kind."""
  if isinstance(error, shutil.Error):
    # Of many files: (from, to, why).
    return str(error.args[0][-1][-1])
  if isinstance(error, OSError):
    return error.strerror or str(error)
  # Imported here because it takes seconds; who gets its errors has done so.
  import tensorflow as tf

  if isinstance(error, tf.errors.OpError):
    # A node, the path, "; ", the reason, and what was tried in further lines.
    first, *_ = error.message.rpartition("}} ")[2].strip().splitlines() or [""]
    return first.partition(" [Op:")[0].rpartition("; ")[2]
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


@contextlib.contextmanager
def replacing_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a new folder that takes the place of `folder` when the block ends.

  What is said of `replacing` holds for it as well, but that there is a moment
  without either.

  Args:
    folder: The folder, or a link, a file or nothing in its place.

  Yields:
    The new folder, empty.

  Raises:
    WriteError: If it, or a file in it, cannot be written; the old one is kept.
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
  """Removes a file, a link, or a folder with all in it; or nothing."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def refuse_links(folder: pathlib.Path, *parts: str) -> None:
  """Refuses a folder through which something elsewhere would be written.

  Args:
    folder: The folder, which need not exist. Those above it may be links.
    *parts: Names of folders in it, one in the other.

  Raises:
    WriteError: If it or one of those in it is a link.
  """
  for path in itertools.accumulate(
    parts, pathlib.Path.joinpath, initial=folder
  ):
    if path.is_symlink():
      raise WriteError(path, _LINK)


def refuse_links_below(folder: pathlib.Path) -> None:
  """Refuses a folder that is a link or has one in it, however deep.

  Raises:
    WriteError: If there is one.
  """
  refuse_links(folder)
  for inner, folders, names in os.walk(folder):
    for name in (*folders, *names):
      refuse_links(pathlib.Path(inner, name))


def make_folder(folder: pathlib.Path, *parts: str) -> pathlib.Path:
  """Makes a folder, and those above it, where they are missing.

  Args:
    folder: See `refuse_links`.
    *parts: Likewise.

  Returns:
    The innermost folder.

  Raises:
    WriteError: If one is a link or cannot be made.
  """
  refuse_links(folder, *parts)
  path = folder.joinpath(*parts)
  with writing(path):
    path.mkdir(parents=True, exist_ok=True)
  return path


def open_to_append(path: pathlib.Path) -> int:
  """Opens a regular file, never through a link; makes it if it is missing.

  Args:
    path: The file.

  Returns:
    A descriptor for writing at its end.

  Raises:
    WriteError: If it is something else or cannot be written.
  """
  # Opening a named pipe would wait for a reader.
  flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
  flags |= os.O_NONBLOCK | os.O_CLOEXEC
  with writing(path):
    refuse_links(path)
    try:
      descriptor = os.open(path, flags, 0o666)
    except OSError as error:
      with contextlib.suppress(FileNotFoundError):
        _check_appendable(path, os.lstat(path))
      raise error
    try:
      _check_appendable(path, os.fstat(descriptor))
    except WriteError:
      os.close(descriptor)
      raise
  return descriptor


def _check_appendable(path: pathlib.Path, found: os.stat_result) -> None:
  if not stat.S_ISREG(found.st_mode):
    raise WriteError(path, f"it is {_no_file(found)}")


def check_writable(folder: pathlib.Path) -> None:
  """Tries whether a folder can be made and written; leaves nothing.

  Args:
    folder: The folder, which need not exist.

  Raises:
    WriteError: If not.
  """
  with writing(folder):
    while not folder.exists():
      folder = folder.parent
    with tempfile.TemporaryFile(dir=folder) as probe:
      probe.write(b"\0")


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
