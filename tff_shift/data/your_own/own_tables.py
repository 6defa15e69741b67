"""A table or a folder on the disk as a `frames.Table`.

Options are those of the name of a data set, see `own_datasets`.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

from tff_shift import files
from tff_shift.data import array_files
from tff_shift.data.your_own import frames
from tff_shift.data.your_own import from_huggingface
from tff_shift.data.your_own import image_files

if TYPE_CHECKING:
  import pandas


def read_file(
  path: pathlib.Path, given: Mapping[str, str]
) -> tuple[frames.Table, str | None]:
  """Reads a CSV or Parquet file.

  Args:
    path: The file.
    given: Its options.

  Returns:
    The table; with images, the SHA-256 of the file and of their paths and
    bytes.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the content is not valid; one line that names the file.
  """
  import pandas

  options = _columns(path, given)
  read = pandas.read_csv if path.suffix == ".csv" else pandas.read_parquet
  try:
    frame = read(path)
  # Errors of many types, of pandas and pyarrow.
  except Exception as error:
    raise ValueError(
      f"{path}: it cannot be read ({array_files.first_line(error)})"
    ) from error
  time = options.get("time")
  if (
    time in frame.columns
    and frame[time].dtype == object
    and "domain_order" not in options
  ):
    # Dates of a CSV file are texts.
    try:
      frame[time] = pandas.to_datetime(frame[time], format="ISO8601")
    except ValueError as error:
      raise ValueError(
        f"{path}: --time={time} must be numbers or dates such as 2024-01-31,"
        f" got {frame[time].iloc[0]!r}; --domain_order gives texts an order"
      ) from error
  if "image" not in options:
    return _table(path, frame, **options), None
  digest = hashlib.sha256(path.read_bytes())
  return _table_of_images(path, path.parent, frame, digest, **options)


def read_folder(
  path: pathlib.Path, given: Mapping[str, str]
) -> tuple[frames.Table, str]:
  """Reads a folder of images, or one of `Dataset.save_to_disk`.

  Returns:
    The table, and the SHA-256 of its files; see `read_file`.
  """
  if from_huggingface.is_saved(path):
    options = _columns(path, given)
    saved = from_huggingface.load(path)
    try:
      table = from_huggingface.table(saved, **options)
    except ValueError as error:
      raise ValueError(f"{path}: {error}") from error
    digest = hashlib.sha256()
    for saved_file in from_huggingface.saved_files(path):
      with open(saved_file, "rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return table, digest.hexdigest()
  options = _parsed(given)
  levels = options.pop("folder_levels", None)
  frame = image_files.folder_frame(path, levels and levels.split(","))
  levels_of_roles = {"client": "client", "time": "domain"}
  roles: dict[str, Any] = {
    role: level for role, level in levels_of_roles.items() if level in frame
  }
  roles |= {"label": "class", "image": image_files.IMAGE}
  return _table_of_images(
    path, path, frame, hashlib.sha256(), **roles, **options
  )


def _table(
  path: pathlib.Path, frame: "pandas.DataFrame", **options: Any
) -> frames.Table:
  """Makes a table; an error names its file."""
  try:
    return frames.Table(frame, **options)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _table_of_images(
  path: pathlib.Path,
  folder: pathlib.Path,
  frame: "pandas.DataFrame",
  digest: Any,
  image_size: int | None = None,
  **options: Any,
) -> tuple[frames.Table, str]:
  """Makes a table whose column of images has paths in a folder."""
  table = _table(
    path,
    frame,
    **options,
    read_images=lambda paths: image_files.read(
      _contents(folder, paths, digest), len(paths), image_size
    ),
  )
  return table, digest.hexdigest()


def _columns(path: pathlib.Path, given: Mapping[str, str]) -> dict[str, Any]:
  """Returns the options of a table with columns, see `_parsed`."""
  parsed = _parsed(given)
  if "label" not in given:
    raise ValueError(f"{path}: --label must name the column of the class")
  if "image_size" in given and "image" not in given:
    raise ValueError(
      f"{path}: --image_size needs --image, the column of the images"
    )
  return parsed


def _parsed(given: Mapping[str, str]) -> dict[str, Any]:
  """Returns options with image_size and lists as values."""
  parsed: dict[str, Any] = dict(given)
  if "image_size" in given:
    if not given["image_size"].isdecimal() or not int(given["image_size"]):
      raise ValueError(
        f"--image_size={given['image_size']}: it must be a number of pixels"
      )
    parsed["image_size"] = int(given["image_size"])
  for option in ("domain_order", "features"):
    if option in given:
      parsed[option] = given[option].split(",")
  return parsed


def _contents(
  folder: pathlib.Path, paths: "pandas.Series", digest: Any
) -> Iterator[tuple[str, bytes]]:
  """Yields the name and content of image files, and updates a digest."""
  for row, path in enumerate(paths):
    if not isinstance(path, str):
      raise ValueError(
        f"image={paths.name!r} must have the paths of files, got {path!r} in"
        f" row {row}"
      )
    with files.reading(folder / path) as file:
      content = file.read()
    digest.update(os.fsencode(path) + f" {len(content)} ".encode() + content)
    yield str(folder / path), content
