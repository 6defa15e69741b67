"""One file per algorithm, found by its name.

A new algorithm is a new file with `HParams` (a frozen dataclass, usually a
subclass of `LocalHParams`), `SCENARIOS` (the binaries that run it) and
`work(model, hparams)`, which gives its functions, a `process.Work`; there is no
list to edit. One that needs more than one source domain says so in
`MIN_SOURCE_DOMAINS`; one that cannot do with every aggregator says why in
`AGGREGATION_NEEDS`, an `aggregation.Needs`.
"""

import functools
import importlib
import pkgutil
import types

import tensorflow_federated as tff

from tff_shift.learning import aggregation
from tff_shift.learning import hyperparameters
from tff_shift.learning import process
from tff_shift.models import split_model


@functools.cache
def _all_names() -> tuple[str, ...]:
  return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def names(scenario: str | None = None) -> tuple[str, ...]:
  """Returns the names of the algorithms, in alphabetical order.

  Args:
    scenario: Leaves only those that run in this scenario, a binary's name. None
      leaves all.

  Returns:
    The names.
  """
  if scenario is None:
    return _all_names()
  return tuple(name for name in _all_names() if scenario in get(name).SCENARIOS)


def get(name: str) -> types.ModuleType:
  """Returns the module of an algorithm.

  Args:
    name: The algorithm's name, which is its file's.

  Returns:
    The module, with `HParams`, `SCENARIOS` and `work`.

  Raises:
    ValueError: If there is no such algorithm; names those that there are.
  """
  if name not in _all_names():
    raise ValueError(f"no algorithm {name!r}; there are {', '.join(names())}")
  return importlib.import_module(f"{__name__}.{name}")


def needs(algorithm: str | types.ModuleType) -> aggregation.Needs:
  """Returns what an algorithm, or its module, asks of an aggregator."""
  return getattr(_module(algorithm), "AGGREGATION_NEEDS", aggregation.NO_NEEDS)


def min_source_domains(algorithm: str | types.ModuleType) -> int:
  """Returns how many source domains an algorithm, or its module, needs."""
  return getattr(_module(algorithm), "MIN_SOURCE_DOMAINS", 1)


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
  num_queries: int | None = None,
  num_evaluation_domains: int = 1,
) -> process.FederatedAlgorithm:
  """Builds the TFF computations of an algorithm.

  Args:
    algorithm: The algorithm's name, or a module with `HParams` and `work`.
    model: The model; its inputs fix the type of the clients' data.
    hparams: An `HParams` of the algorithm. None: its default values.
    aggregator: How the server averages updates: what `aggregation.build` gives,
      or a factory of TFF. None: the mean.
    num_queries: The number of queries that are answered at a time, for
      `FederatedAlgorithm.guidance`. None: it is not built.
    num_evaluation_domains: The number of domains of the data to predict.

  Returns:
    The algorithm.

  Raises:
    ValueError: If there is no such algorithm, if a hyper-parameter has a value
      that is not allowed, or if the algorithm cannot do with the aggregator or
      the model.
  """
  module = _module(algorithm)
  return process.build(
    module.__name__.rpartition(".")[2],
    module.work,
    model,
    module.HParams() if hparams is None else hparams,
    needs=needs(module),
    aggregator=aggregator,
    num_queries=num_queries,
    num_evaluation_domains=num_evaluation_domains,
    min_source_domains=min_source_domains(module),
  )


def _module(algorithm: str | types.ModuleType) -> types.ModuleType:
  return get(algorithm) if isinstance(algorithm, str) else algorithm
