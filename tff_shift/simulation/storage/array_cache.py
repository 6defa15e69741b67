"""A cache of results that are arrays: one .npz file per key.

A key is a digest of everything that determines a result. Files are written
atomically and contain their key; damaged files count as missing.
"""

import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.data import array_files


def key(description: Mapping[str, Any]) -> str:
  """Returns the key of a result.

  Args:
    description: Everything that determines the result, in JSON types; use
      `array_files.digest` for arrays. The order of its keys does not matter.

  Returns:
    A SHA-256 digest of 64 hexadecimal digits, the same in every process.
  """
  return records.digest(description)


def save(
  path: pathlib.Path, key: str, arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes a result atomically.

  Args:
    path: The file, in an existing folder.
    key: The key of the result.
    arrays: The result; no name is `key`.

  Raises:
    files.WriteError: If it cannot be written.
  """
  array_files.write_npz(path, {"key": np.array(key), **arrays})


def load(
  path: pathlib.Path, key: str, names: Sequence[str]
) -> dict[str, np.ndarray] | None:
  """Reads a result.

  A file that is damaged or has another content is logged in one line.

  Args:
    path: The file.
    key: The key of the result.
    names: The names of the arrays of the result.

  Returns:
    The arrays by name; None if the file is missing or cannot be used.

  Raises:
    ValueError: If the path is a folder.
  """
  if path.is_dir():
    raise ValueError(f"{path} is a folder; it must be a file")
  try:
    arrays = array_files.read_npz(path)
    if str(arrays.get("key")) != key:
      raise ValueError("it holds another result")
    return {name: arrays[name] for name in names}
  except FileNotFoundError:
    return None
  except ValueError as error:
    reason = " ".join(str(error).split())
  logging.warning(
    "cached result %s cannot be used and is computed again: %s",
    shown_names.printable(str(path)),
    shown_names.line(reason),
  )
  return None
