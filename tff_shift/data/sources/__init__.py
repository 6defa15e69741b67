"""Sources of a user's tables: one file for each format.

    path/to/data.npz       arrays, see `npz`
    path/to/data.csv?label=<column>&client=<column>&time=<column>
    path/to/data.parquet?...
                           a table with a row for each example, see `tables`;
                           client and time are optional; image=<column> has the
                           paths of image files, relative to the table's folder
    path/to/folder?folder_levels=<levels>
                           folders of images, see `image_folders`; by default
                           their names are the classes
    path/to/folder?label=<column>&...
                           a folder of `Dataset.save_to_disk`, see `huggingface`
    tfds:<name>            a prepared set in the folder of all data sets, see
                           `tfds`

A folder's name has a slash. Images can have image_size=<pixels>; domain_order
is the order of domains, the target last. Data are read completely to determine
their schema, and the last ones stay in memory for the next use.

A module here is the source of the names that its `takes` accepts: it has
`load(name, options, folder)`, the names of its `OPTIONS`, and its `FORM` for
messages. There is no list to edit. `frames`, `pairs` and `client_data` read
objects of Python.

Choices:
  * A file has no entry in `datasets`: only the file itself describes its
    content. It is therefore read completely when the flags are checked.
  * A run identifies the file by its SHA-256, not by its path, which may change.
    The name in results is the file's stem: only `config.json` distinguishes two
    files with the same stem.
  * A table of tensorflow-datasets is refused, not converted to vectors: no rule
    determines which columns are numbers, codes or texts.
"""

import functools
import hashlib
import importlib
import os
import pathlib
import pkgutil
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tff_shift._util import files
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import table
from tff_shift.data.sources import image_folders
from tff_shift.data.sources import source


@functools.cache
def _modules() -> tuple[Any, ...]:
  """Returns the modules that read a name; that of any folder is last."""
  modules = [
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
  ]
  readers = [module for module in modules if hasattr(module, "takes")]
  return tuple(sorted(readers, key=lambda module: module is image_folders))


def _find(name: str) -> Any:
  """Returns the module that reads a name, with or without options, or None."""
  name = _path(name)
  return next((module for module in _modules() if module.takes(name)), None)


def _path(name: str) -> str:
  """Returns a name without its options."""
  return os.path.expanduser(name.partition("?")[0])


def _options(name: str) -> dict[str, str]:
  """Returns the options in a name."""
  return dict(urllib.parse.parse_qsl(name.partition("?")[2]))


def forms() -> str:
  """Returns the forms of names, for a message."""
  return ", ".join(module.FORM for module in _modules())


def is_own(name: str) -> bool:
  """Returns whether a name refers to a user's data."""
  return _find(name) is not None


def options(name: str) -> tuple[str, ...]:
  """Returns the options that a data set can have in its name."""
  module = _find(name)
  if module is image_folders and not os.path.exists(_path(name)):
    return tuple(dict.fromkeys(source.COLUMNS + module.OPTIONS))
  return module.OPTIONS if module else ()


def with_options(name: str, values: Mapping[str, Any]) -> str:
  """Returns the name of a data set with its options."""
  return f"{name}?{urllib.parse.urlencode(values)}"


def short_name(name: str) -> str:
  """Returns the name of a data set in results, without its folders."""
  path = pathlib.Path(_path(name))
  if path.is_dir() and is_own(name):
    return path.resolve().name
  is_file = is_own(name) and not name.startswith("tfds:")
  return path.name.removesuffix(".gz").rpartition(".")[0] if is_file else name


def checksum(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> str | None:
  """Returns the SHA-256 of files, in hexadecimal digits; None without files.

  It is that of the file; of images, that of all paths and bytes read.

  Args:
    name: The name of a data set.
    data_dir: The folder of all data sets, see `dataset`.
  """
  path = _path(name)
  if not is_own(name) or not os.path.exists(path):
    return None
  digest = content(name, data_dir).sha256
  if digest is not None:
    return digest
  with files.reading(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def load(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> table.Table:
  """Reads a user's data.

  Args:
    name: A name for which `is_own` is True.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The table, validated; read-only.

  Raises:
    ValueError: If the content is not valid; one line that names it.
    DatasetNotFoundError: If the data are not on the disk.
  """
  return content(name, data_dir).table


def content(
  name: str, data_dir: str | os.PathLike[str] | None = None
) -> source.Content:
  """Reads a user's data and what else belongs to them, see `load`."""
  path = pathlib.Path(_path(name))
  module = _find(name)
  folder = dataset.data_folder(data_dir)
  if name.startswith("tfds:"):
    return _content(name, folder, None)[0]
  if not path.exists():
    kind = "folder" if module is image_folders else "file"
    raise dataset.DatasetNotFoundError(f"{path}: there is no such {kind}")
  if module is image_folders and not path.is_dir():
    raise ValueError(f"{path} is not a folder; a file must be one of {forms()}")
  for option in _options(name):
    if option not in module.OPTIONS:
      raise ValueError(
        f"{path}: {option} is not one of its options"
        f" {', '.join(module.OPTIONS)}"
      )
  try:
    state = _state(path)
    result = _content(name, folder, state)
    if any(_state(file) != before for file, before in result[1].items()):
      _content.cache_clear()
      result = _content(name, folder, state)
  except OSError as error:
    raise ValueError(
      f"{error.filename or path} cannot be read: {error.strerror}"
    ) from error
  return result[0]


def _state(path: pathlib.Path) -> Any:
  """Returns a value that changes if a file, or one in a folder, changes."""
  state = path.stat()
  if not path.is_dir():
    return state.st_mtime_ns, state.st_size
  digest = hashlib.sha256()
  for root, folders, names in os.walk(path, followlinks=True):
    # Deeper ones are refused on reading; a link to a folder above has no end.
    depth = len(pathlib.Path(root).relative_to(path).parts)
    if depth > len(image_folders.LEVELS):
      folders.clear()
    for name in sorted(names):
      file = os.path.join(root, name)
      state = os.stat(file)
      digest.update(os.fsencode(file))
      digest.update(f" {state.st_mtime_ns} {state.st_size} ".encode())
  return digest.hexdigest()


# Keeps the last data. They are read again if a file of the folder, an image or
# the file itself has changed.
@functools.lru_cache(maxsize=1)
def _content(
  name: str, folder: pathlib.Path, state: Any
) -> tuple[source.Content, dict[pathlib.Path, Any]]:
  """Reads a user's data, and the states of the files that are beside them."""
  del state
  content = _find(name).load(_path(name), _options(name), folder)
  loaded = content.table
  loaded = loaded._replace(x=examples.read_only(loaded.x))
  return (
    content._replace(table=loaded),
    {file: _state(file) for file in content.files},
  )
