"""Text files, read line by line, regardless of their size."""

import json
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tff_shift._util import files


def lines(path: pathlib.Path) -> Iterator[str]:
  """Yields the lines of a file, one at a time, with their ends.

  Args:
    path: The file, in UTF-8.

  Yields:
    The lines. Only newlines end a line, not Unicode's other line ends.

  Raises:
    ValueError: If a line is not UTF-8, or the file cannot be read; one line of
      text that names the file.
  """
  try:
    with files.reading(path) as file:
      for line_number, line in enumerate(file, start=1):
        # A byte order mark at the start does not belong to a field.
        yield line.decode("utf-8-sig" if line_number == 1 else "utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path}, line {line_number}: it is not UTF-8; convert the file"
    ) from error
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def json_objects(
  path: pathlib.Path,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields the objects of a file with one JSON object per line.

  Args:
    path: The file, in UTF-8.

  Yields:
    The number of each line that is not empty, from 1, and its object.

  Raises:
    ValueError: If a line is not a JSON object in UTF-8, or the file cannot be
      read; one line of text that names the file.
  """
  for line_number, line in enumerate(lines(path), start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise ValueError(f"{path}, line {line_number}: it is not JSON") from error
    if not isinstance(record, dict):
      raise ValueError(f"{path}, line {line_number}: it is not a JSON object")
    yield line_number, record
