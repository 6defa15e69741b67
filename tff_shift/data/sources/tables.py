"""A CSV or Parquet file, with a row for each example."""

import codecs
import contextlib
import csv
import functools
import gzip
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
from tff_shift.data.sources import frames
from tff_shift.data.sources import image_files
from tff_shift.data.sources import source

if TYPE_CHECKING:
  import pandas

FORM = "path/to/data.csv or .parquet with --label"
OPTIONS = (*source.COLUMNS, "separator", "decimal", "encoding")
SUFFIXES = ".csv", ".csv.gz", ".parquet"

_CHUNK = 2**20
_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d")
# After a time of day.
_ZONE = re.compile(r"(?<=\d:\d\d)(?:\.\d+)?\s*(Z|[+-]\d\d(?::?\d\d)?)\s*$")


class Dialect(NamedTuple):
  """How a CSV file is written.

  Attributes:
    separator: The character between two values.
    decimal: The decimal mark of numbers.
    encoding: The name of the encoding in Python.
  """

  separator: str = ","
  decimal: str = "."
  encoding: str = "utf-8-sig"

  def arguments(self) -> dict[str, str]:
    """Returns the arguments of pandas' functions."""
    return {
      "sep": self.separator,
      "decimal": self.decimal,
      "encoding": self.encoding,
    }


_PLAIN = Dialect()


def takes(name: str) -> bool:
  """Returns whether a data set of this name is such a file."""
  return name.endswith(SUFFIXES)


def load(
  name: str, options: Mapping[str, str], folder: pathlib.Path
) -> source.Content:
  """Reads a file.

  The columns of a CSV file that have a role are read as texts, exactly as they
  stand in the file.

  Args:
    name: The path of the file.
    options: The columns, see `source.COLUMNS`. With `image`, a column of paths
      of image files, relative to the folder of the file.
    folder: Not used.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the content is not valid; one line that names the file.
  """
  del folder
  path = pathlib.Path(name)
  try:
    columns = source.columns(options)
    is_csv = path.suffix != ".parquet"
    dialect = dialect_of(columns, is_csv)
    roles = [
      columns[role]
      for role in ("label", "client", "time", "group", "image")
      if role in columns
    ]
    where: Callable[[int], str] = frames.row_name
    if is_csv:
      where = functools.partial(_line, path, dialect)
      frame = _read_csv(path, roles, dialect)
    else:
      frame = _read_parquet(path, roles)
    for role in ("label", "time"):
      column = columns.get(role)
      if column not in frame.columns:
        continue
      is_text = frame[column].map(type).eq(str).all()
      if is_text and role == "time" and "domain_order" not in columns:
        frame[column] = _times(frame[column], where, columns.get("time_unit"))
      elif is_text and is_csv and role == "label":
        _refuse_fractions(frame[column], where)
    if "image" not in columns:
      return source.Content(frames.read(frame, where=where, **columns))
    with files.reading(path) as file:
      digest = hashlib.sha256(file.read())
    return with_images(path.parent, frame, digest, where=where, **columns)
  except OSError:
    raise
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def dialect_of(columns: dict[str, Any], is_csv: bool) -> Dialect:
  """Takes the dialect out of the options of a file.

  Raises:
    ValueError: If an option is not allowed.
  """
  options = {
    name: columns.pop(name) for name in Dialect._fields if name in columns
  }
  for name, value in options.items():
    if not is_csv:
      raise ValueError(f"--{name}={value} belongs to CSV files")
    if name == "encoding":
      try:
        codecs.lookup(value)
      except LookupError as error:
        raise ValueError(
          f"--encoding={value}: Python has no such encoding; such as latin-1"
        ) from error
    elif len(value) != 1 or value in '\r\n"':
      raise ValueError(
        f"--{name}={value}: it must be one character (a tabulator: $'\\t')"
      )
  dialect = Dialect(**options)
  if dialect.separator == dialect.decimal:
    raise ValueError(
      f"--decimal={dialect.decimal}: --separator must be another character"
    )
  return dialect


def read_frame(
  path: pathlib.Path, label: str | None, dialect: Dialect = _PLAIN
) -> "pandas.DataFrame":
  """Reads the columns of a CSV or Parquet file.

  Args:
    path: The file.
    label: The column of the class, which of a CSV file is read as texts; it may
      be missing. None: no column.
    dialect: How a CSV file is written.

  Raises:
    OSError: If it cannot be read.
    ValueError: If the content is not valid; the message is the reason.
  """
  roles = [] if label is None else [label]
  if path.suffix == ".parquet":
    return _read_parquet(path, roles)
  return _read_csv(path, roles, dialect)


def read_rows(
  path: pathlib.Path, as_texts: bool, dialect: Dialect = _PLAIN
) -> "pandas.DataFrame":
  """Reads a valid file again, to write its rows with more columns.

  Args:
    path: The file.
    as_texts: Whether numbers of a CSV file are literal texts; its other values
      are.
    dialect: How a CSV file is written.
  """
  import pandas

  if path.suffix == ".parquet":
    return pandas.read_parquet(path)
  reading = dialect.arguments()
  texts = pandas.read_csv(path, dtype=str, na_filter=False, **reading)
  if as_texts:
    return texts
  numbers = pandas.read_csv(path, low_memory=False, **reading)
  return texts.assign(**numbers.select_dtypes(["number", "bool"]))


def write(
  path: str | os.PathLike[str],
  frame: "pandas.DataFrame",
  dialect: Dialect = _PLAIN,
) -> None:
  """Writes a CSV or Parquet file atomically, see `files.replacing`.

  Raises:
    files.WriteError: If it cannot be written; the old one is kept.
  """
  name = os.fspath(path)
  with files.replacing(path) as file:
    if name.endswith(".parquet"):
      frame.to_parquet(file)
    else:
      compression = "gzip" if name.endswith(".gz") else None
      writing = dialect.arguments()
      if dialect.encoding == _PLAIN.encoding:
        writing["encoding"] = "utf-8"  # Without a mark of the byte order.
      frame.to_csv(file, index=False, compression=compression, **writing)


def with_images(
  folder: pathlib.Path,
  frame: "pandas.DataFrame",
  digest: Any,
  image_size: int | None = None,
  where: Callable[[int], str] = frames.row_name,
  **columns: Any,
) -> source.Content:
  """Makes a table whose column of images has paths in a folder.

  Args:
    folder: The folder.
    frame: The paths, and columns with other roles.
    digest: The SHA-256 of what was read before; updated with the images.
    image_size: Height and width of the images after resizing.
    where: Returns the name of a row in messages.
    **columns: The columns, see `frames.read`.
  """
  images: list[pathlib.Path] = []

  def read_images(paths):
    for row in np.flatnonzero(paths.isna()).tolist():
      raise ValueError(f"image={paths.name!r} has no path in {where(row)}")
    images.extend(folder / path for path in paths if isinstance(path, str))
    return image_files.read(
      _contents(folder, paths, digest, where), len(paths), image_size
    )

  content = frames.read(frame, **columns, where=where, read_images=read_images)
  return source.Content(content, digest.hexdigest(), tuple(images))


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """Opens a file, decompressed if its name ends in .gz."""
  with files.reading(path, max_bytes=memory.limit()) as file:
    if path.suffix != ".gz":
      yield file
      return
    with gzip.GzipFile(fileobj=file) as content:
      yield content  # type: ignore[misc]  # It reads like a file.


def _read_csv(
  path: pathlib.Path, roles: Sequence[str], dialect: Dialect
) -> "pandas.DataFrame":
  """Reads a CSV file; the columns of roles are texts, or None if empty.

  Other columns of dates are dates.
  """
  import pandas

  reading = dialect.arguments()
  with _opened(path) as file:
    # Errors of many types, of pandas, gzip and Python.
    try:
      # In UTF-16, for example, NUL is a part of a character.
      if dialect.encoding == _PLAIN.encoding:
        _refuse_nul(file)
      with contextlib.closing(_records(path, dialect)) as records:
        _, header = next(records, (1, []))
        line, first = next(records, (2, []))
      names = [column for column in dict.fromkeys(roles) if column in header]
      frame = pandas.read_csv(file, low_memory=False, **reading)
      if names:
        file.seek(0)
        # The text of each cell, such as NA and 007.
        frame[names] = pandas.read_csv(
          file, usecols=names, dtype=object, na_filter=False, **reading
        )[names]
    except Exception as error:
      raise _unreadable(error) from error
  # pandas would rename equal names.
  _check_header(
    [name or f"Unnamed: {column}" for column, name in enumerate(header)]
  )
  if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
    raise ValueError(
      f"its only column is {header[0]!r}; --separator names the character"
      " between two values"
    )
  # pandas would take the first column for names of rows.
  if len(first) > len(header):
    raise ValueError(
      f"line {line} has more values than the header, which has"
      f" {len(header)} names"
    )
  for column in names:
    frame[column] = frame[column].where(
      frame[column].str.strip().astype(bool), None
    )
  texts = frame.select_dtypes(exclude=["number", "bool"]).columns
  for column in texts.difference(names):
    frame[column] = _dates(frame[column])
  return frame


def _dates(column: "pandas.Series") -> "pandas.Series":
  """Returns a column of texts that are all dates as dates."""
  import pandas

  values = column.dropna()
  is_text = pandas.api.types.is_string_dtype(values) and len(values)
  if is_text and all(_DATE.match(str(value)) for value in values):
    with contextlib.suppress(ValueError):
      return pandas.to_datetime(column, format="ISO8601")
  return column


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
  examples.check_names(names, "header", lambda column: f"column {column + 1}")


def _unreadable(error: Exception) -> ValueError:
  hint = ""
  if isinstance(error, UnicodeDecodeError):
    hint = "; --encoding names another encoding, such as latin-1"
  reason = array_files.first_line(error)
  return ValueError(f"it cannot be read ({reason}){hint}")


def _refuse_nul(file: IO[bytes]) -> None:
  """Refuses NUL, at which pandas ends a value; then goes to the begin."""
  line = 1
  while chunk := file.read(_CHUNK):
    position = chunk.find(0)
    if position >= 0:
      line += chunk.count(b"\n", 0, position)
      raise ValueError(f"line {line} has a NUL")
    line += chunk.count(b"\n")
  file.seek(0)


def _records(
  path: pathlib.Path, dialect: Dialect
) -> Generator[tuple[int, list[str]], None, None]:
  """Yields the line and the cells of each record, the header first."""
  with _opened(path) as file:
    text = io.TextIOWrapper(file, encoding=dialect.encoding, newline="")
    try:
      reader, end = csv.reader(text, delimiter=dialect.separator), 0
      for cells in reader:
        start, end = end + 1, reader.line_num
        # pandas skips blank lines too.
        if len(cells) > 1 or "".join(cells).strip():
          yield start, cells
    finally:
      text.detach()


def _line(path: pathlib.Path, dialect: Dialect, row: int) -> str:
  """Returns the name of a row of a CSV file: its line, the header's is 1."""
  try:
    with contextlib.closing(_records(path, dialect)) as records:
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
    value = frames.number_of(text)
    if value != value.to_integral_value():
      raise ValueError(
        f"label {column.name!r} has fractions, such as {text} in {where(row)};"
        " its values must be integers, texts or dates"
      )


def _times(
  column: "pandas.Series", where: Callable[[int], str], time_unit: str | None
) -> "pandas.Series":
  """Returns texts as times with an order: numbers by value, or dates."""
  import pandas

  if time_unit is not None:
    zones = column.str.extract(_ZONE, expand=False).dropna()
    if len(zones):
      shown = ", ".join(zones.unique()[:3])
      examples.warn(
        f"--time={column.name} has time zones ({shown});"
        f" --time_unit={time_unit} counts the local time as written"
      )
      column = column.str.replace(_ZONE, "", regex=True)

  numbers = {
    text: frames.number_of(text)
    for text in column.unique()
    if frames.are_numbers([text])
  }
  if len(numbers) == column.nunique():
    ordered = sorted(numbers, key=numbers.__getitem__)
    for first, second in itertools.pairwise(ordered):
      if numbers[first] == numbers[second]:
        rows = (int(np.argmax(column == text)) for text in (first, second))
        raise ValueError(
          f"--time={column.name}: {first!r} ({where(next(rows))}) and"
          f" {second!r} ({where(next(rows))}) are the same number; write one of"
          " them"
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
      raise ValueError(
        f"--time={column.name} has dates of several time zones, or with and"
        " without one; --time_unit counts the local time as written"
      ) from error
    row = int(np.argmax(are_wrong))
    raise ValueError(
      f"--time={column.name} must be numbers or dates such as 2024-01-31, got"
      f" {column.iloc[row]!r} in {where(row)}; --domain_order gives texts an"
      " order"
    ) from error


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
