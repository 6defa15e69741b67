"""A flag for each hyper-parameter of each algorithm; each may be a list."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_shift import algorithms
from tff_shift.learning import hyperparameters

_PARSERS = {
  bool: flags.BooleanParser(),
  int: flags.IntegerParser(),
  float: flags.FloatParser(),
  str: flags.ArgumentParser(),
}


class _ListParser(flags.ArgumentParser):
  """Parses the values of a hyper-parameter, one or several."""

  def __init__(self, field: dataclasses.Field):
    super().__init__()
    self._parser = _PARSERS[type(field.default)]
    self._limits = hyperparameters.describe_limits(field)

  def parse(self, argument: str) -> list[Any]:
    """Returns the comma-separated values.

    Args:
      argument: What stands behind the `=` of the flag.

    Raises:
      ValueError: If one is of another type, or one comes twice.
    """
    requirement = f"it must be {self._limits}, or several, comma-separated"
    try:
      values = [self._parser.parse(part) for part in argument.split(",")]
    except ValueError as error:
      raise ValueError(requirement) from error
    if len(set(values)) != len(values):
      raise ValueError(f"{requirement}, none twice")
    return values


def define_flags(scenario: str, defaults: Mapping[str, str]) -> None:
  """Defines a flag for each hyper-parameter of a scenario's algorithms.

  Its value is the list of what is compared, None if it is not set.

  Args:
    scenario: The scenario.
    defaults: Says the default of a hyper-parameter where it is not that of the
      algorithm's own file.
  """
  names = algorithms.names(scenario)
  fields = {}
  for name in names:
    for field in dataclasses.fields(algorithms.get(name).HParams):
      fields.setdefault(field.name, field)
  for field in fields.values():
    owners = owners_of(field.name, scenario)
    scope = "" if len(owners) == len(names) else f" ({', '.join(owners)})"
    default = defaults.get(field.name, field.default)
    flags.DEFINE_flag(
      flags.Flag(
        _ListParser(field),
        flags.CsvListSerializer(","),
        field.name,
        None,
        f"{field.metadata['help']} Default: {default}.{scope}"
        " Several, comma-separated: a run for each.",
        boolean=isinstance(field.default, bool),
      )
    )


def owners_of(hparam: str, scenario: str) -> list[str]:
  """Returns the algorithms of a scenario that have a hyper-parameter."""
  return [
    name
    for name in algorithms.names(scenario)
    if hparam
    in {
      field.name for field in dataclasses.fields(algorithms.get(name).HParams)
    }
  ]
