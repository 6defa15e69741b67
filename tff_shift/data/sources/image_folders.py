"""A folder of images, in a folder for each class, client or domain."""

import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from tff_shift._util import shown_names
from tff_shift.data.sources import image_files
from tff_shift.data.sources import source
from tff_shift.data.sources import tables

if TYPE_CHECKING:
  import pandas

FORM = "path/to/folder of images"
OPTIONS = "folder_levels", "image_size", "domain_order"
LEVELS = ("client", "domain", "class")
# Names that operating systems give to files and folders of their own; hidden
# ones, which begin with a dot, are ignored too.
IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")

# The column of a frame that has the path of each image.
_IMAGE = "image"


def takes(name: str) -> bool:
  """Returns whether a data set of this name is a folder: it has a slash."""
  return "/" in name


def load(
  name: str, options: Mapping[str, str], folder: pathlib.Path
) -> source.Content:
  """Reads a folder.

  Args:
    name: The path of the folder.
    options: `folder_levels`, what the folders are; `image_size`;
      `domain_order`.
    folder: Not used.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the content is not valid; one line that names the folder.
  """
  del folder
  path = pathlib.Path(name)
  arguments = source.parsed(options)
  levels = arguments.pop("folder_levels", None)
  frame = folder_frame(path, levels and levels.split(","))
  roles: dict[str, Any] = {
    role: level
    for role, level in {"client": "client", "time": "domain"}.items()
    if level in frame
  }
  roles |= {"label": "class", "image": _IMAGE}
  try:
    return tables.with_images(
      path, frame, hashlib.sha256(), **roles, **arguments
    )
  except OSError:
    raise
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def folder_frame(
  folder: pathlib.Path, levels: Sequence[str] | None
) -> "pandas.DataFrame":
  """Lists a folder of images, a row for each one.

  Args:
    folder: The folder; images lie below as many folders as there are levels.
    levels: What the folders are, from the outside to the inside: `class`, and
      optionally `client` and `domain`. None: the class.

  Returns:
    A column for each level, and `image`, the path in the folder; by path.
    Domains and clients are categories in natural order, see `_in_order`.

  Raises:
    ValueError: If the folder has other content; one line that names it.
  """
  import pandas

  if levels is not None:
    _check_levels(levels)
  paths = sorted(_images(folder), key=lambda path: path.parts)
  if not paths:
    raise ValueError(
      f"{folder} has no images ({', '.join(image_files.SUFFIXES)})"
    )
  depth = len(levels or ("class",))
  for path in paths:
    if len(path.parts) != depth + 1:
      raise ValueError(_wrong_depth(folder, path, levels))
  levels = levels or ("class",)
  frame = pandas.DataFrame([path.parts[:-1] for path in paths], columns=levels)
  frame[_IMAGE] = list(map(str, paths))
  for level in levels:
    names = frame[level].unique()
    for name in names:
      if not shown_names.is_encodable(name):
        raise ValueError(f"{folder}: UTF-8 cannot encode the folder {name!r}")
    if level != "class":
      frame[level] = pandas.Categorical(
        frame[level], _in_order(names), ordered=True
      )
  if "domain" in levels and "client" not in levels:
    _check_classes(folder, frame)
  return frame


def _check_levels(levels: Sequence[str]) -> None:
  if (
    "class" not in levels
    or len({*levels}) < len(levels)
    or not {*levels} <= {*LEVELS}
  ):
    raise ValueError(
      f"folder_levels={','.join(levels)}: it must have class, and may have"
      " client and domain, once each, such as domain,class"
    )


def _images(folder: pathlib.Path, depth: int = 0) -> Iterator[pathlib.Path]:
  """Yields the path of each image in a folder, and refuses other files."""
  entries = [
    entry
    for entry in os.scandir(folder)
    if not entry.name.startswith(".") and entry.name not in IGNORED
  ]
  if not entries and depth:
    raise ValueError(f"{folder} is empty; a folder of a class must have images")
  for entry in entries:
    path = pathlib.Path(entry.name)
    if entry.is_dir():
      # A link to a folder above would never end.
      if depth == len(LEVELS):
        raise ValueError(
          f"{entry.path}: folders may be {depth} deep ({', '.join(LEVELS)})"
        )
      for image in _images(pathlib.Path(entry.path), depth + 1):
        yield path / image
    elif path.suffix.lower() in image_files.SUFFIXES:
      yield path
    else:
      raise ValueError(
        f"{entry.path} is not an image ({', '.join(image_files.SUFFIXES)});"
        " move it out of the folder"
      )


def _wrong_depth(
  folder: pathlib.Path, path: pathlib.Path, levels: Sequence[str] | None
) -> str:
  depth = len(path.parts) - 1
  deep = f"{folder / path} lies {depth} folder{'s' * (depth != 1)} deep"
  if levels is None and depth > 1:
    example = ("domain,class or client,class", "client,domain,class")[depth - 2]
    return f"{deep}; folder_levels must say what they are, such as {example}"
  wanted = "/".join(f"<{level}>" for level in levels or ("class",))
  option = f" (folder_levels={','.join(levels)})" if levels else ""
  return f"{deep}, and {wanted}/<image> is wanted{option}"


def _check_classes(folder: pathlib.Path, frame: "pandas.DataFrame") -> None:
  """Refuses a domain without a folder of a class: often a misspelt name."""
  domains = frame["domain"].unique()
  held = set(zip(frame["domain"], frame["class"], strict=True))
  for domain, label in itertools.product(domains, frame["class"].unique()):
    if (domain, label) not in held:
      raise ValueError(
        f"{folder}: domain {domain!r} has no folder of class {label!r}; if it"
        " has no such example, list the images in a table (image=<column>)"
      )


def _in_order(names: Iterable[str]) -> list[str]:
  """Sorts names: numbers by value, and by value inside of names."""
  names = sorted(names)
  if all(re.fullmatch(r"[+-]?\d+(\.\d+)?", name) for name in names):
    return sorted(names, key=float)
  return sorted(
    names,
    key=lambda name: [
      int(part) if part.isdecimal() else part
      for part in re.split(r"(\d+)", name)
    ],
  )
