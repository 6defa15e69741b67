"""The base class of plans: the checked comparison that flags define."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift.command_line.tuning import selection
from tff_shift.data import table

if TYPE_CHECKING:
  from tff_shift.command_line import common_flags
  from tff_shift.learning.aggregators import factories
  from tff_shift.models import split_model

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A checked comparison, as the flags of a binary define it.

  Attributes:
    scenario: The name of the binary.
    configuration: The values of the flags.
    trials: The trials to run.
    seeds: The seeds.
    aggregators: The aggregator of each algorithm, and of its ablations.
    model: The model.
    settings: Flags that distinguish these runs from others, by name.
    num_steps: The number of rounds or time steps of a run.
    step_name: The name of a step in progress bars.
    selection_seeds: The seeds used to select the setting of an algorithm.
    told_hparams: The hyper-parameters in rows and tables, in addition to those
      that the trials compare.
    hparams_of_steps: The hyper-parameters that default to `num_steps`.
    data: The data of the runs by seed, if the plan has no other fields for it.
    schema: The names of the data. Without classes, `--metrics` is refused.
    schemas: The schemas by seed, if preparations differ. Empty: `schema`.
    changed_data: The flags that change the examples, with their values.
    groups: The groups of training and of test examples, if `--group` is set.
    uses: Lines that say for what a user's data are used.
  """

  scenario: str
  configuration: common_flags.Configuration
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
  data: Mapping[int, Any] = dataclasses.field(default_factory=dict)
  schema: table.Schema = dataclasses.field(default_factory=table.Schema)
  schemas: Mapping[int, table.Schema] = dataclasses.field(default_factory=dict)
  changed_data: Sequence[str] = ()
  groups: table.Sides | None = None
  uses: Sequence[str] = ()

  def num_runs(self, trial: selection.Trial) -> int:
    """Returns the number of runs of a trial, without those for selection."""
    return len(self.seeds)

  def what_follows(self, before: int) -> str | None:
    """Explains why a run cannot be extended to `num_steps`.

    Args:
      before: The earlier, smaller number of steps.

    Returns:
      The flag and the remedy, a part of a line. None if it can be extended.
    """
    for name in self.hparams_of_steps:
      owners = [
        each.algorithm for each in self.trials if hasattr(each.hparams, name)
      ]
      if owners and FLAGS[name].value is None:
        return (
          f"--{name} of {', '.join(dict.fromkeys(owners))} is not set, follows"
          " it and affects training; only runs that start with"
          f" --{name} can be extended"
        )
    return None

  @property
  def hparam_names(self) -> list[str]:
    """The hyper-parameters that are columns of rows and tables."""
    compared = [name for each in self.trials for name in each.compared]
    return list(dict.fromkeys([*self.told_hparams, *compared]))
