"""Reads and writes array files; an invalid file is refused in one line."""

# Decisions: BUILD_NOTES, "Your own data".

import math
import os
import zipfile
from collections.abc import Mapping
from typing import IO

import numpy as np
from numpy.lib import format

from tff_shift import files
from tff_shift import memory


def first_line(error: Exception) -> str:
  """Returns the message of a library's error as one line of bounded length."""
  # TensorFlow begins with the name of a node and ends with an operation.
  text = str(error).rpartition("}} ")[2].partition(" [Op:")[0]
  lines = text.strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


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


_CHUNK = 2**20


class _RefusedError(ValueError):
  """The reason for refusing a file, without its name."""


def _read_archive(file: IO[bytes]) -> dict[str, np.ndarray]:
  if not zipfile.is_zipfile(file):
    raise _RefusedError("it is not an .npz file (numpy.savez)")
  found = {}
  try:
    with zipfile.ZipFile(file) as archive:
      members = archive.infolist()
      largest = max(members, key=lambda each: each.file_size, default=None)
      if largest is not None:
        memory.check(
          sum(each.file_size for each in members),
          f"it is too large, above all its array {_name(largest)!r}",
        )
      for each in members:
        if _name(each) in found:
          raise _RefusedError(f"it is damaged: {_name(each)!r} is in it twice")
        with archive.open(each) as member:
          found[_name(each)] = _read_member(member, each)
  except (_RefusedError, memory.TooLargeError):
    raise
  # More than ten types of error are possible, depending on the damaged bytes.
  except Exception as error:
    reason = first_line(error).replace(
      "Bad CRC-32 for file", "wrong checksum of"
    )
    raise ValueError(f"it is damaged: {reason}") from error
  return found


def _name(member: zipfile.ZipInfo) -> str:
  return member.filename.removesuffix(".npy")


def _read_member(member: IO[bytes], info: zipfile.ZipInfo) -> np.ndarray:
  """Reads an array of an archive, to the end, where its checksum is."""
  try:
    array = _read_array(member, info)
  except ValueError:
    # The header may be damaged: check the checksum first.
    _check_rest(member)
    raise
  _check_rest(member)
  return array


def _check_rest(member: IO[bytes]) -> None:
  while member.read(_CHUNK):
    pass


def _read_array(member: IO[bytes], info: zipfile.ZipInfo) -> np.ndarray:
  name = _name(info)
  if member.read(len(format.MAGIC_PREFIX)) != format.MAGIC_PREFIX:
    raise _RefusedError(f"{name!r} in it is not an array (numpy.savez)")
  member.seek(0)
  read_header = _HEADERS.get(format.read_magic(member))
  if read_header is None:
    raise _RefusedError(f"its array {name!r} has neither numbers nor texts")
  shape, _, dtype = read_header(member)
  if dtype.hasobject:
    raise _RefusedError(
      f"its array {name!r} has Python objects, which are never loaded because"
      " loading them can run any code; save texts as texts"
      " (array.astype(str)), numbers as numbers, and each array of a dictionary"
      " by its own name (numpy.savez(path, **dictionary))"
    )
  num_bytes = math.prod(shape) * dtype.itemsize
  rest = info.file_size - member.tell()
  # Before memory is allocated: a damaged header can have any size.
  if min(shape, default=0) < 0 or num_bytes != rest:
    raise _RefusedError(
      f"it is damaged: its array {name!r} is declared as {dtype}"
      f" {list(shape)}, {memory.described(num_bytes)}, and has"
      f" {memory.described(rest)}"
    )
  member.seek(0)
  return format.read_array(member, allow_pickle=False)


# Version 3.0 is for arrays whose fields have names.
_HEADERS = {
  (1, 0): format.read_array_header_1_0,
  (2, 0): format.read_array_header_2_0,
}


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
