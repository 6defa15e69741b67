"""One file per algorithm, found by its name.

A new algorithm is a new file with `HParams` (a frozen dataclass, usually a
subclass of `LocalHParams`) and `build(model, hparams, **options)`; there is no
list to edit. One that needs more than one source domain says so in
`MIN_SOURCE_DOMAINS`.
"""

import importlib
import pkgutil
import types


def names() -> tuple[str, ...]:
  """Returns the names of all algorithms, in alphabetical order."""
  return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def get(name: str) -> types.ModuleType:
  """Returns the module of an algorithm.

  Args:
    name: The algorithm's name, which is its file's.

  Returns:
    The module, with `HParams` and `build`.

  Raises:
    ValueError: If there is no such algorithm; names those that there are.
  """
  if name not in names():
    raise ValueError(
        f"no algorithm {name!r}; there are {', '.join(names())}"
    )
  return importlib.import_module(f"{__name__}.{name}")
