"""One file per data set, found by its name.

A new data set is a new file with `DATASET`, a `dataset.DatasetInfo`; there is
no list to edit. Its docstring gives the source of the data. Names of the form
`path/to/data.npz` or `tfds:<name>` need no file here, see `sources`. A user's
file with a function `load() -> table.Table` is a data set too, see `load_file`.

Examples:
  >>> "circle" in ts.datasets.names("evolving")
  True
  >>> ts.datasets.load("circle", seed=0, num_domains=2).x.shape
  (2000, 2)
"""

import functools
import importlib
import os
import pathlib
import pkgutil
import types
from collections.abc import Sequence

import numpy as np

from tff_shift._util import arguments
from tff_shift._util import user_modules
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import sources
from tff_shift.data import table
from tff_shift.data.texts import text

# A user's data sets by name.
_registered: dict[str, types.ModuleType] = {}


# The folder is listed once per path: a package can be given further folders.
@functools.cache
def _files(path: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))


def _entry(name: str) -> dataset.DatasetInfo:
  return importlib.import_module(f"{__name__}.{name}").DATASET


def names(scenario: str | None = None) -> tuple[str, ...]:
  """Returns the names of the data sets, in alphabetical order.

  Args:
    scenario: Only the data sets that this scenario, a binary's name, can use.
      None: all.
  """
  files = _files(tuple(__path__))
  if scenario is not None:
    files = tuple(name for name in files if scenario in _entry(name).models)
  return tuple(sorted((*files, *_registered)))


def choices(scenario: str | None = None) -> str:
  """Returns all names that `get` accepts, for a message.

  Args:
    scenario: Only the data sets that this scenario can use. None: all.

  Returns:
    The names, and the forms of names without a file here.
  """
  return f"{', '.join(names(scenario))}, {sources.forms()}"


def is_own(name: str) -> bool:
  """Returns whether a name refers to a user's data."""
  return name in _registered or sources.is_own(name)


def load_file(name: str | os.PathLike[str]) -> types.ModuleType:
  """Imports a user's data set and registers it under the name of its file.

  Args:
    name: The path of the file, or the dotted name of a module that Python can
      import. It has a function `load() -> table.Table`.

  Returns:
    The module.

  Raises:
    ValueError: If it cannot be imported, or is not a data set.

  Examples:
    >>> path = folder / "two_points.py"
    >>> _ = path.write_text('''
    ... import numpy as np
    ... from tff_shift.data import table
    ...
    ... def load():
    ...   x, y = np.float32([[0], [1]] * 9), np.int32([0, 1] * 9)
    ...   return table.of_classes(x, y, ["left", "right"])
    ... ''')
    >>> module = ts.datasets.load_file(path)
    >>> ts.datasets.load("two_points").x.shape
    (18, 1)
  """
  return user_modules.load_and_register(name, register)


def is_dataset(module: types.ModuleType) -> bool:
  """Returns whether a module is a data set: a function load, and no build."""
  return callable(getattr(module, "load", None)) and not hasattr(
    module, "build"
  )


def register(module: types.ModuleType) -> str:
  """Makes a module a data set, under the last part of its name.

  Returns:
    The name.

  Raises:
    ValueError: If it has no function `load`, or the name is taken.
  """
  name = module.__name__.rpartition(".")[2]
  if not is_dataset(module):
    raise ValueError("a data set must have a function load() -> table.Table")
  if name in _files(tuple(__path__)):
    raise ValueError(f"there is a data set {name} already; rename the file")
  if _registered.get(name) is not module:
    _registered[name] = module
    _own_table.cache_clear()
  return name


@functools.lru_cache(maxsize=1)
def _own_table(name: str) -> table.Table:
  """Returns the validated table of a user's file."""
  content = _registered[name].load()
  if not isinstance(content, table.Table):
    raise ValueError(
      f"load() of {name} must return a table.Table, got"
      f" {type(content).__name__}"
    )
  content = table.validate(content, name)
  return content._replace(x=examples.read_only(content.x))


def _own(name: str, data_dir: str | os.PathLike[str] | None) -> table.Table:
  if name in _registered:
    return _own_table(name)
  return sources.load(name, data_dir)


def schema(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> table.Schema | None:
  """Returns the schema of a user's data; None: of others, see `load`."""
  return _own(name, data_dir).schema if is_own(name) else None


def checksum(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> str | None:
  """Returns the SHA-256 of a user's data; None for the package's.

  It is that of the files; without them (`tfds:`, `load_file`), of the table.

  Args:
    name: The name of a data set, which exists.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    64 hexadecimal digits.
  """
  if not is_own(name):
    return None
  return sources.checksum(name, data_dir) or table.digest(_own(name, data_dir))


def get(
  name: str,
  scenario: str | None = None,
  *,
  data_dir: str | os.PathLike[str] | None = None,
) -> dataset.DatasetInfo:
  """Returns the entry of a data set.

  Args:
    name: The data set's name (its file's); or `path/to/data.npz` or
      `tfds:<name>`, see `sources`. The latter two are read here, since their
      entry depends on their content.
    scenario: The scenario that uses it; data that it would ignore are refused.
      None: any.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The entry.

  Raises:
    ValueError: If there is no such data set, or the scenario cannot use it; the
      message lists the existing ones.
    DatasetNotFoundError: If a file or a set of tensorflow-datasets is not on
      the disk.
  """
  if is_own(name):
    entry = dataset.entry_of(_own(name, data_dir), name.partition("?")[0])
    if scenario == "guidance" and entry.evolution is not None:
      raise ValueError(
        f"{name.partition('?')[0]}: guidance would ignore its domains (--time,"
        " domain of --folder_levels, the array domain); leave them out, or use"
        " evolving, online_adaptation or dynamic_personalization"
      )
    return entry
  if name not in names(scenario):
    raise ValueError(
      f"dataset must be one of {choices(scenario)}; got"
      f" {name!r}{arguments.did_you_mean(name, names(scenario))}"
    )
  return _entry(name)


def load(
  name: str,
  *,
  data_dir: str | os.PathLike[str] | None = None,
  seed: int = 0,
  num_domains: int | None = None,
  model_dir: str | os.PathLike[str] | None = None,
) -> table.Table:
  """Loads or generates a data set, and validates it.

  Args:
    name: A name that `get` accepts.
    data_dir: The folder of all data sets, see `dataset`.
    seed: Seed of a generated data set; ignored by others.
    num_domains: Number of domains of a generated data set. None: the default of
      its evolution.
    model_dir: The folder of the pre-trained model that tokenizes texts; ignored
      by other data sets.

  Returns:
    The table, always in the same order.

  Raises:
    ValueError: If the name is unknown, the files do not match the entry, or the
      data set is text and there is no model for it.
    FileNotFoundError: If the model's tokenizer is missing.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  entry = get(name, data_dir=data_dir)
  if is_own(name):
    return _own(name, data_dir)
  if entry.tokenize is not None:
    if model_dir is None:
      raise ValueError(
        f"data set {name!r} is text, which must be tokenized: model_dir must be"
        " the folder of a pre-trained model"
      )
    loaded = entry.tokenize(
      dataset.data_folder(data_dir), pathlib.Path(model_dir)
    )
  elif entry.load is not None:
    loaded = entry.load(dataset.data_folder(data_dir))
  else:
    if num_domains is None:
      num_domains = entry.evolution.num_domains
    loaded = entry.generate(seed, num_domains)
  return checked(loaded, entry, name)


def checked(
  loaded: table.Table, entry: dataset.DatasetInfo, what: str
) -> table.Table:
  """Returns a table in the types of its entry.

  Args:
    loaded: The table, or its corrupted images, not yet validated.
    entry: Its entry.
    what: Its name in error messages.

  Returns:
    The table.

  Raises:
    ValueError: If it does not satisfy them.
  """
  x, y = examples.checked(
    loaded.x,
    loaded.y,
    what,
    shape=entry.shape,
    dtype=entry.dtype,
    num_classes=entry.num_classes,
  )
  classes = loaded.schema.classes
  if len(classes) != entry.num_classes:
    raise ValueError(
      f"class_names of {what}: there must be {entry.num_classes}, got"
      f" {len(classes)}"
    )
  if entry.vocabulary_size is not None:
    _check_titles(x, loaded.vocabulary, what)
  table.check_num_train(loaded, what)
  if loaded.time is not None:
    _check_integers(loaded.time, len(y), f"time of {what}")
  elif entry.evolution is not None and entry.evolution.range_format is not None:
    raise ValueError(
      f"time of {what}: its domains are ranges of time, but there is none"
    )
  return loaded._replace(x=x, y=y)


def _check_titles(
  x: np.ndarray, vocabulary: Sequence[str] | None, what: str
) -> None:
  """Refuses word ids outside of the vocabulary."""
  if vocabulary is None or tuple(vocabulary[:2]) != text.RESERVED:
    raise ValueError(
      f"vocabulary of {what}: it must name the word of each id, first"
      f" {' and '.join(text.RESERVED)}"
    )
  text.check_ids(x, len(vocabulary), what)


def _check_integers(array: np.ndarray, size: int, what: str) -> None:
  """Refuses arrays that are not one integer for each example."""
  if array.shape != (size,) or not np.issubdtype(array.dtype, np.integer):
    raise ValueError(
      f"{what}: {size} integers wanted, one for each example, got"
      f" {array.dtype} {list(array.shape)}"
    )
