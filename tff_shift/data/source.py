"""Loaded data sets, their location, and the error if one is missing.

Nothing is ever downloaded: a missing data set raises a `DatasetNotFoundError`
with the command that fetches it. All data sets are in one folder: `data_dir`,
or the environment variable `TFDS_DATA_DIR`, or `~/tensorflow_datasets`.

    mnist/3.0.1/, cifar10/3.0.2/, …   written by tensorflow-datasets, see
    emnist/letters/3.1.0/             `tfds_archives`
    tiny-imagenet-200/, caltran/, …   unpacked archives of image files, see
                                      `image_archives`
    reddit/                           files of texts, see `text_archives`
"""

import os
import pathlib
from typing import NamedTuple

import numpy as np

DEFAULT_DATA_DIR = "~/tensorflow_datasets"


class DatasetNotFoundError(FileNotFoundError):
  """A data set is missing on this machine; the message says how to fetch it."""


class Source(NamedTuple):
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
  """

  x: np.ndarray
  y: np.ndarray
  class_names: tuple[str, ...]
  time: np.ndarray | None = None
  num_train: int | None = None
  client: np.ndarray | None = None
  vocabulary: tuple[str, ...] | None = None
  client_names: tuple[str, ...] | None = None


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
