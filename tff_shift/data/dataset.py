"""The description of a data set before it is loaded: an entry of `datasets`."""

import dataclasses
import pathlib
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from tff_shift.data import source


@dataclasses.dataclass(frozen=True)
class Evolution:
  """How a data set evolves, with default numbers.

  A domain is a rotation of its images (`angle_step`), or the examples of a
  range of `Source.time` (`range_format`).

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
class Dataset:
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
  load: Callable[[pathlib.Path], source.Source] | None = None
  generate: Callable[[int, int], source.Source] | None = None
  tokenize: Callable[[pathlib.Path, pathlib.Path], source.Source] | None = None
  evolution: Evolution | None = None
  fine_labels: str | None = None
  corrupted: Callable[..., source.Source] | None = None
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
