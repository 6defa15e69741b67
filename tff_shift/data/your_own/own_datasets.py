"""Your own data sets: a file, or a set of tensorflow-datasets.

    path/to/data.npz       the arrays of `KEYS`
    path/to/data.csv?label=<column>&client=<column>&time=<column>
    path/to/data.parquet?...
                           a table with a row for each example, see
                           `frames`; client and time are optional
    tfds:<name>            a prepared set in the folder of all data sets, by its
                           supervised keys (or `image` and `label`)
    tfds:<name>:<x>,<y>    by these two features

Both are read completely to determine their entry, and kept in memory for the
next use. Examples are uint8 images of one or three channels, or vectors of
floating-point numbers.
"""

import functools
import hashlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift import shown_names
from tff_shift.data import array_files
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data.readers import tfds_archives
from tff_shift.data.your_own import frames

FORMS = (
  "path/to/data.npz, path/to/data.csv or .parquet with --label, or tfds:<name>"
  " (prepared by tensorflow-datasets)"
)

# The arrays of a file and their descriptions.
KEYS = {
  "x": "uint8 images [n, height, width, 1 or 3], or floats [n, features]",
  "y": "[n] integers from 0, the class of each example",
  "domain": "[n] integers, ordered by time",
  "client": "[n] integers or texts, the client that holds each example",
  "class_names": "[classes] texts",
  "num_train": "number of leading examples that are for training",
}
_REQUIRED = ("x", "y")

# Why a scenario would ignore the domains of a file.
_WITHOUT_DOMAINS = {"guidance": "its clients have no domains"}

_TABLES = ".csv", ".parquet"
_SUFFIX = ".npz"
_PREFIX = "tfds:"
_TFDS = re.compile(r"tfds:(\w[\w-]*(?:/\w[\w.-]*)?)(?::(\w+),(\w+))?")


def is_own(name: str) -> bool:
  """Returns whether a name refers to a file or to tensorflow-datasets."""
  return is_file(name) or name.startswith(_PREFIX)


def is_table(name: str) -> bool:
  """Returns whether a name refers to a table, with or without its columns."""
  return name.partition("?")[0].endswith(_TABLES)


def is_file(name: str) -> bool:
  """Returns whether a name refers to a file."""
  return name.endswith(_SUFFIX) or is_table(name)


def table_name(name: str, columns: Mapping[str, str]) -> str:
  """Returns the name of a table with its columns: label, client, time."""
  return f"{name}?{urllib.parse.urlencode(columns)}"


def short_name(name: str) -> str:
  """Returns the name of a data set in results: for a file, its stem."""
  return _path(name).stem if is_file(name) else name


def checksum(name: str) -> str | None:
  """Returns the SHA-256 of a file, in hexadecimal digits; None for others.

  Args:
    name: The name of a data set; a file exists.
  """
  if not is_file(name):
    return None
  with open(_path(name), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def get(
  name: str,
  scenario: str | None = None,
  data_dir: str | os.PathLike[str] | None = None,
) -> dataset.DatasetInfo:
  """Reads a data set and returns its entry.

  Args:
    name: A name for which `is_own` is True.
    scenario: The scenario that uses it; data that it would ignore are refused.
      None: any.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The entry, for every scenario. Its `load` returns the data read here.

  Raises:
    ValueError: If its content is not valid; one line that names it.
    DatasetNotFoundError: If it is not on the disk.
  """
  if is_file(name):
    path = _path(name)
    if not path.exists():
      raise dataset.DatasetNotFoundError(f"{path}: there is no such file")
    read = _read_table if is_table(name) else _read_file
    try:
      state = path.stat()
      entry = read(name, path, state.st_mtime_ns, state.st_size)
    except OSError as error:
      raise ValueError(f"{path} cannot be read: {error.strerror}") from error
  else:
    entry = _read_tfds(name, dataset.data_folder(data_dir))
  if scenario in _WITHOUT_DOMAINS and entry.evolution is not None:
    what, remedy = f"domain of {name}", "the array domain out of the file"
    if is_table(name):
      what, remedy = f"time of {_path(name)}", "--time out"
    raise ValueError(
      f"{what}: {scenario} would ignore it, because"
      f" {_WITHOUT_DOMAINS[scenario]}; evolving, online_adaptation and"
      f" dynamic_personalization use it; leave {remedy}"
    )
  return entry


def _path(name: str) -> pathlib.Path:
  if is_table(name):
    name = name.partition("?")[0]
  return pathlib.Path(name).expanduser()


@functools.lru_cache(maxsize=1)
def _read_table(
  name: str, path: pathlib.Path, changed: int, size: int
) -> dataset.DatasetInfo:
  """Reads a table and makes its entry."""
  del changed, size
  import pandas

  columns = dict(urllib.parse.parse_qsl(name.partition("?")[2]))
  if "label" not in columns:
    raise ValueError(f"{path}: --label must name the column of the class")
  read = pandas.read_csv if path.suffix == ".csv" else pandas.read_parquet
  try:
    frame = read(path)
  # Errors of many types, of pandas and pyarrow.
  except Exception as error:
    raise ValueError(
      f"{path}: it cannot be read ({array_files.first_line(error)})"
    ) from error
  time = columns.get("time")
  if time in frame.columns and frame[time].dtype == object:
    # Dates of a CSV file are texts.
    try:
      frame[time] = pandas.to_datetime(frame[time], format="ISO8601")
    except ValueError as error:
      raise ValueError(
        f"{path}: --time={time} must be numbers or dates such as 2024-01-31,"
        f" got {frame[time].iloc[0]!r}"
      ) from error
  try:
    table = frames.Table(frame, **columns)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  loaded = dataset.Dataset(
    table.x,
    table.y,
    table.class_names,
    time=table.times,
    client=table.clients,
    client_names=table.client_names or None,
  )
  evolution = None
  if table.times is not None:
    evolution = _evolution(table.time_names, f"--time of {path}")
  return _entry(loaded, str(path), evolution)


def _evolution(names: Sequence[str], what: str) -> dataset.Evolution:
  """Returns the evolution of domains with these names, in order."""
  if len(names) < 2:
    raise ValueError(
      f"{what}: there must be at least 2 (a source and a target), got"
      f" {len(names)}"
    )
  return dataset.Evolution(
    num_domains=len(names),
    time_range=(0, len(names) - 1),
    range_format="{}-{}",
    time_names=tuple(names),
  )


# Keeps the arrays of the last file; a changed file is read again.
@functools.lru_cache(maxsize=1)
def _read_file(
  name: str, path: pathlib.Path, changed: int, size: int
) -> dataset.DatasetInfo:
  """Reads an .npz file and makes its entry."""
  del changed, size
  try:
    arrays = array_files.read_npz(path)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error
  for key in _REQUIRED:
    if key not in arrays:
      raise ValueError(f"{name}: it has no {key}, {KEYS[key]}")
  for key in arrays:
    if key not in KEYS:
      raise ValueError(
        f"{name}: unknown array {key!r}; its arrays may be {', '.join(KEYS)}"
      )
  loaded = dataset.Dataset(
    arrays["x"],
    arrays["y"],
    _texts(arrays.get("class_names"), f"class_names of {name}"),
  )
  evolution = None
  if "domain" in arrays:
    domains, time = _numbered(arrays["domain"], loaded, name, "domain", "iu")
    loaded = loaded._replace(time=time)
    evolution = _evolution(list(map(str, domains)), f"domain of {name}")
  if "client" in arrays:
    clients, client = _numbered(arrays["client"], loaded, name, "client", "iuU")
    loaded = loaded._replace(
      client=client, client_names=tuple(map(str, clients))
    )
  if "num_train" in arrays:
    number = arrays["num_train"]
    if number.shape != () or number.dtype.kind not in "iu":
      raise ValueError(
        f"num_train of {name}: an integer wanted, got {number.dtype}"
        f" {list(number.shape)}"
      )
    loaded = loaded._replace(num_train=int(number))
  return _entry(loaded, name, evolution)


@functools.lru_cache(maxsize=1)
def _read_tfds(name: str, folder: pathlib.Path) -> dataset.DatasetInfo:
  """Reads a set of tensorflow-datasets and makes its entry."""
  found = _TFDS.fullmatch(name)
  if found is None:
    raise ValueError(
      f"dataset must be tfds:<name> or tfds:<name>:<x>,<y>, such as tfds:mnist"
      f" or tfds:cifar100:image,coarse_label; got {name!r}"
    )
  stored, *keys = found.groups()
  return _entry(
    tfds_archives.load_any(stored, folder, tuple(keys) if keys[0] else None),
    name,
    None,
  )


def _entry(
  loaded: dataset.Dataset, name: str, evolution: dataset.Evolution | None
) -> dataset.DatasetInfo:
  """Validates the data and makes their entry.

  Args:
    loaded: The data set; without class names, numbers are used.
    name: Its name in messages.
    evolution: Its evolution.

  Returns:
    The entry.

  Raises:
    ValueError: If it is not valid.
  """
  x = loaded.x
  is_image = x.ndim == 4 and x.shape[-1] in (1, 3) and x.dtype.kind in "iu"
  if not is_image and (x.ndim != 2 or x.dtype.kind != "f" or not x.shape[1]):
    advice = ""
    if x.ndim > 2 and x.dtype.kind == "f":
      advice = "; of pixels from 0 to 1, np.rint(255 * x).astype(np.uint8)"
    raise ValueError(
      f"x of {name}: {KEYS['x']} wanted, got {x.dtype} {list(x.shape)}{advice}"
    )
  num_classes = len(loaded.class_names) or examples.num_classes_of(
    [loaded.y], [f"y of {name}"]
  )
  if num_classes < 2:
    raise ValueError(f"y of {name}: there must be at least 2 classes")
  dtype = np.uint8 if is_image else np.float32
  shape = x.shape[1:]
  x, y = examples.checked(
    x, loaded.y, name, shape=shape, dtype=dtype, num_classes=num_classes
  )
  loaded = loaded._replace(
    x=examples.read_only(x),
    y=y,
    class_names=loaded.class_names or tuple(map(str, range(num_classes))),
  )
  return dataset.DatasetInfo(
    shape=shape,
    dtype=dtype,
    num_classes=num_classes,
    models=_default_models(shape),
    load=lambda folder: loaded,
    evolution=evolution,
    num_clients=None if loaded.client is None else int(loaded.client.max()) + 1,
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


def _texts(array: np.ndarray | None, what: str) -> tuple[str, ...]:
  """Returns texts; empty if there is no array."""
  if array is None:
    return ()
  if array.ndim != 1 or array.dtype.kind != "U":
    raise ValueError(
      f"{what}: {KEYS['class_names']} wanted, got {array.dtype}"
      f" {list(array.shape)}"
    )
  _check_encodable(array, what)
  return tuple(array.tolist())


def _check_encodable(texts: np.ndarray, what: str) -> None:
  for text in texts.tolist():
    if not shown_names.is_encodable(text):
      raise ValueError(
        f"{what}: UTF-8 cannot encode half of a surrogate pair, got {text!r}"
      )


def _numbered(
  array: np.ndarray,
  loaded: dataset.Dataset,
  name: str,
  key: str,
  kinds: str,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the different values of an array in order, and their numbers.

  Args:
    array: A value for each example.
    loaded: The examples.
    name: The file's name in messages.
    key: The array's name in messages.
    kinds: NumPy's letters of the allowed types.

  Returns:
    The values, and `[n]` int32, for each example the number of its value.
  """
  if array.shape != loaded.x.shape[:1] or array.dtype.kind not in kinds:
    raise ValueError(
      f"{key} of {name}: {KEYS[key]} wanted, and there are"
      f" {len(loaded.x) if loaded.x.ndim else 0} examples, got {array.dtype}"
      f" {list(array.shape)}"
    )
  values, numbers = np.unique(array, return_inverse=True)
  if values.dtype.kind == "U":
    _check_encodable(values, f"{key} of {name}")
  return values, numbers.astype(np.int32)
