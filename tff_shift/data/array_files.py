"""Files of arrays, which are read whole or refused in one line."""

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_shift import files


def first_line(error: Exception) -> str:
  """Returns what an error of a library says, in one line of bounded length."""
  # TensorFlow begins with the name of a node and ends with an operation.
  text = str(error).rpartition("}} ")[2].partition(" [Op:")[0]
  lines = text.strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Reads an .npz file.

  Args:
    path: A file that exists.

  Returns:
    The arrays by name.

  Raises:
    ValueError: It is no such file, is not whole, or holds something else than
      numbers and texts; the message is the reason.
  """
  if not zipfile.is_zipfile(path):
    raise ValueError("it is not an .npz file (numpy.savez)")
  try:
    # First, because a damaged header may ask for any amount of memory.
    with zipfile.ZipFile(path) as archive:
      damaged = archive.testzip()
    if damaged is None:
      with np.load(path, allow_pickle=False) as arrays:
        found = {name: _read_array(arrays, name) for name in arrays}
  # Which error depends on the place of the damage: there are more than ten.
  except Exception as error:
    raise ValueError(f"it is damaged: {first_line(error)}") from error
  if damaged is not None:
    raise ValueError(f"it is damaged: the checksum of {damaged} is wrong")
  for name, array in found.items():
    if array is None:
      raise ValueError(
        f"its array {name!r} holds Python objects, which are never loaded, for"
        " loading them could run any code; save texts as texts"
        " (array.astype(str)), numbers as numbers, and each array of a"
        " dictionary by its own name (numpy.savez(path, **dictionary))"
      )
    if not isinstance(array, np.ndarray):
      raise ValueError(f"{name!r} in it is no array (numpy.savez)")
  return found


def _read_array(arrays: Mapping[str, np.ndarray], name: str) -> Any:
  """Reads an array of an .npz file; None if it holds Python objects."""
  try:
    return arrays[name]
  except ValueError as error:
    # The one error of NumPy that names what it was called with.
    if "allow_pickle" in str(error):
      return None
    raise


def write_npz(
  path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]
) -> None:
  """Replaces an .npz file in one step, see `files.replacing`.

  Args:
    path: The file.
    arrays: The arrays by name.

  Raises:
    files.WriteError: If it cannot be written; the old one is kept.
  """
  # As `numpy.savez`, which leaves the archive open where writing fails: Python
  # would print a second error when it closes it.
  with files.replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(
          member, np.asanyarray(array), allow_pickle=False
        )


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
  """Maps an .npy file: only the rows that are used will be read.

  Args:
    path: A file that exists.

  Returns:
    The array, which cannot be written to.

  Raises:
    ValueError: It is no such file, or not whole; the message is the reason.
  """
  try:
    return np.load(path, mmap_mode="r", allow_pickle=False)
  except Exception as error:
    raise ValueError(first_line(error)) from error
