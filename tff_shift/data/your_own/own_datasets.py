"""Your own data sets: a file, a folder, or a set of tensorflow-datasets.

    path/to/data.npz       the arrays of `KEYS`
    path/to/data.csv?label=<column>&client=<column>&time=<column>
    path/to/data.parquet?...
                           a table with a row for each example, see
                           `frames`; client and time are optional;
                           image=<column> has the paths of image files, relative
                           to the table's folder
    path/to/folder?folder_levels=<levels>
                           folders of images, see `image_files`; by default
                           their names are the classes
    path/to/folder?label=<column>&...
                           a folder of `Dataset.save_to_disk`, see
                           `from_huggingface`
    tfds:<name>            a prepared set in the folder of all data sets, by its
                           supervised keys (or `image` and `label`)
    tfds:<name>:<x>,<y>    by these two features

A folder's name has a slash. Images can have image_size=<pixels>; domain_order
is the order of domains, the target last. All are read completely to determine
their entry, and kept in memory for the next use. Examples are uint8 images of
one or three channels, or vectors of floating-point numbers.

Choices:
  * A file has no entry in `datasets`: only the file itself describes its
    content. It is therefore read completely when the flags are checked, and the
    last one read stays in memory for the plan. `datasets.get` is the one place
    that distinguishes names, paths and `tfds:<name>`.
  * A run identifies the file by its SHA-256, not by its path, which may change.
    The name in results is the file's stem: only `config.json` distinguishes two
    files with the same stem.
  * A table of tensorflow-datasets is refused, not converted to vectors: no rule
    determines which columns are numbers, codes or texts.
"""

import functools
import hashlib
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.data import array_files
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data.readers import tfds_archives
from tff_shift.data.your_own import from_huggingface
from tff_shift.data.your_own import image_files
from tff_shift.data.your_own import own_tables

FORMS = (
  "path/to/data.npz, path/to/data.csv or .parquet with --label, path/to/folder"
  " of images, or tfds:<name> (prepared by tensorflow-datasets)"
)

# The arrays of a file and their descriptions.
KEYS = {
  "x": "uint8 images [n, height, width, 1 or 3], or floats [n, features]",
  "y": "[n] integers from 0, the class of each example",
  "domain": "[n] integers, ordered by time",
  "client": "[n] integers or texts, the client that holds each example",
  "class_names": "[classes] texts",
  "feature_names": "[features] texts, the name of each column of x",
  "num_train": "number of leading examples that are for training",
}
_REQUIRED = ("x", "y")

# Why a scenario would ignore the domains of a file.
_WITHOUT_DOMAINS = {"guidance": "its clients have no domains"}

TABLES = ".csv", ".parquet"
_COLUMNS = (
  *("label", "client", "time", "features"),
  *("image", "image_size", "domain_order"),
)
_OF_FOLDERS = "folder_levels", "image_size", "domain_order"
_SUFFIX = ".npz"
_PREFIX = "tfds:"
_TFDS = re.compile(r"tfds:(\w[\w-]*(?:/\w[\w.-]*)?)(?::(\w+),(\w+))?")


def is_own(name: str) -> bool:
  """Returns whether a name refers to files or to tensorflow-datasets."""
  return is_file(name) or is_folder(name) or name.startswith(_PREFIX)


def is_table(name: str) -> bool:
  """Returns whether a name refers to a table, with or without its columns."""
  return name.partition("?")[0].endswith(TABLES)


def is_file(name: str) -> bool:
  """Returns whether a name refers to a file."""
  return name.endswith(_SUFFIX) or is_table(name)


def is_folder(name: str) -> bool:
  """Returns whether a name refers to a folder: it has a slash."""
  path = name.partition("?")[0]
  return "/" in path and not is_file(path) and not path.startswith(_PREFIX)


def options(name: str) -> tuple[str, ...]:
  """Returns the options that a data set can have in its name.

  Args:
    name: The name of a data set, with or without options.
  """
  if is_table(name):
    return _COLUMNS
  if not is_folder(name):
    return ()
  path = _path(name)
  if not path.exists():
    return tuple(dict.fromkeys(_COLUMNS + _OF_FOLDERS))
  return _COLUMNS if from_huggingface.is_saved(path) else _OF_FOLDERS


def table_name(name: str, columns: Mapping[str, Any]) -> str:
  """Returns the name of a table or a folder with its options."""
  return f"{name}?{urllib.parse.urlencode(columns)}"


def short_name(name: str) -> str:
  """Returns the name of a data set in results, without its folders."""
  if is_folder(name):
    return _path(name).resolve().name
  return _path(name).stem if is_file(name) else name


def checksum(name: str) -> str | None:
  """Returns the SHA-256 of files, in hexadecimal digits; None for others.

  It is that of the file; of images, that of all paths and bytes read.

  Args:
    name: The name of a data set; a file or folder exists.
  """
  if is_folder(name) or (is_table(name) and "image" in _given(name)):
    return _read(name)[1]
  if not is_file(name):
    return None
  with files.reading(_path(name)) as file:
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
  if is_file(name) or is_folder(name):
    entry, _ = _read(name)
  else:
    entry = _read_tfds(name, dataset.data_folder(data_dir))
  if scenario in _WITHOUT_DOMAINS and entry.evolution is not None:
    what, remedy = f"domain of {name}", "the array domain out of the file"
    if is_table(name):
      what, remedy = f"time of {_path(name)}", "--time out"
    elif is_folder(name):
      what, remedy = f"domains of {_path(name)}", "--time out"
      if "folder_levels" in _given(name):
        remedy = (
          "domain out of --folder_levels (as client,class, each is a client)"
        )
    raise ValueError(
      f"{what}: {scenario} would ignore it, because"
      f" {_WITHOUT_DOMAINS[scenario]}; evolving, online_adaptation and"
      f" dynamic_personalization use it; leave {remedy}"
    )
  return entry


def _path(name: str) -> pathlib.Path:
  if is_table(name) or is_folder(name):
    name = name.partition("?")[0]
  return pathlib.Path(name).expanduser()


def _given(name: str) -> dict[str, str]:
  """Returns the options in a name."""
  return dict(urllib.parse.parse_qsl(name.partition("?")[2]))


def _read(name: str) -> tuple[dataset.DatasetInfo, str | None]:
  """Reads a file or a folder: its entry, and the SHA-256 of read images."""
  path = _path(name)
  if not path.exists():
    kind = "file" if is_file(name) else "folder"
    raise dataset.DatasetNotFoundError(f"{path}: there is no such {kind}")
  if is_folder(name) and not path.is_dir():
    raise ValueError(f"{path} is not a folder; a file must be one of {FORMS}")
  for option in _given(name) if options(name) else ():
    if option not in options(name):
      raise ValueError(
        f"{path}: {option} is not one of its options {', '.join(options(name))}"
      )
  try:
    if is_folder(name):
      return _table(name, path, _state(path))
    state = path.stat()
    identity = state.st_mtime_ns, state.st_size
    if is_table(name):
      return _table(name, path, identity)
    return _read_file(name, path, identity)
  except OSError as error:
    raise ValueError(
      f"{error.filename or path} cannot be read: {error.strerror}"
    ) from error


def _state(folder: pathlib.Path) -> str:
  """Returns a digest that changes if a file in a folder changes."""
  digest = hashlib.sha256()
  for root, folders, names in os.walk(folder, followlinks=True):
    # Deeper ones are refused on reading; a link to a folder above has no end.
    depth = len(pathlib.Path(root).relative_to(folder).parts)
    if depth > len(image_files.LEVELS):
      folders.clear()
    for name in sorted(names):
      path = os.path.join(root, name)
      state = os.stat(path)
      digest.update(os.fsencode(path))
      digest.update(f" {state.st_mtime_ns} {state.st_size} ".encode())
  return digest.hexdigest()


def _table(
  name: str, path: pathlib.Path, state: Any
) -> tuple[dataset.DatasetInfo, str | None]:
  """Reads a table or a folder: its entry, and the SHA-256 of its images."""
  entry, digest, states = _read_table(name, path, state)
  if states != _states(states):
    _read_table.cache_clear()
    entry, digest, _ = _read_table(name, path, state)
  return entry, digest


def _states(paths: Iterable[pathlib.Path]) -> dict[pathlib.Path, Any]:
  """Returns a value for each file that changes with it."""
  states = {}
  for path in paths:
    state = path.stat()
    states[path] = state.st_mtime_ns, state.st_size
  return states


# Keeps the last table and its images. They are read again if a file of the
# folder, an image or the table itself has changed.
@functools.lru_cache(maxsize=1)
def _read_table(
  name: str, path: pathlib.Path, state: Any
) -> tuple[dataset.DatasetInfo, str | None, dict[pathlib.Path, Any]]:
  """Reads a table or a folder: see `_table`, and the states of its images."""
  given = _given(name)
  read = own_tables.read_folder if is_folder(name) else own_tables.read_file
  table, digest, images = read(path, given)
  loaded = dataset.Dataset(
    table.x,
    table.y,
    table.class_names,
    time=table.times,
    client=table.clients,
    client_names=table.client_names or None,
    feature_names=table.features or None,
  )
  evolution = None
  if table.times is not None:
    what = "domains" if "folder_levels" in given else "--time"
    evolution = _evolution(table.time_names, f"{what} of {path}")
  return _entry(loaded, str(path), evolution), digest, _states(images)


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
  name: str, path: pathlib.Path, state: tuple[int, int]
) -> tuple[dataset.DatasetInfo, None]:
  """Reads an .npz file and makes its entry."""
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
    texts(arrays, "class_names", name),
    feature_names=texts(arrays, "feature_names", name) or None,
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
  return _entry(loaded, name, evolution), None


@functools.lru_cache(maxsize=1)
def _read_tfds(name: str, folder: pathlib.Path) -> dataset.DatasetInfo:
  """Reads a set of tensorflow-datasets and makes its entry."""
  found = _TFDS.fullmatch(name)
  if found is None:
    raise ValueError(
      f"dataset must be tfds:<name> or tfds:<name>:<x>,<y>, such as tfds:mnist"
      f" or tfds:cifar100:image,coarse_label; got {name!r}"
    )
  stored, x, y = found.groups()
  return _entry(
    tfds_archives.load_any(stored, folder, (x, y) if x else None),
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
  dtype = examples.input_type(is_image)
  shape = x.shape[1:]
  if loaded.feature_names is not None:
    examples.check_feature_names(
      loaded.feature_names, x.shape, f"feature_names of {name}"
    )
  given = x
  x, y = examples.checked(
    x, loaded.y, name, shape=shape, dtype=dtype, num_classes=num_classes
  )
  examples.check_precision([given], f"x of {name}")
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


def texts(
  arrays: Mapping[str, np.ndarray], key: str, name: str
) -> tuple[str, ...]:
  """Returns the texts of an array of a file; empty without the array.

  Args:
    arrays: The arrays of the file.
    key: The key of the array, `class_names` or `feature_names`.
    name: The name of the file in messages.

  Raises:
    ValueError: If it has no texts, or two are equal; one line.
  """
  array, what = arrays.get(key), f"{key} of {name}"
  if array is None:
    return ()
  if array.ndim != 1 or array.dtype.kind != "U":
    raise ValueError(
      f"{what}: {KEYS[key]} wanted, got {array.dtype} {list(array.shape)}"
    )
  _check_encodable(array, what)
  names = tuple(array.tolist())
  examples.check_names(
    names,
    what,
    lambda number: f"{key.removesuffix('_names')} {number}",
    warns_of_case=True,
  )
  return names


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
    examples.check_names(
      values,
      f"{key} of {name}",
      lambda number: f"example {np.argmax(numbers == number)}",
      warns_of_case=True,
    )
  return values, numbers.astype(np.int32)
