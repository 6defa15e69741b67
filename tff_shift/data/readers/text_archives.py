"""Data sets of texts, as files with a record for each text.

    reddit/*.jsonl    a JSON object in each line
    reddit/*.csv      with a header, in the format of RFC 4180

Reddit: titles of posts, with the fields `title`, `subreddit` and `created_utc`
(seconds since 1970, UTC), which are those of J. Baumgartner et al., "The
Pushshift Reddit Dataset" (ICWSM 2020). Other fields are ignored, and so are
posts of other subreddits and years, even without the fields. Files are UTF-8.
They are read line by line, and twice, so that they can be larger than the
memory. The last result is cached, since each seed of a run loads it.

Choices:
  * A post that cannot be chosen (another subreddit or none, another year) is
    skipped, whatever it lacks. A post that can be chosen, but has no time or
    title, is refused.
"""

import calendar
import csv
import datetime
import functools
import hashlib
import math
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.texts import text
from tff_shift.data.texts import text_files

REDDIT_FOLDER = "reddit"
REDDIT_FIELDS = ("title", "subreddit", "created_utc")
SUBREDDITS = ("AskReddit", "news", "technology", "movies", "worldnews")
FIRST_YEAR, LAST_YEAR = 2014, 2018
HALF_YEARS = tuple(
  f"{months} {year}"
  for year in range(FIRST_YEAR, LAST_YEAR + 1)
  for months in ("Jan-Jun", "Jul-Dec")
)
TITLE_LENGTH = 30

# Number of titles of a class drawn from a half-year.
_TITLES_PER_CELL = 1000


class _Title(NamedTuple):
  """A title of one of the classes, in one of the half-years.

  Attributes:
    label: The class.
    half_year: The position among `HALF_YEARS`.
    seconds: Since 1970.
    words: At least one.
  """

  label: int
  half_year: int
  seconds: int
  words: list[str]


def reddit(folder: pathlib.Path) -> table.Table:
  """Loads titles of posts, balanced over classes and half-years if possible.

  Of titles with the same words the earliest is kept, from any class. From each
  half-year 1,000 titles of a class are drawn, or all if there are fewer. The
  draws depend on the titles, not on their files.

  Args:
    folder: The folder of all data sets.

  Returns:
    The data set, sorted by half-year, then class, then time; `time` is the
    index of the half-year. A title keeps its first 30 words.

  Raises:
    ValueError: If a line is not valid, or there is no title of a class in a
      half-year.
    DatasetNotFoundError: If there are no such files.
  """
  archive = folder / REDDIT_FOLDER
  paths = _files(archive)
  if not paths:
    raise dataset.not_found(
      "reddit",
      archive,
      f'mkdir -p "{archive}", then put there *.jsonl or *.csv with'
      f" {', '.join(REDDIT_FIELDS)} of posts (docs/reference/data_sets.md)",
    )
  states = [path.stat() for path in paths]
  return _read_reddit(
    archive,
    tuple(
      (path, state.st_mtime_ns, state.st_size)
      for path, state in zip(paths, states, strict=True)
    ),
  )


# A changed file is read again.
@functools.lru_cache(maxsize=1)
def _read_reddit(
  archive: pathlib.Path, states: tuple[tuple[pathlib.Path, int, int], ...]
) -> table.Table:
  """Reads the files of Reddit, see `reddit`."""
  del states
  position_of = _draw(archive)
  titles: list[_Title] = [None] * len(position_of)
  for index, title in enumerate(_titles(archive)):
    if index in position_of:
      titles[position_of[index]] = title
  x, vocabulary = text.number([title.words for title in titles], TITLE_LENGTH)
  labels, time = (
    np.array([getattr(title, name) for title in titles], np.int32)
    for name in ("label", "half_year")
  )
  return table.of_classes(
    examples.read_only(x),
    examples.read_only(labels),
    SUBREDDITS,
    time=examples.read_only(time),
    vocabulary=vocabulary,
  )


def _draw(archive: pathlib.Path) -> dict[int, int]:
  """Returns, for each drawn title, its position in the data set.

  Args:
    archive: The folder of the files.

  Returns:
    A dictionary by the position among the results of `_titles`.
  """
  rows = np.fromiter(
    (
      (title.half_year, title.label, title.seconds, _digest(title.words))
      for title in _titles(archive)
    ),
    dtype=[
      ("half_year", np.int8),
      ("label", np.int8),
      ("seconds", np.int64),
      ("digest", np.uint64),
    ],
  )
  if not len(rows):
    raise ValueError(
      f"{archive} holds no title of {', '.join(SUBREDDITS)} in"
      f" {FIRST_YEAR} to {LAST_YEAR}; its posts must have the fields"
      f" {', '.join(REDDIT_FIELDS)}"
    )
  # The earliest of each; in the same second, the class decides.
  in_time = np.lexsort((rows["label"], rows["seconds"]))
  _, first = np.unique(rows["digest"][in_time], return_index=True)
  firsts = in_time[first]
  drawn_titles = []
  for half_year, when in enumerate(HALF_YEARS):
    for label, subreddit in enumerate(SUBREDDITS):
      cell = firsts[
        (rows["half_year"][firsts] == half_year)
        & (rows["label"][firsts] == label)
      ]
      if not cell.size:
        raise ValueError(
          f"{archive} holds no title of {subreddit} in {when} (UTC) that is"
          " not in an earlier half-year or another class as well; each class"
          " must have one in each half-year"
        )
      cell = cell[np.lexsort((rows["digest"][cell], rows["seconds"][cell]))]
      rng = partition.generator("titles of a class", [half_year, label])
      drawn = rng.permutation(len(cell))[:_TITLES_PER_CELL]
      drawn_titles.extend(cell[np.sort(drawn)])
  return {int(index): position for position, index in enumerate(drawn_titles)}


def _digest(words: list[str]) -> int:
  """Returns a number of 64 bits that identifies titles with the same words."""
  digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little")


def _titles(archive: pathlib.Path) -> Iterator[_Title]:
  """Yields the titles of the classes and the years, file by file.

  Args:
    archive: The folder of the files.

  Yields:
    The titles with at least one word.

  Raises:
    ValueError: If a line is not a record, or a record that could be chosen has
      no time or no title.
  """
  label_of = {name.lower(): label for label, name in enumerate(SUBREDDITS)}
  start, end = (
    calendar.timegm((year, 1, 1, 0, 0, 0))
    for year in (FIRST_YEAR, LAST_YEAR + 1)
  )
  for path in _files(archive):
    read = text_files.json_objects if path.suffix == ".jsonl" else _csv_records
    for line, record in read(path):
      # Records that cannot be chosen, such as advertisements without a
      # subreddit, are not checked.
      label = label_of.get(str(record.get("subreddit")).lower())
      if label is None:
        continue
      seconds = _seconds(_field(path, line, record, "created_utc"))
      if seconds is None:
        raise ValueError(
          f"{path}, line {line}: created_utc must be seconds since 1970, got"
          f" {record['created_utc']!r}"
        )
      if not start <= seconds < end:
        continue
      title = _field(path, line, record, "title")
      if not isinstance(title, str):
        raise ValueError(
          f"{path}, line {line}: title must be a text, got {title!r}"
        )
      words = text.words_of(title)
      if words:
        yield _Title(label, _half_year(seconds), seconds, words)


def _field(
  path: pathlib.Path, line: int, record: Mapping[str, Any], field: str
) -> Any:
  """Returns a record's value of a field, which must exist."""
  if record.get(field) is None:
    raise ValueError(f"{path}, line {line}: it has no {field}")
  return record[field]


def _half_year(seconds: int) -> int:
  """Returns the index of a time among `HALF_YEARS`."""
  when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  return 2 * (when.year - FIRST_YEAR) + (when.month > 6)


def _seconds(value: Any) -> int | None:
  """Returns a number of seconds, possibly given as text; otherwise None."""
  try:
    seconds = math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError, OverflowError):
    return None
  return int(seconds // 1) if math.isfinite(seconds) else None


def _files(archive: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of records, by name."""
  return sorted([*archive.glob("*.jsonl"), *archive.glob("*.csv")])


def _csv_records(
  path: pathlib.Path,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields the number of the last line of each record, and the record."""
  reader = csv.DictReader(text_files.lines(path), strict=True)
  try:
    missing = [f for f in REDDIT_FIELDS if f not in (reader.fieldnames or ())]
    if missing:
      raise ValueError(
        f"{path}, line 1: the header has no {missing[0]}; it must name"
        f" {', '.join(REDDIT_FIELDS)}"
      )
    for record in reader:
      yield reader.line_num, record
  except csv.Error as error:
    raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
