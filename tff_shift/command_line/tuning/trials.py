"""Algorithms at the settings that the flags ask to compare."""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_shift import algorithms
from tff_shift.command_line import common_flags
from tff_shift.command_line.tuning import selection
from tff_shift.learning import hyperparameters


def _no_values(*_: Any) -> Mapping[str, Any]:
  return {}


def chosen(
  scenario: str,
  defaults: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = _no_values,
  overrides: Callable[[str], Mapping[str, Any]] = _no_values,
) -> list[selection.Trial]:
  """Returns each algorithm at every combination of the values of its flags.

  Args:
    scenario: The binary's name.
    defaults: `(algorithm, setting) -> values` of hyper-parameters whose flags
      are not set, for a combination of values of those that are; values that
      the algorithm does not have are left out.
    overrides: An algorithm's name to values that count instead of the flags'.

  Returns:
    The trials, algorithm by algorithm; the values of the last
    hyper-parameter change fastest.

  Raises:
    UsageError: If a flag is wrong.
  """
  return _all(
    scenario, defaults, overrides, lambda name: algorithms.get(name).HParams
  )


def described(
  scenario: str,
  defaults: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = _no_values,
  overrides: Callable[[str], Mapping[str, Any]] = _no_values,
) -> list[selection.Trial]:
  """Returns the trials with stand-ins for their hyper-parameters.

  Does not import the algorithms: the hyper-parameters are instances of
  `algorithms.describe(name).hparams`. Each value is checked by itself, not
  together with others.

  Args:
    scenario: See `chosen`.
    defaults: See `chosen`.
    overrides: See `chosen`.

  Returns:
    The trials in the order of `chosen`.

  Raises:
    UsageError: If a flag is wrong.
  """
  return _all(
    scenario,
    defaults,
    overrides,
    lambda name: algorithms.describe(name).hparams,
  )


def _all(scenario, defaults, overrides, kind_of) -> list[selection.Trial]:
  return [
    trial
    for name in common_flags.chosen_algorithms(scenario)
    for trial in _of_algorithm(name, kind_of(name), defaults, overrides(name))
  ]


def _of_algorithm(
  name: str,
  kind: type[hyperparameters.HParams],
  defaults: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
  overrides: Mapping[str, Any],
) -> list[selection.Trial]:
  """Returns an algorithm at every combination of the values of its flags."""
  names = [field.name for field in dataclasses.fields(kind)]
  given = {
    field: flags.FLAGS[field].value
    for field in names
    if field not in overrides and flags.FLAGS[field].value is not None
  }
  only_steps = {"local_steps", "local_epochs"} & set(given) == {"local_steps"}
  found = []
  for values in itertools.product(*given.values()):
    setting = dict(zip(given, values, strict=True))
    common = {
      field: value
      for field, value in defaults(name, setting).items()
      if field in names
    }
    if only_steps:
      # Who asks for steps does not want the epochs of the default.
      common["local_epochs"] = 0
    hparams = kind(**{**common, **setting, **overrides})
    try:
      hyperparameters.validate(hparams)
    except ValueError as error:
      raise common_flags.UsageError(f"--{error}") from error
    compared = {
      field: value for field, value in setting.items() if len(given[field]) > 1
    }
    found.append(selection.Trial(name, hparams, compared))
  return found
