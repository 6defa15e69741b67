"""The content of a file or folder, and the options in its name."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from tff_shift._util import arguments
from tff_shift.data import table
from tff_shift.data.sources import image_files

# The options of a table with columns.
COLUMNS = (
  *("label", "client", "time", "group", "time_unit", "features", "drop"),
  *("missing", "categories", "unseen_categories"),
  *("image", "image_size", "domain_order"),
)
TIME_UNITS = ("day", "week", "month", "quarter", "year")
_LISTS = ("domain_order", "features", "drop")


class Content(NamedTuple):
  """The content of a source.

  Attributes:
    table: The table, validated.
    sha256: With images, the SHA-256 of the file or folder and of the paths and
      bytes of the images. None: it is that of the file.
    files: The files outside of the file or folder that were read.
  """

  table: table.Table
  sha256: str | None = None
  files: tuple[pathlib.Path, ...] = ()


def parsed(options: Mapping[str, str]) -> dict[str, Any]:
  """Returns options of a name with numbers and lists as values.

  Raises:
    ValueError: If a value is not allowed.
  """
  values: dict[str, Any] = dict(options)
  if "image_size" in options:
    text, largest = options["image_size"], image_files.MAX_IMAGE_SIZE
    # int refuses texts with thousands of digits.
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= largest:
      raise ValueError(
        f"--image_size={text}: it must be a number of pixels of at most"
        f" {largest}"
      )
    values["image_size"] = int(text)
  for option in _LISTS:
    if option in options:
      values[option] = options[option].split(",")
  return values


def columns(options: Mapping[str, str]) -> dict[str, Any]:
  """Returns the options of a table with columns, as arguments.

  Raises:
    ValueError: If one is missing or not allowed.
  """
  if "label" not in options:
    raise ValueError("--label must name the column of the class")
  if "time_unit" in options:
    arguments.choice("--time_unit", options["time_unit"], TIME_UNITS)
    if "time" not in options:
      raise ValueError("--time_unit needs --time, the column of dates")
  if "image_size" in options and "image" not in options:
    raise ValueError("--image_size needs --image, the column of the images")
  return parsed(options)
