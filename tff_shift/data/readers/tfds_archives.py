"""Images as stored by tensorflow-datasets.

mnist/3.0.1/, cifar10/3.0.2/, …   <data set>/<version>/
emnist/letters/3.1.0/             <data set>/<configuration>/<version>/
"""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import library_logs
from tff_shift._util import memory
from tff_shift.data import array_files
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import table


def load(
  name: str,
  folder: pathlib.Path,
  *,
  image: str = "image",
  label: str = "label",
  splits: Sequence[str] = ("train", "test"),
) -> table.Table:
  """Loads images written by tensorflow-datasets.

  Args:
    name: `data set` or `data set/configuration`.
    folder: The folder that contains the data set's own.
    image: Name of the feature with the images, or vectors.
    label: Name of the feature with the labels.
    splits: The splits to read, in this order.

  Returns:
    The examples as they are stored, split by split; `num_train` is None unless
    the first split is the training split.

  Raises:
    DatasetNotFoundError: If there is no written version in the folder.
    ValueError: If the files are damaged.
  """
  version = _newest(name, folder)
  with _whole(name, version, folder):
    content = _read(_builder(name, version, folder), image, label, splits)
  return _with_classes(content, f"{label} of {name}", np.int32)


# Memory of a class name: a Python string, and its place in a tuple.
_BYTES_OF_NAME = 64


def load_any(
  name: str, folder: pathlib.Path, keys: tuple[str, str] | None = None
) -> table.Table:
  """Loads a data set by its name only.

  Args:
    name: `data set` or `data set/configuration`.
    folder: The folder that contains the data set's own.
    keys: Names of the features with the examples and the labels. None: its
      supervised keys, or `image` and `label` if it has none.

  Returns:
    The examples: the training split and then the test split, or the validation
    split; without a training split, all splits. Labels are integers of any
    size.

  Raises:
    DatasetNotFoundError: If there is no written version in the folder.
    ValueError: If the files are damaged, or contain neither images of one size
      nor vectors with a label each.
  """
  version = _newest(name, folder)
  import tensorflow_datasets as tfds

  with _whole(name, version, folder):
    builder = _builder(name, version, folder)
    features, supervised = builder.info.features, builder.info.supervised_keys
    stored = {
      key: split.num_examples for key, split in builder.info.splits.items()
    }
  if not isinstance(features, tfds.features.FeaturesDict):
    raise ValueError(
      f"tfds:{name}: its examples must be dictionaries of features, got"
      f" {type(features).__name__}"
    )
  image, label = keys or _supervised_keys(name, supervised, features)
  _check_features(name, features, (image, label))
  splits = tuple(stored)
  if "train" in stored:
    held_out = [split for split in ("test", "validation") if split in stored]
    splits = ("train", *held_out[:1])
  if not sum(stored[split] for split in splits):
    raise ValueError(f"tfds:{name} holds no example")
  with _whole(name, version, folder):
    content = _read(builder, image, label, splits)
  # Identifiers may be larger than an int32.
  return _with_classes(content, f"{label} of tfds:{name}", np.int64)


def _supervised_keys(
  name: str, supervised: Any, features: Any
) -> tuple[str, str]:
  """Returns the names of the features of the examples and the labels.

  Args:
    name: The data set.
    supervised: Its supervised keys, of any structure that TFDS allows.
    features: Its features.

  Returns:
    The two names; they may not exist.

  Raises:
    ValueError: If supervised keys are more than two features, as for tables,
      whose columns cannot be combined into a vector automatically.
  """
  if not supervised:
    return "image", "label"
  if len(supervised) == 2 and all(isinstance(k, str) for k in supervised):
    return tuple(supervised)
  raise ValueError(
    f"tfds:{name} does not have two features for examples and labels; its"
    f" supervised keys are {_structure(supervised)}; name two of"
    f" {', '.join(features)} as tfds:{name}:<x>,<y>, or write the columns that"
    " you want as vectors into an .npz file"
  )


def _structure(keys: Any) -> str:
  """Describes nested supervised keys in a few words."""
  if isinstance(keys, str):
    return keys
  if isinstance(keys, Mapping):
    return f"a dictionary of {len(keys)} features"
  return f"({', '.join(map(_structure, keys))})"


def _check_features(name: str, features: Any, keys: Sequence[str]) -> None:
  """Refuses features that are not an array of one size and a label."""
  import tensorflow as tf
  import tensorflow_datasets as tfds

  for key in keys:
    if key not in features:
      raise ValueError(
        f"tfds:{name} has no feature {key!r}; name two of"
        f" {', '.join(features)} as tfds:{name}:<x>,<y>"
      )
  x, y = (features[key] for key in keys)
  is_array = isinstance(x, tfds.features.Tensor | tfds.features.Image)
  if not is_array or x.tf_dtype == tf.string:
    raise ValueError(
      f"{keys[0]} of tfds:{name}: images or vectors wanted, got {_described(x)}"
    )
  if None in x.shape:
    raise ValueError(
      f"{keys[0]} of tfds:{name}: examples of one size wanted, got"
      f" {list(x.shape)}"
    )
  is_label = isinstance(y, tfds.features.Tensor) and y.shape == ()
  if not is_label or not y.tf_dtype.is_integer:
    raise ValueError(
      f"{keys[1]} of tfds:{name}: a class for each example wanted, an integer,"
      f" got {_described(y)}"
    )


def _described(feature: Any) -> str:
  """Returns the kind of a feature; for a tensor also its type and shape."""
  import tensorflow_datasets as tfds

  described = type(feature).__name__
  if isinstance(feature, tfds.features.Tensor):
    described += f" {feature.tf_dtype.name} {list(feature.shape)}"
  return described


def _newest(name: str, folder: pathlib.Path) -> str:
  """Returns the newest version in a folder."""
  # Looked up before the import: a missing data set is reported immediately, and
  # tensorflow-datasets never needs the network.
  versions = [
    info.parent.name
    for info in (folder / name).glob("*/dataset_info.json")
    if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
  ]
  if not versions:
    raise dataset.not_found(name, folder / name, _fetch(name, folder))
  return max(versions, key=lambda v: tuple(map(int, v.split("."))))


def _fetch(name: str, folder: pathlib.Path) -> str:
  """Returns the command that fetches a data set."""
  return (
    'python -c "import tensorflow_datasets as tfds;'
    f" tfds.load('{name}', data_dir='{folder}')\""
  )


@contextlib.contextmanager
def _whole(name: str, version: str, folder: pathlib.Path) -> Iterator[None]:
  """Converts errors of reading a version to the error of a damaged file."""
  try:
    yield
  # Errors of tensorflow-datasets, TensorFlow and json, of many types.
  except Exception as error:
    written = folder / name / version
    reason = array_files.first_line(error)
    damaged = _damaged_file(name, written) or written
    raise ValueError(
      f"{damaged} cannot be read ({reason}); remove {written} and fetch it"
      f" again with: {_fetch(name, folder)}"
    ) from error


def _builder(name: str, version: str, folder: pathlib.Path) -> Any:
  """Opens an existing version of a data set."""
  import tensorflow_datasets as tfds

  return tfds.builder(f"{name}:{version}", data_dir=os.fspath(folder))


def _read(
  builder: Any, image: str, label: str, splits: Sequence[str]
) -> table.Table:
  """Reads the splits of a version, in this order; y as stored."""
  import tensorflow_datasets as tfds

  # Partial decoding in tensorflow-datasets uses its own deprecated code.
  with library_logs.without("absl", ".dtype` is deprecated"):
    features_of = tfds.as_numpy(
      builder.as_dataset(
        split="+".join(splits),
        decoders=tfds.decode.PartialDecoding({image: True, label: True}),
        batch_size=-1,
        shuffle_files=False,
        # One file after the other, to keep the stored order.
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
      )
    )
  feature, num_train = builder.info.features[label], None
  if splits[0] == "train" and len(splits) > 1:
    num_train = builder.info.splits["train"].num_examples
  return table.of_classes(
    features_of[image],
    features_of[label],
    _class_names(feature, f"{label} of tfds:{builder.info.name}"),
    num_train=num_train,
  )


def _class_names(feature: Any, what: str) -> tuple[str, ...]:
  """Returns the names of classes; empty if the feature has none."""
  num_classes = getattr(feature, "num_classes", None)
  if not num_classes:
    return ()  # A plain integer.
  memory.check(num_classes * _BYTES_OF_NAME, f"{what}: {num_classes} classes")
  return tuple(feature.names)


def _with_classes(
  content: table.Table, what: str, dtype: type[np.integer]
) -> table.Table:
  """Casts y; refuses values that are not classes."""
  y = examples.checked_array(content.y, what, shape=(None,), dtype=dtype)
  return content._replace(y=y)


def _damaged_file(name: str, written: pathlib.Path) -> pathlib.Path | None:
  """Returns the first damaged file; None if it cannot be determined."""
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
      for shard, length in enumerate(of_files):
        path = written / (
          f"{name.partition('/')[0]}-{split}.tfrecord"
          f"-{shard:05d}-of-{len(of_files):05d}"
        )
        records = tf.data.TFRecordDataset(os.fspath(path))
        if sum(1 for _ in records) != length:
          return path
  except (OSError, ValueError, KeyError, TypeError, tf.errors.OpError):
    return path
  return None
