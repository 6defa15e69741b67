"""What a data set is once it is loaded, and the error when it is absent."""

import pathlib
from typing import NamedTuple

import numpy as np


class DatasetNotFoundError(FileNotFoundError):
  """A data set is not on this machine; the message says how to fetch it."""


class Source(NamedTuple):
  """A whole data set.

  Attributes:
    x: `[N, height, width, channels]` uint8 images, or `[N, features]` float32.
    y: `[N]` int32 labels, which count from 0.
    class_names: The name of each label.
    time: `[N]` int32, when an example was taken (the year for portraits, the
      hour for caltran, the position along the half circle for circle), or None.
    num_train: How many leading examples are the archive's own training split;
      its test or validation split follows. None: it has no such split.
  """

  x: np.ndarray
  y: np.ndarray
  class_names: tuple[str, ...]
  time: np.ndarray | None = None
  num_train: int | None = None


def not_found(
  name: str, searched: pathlib.Path, fetch: str
) -> DatasetNotFoundError:
  """Makes the one-line error of a data set that is not on the disk.

  Args:
    name: Name of the data set.
    searched: The folder or file that is not there.
    fetch: The command that fetches it.

  Returns:
    The error, for the caller to raise.
  """
  return DatasetNotFoundError(
    f"data set {name!r} is not in {searched}; fetch it with: {fetch}"
  )
