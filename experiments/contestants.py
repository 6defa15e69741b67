"""Algorithms at the settings that the flags ask to compare."""

import itertools
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from experiments import command_line
from tff_shift import algorithms


class Contestant(NamedTuple):
  """An algorithm at one setting of its hyper-parameters.

  Attributes:
    algorithm: The algorithm's name.
    hparams: Its `HParams`.
    label: What tables and figures call it: the name, and the values in which
      it differs from other settings of the same algorithm.
  """

  algorithm: str
  hparams: Any
  label: str


def over_grid(
  name: str,
  requirements: Mapping[str, str],
  defaults: Mapping[str, Any],
  **overrides: Any,
) -> list[Contestant]:
  """Returns an algorithm at every combination of values of some flags.

  Args:
    name: The algorithm's name.
    requirements: The flags of which several values may be compared, with what
      is right for them; those that the algorithm does not have are left out.
    defaults: Values of hyper-parameters whose flags are not set.
    **overrides: Values that count instead of the flags'.

  Returns:
    The contestants; the last flag's values change fastest.

  Raises:
    UsageError: If a flag is wrong.
  """
  hparams = algorithms.get(name).HParams()
  grid = {
    field: command_line.chosen_grid(
      field, defaults.get(field, getattr(hparams, field)), requirement
    )
    for field, requirement in requirements.items()
    if hasattr(hparams, field)
  }
  found = []
  for values in itertools.product(*grid.values()):
    setting = dict(zip(grid, values, strict=True))
    compared = [
      f"{field.replace('_', ' ').strip()} {value:g}"
      for field, value in setting.items()
      if len(grid[field]) > 1
    ]
    found.append(
      Contestant(
        name,
        command_line.make_hparams(name, defaults, **setting, **overrides),
        ", ".join([name, *compared]),
      )
    )
  return found
