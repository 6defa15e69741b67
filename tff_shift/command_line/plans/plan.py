"""What the flags of every binary that compares algorithms ask for, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift.command_line.tuning import selection

if TYPE_CHECKING:
  from tff_shift.learning.aggregators import factories
  from tff_shift.models import split_model

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What the flags of every binary ask for, checked.

  Attributes:
    scenario: The binary's name.
    trials: What is compared.
    seeds: The seeds.
    aggregators: How the server combines updates, by algorithm; by the names
      of its controls as well, if it has any.
    model: The model.
    settings: What tells these runs from those of other flags, by name.
    num_steps: The number of rounds or time steps of a run.
    step_name: What progress calls one of them.
    selection_seeds: The seeds with which the setting of an algorithm is chosen.
    told_hparams: The hyper-parameters that rows and tables tell beside those
      that are compared.
    hparams_of_steps: The hyper-parameters that follow `num_steps` where their
      flags are not set.
  """

  scenario: str
  trials: Sequence[selection.Trial]
  seeds: Sequence[int]
  aggregators: Mapping[str, factories.Aggregator | None]
  model: split_model.SplitModel
  settings: Mapping[str, Any]
  num_steps: int
  step_name: str = "round"
  selection_seeds: Sequence[int] = ()
  told_hparams: Sequence[str] = ("learning_rate",)
  hparams_of_steps: Sequence[str] = ()

  def num_runs(self, trial: selection.Trial) -> int:
    """Returns how many runs a trial has, if none is for a choice."""
    del trial
    return len(self.seeds)

  def what_follows(self, before: int) -> str | None:
    """Tells what in the steps of a run depends on their number.

    Args:
      before: Another number of steps, below `num_steps`.

    Returns:
      The flag and what to do, as a part of a line; None if nothing does.
    """
    del before
    for name in self.hparams_of_steps:
      owners = [
        each.algorithm for each in self.trials if hasattr(each.hparams, name)
      ]
      if owners and FLAGS[name].value is None:
        return (
          f"--{name} of {', '.join(dict.fromkeys(owners))}, which is not set,"
          " follows it, and what was trained depends on that; a run that starts"
          f" with --{name} takes more"
        )
    return None

  @property
  def hparam_names(self) -> list[str]:
    """The hyper-parameters that rows and tables tell."""
    compared = [name for each in self.trials for name in each.compared]
    return list(dict.fromkeys([*self.told_hparams, *compared]))
