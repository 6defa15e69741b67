"""Data sets of the user: an .npz file, or what tensorflow-datasets has written.

    path/to/data.npz       the arrays of `KEYS`
    tfds:<name>            a prepared set in the folder of all data sets, by its
                           supervised keys (else `image` and `label`)
    tfds:<name>:<x>,<y>    by these two features

Both are read whole to learn what they hold, and kept, for they are needed next.
Examples are uint8 images of one or three channels, or vectors of floating-point
numbers.
"""

import functools
import hashlib
import os
import pathlib
import re

import numpy as np

from tff_shift import shown_names
from tff_shift.data import array_files
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data.readers import tfds_archives

FORMS = "path/to/data.npz, or tfds:<name> (prepared by tensorflow-datasets)"

# The arrays of a file: whether there must be one, and what it is.
KEYS = {
  "x": "uint8 images [n, height, width, 1 or 3], or floats [n, features]",
  "y": "[n] integers from 0, the class of each example",
  "domain": "[n] integers whose order is that of time",
  "client": "[n] integers or texts, who holds each example",
  "class_names": "[classes] texts",
  "num_train": "how many leading examples are for training",
}
_REQUIRED = ("x", "y")

# Why scenarios would ignore the domains of a file.
_WITHOUT_DOMAINS = {
  "online_adaptation": "it draws the drift itself",
  "dynamic_personalization": "it draws the drift itself",
  "guidance": "its clients have no domains",
}

_SUFFIX = ".npz"
_PREFIX = "tfds:"
_TFDS = re.compile(r"tfds:(\w[\w-]*(?:/\w[\w.-]*)?)(?::(\w+),(\w+))?")


def is_own(name: str) -> bool:
  """Tells whether a name is that of a file or of tensorflow-datasets."""
  return name.endswith(_SUFFIX) or name.startswith(_PREFIX)


def short_name(name: str) -> str:
  """Returns what to call a data set in results: of a file, its stem."""
  return pathlib.PurePath(name).stem if name.endswith(_SUFFIX) else name


def checksum(name: str) -> str | None:
  """Returns the SHA-256 of a file, in hexadecimal digits; None of others.

  Args:
    name: The name of a data set; a file exists.
  """
  if not name.endswith(_SUFFIX):
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
    name: One for which `is_own` holds.
    scenario: What it is for, which refuses what it would ignore. None: for any.
    data_dir: The folder of all data sets, see `source`.

  Returns:
    The entry, for every scenario. Its `load` gives what has been read.

  Raises:
    ValueError: Something is wrong with what it holds; the message is one line
      that names it.
    DatasetNotFoundError: It is not on the disk.
  """
  if name.endswith(_SUFFIX):
    path = _path(name)
    if not path.exists():
      raise dataset.DatasetNotFoundError(f"{name}: there is no such file")
    try:
      state = path.stat()
      entry = _read_file(name, path, state.st_mtime_ns, state.st_size)
    except OSError as error:
      raise ValueError(f"{name} cannot be read: {error.strerror}") from error
  else:
    entry = _read_tfds(name, dataset.data_folder(data_dir))
  if scenario in _WITHOUT_DOMAINS and entry.evolution is not None:
    raise ValueError(
      f"domain of {name}: {scenario} would ignore it, because"
      f" {_WITHOUT_DOMAINS[scenario]}; evolving uses it; leave the array domain"
      " out of the file"
    )
  return entry


def _path(name: str) -> pathlib.Path:
  return pathlib.Path(name).expanduser()


# The arrays of the last one stay in memory; another state is another file.
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
        f"{name}: what is {key!r}? Its arrays may be {', '.join(KEYS)}"
      )
  loaded = dataset.Dataset(
    arrays["x"],
    arrays["y"],
    _texts(arrays.get("class_names"), f"class_names of {name}"),
  )
  evolution = None
  if "domain" in arrays:
    domains, time = _numbered(arrays["domain"], loaded, name, "domain", "iu")
    if len(domains) < 2:
      raise ValueError(
        f"domain of {name}: there must be at least 2 (a source and a target),"
        f" got {len(domains)}"
      )
    loaded = loaded._replace(time=time)
    evolution = dataset.Evolution(
      num_domains=len(domains),
      time_range=(0, len(domains) - 1),
      range_format="{}-{}",
      time_names=tuple(map(str, domains)),
    )
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
  """Reads what tensorflow-datasets has written and makes its entry."""
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
  """Checks what was read, and makes the entry that gives it.

  Args:
    loaded: The data set; without class names, they are the numbers of classes.
    name: What messages call it.
    evolution: How it evolves.

  Returns:
    The entry.

  Raises:
    ValueError: Something is wrong with it.
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
  """Returns the model of each scenario for examples of a shape.

  They are those of digits and circle, and in colour of CIFAR-10.
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
  """Returns texts; none where there is no array."""
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
        f"{what}: UTF-8 can hold no half of a surrogate pair, got {text!r}"
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
    name: What messages call the file.
    key: What they call the array.
    kinds: NumPy's letters of the types that there may be.

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
