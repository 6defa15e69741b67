"""A table or a folder on the disk as a `frames.Table`.

Options are those of the name of a data set, see `own_datasets`.
"""

import contextlib
import csv
import functools
import hashlib
import io
import itertools
import os
import pathlib
import re
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import IO
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import files
from tff_shift._util import memory
from tff_shift.data import array_files
from tff_shift.data import examples
from tff_shift.data.your_own import frames
from tff_shift.data.your_own import from_huggingface
from tff_shift.data.your_own import image_files

if TYPE_CHECKING:
  import pandas

_CHUNK = 2**20


class Read(NamedTuple):
  """What was read.

  Attributes:
    table: The table.
    digest: With images, the SHA-256 of the file or folder and of the paths and
      bytes of the images. None: no images.
    images: The image files that are outside of the file or folder.
  """

  table: frames.Table
  digest: str | None
  images: tuple[pathlib.Path, ...] = ()


def read_file(path: pathlib.Path, given: Mapping[str, str]) -> Read:
  """Reads a CSV or Parquet file.

  The columns of a CSV file that have a role are read as texts, exactly as they
  stand in the file.

  Args:
    path: The file.
    given: Its options.

  Returns:
    The table.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the content is not valid; one line that names the file.
  """
  options = _columns(path, given)
  roles = [
    options[role]
    for role in ("label", "client", "time", "image")
    if role in options
  ]
  is_csv = path.suffix == ".csv"
  where: Callable[[int], str] = frames.row_name
  if is_csv:
    where = functools.partial(_line, path)
  try:
    frame = (_read_csv if is_csv else _read_parquet)(path, roles)
    for role in ("label", "time"):
      column = options.get(role)
      if column not in frame.columns:
        continue
      is_text = frame[column].map(type).eq(str).all()
      if is_text and role == "time" and "domain_order" not in options:
        frame[column] = _times(frame[column], where)
      elif is_text and is_csv and role == "label":
        _refuse_fractions(frame[column], where)
  except _RefusedError as error:
    raise ValueError(f"{path}: {error}") from error
  if "image" not in options:
    return Read(_table(path, frame, where=where, **options), None)
  with files.reading(path) as file:
    digest = hashlib.sha256(file.read())
  return _table_of_images(
    path, path.parent, frame, digest, where=where, **options
  )


def read_frame(path: pathlib.Path, label: str | None) -> "pandas.DataFrame":
  """Reads the columns of a CSV or Parquet file.

  Args:
    path: The file.
    label: The column of the class, which of a CSV file is read as texts. None:
      no column.

  Returns:
    The frame.

  Raises:
    OSError: If it cannot be read.
    ValueError: If the content or the column is not valid; the message is the
      reason.
  """
  roles = [] if label is None else [label]
  read = _read_csv if path.suffix == ".csv" else _read_parquet
  frame = read(path, roles)
  frames.check_roles({"label": label}, frame.columns)
  return frame


class _RefusedError(ValueError):
  """The reason for refusing a file, without its name."""


def _read_csv(path: pathlib.Path, roles: Sequence[str]) -> "pandas.DataFrame":
  """Reads a CSV file; the columns of roles are texts, or None if empty."""
  import pandas

  with files.reading(path, max_bytes=memory.limit()) as file:
    _refuse_nul(file)
    # Errors of many types, of pandas and Python.
    try:
      with contextlib.closing(_records(path)) as records:
        _, header = next(records, (1, []))
        line, first = next(records, (2, []))
      names = [column for column in roles if column in header]
      frame = pandas.read_csv(file, low_memory=False)
      if names:
        file.seek(0)
        # The text of each cell, such as NA and 007.
        frame[names] = pandas.read_csv(
          file, usecols=names, dtype=object, na_filter=False
        )[names]
    except Exception as error:
      raise _unreadable(error) from error
  # pandas would rename equal names.
  _check_header(
    [name or f"Unnamed: {number}" for number, name in enumerate(header)]
  )
  # pandas would take the first column for names of rows.
  if len(first) > len(header):
    raise _RefusedError(
      f"line {line} has more values than the header, which has"
      f" {len(header)} names"
    )
  for column in names:
    frame[column] = frame[column].where(
      frame[column].str.strip().astype(bool), None
    )
  return frame


def _read_parquet(
  path: pathlib.Path, roles: Sequence[str]
) -> "pandas.DataFrame":
  """Reads a Parquet file; dictionaries in columns of roles are values."""
  import pandas

  with files.reading(path, max_bytes=memory.limit()) as file:
    # Errors of many types, of pandas and pyarrow.
    try:
      frame = pandas.read_parquet(file)
    except Exception as error:
      raise _unreadable(error) from error
  _check_header(frame.columns)
  for column in set(roles) & set(frame.columns):
    kind = frame[column].dtype
    if isinstance(kind, pandas.CategoricalDtype) and not kind.ordered:
      # The order of a dictionary is that of the rows.
      frame[column] = frame[column].astype(kind.categories.dtype)
  return frame


def _check_header(names: Iterable[str]) -> None:
  try:
    examples.check_names(names, "header", lambda number: f"column {number + 1}")
  except ValueError as error:
    raise _RefusedError(error) from error


def _unreadable(error: Exception) -> _RefusedError:
  return _RefusedError(f"it cannot be read ({array_files.first_line(error)})")


def _refuse_nul(file: IO[bytes]) -> None:
  """Refuses NUL, at which pandas ends a value; then goes to the begin."""
  line = 1
  while chunk := file.read(_CHUNK):
    place = chunk.find(0)
    if place >= 0:
      line += chunk.count(b"\n", 0, place)
      raise _RefusedError(f"it cannot be read (line {line} has a NUL)")
    line += chunk.count(b"\n")
  file.seek(0)


def _records(
  path: pathlib.Path,
) -> Generator[tuple[int, list[str]], None, None]:
  """Yields the line and the cells of each record, the header first."""
  with files.reading(path) as file:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
      reader, end = csv.reader(text), 0
      for cells in reader:
        start, end = end + 1, reader.line_num
        # pandas skips blank lines too.
        if len(cells) > 1 or "".join(cells).strip():
          yield start, cells
    finally:
      text.detach()


def _line(path: pathlib.Path, row: int) -> str:
  """Returns the name of a row of a CSV file: its line, the header's is 1."""
  try:
    with contextlib.closing(_records(path)) as records:
      line, _ = next(itertools.islice(records, row + 1, None))
  except (csv.Error, StopIteration):
    return frames.row_name(row)
  return f"line {line}"


def _refuse_fractions(
  column: "pandas.Series", where: Callable[[int], str]
) -> None:
  """Refuses labels that are numbers with fractions: no classes."""
  if not frames.are_numbers(column.unique()):
    return
  for row, text in enumerate(column):
    number = frames.number_of(text)
    if number != number.to_integral_value():
      raise _RefusedError(
        f"label {column.name!r} has fractions, such as {text} in {where(row)};"
        " its values must be integers, texts or dates"
      )


def _times(
  column: "pandas.Series", where: Callable[[int], str]
) -> "pandas.Series":
  """Returns texts as times with an order: numbers by value, or dates."""
  import pandas

  numbers = {
    text: frames.number_of(text)
    for text in column.unique()
    if frames.are_numbers([text])
  }
  if len(numbers) == column.nunique():
    ordered = sorted(numbers, key=numbers.__getitem__)
    for one, other in itertools.pairwise(ordered):
      if numbers[one] == numbers[other]:
        rows = (int(np.argmax(column == text)) for text in (one, other))
        raise _RefusedError(
          f"--time={column.name}: {one!r} ({where(next(rows))}) and {other!r}"
          f" ({where(next(rows))}) are the same number; write one of them"
        )
    return pandas.Series(
      pandas.Categorical(column, ordered, ordered=True), column.index
    )
  try:
    return pandas.to_datetime(column, format="ISO8601")
  except ValueError as error:
    are_dates = pandas.to_datetime(
      column, format="ISO8601", errors="coerce", utc=True
    ).notna()
    are_numbers = column.isin(list(numbers))
    # The values are meant to be what most of them are.
    are_wrong = ~(
      are_dates if are_dates.sum() >= are_numbers.sum() else are_numbers
    )
    if not are_wrong.any():
      raise _RefusedError(
        f"--time={column.name} has dates with and without time zones"
      ) from error
    row = int(np.argmax(are_wrong))
    raise _RefusedError(
      f"--time={column.name} must be numbers or dates such as 2024-01-31, got"
      f" {column.iloc[row]!r} in {where(row)}; --domain_order gives texts an"
      " order"
    ) from error


def read_folder(path: pathlib.Path, given: Mapping[str, str]) -> Read:
  """Reads a folder of images, or one of `Dataset.save_to_disk`.

  Returns:
    The table, and the SHA-256 of its files; see `read_file`.
  """
  if from_huggingface.is_saved(path):
    options = _columns(path, given)
    digest, images = hashlib.sha256(), {}

    def on_file(name, content):
      images[pathlib.Path(name)] = hashlib.sha256(content).digest()

    saved = from_huggingface.load(path)
    try:
      table = from_huggingface.table(saved, on_file=on_file, **options)
    except ValueError as error:
      raise ValueError(f"{path}: {error}") from error
    for saved_file in from_huggingface.saved_files(path):
      with files.reading(saved_file) as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    for content in images.values():
      digest.update(content)
    return Read(table, digest.hexdigest(), tuple(images))
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
  where: Callable[[int], str] = frames.row_name,
  **options: Any,
) -> Read:
  """Makes a table whose column of images has paths in a folder."""
  images: list[pathlib.Path] = []

  def read_images(paths):
    for row in np.flatnonzero(paths.isna()).tolist():
      raise ValueError(f"image={paths.name!r} has no path in {where(row)}")
    images.extend(folder / path for path in paths if isinstance(path, str))
    return image_files.read(
      _contents(folder, paths, digest, where), len(paths), image_size
    )

  table = _table(path, frame, **options, where=where, read_images=read_images)
  return Read(table, digest.hexdigest(), tuple(images))


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
    text, largest = given["image_size"], image_files.MAX_IMAGE_SIZE
    # int refuses texts with thousands of digits.
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= largest:
      raise ValueError(
        f"--image_size={text}: it must be a number of pixels of at most"
        f" {largest}"
      )
    parsed["image_size"] = int(given["image_size"])
  for option in ("domain_order", "features"):
    if option in given:
      parsed[option] = given[option].split(",")
  return parsed


def _contents(
  folder: pathlib.Path,
  paths: "pandas.Series",
  digest: Any,
  where: Callable[[int], str],
) -> Iterator[tuple[str, bytes]]:
  """Yields the name and content of image files, and updates a digest."""
  for row, path in enumerate(paths):
    if not isinstance(path, str):
      raise ValueError(
        f"image={paths.name!r} must have the paths of files, got {path!r} in"
        f" {where(row)}"
      )
    content = files.read_bytes(folder / path)
    digest.update(os.fsencode(path) + f" {len(content)} ".encode() + content)
    yield str(folder / path), content
