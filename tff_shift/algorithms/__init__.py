"""One file per algorithm, found by its name.

A new algorithm is a new file with `HParams` (a frozen dataclass, usually a
subclass of `LocalHParams`), `SCENARIOS` (the binaries that run it) and
`build(model, hparams, **options)`; there is no list to edit. One that needs
more than one source domain says so in `MIN_SOURCE_DOMAINS`; one that cannot do
with every aggregator says why in `AGGREGATION_NEEDS`, an `aggregation.Needs`,
which it also gives to `process.build_algorithm`.
"""

import importlib
import pkgutil
import types


def names(scenario: str | None = None) -> tuple[str, ...]:
  """Returns the names of the algorithms, in alphabetical order.

  Args:
    scenario: Leaves only those that run in this scenario, a binary's name. None
      leaves all.

  Returns:
    The names.
  """
  found = sorted(m.name for m in pkgutil.iter_modules(__path__))
  if scenario is None:
    return tuple(found)
  return tuple(name for name in found if scenario in get(name).SCENARIOS)


def get(name: str) -> types.ModuleType:
  """Returns the module of an algorithm.

  Args:
    name: The algorithm's name, which is its file's.

  Returns:
    The module, with `HParams`, `SCENARIOS` and `build`.

  Raises:
    ValueError: If there is no such algorithm; names those that there are.
  """
  if name not in names():
    raise ValueError(f"no algorithm {name!r}; there are {', '.join(names())}")
  return importlib.import_module(f"{__name__}.{name}")
