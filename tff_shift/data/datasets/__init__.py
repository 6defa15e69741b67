"""One file per data set, found by its name.

A new data set is a new file with `DATASET`, a `dataset.Dataset`; there is no
list to edit. Its docstring says where the data come from.
"""

import functools
import importlib
import os
import pkgutil

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import examples
from tff_shift.data import source


# The folder is read once; a package may be given further folders.
@functools.cache
def _files(path: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))


def names(scenario: str | None = None) -> tuple[str, ...]:
  """Returns the names of the data sets, in alphabetical order.

  Args:
    scenario: Leaves only those that this scenario, a binary's name, can use.
      None leaves all.

  Returns:
    The names.
  """
  found = _files(tuple(__path__))
  if scenario is None:
    return found
  return tuple(name for name in found if scenario in get(name).models)


def get(name: str, scenario: str | None = None) -> dataset.Dataset:
  """Returns the entry of a data set.

  Args:
    name: The data set's name, which is its file's.
    scenario: The scenario that is to use it. None: any.

  Returns:
    The entry; nothing is loaded yet.

  Raises:
    ValueError: If there is no such data set, or the scenario cannot use it;
      names those that there are.
  """
  known = names(scenario)
  if name not in known:
    raise ValueError(f"dataset must be one of {', '.join(known)}, got {name!r}")
  return importlib.import_module(f"{__name__}.{name}").DATASET


def load(
  name: str,
  *,
  data_dir: str | os.PathLike[str] | None = None,
  seed: int = 0,
  num_domains: int | None = None,
) -> source.Source:
  """Loads or generates a data set, and checks it.

  Args:
    name: One of `names()`.
    data_dir: The folder of all data sets, see `source`.
    seed: Seed of a data set that is generated; others do not look at it.
    num_domains: Likewise, its number of domains. None: that of its evolution.

  Returns:
    The data set, always in the same order.

  Raises:
    ValueError: The name is unknown, or what is on the disk is not what the
      entry says.
    DatasetNotFoundError: The data set is not on the disk.
  """
  entry = get(name)
  if entry.generate is None:
    loaded = entry.load(source.data_folder(data_dir))
  else:
    if num_domains is None:
      num_domains = entry.evolution.num_domains
    loaded = entry.generate(seed, num_domains)
  return checked(loaded, entry, name)


def checked(
  loaded: source.Source, entry: dataset.Dataset, what: str
) -> source.Source:
  """Returns a data set in the types of its entry.

  Args:
    loaded: The data set, or its corrupted images, whatever they hold.
    entry: Its entry.
    what: What error messages call it.

  Returns:
    The data set; all that `source.Source` and the entry say is true of it.

  Raises:
    ValueError: Something is not true of it.
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
  elif time.shape != y.shape or not np.issubdtype(time.dtype, np.integer):
    raise ValueError(
      f"time of {what}: {len(y)} integers wanted, one for each example, got"
      f" {time.dtype} {list(time.shape)}"
    )
  return loaded._replace(x=x, y=y)
