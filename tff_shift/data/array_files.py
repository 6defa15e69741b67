"""Reads and writes array files; an invalid file is refused in one line.

Choices:
  * Libraries raise more than ten types of errors for damaged files, so readers
    of archives, weights and caches catch all errors and name the file.
    Checksums are verified before headers are trusted.
  * Arrays with an unknown key are refused, because with a misspelt `client` the
    flags would partition the examples.
"""

import hashlib
import os
import zipfile
from collections.abc import Mapping
from typing import IO

import numpy as np
from numpy.lib import format

from tff_shift._util import files
from tff_shift._util import memory


def first_line(error: Exception) -> str:
  """Returns the message of a library's error as one line of bounded length."""
  # TensorFlow begins with the name of a node and ends with an operation.
  text = str(error).rpartition("}} ")[2].partition(" [Op:")[0]
  lines = text.strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


def digest(array: np.ndarray) -> str:
  """Returns the SHA-256 digest of an array's type, shape and content."""
  content = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
  content.update(np.ascontiguousarray(array).data)
  return content.hexdigest()


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Reads an .npz file.

  Returns:
    The arrays by name.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is not an .npz file, is incomplete, is too large for the
      memory, or has other content than numbers and texts; the message is the
      reason.
  """
  try:
    with files.reading(path) as file:
      return _read_archive(file)
  except ValueError as error:
    # An error of opening the file already names it.
    if not str(error).startswith(os.fspath(path)):
      raise
    reason = str(error).removeprefix(os.fspath(path))
    raise ValueError(f"it{reason}") from error


def _read_archive(file: IO[bytes]) -> dict[str, np.ndarray]:
  if not zipfile.is_zipfile(file):
    raise ValueError("it is not an .npz file (numpy.savez)")
  arrays = {}
  name = ""
  try:
    with zipfile.ZipFile(file) as archive:
      members = archive.infolist()
      memory.check(
        sum(member.file_size for member in members), "it is too large"
      )
      for member_info in members:
        name = member_info.filename.removesuffix(".npy")
        with archive.open(member_info) as member:
          arrays[name] = format.read_array(member, allow_pickle=False)
          # To the end, where its checksum is.
          if member.read():
            raise ValueError("it is longer than its header says")
  except memory.TooLargeError:
    raise
  # More than ten types of error are possible, depending on the damaged bytes.
  except Exception as error:
    reason = first_line(error)
    if "allow_pickle" in reason:
      raise ValueError(
        f"its array {name!r} has Python objects, which are never loaded because"
        " loading them can run any code; save texts as texts"
        " (array.astype(str)), numbers as numbers, and each array of a"
        " dictionary by its own name (numpy.savez(path, **dictionary))"
      ) from error
    raise ValueError(f"it is damaged: its array {name!r}: {reason}") from error
  return arrays


def write_npz(
  path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes an .npz file atomically, see `files.replacing`.

  Raises:
    files.WriteError: If it cannot be written; the old one is kept.
  """
  # Unlike `numpy.savez`, closes the archive if writing fails; otherwise Python
  # prints a second error when it closes it.
  with files.replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        format.write_array(member, np.asanyarray(array), allow_pickle=False)


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
  """Maps an existing .npy file into memory: only the used rows are read.

  Returns:
    The array, read-only.

  Raises:
    ValueError: If it is not an .npy file, or incomplete; the message is the
      reason.
  """
  try:
    with files.reading(path):  # NumPy would block on a pipe.
      return np.load(path, mmap_mode="r", allow_pickle=False)
  except Exception as error:
    raise ValueError(first_line(error)) from error
