"""A data set that tensorflow-datasets has prepared, by its name."""

import pathlib
import re
from collections.abc import Mapping

from tff_shift.data import table
from tff_shift.data.readers import tfds_archives
from tff_shift.data.sources import source

FORM = "tfds:<name> (prepared by tensorflow-datasets)"
OPTIONS = ()
PREFIX = "tfds:"

_NAME = re.compile(r"tfds:(\w[\w-]*(?:/\w[\w.-]*)?)(?::(\w+),(\w+))?")


def takes(name: str) -> bool:
  """Returns whether a data set of this name is one of tensorflow-datasets."""
  return name.startswith(PREFIX)


def load(
  name: str, options: Mapping[str, str], folder: pathlib.Path
) -> source.Content:
  """Reads a prepared data set.

  Args:
    name: `tfds:<name>`, by its supervised keys (or `image` and `label`); or
      `tfds:<name>:<x>,<y>`, by these two features.
    options: None.
    folder: The folder of all data sets.

  Raises:
    ValueError: If the name or the content is not valid; one line.
    DatasetNotFoundError: If it is not on the disk.
  """
  del options  # It has none.
  match = _NAME.fullmatch(name)
  if match is None:
    raise ValueError(
      f"dataset must be tfds:<name> or tfds:<name>:<x>,<y>, such as tfds:mnist"
      f" or tfds:cifar100:image,coarse_label; got {name!r}"
    )
  stored, x, y = match.groups()
  content = tfds_archives.load_any(stored, folder, (x, y) if x else None)
  return source.Content(table.validate(content, name))
