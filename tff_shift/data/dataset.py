"""The entry of a data set (`DatasetInfo`).

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

import numpy as np

from tff_shift.data import table

DEFAULT_DATA_DIR = "~/tensorflow_datasets"


class DatasetNotFoundError(FileNotFoundError):
  """A data set is missing on this machine; the message has a remedy."""


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
  range of `Table.time` (`range_format`).

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
  load: Callable[[pathlib.Path], table.Table] | None = None
  generate: Callable[[int, int], table.Table] | None = None
  tokenize: Callable[[pathlib.Path, pathlib.Path], table.Table] | None = None
  evolution: Evolution | None = None
  fine_labels: str | None = None
  corrupted: Callable[..., table.Table] | None = None
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


def entry_of(content: table.Table, name: str) -> DatasetInfo:
  """Returns the entry of a user's data, for every scenario.

  Args:
    content: The data.
    name: Their name in messages.

  Raises:
    ValueError: If there is only one time.
  """
  shape, times = content.x.shape[1:], content.schema.times
  evolution = None
  if times:
    if len(times) < 2:
      raise ValueError(
        f"{name}: there must be at least 2 times (a source and a target), got"
        f" {len(times)}"
      )
    evolution = evolution_of(content.schema)
  return DatasetInfo(
    shape=shape,
    dtype=content.x.dtype.type,
    num_classes=len(content.schema.classes),
    models=_default_models(shape),
    load=lambda folder: content,
    evolution=evolution,
    num_clients=content.schema.num_clients,
  )


def evolution_of(schema: table.Schema) -> Evolution:
  """Returns the evolution of data whose times are domains."""
  return Evolution(
    num_domains=len(schema.times),
    time_range=(0, len(schema.times) - 1),
    range_format="{}-{}",
    time_names=schema.times,
  )


def _default_models(shape: tuple[int, ...]) -> dict[str, str]:
  """Returns the default model of each scenario for examples of a shape.

  They are those of digits and circle, and for colour images of CIFAR-10.
  """
  if len(shape) == 1:
    return dict.fromkeys(
      ("evolving", "online_adaptation", "guidance", "dynamic_personalization"),
      "mlp",
    )
  return {
    "evolving": "cnn",
    "online_adaptation": "residual_cnn",
    "guidance": "guided_cnn",
    "dynamic_personalization": "mlp" if shape[-1] == 1 else "cnn",
  }
