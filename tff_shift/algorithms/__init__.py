"""One file per algorithm, found by its name.

Files elsewhere are added by `load` or `register`.

A new algorithm is a new file with `HParams` (a frozen dataclass, usually a
subclass of `LocalHParams`), `SCENARIOS` (the binaries that run it) and
`build(model, hparams)`, which returns an `algorithm.AlgorithmSpec`; there is no
list to edit. A third argument, `build(model, hparams, num_clients)`, is the
number of all clients. Optional names declare more: `MIN_SOURCE_DOMAINS`, if it
needs several source domains; `AGGREGATION_REQUIREMENTS`, a
`factories.AggregationRequirements`, if it does not support every aggregator;
`RUNNING_STATISTICS`, if it supports models with batch normalisation: the models
that have running statistics, one of `algorithm.ONE_MODEL`, `OWN_MODEL`,
`TWO_MODELS`, `FIXED` or another `algorithm.Kept`.

Importing this package is cheap. `describe` returns the metadata of an algorithm
without importing its file if `index` has them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import pkgutil
import re
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import msgspec

from tff_shift._util import arguments
from tff_shift._util import index
from tff_shift._util import user_modules
from tff_shift.learning import hyperparameters
from tff_shift.learning import metrics as metrics_lib

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from tff_shift.learning import algorithm as algorithm_lib
  from tff_shift.learning import batch_statistics
  from tff_shift.learning.aggregators import factories
  from tff_shift.models import split_model


class Description(NamedTuple):
  """Metadata of an algorithm.

  Attributes:
    summary: The first line of its docstring.
    scenarios: The binaries that run it.
    min_source_domains: The number of source domains that it needs.
    hparams: Its `HParams`, or a stand-in with the same fields, defaults and
      limits but without `check_together`.
  """

  summary: str
  scenarios: tuple[str, ...]
  min_source_domains: int
  hparams: type[hyperparameters.HParams]


_NUM_CLIENTS = "num_clients"

# The modules given to `register`, by name.
_registered: dict[str, types.ModuleType] = {}


@functools.cache
def _own_names() -> tuple[str, ...]:
  files = (m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg)
  return tuple(sorted(files))


def names(scenario: str | None = None) -> tuple[str, ...]:
  """Returns the names of the algorithms, in alphabetical order.

  Args:
    scenario: Only the algorithms of this scenario, a binary's name. None: all.

  Returns:
    The names, including registered ones.

  Examples:
    >>> names = ts.algorithm_names("evolving")
    >>> "fed_avg" in names, "fed_ade" in names
    (True, False)
  """
  every = tuple(sorted((*_own_names(), *_registered)))
  if scenario is None:
    return every
  return tuple(name for name in every if scenario in describe(name).scenarios)


def describe(name: str) -> Description:
  """Returns the metadata of an algorithm.

  Its file is imported only if the index has no current entry for it.

  Returns:
    The metadata.

  Raises:
    ValueError: If there is no such algorithm; the message lists the existing
      ones.
  """
  if name not in _registered and name in _own_names():
    return _describe_own(name)
  return describe_module(get(name))


@functools.cache
def _describe_own(name: str) -> Description:
  known = index.algorithm(name)
  if known is None:
    return describe_module(get(name))
  return Description(
    known.summary,
    known.scenarios,
    known.min_source_domains,
    hyperparameters.make_class(map(msgspec.structs.asdict, known.hparams)),
  )


def describe_module(module: types.ModuleType) -> Description:
  """Returns the metadata of an imported algorithm, see `describe`."""
  return Description(
    (inspect.getdoc(module) or "").partition("\n")[0],
    tuple(module.SCENARIOS),
    getattr(module, "MIN_SOURCE_DOMAINS", 1),
    module.HParams,
  )


def get(name: str) -> types.ModuleType:
  """Returns the module of an algorithm.

  Args:
    name: The name of the algorithm and of its file.

  Returns:
    The module, with `HParams`, `SCENARIOS` and `build`.

  Raises:
    ValueError: If there is no such algorithm; the message lists the existing
      ones.
  """
  if name in _registered:
    return _registered[name]
  if name not in _own_names():
    raise ValueError(
      f"no algorithm {name!r}; there are"
      f" {', '.join(names())}{arguments.did_you_mean(name, names())}"
    )
  return importlib.import_module(f"{__name__}.{name}")


def load(name: str | os.PathLike[str]) -> types.ModuleType:
  """Imports an algorithm's file from any path and registers it.

  Args:
    name: The path of the file, or the dotted name of a module that Python can
      import from here.

  Returns:
    The module.

  Raises:
    ValueError: If it cannot be imported, or is not an algorithm: see
      `register`.

  Examples:
    >>> path = folder / "my_fed_avg.py"
    >>> _ = path.write_text("from tff_shift.algorithms.fed_avg import *")
    >>> module = ts.load_algorithm(path)
    >>> "my_fed_avg" in ts.algorithm_names(), module.HParams().local_steps
    (True, 5)
  """
  return user_modules.load_and_register(name, register)


def register(module: types.ModuleType) -> str:
  """Registers an algorithm by its name, beside those of the package.

  Args:
    module: A module with `HParams`, `SCENARIOS` and `build`. It replaces an
      earlier registration of the same file.

  Returns:
    The algorithm's name, the last part of the module's.

  Raises:
    ValueError: If the module lacks one of these, or its name is in use.
  """
  name = name_of(module)
  if name in _own_names():
    raise ValueError(
      f"there is an algorithm {name!r} already; give the file another name"
    )
  before = _registered.get(name)
  if before is not None and not _is_same_file(before, module):
    raise ValueError(
      f"{before.__file__} is an algorithm {name!r} already; give one of the"
      " files another name"
    )
  _check_module(name, module)
  _registered[name] = module
  return name


def _is_same_file(one: types.ModuleType, other: types.ModuleType) -> bool:
  files = [getattr(each, "__file__", None) for each in (one, other)]
  return one is other or (
    None not in files
    and os.path.realpath(files[0]) == os.path.realpath(files[1])
  )


def _check_module(name: str, module: types.ModuleType) -> None:
  """Raises a ValueError unless a module has the names of an algorithm."""
  if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
    raise ValueError(
      f"{name!r} is not a valid name of an algorithm: it must be lower-case"
      " letters, digits and underscores, starting with a letter"
    )
  kind = getattr(module, "HParams", None)
  if not (
    isinstance(kind, type)
    and issubclass(kind, hyperparameters.HParams)
    # Of every dataclass, but not in its type.
    and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
  ):
    raise ValueError(
      "there must be a class HParams, a frozen dataclass and a subclass of"
      " hyperparameters.HParams (usually of LocalHParams)"
    )
  for field in dataclasses.fields(kind):
    if not {"help", "choices", "minimum"} <= set(field.metadata):
      raise ValueError(
        f"the field {field.name!r} of HParams must come from"
        " hyperparameters.hparam(default, help, ...)"
      )
    if type(field.default) not in (bool, int, float, str):
      raise ValueError(
        f"the default of the field {field.name!r} of HParams must be True or"
        " False, an integer, a float or a text; it is of type"
        f" {type(field.default).__name__}"
      )
  known = sorted({s for own in _own_names() for s in describe(own).scenarios})
  scenarios = getattr(module, "SCENARIOS", None)
  if (
    not isinstance(scenarios, tuple | list)
    or not scenarios
    or any(each not in known for each in scenarios)
  ):
    raise ValueError(
      "there must be SCENARIOS, a tuple of the binaries that run it, some of"
      f" {', '.join(known)}"
    )
  build_spec = getattr(module, "build", None)
  if not callable(build_spec) or list(
    inspect.signature(build_spec).parameters
  ) not in (["model", "hparams"], ["model", "hparams", _NUM_CLIENTS]):
    raise ValueError(
      "there must be a function build(model, hparams), or build(model, hparams,"
      " num_clients), that returns an algorithm.AlgorithmSpec"
    )
  from tff_shift.learning import batch_statistics
  from tff_shift.learning.aggregators import factories

  if not isinstance(requirements(module), factories.AggregationRequirements):
    raise ValueError(
      "AGGREGATION_REQUIREMENTS must be a factories.AggregationRequirements"
    )
  if not isinstance(running_statistics(module), batch_statistics.Kept | None):
    raise ValueError("RUNNING_STATISTICS must be an algorithm.Kept")


def name_of(module: types.ModuleType) -> str:
  """Returns the name of an algorithm, the last part of its module's."""
  return module.__name__.rpartition(".")[2]


def requirements(
  algorithm: str | types.ModuleType,
) -> factories.AggregationRequirements:
  """Returns the aggregation requirements of an algorithm, or its module."""
  from tff_shift.learning.aggregators import factories

  return getattr(
    _module(algorithm), "AGGREGATION_REQUIREMENTS", factories.NO_REQUIREMENTS
  )


def min_source_domains(algorithm: str | types.ModuleType) -> int:
  """Returns the number of source domains that an algorithm needs."""
  if isinstance(algorithm, str):
    return describe(algorithm).min_source_domains
  return getattr(algorithm, "MIN_SOURCE_DOMAINS", 1)


def build(
  algorithm: str | types.ModuleType,
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams | None = None,
  *,
  aggregator: (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
    | None
  ) = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  num_clients: int | None = None,
  reports_losses: bool = False,
  num_queries: int | None = None,
  num_evaluation_domains: int = 1,
  metrics: Sequence[str] = (),
  class_names: Sequence[str] | None = None,
) -> algorithm_lib.FederatedAlgorithm:
  """Builds the TFF computations of an algorithm.

  Args:
    algorithm: The algorithm's name, or a module with `HParams` and `build`.
    model: The model; its inputs determine the type of the clients' data.
    hparams: An `HParams` of the algorithm. None: its default values.
    aggregator: Averages updates at the server: a result of `factories.build`,
      or a TFF factory. None: the mean.
    server_optimizer: Steps along the mean update: a result of
      `server_optimizers.build`, or an optimizer of TFF. None: the mean update
      is added.
    num_clients: The number of all clients, for algorithms whose `build` takes
      it or whose server uses it (`UpdateInfo.num_clients`). None: unknown.
    reports_losses: Whether the server sees each client's training loss, for
      samplers that use it (`phases.CLIENT_LOSSES`); needs `num_clients`.
    num_queries: The number of queries answered at a time, for
      `FederatedAlgorithm.guidance`. None: it is not built.
    num_evaluation_domains: The number of domains of the evaluation data.
    metrics: Names of metrics to measure besides accuracy and loss, see
      `learning.metrics`.
    class_names: The names of the classes, for metrics by class. None: their
      numbers.

  Returns:
    The algorithm.

  Raises:
    ValueError: If there is no such algorithm or metric, if a hyper-parameter
      has a value that is not allowed, or if the algorithm does not support the
      aggregator, the server optimizer or the model.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm(
    ...   "fed_avg", model, ts.hparams("fed_avg", local_steps=1)
    ... )
    >>> print(algorithm.phases[0].type_signature.result[2])  # Metrics.
    <loss=float32,num_clients=float32,num_diverged=float32>@SERVER
  """
  from tff_shift.learning import algorithm as algorithm_lib

  module = _module(algorithm)
  if hparams is None:
    hparams = module.HParams()
  _check_hparams(module, hparams)
  return algorithm_lib.build(
    name_of(module),
    spec_builder(module, num_clients),
    model,
    hparams,
    requirements=requirements(module),
    aggregator=aggregator,
    server_optimizer=server_optimizer,
    num_clients=num_clients,
    reports_losses=reports_losses,
    num_queries=num_queries,
    num_evaluation_domains=num_evaluation_domains,
    min_source_domains=min_source_domains(module),
    running_statistics=running_statistics(module),
    metrics=metrics_lib.choose(metrics, model.num_classes, class_names),
  )


def spec_builder(
  algorithm: str | types.ModuleType, num_clients: int | None
) -> Callable[
  [split_model.SplitModel, hyperparameters.HParams], algorithm_lib.AlgorithmSpec
]:
  """Returns `build` of an algorithm, a function of model and hyper-parameters.

  Args:
    algorithm: The algorithm's name or module.
    num_clients: The number of all clients. None: unknown.

  Raises:
    ValueError: If the algorithm needs the number of clients.
  """
  module = _module(algorithm)
  if _NUM_CLIENTS not in inspect.signature(module.build).parameters:
    return module.build
  if num_clients is None:
    raise ValueError(
      f"{name_of(module)} needs num_clients, the number of all clients"
    )
  num_clients = arguments.integer(_NUM_CLIENTS, num_clients)
  return functools.partial(module.build, num_clients=num_clients)


def hparams(
  algorithm: str | types.ModuleType, **values: Any
) -> hyperparameters.HParams:
  """Returns hyper-parameters of an algorithm.

  Args:
    algorithm: The algorithm's name or module.
    **values: Values other than the defaults.

  Raises:
    ValueError: If there is no such algorithm or hyper-parameter, or a value is
      out of range.

  Examples:
    >>> hparams = ts.hparams("fed_avg", learning_rate=0.1)
    >>> hparams.learning_rate, hparams.local_steps
    (0.1, 5)
  """
  kind = _module(algorithm).HParams
  known = [field.name for field in dataclasses.fields(kind)]
  for name in values:
    if name not in known:
      raise ValueError(
        f"{name_of(_module(algorithm))} has no hyper-parameter {name!r}; it has"
        f" {', '.join(known)}{arguments.did_you_mean(name, known)}"
      )
  found = kind(**values)
  hyperparameters.validate(found)
  return found


def running_statistics(
  algorithm: str | types.ModuleType,
) -> batch_statistics.Kept | None:
  """Returns which models of an algorithm have running statistics.

  None: the algorithm does not support batch normalisation.
  """
  return getattr(_module(algorithm), "RUNNING_STATISTICS", None)


def check_normalization(
  algorithm: str | types.ModuleType,
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
  will_be_trained: bool = False,
) -> None:
  """Refuses batch normalisation, or its options, if not supported.

  Args:
    algorithm: The algorithm's name or module.
    model: The model.
    hparams: The hyper-parameters.
    will_be_trained: Whether the model is pre-trained before it is used.

  Raises:
    ValueError: If not supported; one line.
  """
  from tff_shift.learning import batch_statistics

  module = _module(algorithm)
  named = name_of(module), running_statistics(module), model
  batch_statistics.check(*named, hparams)
  if not will_be_trained:
    batch_statistics.check_is_trained(*named)


def _check_hparams(
  module: types.ModuleType, hparams: hyperparameters.HParams
) -> None:
  """Refuses the hyper-parameters of another algorithm."""
  hyperparameters.validate(hparams)
  found, wanted = (
    {field.name for field in dataclasses.fields(each)}
    for each in (hparams, module.HParams)
  )
  if found != wanted:
    unknown = ", ".join(sorted(found - wanted))
    missing = ", ".join(sorted(wanted - found))
    raise ValueError(
      f"hparams of {name_of(module)} must be a {name_of(module)}.HParams"
      + (f"; it has no {unknown}" if unknown else "")
      + (f"; {missing} missing" if missing else "")
    )


def _module(algorithm: str | types.ModuleType) -> types.ModuleType:
  return get(algorithm) if isinstance(algorithm, str) else algorithm
