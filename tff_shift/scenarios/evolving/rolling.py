"""Rolling evaluation: results over targets, one domain after the other."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import stats

from tff_shift.simulation.storage import client_values

MEAN_RANK = "mean_rank"
WORST = "worst_target_"
# The metrics whose worst target is reported.
_JUDGED = ("client_accuracy", "server_accuracy")


class RollingResult(NamedTuple):
  """The results of the targets of a seed, in the form of a driver's result.

  Attributes:
    targets: The result of each target in order, a driver's or a `bounds.Bound`.
  """

  targets: tuple[Any, ...]

  @property
  def final(self) -> Any:
    """The last evaluation of the last target."""
    return self.targets[-1].final

  @property
  def accuracies(self) -> list[float]:
    """The final client accuracy on each target, in percent."""
    return [target.final.client["accuracy"] for target in self.targets]

  @property
  def seconds_per_round(self) -> float:
    """The mean duration of a round."""
    return float(np.mean([target.seconds_per_round for target in self.targets]))

  @property
  def num_diverged(self) -> int:
    """The number of diverged client updates."""
    return sum(target.num_diverged for target in self.targets)

  @property
  def client_accuracy(self) -> np.ndarray | None:
    """The mean accuracy of each client over the targets that it has."""
    accuracies = [target.client_accuracy for target in self.targets]
    if any(accuracy is None for accuracy in accuracies):
      return None
    return client_values.mean(accuracies)

  @property
  def tables(self) -> dict[str, np.ndarray]:
    """The tables of counts of the last evaluations, summed over targets."""
    tables = [target.final.tables or {} for target in self.targets]
    return {name: sum(table[name] for table in tables) for name in tables[0]}


def over_targets(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Returns metrics over targets.

  Args:
    metrics: The final metrics of each target.

  Returns:
    The means over the targets at which a metric is defined, and the lowest
    accuracies, with the prefix `WORST`.
  """
  names = [name for name in metrics[0] if all(name in row for row in metrics)]
  values = np.array([[row[name] for name in names] for row in metrics])
  means = dict(zip(names, client_values.mean([values]).tolist(), strict=True))
  return means | {
    WORST + name: min(row[name] for row in metrics)
    for name in _JUDGED
    if name in names
  }


def mean_ranks(accuracies: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
  """Returns mean ranks over targets, [trials, seeds].

  The highest accuracy on a target has rank 1; equal ones share the mean of
  their ranks.

  Args:
    accuracies: [trials, seeds, targets].
  """
  return stats.rankdata(-np.asarray(accuracies), axis=0).mean(axis=2)
