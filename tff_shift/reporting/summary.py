"""Final metrics of runs over their seeds, and a table that compares them.

Spread is the sample standard deviation (divided by the number of seeds minus
one) because the seeds are a sample of all runs; the papers do not say which
form they print. With one seed it is 0.0. Accuracies are in percent throughout.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift import records
from tff_shift import shown_names
from tff_shift.simulation.storage import run_records

# Before the name of a metric that is a mean over several evaluations.
MEAN_OF_LAST = "mean_of_last_"

# Of clients or domains in a line.
_MOST_NAMES = 10


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """The final metrics of one algorithm in one setting, for every seed.

  Attributes:
    algorithm: Name of the algorithm, as in its file name.
    dataset: Name of the data set.
    setting: What else distinguishes the run, for example the learning rate.
    metrics_by_seed: For each seed, in the order to be kept, its final metrics
      by name; all seeds have the same metrics, accuracies in percent.
    rounds: Number of rounds of each seed.
    seconds_per_round: Wall-clock seconds per round, mean over the seeds.
    num_diverged: For each seed, how many times the work of a client was left
      out because it was not finite.
    scores: Where a rule has chosen the setting, the score of each setting that
      there was to choose from, by its label.
    left_out: What some clients take no part in, such as `training`, and what
      the data call these.
  """

  algorithm: str
  dataset: str
  setting: Mapping[str, Any]
  metrics_by_seed: Mapping[int, Mapping[str, float]]
  rounds: int
  seconds_per_round: float
  num_diverged: Sequence[int] = ()
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  left_out: Mapping[str, Sequence[str]] = dataclasses.field(
    default_factory=dict
  )

  def __post_init__(self):
    if not self.metrics_by_seed:
      raise ValueError(f"summary of {self.algorithm}: needs at least one seed")
    for seed, metrics in self.metrics_by_seed.items():
      if sorted(metrics) != self.metric_names:
        raise ValueError(
          f"summary of {self.algorithm}: seed {seed} has the metrics"
          f" {sorted(metrics)}, the first seed has {self.metric_names}"
        )

  @property
  def metric_names(self) -> list[str]:
    """The names of the metrics, sorted."""
    return sorted(next(iter(self.metrics_by_seed.values())))

  def values(self, metric: str) -> list[float]:
    """Returns the values of a metric, one per seed."""
    return [float(row[metric]) for row in self.metrics_by_seed.values()]

  def mean(self, metric: str) -> float:
    """Returns the mean of a metric over the seeds."""
    return run_records.mean(self.values(metric))

  def standard_deviation(self, metric: str) -> float:
    """Returns the spread over the seeds.

    It is NaN for a single seed, of which nothing is known, and where a value is
    not finite.
    """
    values = self.values(metric)
    if len(values) == 1 or not all(map(math.isfinite, values)):
      return math.nan
    # Like `mean` exact until its last rounding: equal values give 0.0.
    return statistics.stdev(values)

  def to_record(self) -> run_records.Entry:
    """Returns the entry of `summary.json`.

    Raises:
      TypeError: If a setting has no JSON form.
    """
    return run_records.Entry(
      algorithm=self.algorithm,
      dataset=self.dataset,
      setting=records.to_json(
        dict(sorted(self.setting.items())),
        f"{run_records.SUMMARY}: runs: setting",
      ),
      metrics={
        name: run_records.Metric(
          mean=records.to_json(self.mean(name)),
          std=records.to_json(self.standard_deviation(name)),
          seeds=tuple(records.to_json(self.values(name))),
        )
        for name in self.metric_names
      },
      rounds=self.rounds,
      seconds_per_round=records.to_json(self.seconds_per_round),
      num_diverged=tuple(self.num_diverged),
      scores=records.to_json(self.scores),
      left_out={
        what: run_records.LeftOut(num_clients=len(names), clients=tuple(names))
        for what, names in self.left_out.items()
        if names
      },
    )


def last_and_mean(
  evaluations: Sequence[Mapping[str, float | None]], num_last: int
) -> dict[str, float]:
  """Returns the final metrics of a run that is evaluated again and again.

  One evaluation may be far from that before it; the mean over a few is steadier
  and, unlike the best of them, not chosen by its result.

  Args:
    evaluations: What was measured each time, in order, by name; at least one.
      What is None was not measured, and is None each time.
    num_last: The mean is over the last so many, at least 1, or over all where
      there are fewer.

  Returns:
    Each metric of the last evaluation, and its mean under a name that begins
    with `MEAN_OF_LAST`.
  """
  names = [name for name, value in evaluations[-1].items() if value is not None]
  last = {name: evaluations[-1][name] for name in names}
  return last | {
    MEAN_OF_LAST + name: float(
      np.mean([each[name] for each in evaluations[-num_last:]])
    )
    for name in names
  }


def shortened(names: Iterable[str], separator: str = "; ") -> str:
  """Joins names, the first ten of them, with the number of the others."""
  names = list(names)
  others = len(names) - _MOST_NAMES
  if others > 0:
    names[_MOST_NAMES:] = [f"and {others} more"]
  return separator.join(names)


def left_out_lines(runs: Sequence[RunSummary]) -> list[str]:
  """Returns lines that say who has no part in what, and with which algorithm.

  Args:
    runs: The runs.

  Returns:
    A line for each thing and group of clients; none where nobody is left out.
  """
  algorithms = {}
  for run in runs:
    for what, names in run.left_out.items():
      if names:
        key = what, tuple(names)
        algorithms.setdefault(key, {}).setdefault(run.algorithm)
  return [
    f"not in {what} of {', '.join(of)}: {len(names)}"
    f" client{'s' * (len(names) > 1)} ({shortened(names, ', ')})"
    for (what, names), of in algorithms.items()
  ]


def title(metric: str, where: str = "") -> str:
  """Returns what tables and figures call a metric, with its unit.

  Args:
    metric: Its name.
    where: What stands between the name and the unit.
  """
  unit = " (%)" if metric.endswith("accuracy") else ""
  name = metric.removeprefix(MEAN_OF_LAST)
  if name != metric:
    where += ", mean of the last evaluations"
  return name.replace("_", " ") + where + unit


def comparison_table(
  runs: Sequence[RunSummary],
  metrics: Sequence[str] | None = None,
  settings: Sequence[str] | None = None,
) -> str:
  """Formats runs as an aligned table of plain text.

  Args:
    runs: One row each, in this order.
    metrics: The metrics to show, in order, of those that occur; by default all.
      Those named `...accuracy` are in percent.
    settings: The settings to show, in order, where runs differ; by default all.

  Returns:
    The table: algorithm, data set if there are several, the settings in which
    the runs differ, `mean ± standard deviation` of each metric (the mean alone
    for one seed, `-` where a run lacks the metric), seconds per round, and, if
    there were any, how often a client diverged, all seeds together, and how
    many clients had no part in training or evaluation.
  """
  labels = {"algorithm": [run.algorithm for run in runs]}
  labels["dataset"] = [run.dataset for run in runs]
  if settings is None:
    settings = dict.fromkeys(name for run in runs for name in run.setting)
  for name in settings:
    labels[name] = [str(run.setting.get(name, "-")) for run in runs]
  occurring = sorted({name for run in runs for name in run.metric_names})
  if metrics is None:
    metrics = occurring
  columns = []
  for name, cells in labels.items():
    if name == "algorithm" or len(set(cells)) > 1:
      shown = [shown_names.printable(cell) for cell in [name, *cells]]
      width = max(map(len, shown))
      columns.append([cell.ljust(width) for cell in shown])
  numbers = {}
  for name in metrics:
    if name in occurring:
      numbers[title(name)] = [_metric_cell(run, name) for run in runs]
  numbers["s/round"] = [f"{run.seconds_per_round:.3g}" for run in runs]
  diverged = [sum(run.num_diverged) for run in runs]
  if any(diverged):
    numbers["diverged"] = list(map(str, diverged))
  absent = [
    {what: len(names) for what, names in run.left_out.items() if names}
    for run in runs
  ]
  for what in dict.fromkeys(what for each in absent for what in each):
    numbers[f"not in {what}"] = [str(each.get(what, 0)) for each in absent]
  for head, cells in numbers.items():
    width = max(map(len, [head, *cells]))
    columns.append([cell.rjust(width) for cell in [head, *cells]])
  for column in columns:
    column.insert(1, "-" * len(column[0]))
  return "\n".join("  ".join(row) for row in zip(*columns, strict=True))


def _metric_cell(run: RunSummary, metric: str) -> str:
  """Returns the mean, and the spread if the run has several seeds."""
  if metric not in run.metric_names:
    return "-"
  # Percentages have fixed widths, so that decimal points align in a column.
  percent = metric.endswith("accuracy")
  mean = format(run.mean(metric), ".2f" if percent else ".4g")
  if len(run.metrics_by_seed) == 1:
    return mean
  spread = format(run.standard_deviation(metric), "5.2f" if percent else ".4g")
  return f"{mean} ± {spread}"
