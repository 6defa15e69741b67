"""Images as tensorflow-datasets writes them to the disk.

mnist/3.0.1/, cifar10/3.0.2/, …   <data set>/<version>/
emnist/letters/3.1.0/             <data set>/<configuration>/<version>/
"""

import json
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from tff_shift.data import array_files
from tff_shift.data import source


def load(
  name: str,
  folder: pathlib.Path,
  *,
  label: str = "label",
  splits: Sequence[str] = ("train", "test"),
) -> source.Source:
  """Loads images that tensorflow-datasets has written.

  Args:
    name: `data set` or `data set/configuration`.
    folder: The folder that contains the data set's own.
    label: Name of the feature that holds the labels.
    splits: The splits to read, in this order.

  Returns:
    The examples as they are stored, split by split; `num_train` is None unless
    the first split is the training split.

  Raises:
    DatasetNotFoundError: There is no written version of it in the folder.
    ValueError: What is there is damaged.
  """
  # Looked up before the import: a missing data set is reported at once, and
  # tensorflow-datasets never has a reason to ask the network.
  versions = [
    info.parent.name
    for info in (folder / name).glob("*/dataset_info.json")
    if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
  ]
  fetch = (
    'python -c "import tensorflow_datasets as tfds;'
    f" tfds.load('{name}', data_dir='{folder}')\""
  )
  if not versions:
    raise source.not_found(name, folder / name, fetch)
  newest = max(versions, key=lambda v: tuple(map(int, v.split("."))))
  try:
    return _read(name, newest, folder, label, splits)
  # Errors of tensorflow-datasets, TensorFlow and json, of many types.
  except Exception as error:
    written = folder / name / newest
    reason = array_files.first_line(error)
    damaged = _damaged_file(name, written) or written
    raise ValueError(
      f"{damaged} cannot be read ({reason}); remove {written} and fetch it"
      f" again with: {fetch}"
    ) from error


def _read(
  name: str,
  version: str,
  folder: pathlib.Path,
  label: str,
  splits: Sequence[str],
) -> source.Source:
  """Reads a version of a data set that is there."""
  import tensorflow_datasets as tfds

  builder = tfds.builder(f"{name}:{version}", data_dir=os.fspath(folder))
  examples = tfds.as_numpy(
    builder.as_dataset(
      split="+".join(splits),
      decoders=tfds.decode.PartialDecoding({"image": True, label: True}),
      batch_size=-1,
      shuffle_files=False,
      # One file after the other, so that the order is the stored one.
      read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
  )
  num_train = None
  if splits[0] == "train":
    num_train = builder.info.splits["train"].num_examples
  return source.Source(
    examples["image"],
    examples[label].astype(np.int32),
    tuple(builder.info.features[label].names),
    num_train=num_train,
  )


def _damaged_file(name: str, written: pathlib.Path) -> pathlib.Path | None:
  """Returns the first file that is not whole; None if that cannot be told."""
  import tensorflow as tf

  path = written / "features.json"
  try:
    if path.exists():
      json.loads(path.read_text(encoding="utf-8"))
    path = written / "dataset_info.json"
    lengths = {
      split["name"]: list(map(int, split["shardLengths"]))
      for split in json.loads(path.read_text(encoding="utf-8"))["splits"]
    }
    for split, of_files in lengths.items():
      for number, length in enumerate(of_files):
        path = written / (
          f"{name.partition('/')[0]}-{split}.tfrecord"
          f"-{number:05d}-of-{len(of_files):05d}"
        )
        records = tf.data.TFRecordDataset(os.fspath(path))
        if sum(1 for _ in records) != length:
          return path
  except (OSError, ValueError, KeyError, TypeError, tf.errors.OpError):
    return path
  return None
