"""Makes the trials that the flags define."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_shift import algorithms
from tff_shift.command_line import common_flags
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import search
from tff_shift.command_line.tuning import selection
from tff_shift.learning import hyperparameters


def _no_values(*_: Any) -> Mapping[str, Any]:
  return {}


def chosen(
  scenario: str,
  defaults: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = _no_values,
  overrides: Callable[[str], Mapping[str, Any]] = _no_values,
  kind_of: Callable[[str], type[hyperparameters.HParams]] = (
    lambda name: algorithms.get(name).HParams
  ),
) -> list[selection.Trial]:
  """Returns a trial for each combination of an algorithm's flag values.

  Args:
    scenario: The name of the binary.
    defaults: `(algorithm, setting) -> values` of hyper-parameters whose flags
      are not set; `setting` has the flags that are set. Values of
      hyper-parameters that the algorithm lacks are ignored.
    overrides: `algorithm -> values` that replace those of the flags.
    kind_of: Takes an algorithm, returns the class of its hyper-parameters.

  Returns:
    The trials, grouped by algorithm. The values of the last hyper-parameter
    vary fastest.

  Raises:
    UsageError: If a flag is wrong.
  """
  return [
    trial
    for name in common_flags.chosen_algorithms(scenario)
    for trial in _of_algorithm(name, kind_of(name), defaults, overrides(name))
  ]


# As `chosen`, without importing the algorithms. Each hyper-parameter is checked
# separately, not in combination.
described = functools.partial(
  chosen, kind_of=lambda name: algorithms.describe(name).hparams
)


def _of_algorithm(
  name: str,
  kind: type[hyperparameters.HParams],
  defaults: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
  overrides: Mapping[str, Any],
) -> list[selection.Trial]:
  """Returns a trial for each combination of the algorithm's flag values."""
  names = [field.name for field in dataclasses.fields(kind)]
  flag_of = {
    field: flag
    for field in names
    if field not in overrides
    and (flag := hparam_flags.flag_of(name, field)) is not None
  }
  given = {field: flags.FLAGS[flag].value for field, flag in flag_of.items()}
  only_steps = {"local_steps", "local_epochs"} & set(given) == {"local_steps"}
  found = []
  for setting in selection_flags.settings_of(given, flag_of):
    common = {
      field: value
      for field, value in defaults(name, setting).items()
      if field in names
    }
    if only_steps:
      # An explicit number of steps overrides default epochs.
      common["local_epochs"] = 0
    hparams = kind(**{**common, **setting, **overrides})
    try:
      hyperparameters.validate(hparams)
    except ValueError as error:
      field, equals, rest = str(error).partition("=")
      flag = flag_of.get(field, field)
      raise common_flags.UsageError(f"--{flag}{equals}{rest}") from error
    compared = {
      field: value
      for field, value in setting.items()
      if len(given[field]) > 1 or search.is_range(given[field][0])
    }
    found.append(selection.Trial(name, hparams, compared))
  return found
