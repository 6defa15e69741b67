"""One file per data set, found by its name.

A new data set is a new file with `DATASET`, a `dataset.DatasetInfo`; there is
no list to edit. Its docstring gives the source of the data. Names of the form
`path/to/data.npz` or `tfds:<name>` need no file here, see `own_datasets`.

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
from collections.abc import Sequence

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data.texts import text
from tff_shift.data.your_own import own_datasets


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
  found = _files(tuple(__path__))
  if scenario is None:
    return found
  return tuple(name for name in found if scenario in _entry(name).models)


def choices(scenario: str | None = None) -> str:
  """Returns all names that `get` accepts, for a message.

  Args:
    scenario: Only the data sets that this scenario can use. None: all.

  Returns:
    The names, and the forms of names without a file here.
  """
  return f"{', '.join(names(scenario))}, {own_datasets.FORMS}"


def get(
  name: str,
  scenario: str | None = None,
  *,
  data_dir: str | os.PathLike[str] | None = None,
) -> dataset.DatasetInfo:
  """Returns the entry of a data set.

  Args:
    name: The data set's name (its file's); or `path/to/data.npz` or
      `tfds:<name>`, see `own_datasets`. The latter two are read here, since
      their entry depends on their content.
    scenario: The scenario that uses it. None: any.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The entry.

  Raises:
    ValueError: If there is no such data set, or the scenario cannot use it; the
      message lists the existing ones.
    DatasetNotFoundError: If a file or a set of tensorflow-datasets is not on
      the disk.
  """
  if own_datasets.is_own(name):
    return own_datasets.get(name, scenario, data_dir)
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
) -> dataset.Dataset:
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
    The data set, always in the same order.

  Raises:
    ValueError: If the name is unknown, the files do not match the entry, or the
      data set is text and there is no model for it.
    FileNotFoundError: If the model's tokenizer is missing.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  entry = get(name, data_dir=data_dir)
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
  loaded: dataset.Dataset, entry: dataset.DatasetInfo, what: str
) -> dataset.Dataset:
  """Returns a data set in the types of its entry.

  Args:
    loaded: The data set, or its corrupted images, not yet validated.
    entry: Its entry.
    what: Its name in error messages.

  Returns:
    The data set, which satisfies `dataset.Dataset` and the entry.

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
  if len(loaded.class_names) != entry.num_classes:
    raise ValueError(
      f"class_names of {what}: there must be {entry.num_classes}, got"
      f" {len(loaded.class_names)}"
    )
  if entry.vocabulary_size is not None:
    _check_titles(x, loaded.vocabulary, what)
  num_train, time = loaded.num_train, loaded.time
  if num_train is not None and not 0 < num_train < len(y):
    raise ValueError(
      f"num_train of {what}: it must lie in 1..{len(y) - 1}, so that both"
      f" splits have an example, got {num_train}"
    )
  if time is None:
    if entry.evolution is not None and entry.evolution.range_format is not None:
      raise ValueError(
        f"time of {what}: its domains are ranges of time, but there is none"
      )
  else:
    _check_integers(time, len(y), f"time of {what}")
  if entry.num_clients is not None:
    _check_integers(loaded.client, len(y), f"client of {what}")
    held = np.unique(loaded.client)
    if held.tolist() != list(range(entry.num_clients)):
      raise ValueError(
        f"client of {what}: each of 0..{entry.num_clients - 1} wanted, and no"
        f" other, got {held[0]}..{held[-1]}"
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
