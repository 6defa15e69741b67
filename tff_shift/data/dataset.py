"""A data set: its entry (`DatasetInfo`) and its examples (`Dataset`).

Nothing is ever downloaded: a missing data set raises a `DatasetNotFoundError`
with the command that fetches it. All data sets are in one folder: `data_dir`,
or the environment variable `TFDS_DATA_DIR`, or `~/tensorflow_datasets`.

    mnist/3.0.1/, cifar10/3.0.2/, …   written by tensorflow-datasets, see
    emnist/letters/3.1.0/             `tfds_archives`
    tiny-imagenet-200/, caltran/, …   unpacked archives of image files, see
                                      `image_archives`
    reddit/                           files of texts, see `text_archives`
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

DEFAULT_DATA_DIR = "~/tensorflow_datasets"


class DatasetNotFoundError(FileNotFoundError):
  """A data set is missing on this machine; the message has a remedy."""


class Dataset(NamedTuple):
  """A whole data set.

  Attributes:
    x: `[N, height, width, channels]` uint8 images, `[N, features]` float32, or
      `[N, length]` int32: titles (ids of words, see `text`), or tokens.
    y: `[N]` int32 labels, which count from 0.
    class_names: The name of each label.
    time: `[N]` integers, when an example was taken (the year for portraits, the
      hour for caltran, the number of the cloud for circle), or None.
    num_train: The number of leading examples that are the archive's own
      training split; its test or validation split follows. None: it has no such
      split.
    client: `[N]` integers from 0, the client that holds an example. None: the
      examples are not yet partitioned.
    vocabulary: The word of each id, for titles. None: not titles.
    client_names: The name of each client in the data set. None: their numbers.
    feature_names: The name of each column of x of a table, all different. None:
      images, texts, or columns without names.
  """

  x: np.ndarray
  y: np.ndarray
  class_names: tuple[str, ...]
  time: np.ndarray | None = None
  num_train: int | None = None
  client: np.ndarray | None = None
  vocabulary: tuple[str, ...] | None = None
  client_names: tuple[str, ...] | None = None
  feature_names: tuple[str, ...] | None = None


def not_found(
  name: str, searched: pathlib.Path, fetch: str
) -> DatasetNotFoundError:
  """Makes the one-line error for a data set that is not on the disk.

  Args:
    name: Name of the data set.
    searched: The folder or file that is missing.
    fetch: The command that fetches it.
  """
  return DatasetNotFoundError(
    f"data set {name!r} is not in {searched}; fetch it with: {fetch}"
  )


def data_folder(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
  """Returns the folder of all data sets.

  Args:
    data_dir: The folder; None or empty: `TFDS_DATA_DIR`, or
      `~/tensorflow_datasets`.

  Returns:
    The folder, which need not exist.
  """
  folder = data_dir or os.environ.get("TFDS_DATA_DIR") or DEFAULT_DATA_DIR
  return pathlib.Path(folder).expanduser()


@dataclasses.dataclass(frozen=True)
class Evolution:
  """How a data set evolves, with default values.

  A domain is a rotation of its images (`angle_step`), or the examples of a
  range of `Dataset.time` (`range_format`).

  Attributes:
    num_domains: Number of domains, including the target.
    angle_step: Degrees between two domains; None: domains are not rotations.
    time_range: The first and the last time, such as a year or an hour. Domains
      divide them into ranges that are as equal as possible. None: the times are
      1 to the number of domains, one for each.
    range_format: Format of a range's name from its first and last time.
    time_names: The names of the times of `time_range`. None: their numbers.
  """

  num_domains: int
  angle_step: float | None = None
  time_range: tuple[int, int] | None = None
  range_format: str | None = None
  time_names: tuple[str, ...] | None = None

  def __post_init__(self):
    """Refuses domains that are both kinds or neither."""
    is_rotated = self.angle_step is not None
    if is_rotated != (self.range_format is None):
      raise ValueError(
        "an evolution must have an angle_step or a range_format, and not both"
      )
    if is_rotated and self.time_range is not None:
      raise ValueError("an evolution by rotation must have no time_range")

  def range_name(self, first: int, last: int) -> str:
    """Returns the name of the range of two times, inclusive."""
    if self.time_names is None:
      return self.range_format.format(first, last)
    start, _ = self.time_range
    names = (self.time_names[time - start] for time in (first, last))
    return " to ".join(dict.fromkeys(names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo:
  """A data set: its content, its origin, and the scenarios that can use it.

  Attributes:
    shape: The shape of an example; `(height, width, channels)` of an image.
    dtype: `np.uint8` (images in 0..255), `np.int32` (ids of words, or tokens of
      a pre-trained model) or `np.float32`.
    num_classes: The number of classes.
    models: The default model for each scenario (name of its binary) that can
      use the data set.
    load: Maps the folder of all data sets to the data set, always in the same
      order.
    generate: Maps a seed and a number of domains to the data set.
    tokenize: Maps the folder of all data sets and the folder of a pre-trained
      model to the data set: text, as tokens of this model. Exactly one of
      `load`, `generate` and `tokenize` is given.
    evolution: How it evolves; None: it does not.
    fine_labels: Name of a data set of the same examples in the same order with
      finer classes, which are used to partition it over clients. None: its own
      classes are used.
    corrupted: `(corruption, severity, data_dir=...)` returns the published
      corrupted images, see `corrupted_sources.load_corrupted`. None: there are
      none.
    num_clients: The number of clients that hold the examples. None: the
      examples are not yet partitioned.
    vocabulary_size: For titles: the number of word ids of a model, including
      the reserved ones of `text`. None: its examples are not titles.
  """

  shape: tuple[int, ...]
  dtype: type[np.generic]
  num_classes: int
  models: Mapping[str, str]
  load: Callable[[pathlib.Path], Dataset] | None = None
  generate: Callable[[int, int], Dataset] | None = None
  tokenize: Callable[[pathlib.Path, pathlib.Path], Dataset] | None = None
  evolution: Evolution | None = None
  fine_labels: str | None = None
  corrupted: Callable[..., Dataset] | None = None
  num_clients: int | None = None
  vocabulary_size: int | None = None

  def __post_init__(self):
    """Refuses an inconsistent entry."""
    origins = (self.load, self.generate, self.tokenize)
    if sum(origin is not None for origin in origins) != 1:
      raise ValueError(
        "a data set must have exactly one of load, generate and tokenize"
      )
    if self.generate is not None and self.evolution is None:
      raise ValueError("a data set with generate must have an evolution")
    is_of_titles = self.dtype == np.int32 and self.tokenize is None
    if (self.vocabulary_size is not None) != is_of_titles:
      raise ValueError(
        "a data set must have a vocabulary_size if and only if it is int32 and"
        " not tokenized for a model"
      )
