"""The selected setting of a method beside the best one on the test data.

The selection criterion sees validation data only. An oracle that sees the test
data selects the setting with the best test value. The difference is the tuning
optimism: what a result gains if it is selected by the data that it reports
(Recht, Roelofs, Schmidt, Shankar: Do ImageNet Classifiers Generalize to
ImageNet?, ICML 2019, and Gulrajani, Lopez-Paz: In Search of Lost Domain
Generalization, ICLR 2021, discuss it).
"""

import dataclasses
import math
from collections.abc import Iterable

from tff_shift.reporting.pages import contents as contents_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimism:
  """The selection of a cell, and the oracle's.

  Attributes:
    cell: The cell.
    num_settings: The number of settings with a finite value.
    selected: The label of the selected setting.
    oracle: The label of the setting with the best mean on the test data.
    selected_mean: The mean at the selected setting.
    oracle_mean: The mean at the oracle's setting.
    difference: How much better the oracle's mean is; at least 0.
  """

  cell: contents_lib.Cell
  num_settings: int
  selected: str
  oracle: str
  selected_mean: float
  oracle_mean: float
  difference: float


def mean(trial: contents_lib.Trial) -> float | None:
  """Returns the mean of a trial's values; None without values."""
  if not trial.by_seed:
    return None
  return math.fsum(trial.by_seed.values()) / len(trial.by_seed)


def optimism(
  cell: contents_lib.Cell, higher_is_better: bool
) -> Optimism | None:
  """Compares the selection of a cell with the oracle's.

  Args:
    cell: The cell.
    higher_is_better: Whether higher values are better.

  Returns:
    The comparison. The oracle prefers the selected setting among equal ones,
    and ignores settings whose mean is not finite. None if the settings that
    were not selected did not run on the test data, or if the selected setting
    has no finite mean.
  """
  means = [(each, mean(each)) for each in cell.trials if each.by_seed]
  known = [pair for pair in means if math.isfinite(pair[1])]
  chosen = [pair for pair in known if pair[0].is_selected]
  if len(cell.trials) < 2 or len(chosen) != 1:
    return None
  (selected, selected_mean), sign = chosen[0], 1 if higher_is_better else -1
  oracle, oracle_mean = max(
    known, key=lambda pair: (sign * pair[1], pair[0].is_selected)
  )
  return Optimism(
    cell=cell,
    num_settings=len(known),
    selected=selected.label,
    oracle=oracle.label,
    selected_mean=selected_mean,
    oracle_mean=oracle_mean,
    difference=sign * (oracle_mean - selected_mean),
  )


def is_unknown(cell: contents_lib.Cell) -> bool:
  """Returns whether a setting was selected and the others lack test values."""
  was_selected = cell.run is not None and len(cell.run.scores) > 1
  return bool(cell.by_seed) and was_selected and len(cell.trials) < 2


def largest(found: Iterable[Optimism]) -> Optimism | None:
  """Returns the comparison with the largest difference; None if empty."""
  return max(found, key=lambda each: each.difference, default=None)
