"""Summarizes final metrics over seeds, and formats a table that compares runs.

The spread is the sample standard deviation (divided by the number of seeds
minus one), because seeds are a sample of all runs. The papers do not state
which form they report. Accuracies are in percent.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.simulation.storage import run_records

# The prefix of metrics that are means over the last evaluations.
MEAN_OF_LAST = "mean_of_last_"
# The setting with the metrics of `--metrics`. An entry that has it lists all
# metrics whose lower values are better.
METRICS = "metrics"
# The setting that says what the aggregator does not protect.
NOT_PROTECTED = "not_protected"
# The settings with the privacy guarantee of a run.
GUARANTEE = (
  "epsilon",
  "epsilon_delta",
  "epsilon_relation",
  "epsilon_sampling",
  "epsilon_fixed_cohort_size",
  "epsilon_poisson",
  "epsilon_replacement",
)
# The setting that says why values of single clients are missing.
CLIENT_VALUES = "client_values"
# The end of the name of a standard deviation.
_OVER_ROUNDS = "_over_rounds"
# The end of the name of a metric before an adaptation.
_BEFORE = "_before"

# The algorithms that have data or labels that the others do not have.
CEILINGS = ("pooled", "oracle")

# A training loss that ends above this multiple of its least value has risen.
RISE = 3.0
# The rounds at the end whose median counts.
_LAST_ROUNDS = 3

# The maximum number of clients or domains in a line.
_MOST_NAMES = 10


def has_risen(losses: Sequence[float]) -> bool:
  """Returns whether a training loss ended far above its least value.

  The median of the last three rounds is compared with the least loss, and with
  the first: data that are harder than the ones before are no divergence.

  Args:
    losses: The training loss of each round.
  """
  known = [loss for loss in losses if not math.isnan(loss)]
  if not known or min(known) <= 0:
    return False
  last = statistics.median(known[-_LAST_ROUNDS:])
  return last > RISE * min(known) and last > known[0]


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """The final metrics of one algorithm in one setting, for every seed.

  Attributes:
    algorithm: Name of the algorithm, as in its file name.
    dataset: Name of the data set.
    setting: Further settings that distinguish the run, for example the learning
      rate.
    metrics_by_seed: The final metrics by seed and name, in the order of seeds.
      All seeds have the same metrics; accuracies are in percent.
    rounds: Number of rounds of each seed.
    seconds_per_round: Wall-clock seconds per round, mean over the seeds.
    num_diverged: For each seed, the number of client updates that were dropped
      because they were not finite.
    risen: The seeds whose training loss has risen, see `has_risen`.
    scores: The score of each setting by label, if the setting was selected.
    left_out: The names of clients that are excluded, by what they are excluded
      from, such as `training`.
    directions: Whether higher values are better, by the end of the name of a
      metric that is not in `evaluation.METRICS`. Default: they are.
    bytes_down: The bytes that a client receives in a round. None: not known.
    bytes_up: The bytes that a client sends in a round. None: not known.
    gradients: The gradients that a client computes in the first round, the mean
      over clients. None: not known.
  """

  algorithm: str
  dataset: str
  setting: Mapping[str, Any]
  metrics_by_seed: Mapping[int, Mapping[str, float]]
  rounds: int
  seconds_per_round: float
  num_diverged: Sequence[int] = ()
  risen: Sequence[int] = ()
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  left_out: Mapping[str, Sequence[str]] = dataclasses.field(
    default_factory=dict
  )
  directions: Mapping[str, bool] = dataclasses.field(default_factory=dict)
  bytes_down: int | None = None
  bytes_up: int | None = None
  gradients: float | None = None

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
    """Returns the sample standard deviation of a metric over the seeds.

    NaN for a single seed, or if a value is not finite.
    """
    values = self.values(metric)
    if len(values) == 1 or not all(map(math.isfinite, values)):
      return math.nan
    # Exact up to the final rounding, as `mean`: equal values give 0.0.
    return statistics.stdev(values)

  @property
  def lower_is_better(self) -> tuple[str, ...]:
    """The metrics whose lower values are better."""
    # Here, because it imports TensorFlow, which a run has imported.
    from tff_shift.learning import evaluation

    directions = {
      name: each.higher_is_better for name, each in evaluation.METRICS.items()
    } | dict(self.directions)
    return tuple(
      name
      for name in self.metric_names
      if not _higher_is_better(name, directions)
    )

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
      risen=tuple(self.risen),
      scores=records.to_json(self.scores),
      left_out={
        what: run_records.LeftOut(num_clients=len(names), clients=tuple(names))
        for what, names in self.left_out.items()
        if names
      },
      lower_is_better=self.lower_is_better,
      bytes_down=self.bytes_down,
      bytes_up=self.bytes_up,
      gradients=self.gradients,
    )


def _higher_is_better(name: str, directions: Mapping[str, bool]) -> bool:
  """Returns the direction of the metric with the longest matching name."""
  name = name.removesuffix(_OVER_ROUNDS).removesuffix(_BEFORE)
  known = [
    each for each in directions if name == each or name.endswith(f"_{each}")
  ]
  return directions[max(known, key=len)] if known else True


def last_and_mean(
  evaluations: Sequence[Mapping[str, float | None]], num_last: int
) -> dict[str, float]:
  """Returns the final metrics of a run with several evaluations.

  Single evaluations vary. The mean over the last ones is more stable. Unlike
  the best evaluation, it is not selected by its result.

  Args:
    evaluations: The metrics of each evaluation in order, by name; at least one.
      None means not measured, and then is None in all evaluations.
    num_last: The number of last evaluations to average, at least 1. If there
      are fewer, the mean is over all.

  Returns:
    The metrics of the last evaluation, and the means with the prefix
    `MEAN_OF_LAST`.
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
  """Joins the first ten names, and adds the number of the others."""
  names = list(names)
  others = len(names) - _MOST_NAMES
  if others > 0:
    names[_MOST_NAMES:] = [f"and {others} more"]
  return separator.join(names)


def left_out_lines(runs: Sequence[RunSummary]) -> list[str]:
  """Returns lines that name excluded clients and the algorithms concerned.

  Returns:
    One line per group of excluded clients and what they are excluded from.
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


def risen_lines(runs: Sequence[RunSummary]) -> list[str]:
  """Returns a line for each algorithm whose training loss has risen."""
  seeds: dict[str, dict[int, None]] = {}
  for run in runs:
    if run.risen:
      seeds.setdefault(run.algorithm, {}).update(dict.fromkeys(run.risen))
  return [
    f"the training loss of {name} ended above {RISE:g} times its least value"
    f" (seed {shortened(map(str, sorted(of)), ', ')}): it has not converged;"
    " a smaller learning_rate or a weight_decay such as 5e-4 may help"
    for name, of in seeds.items()
  ]


def title(metric: str, where: str = "") -> str:
  """Returns the title of a metric in tables and figures, with its unit.

  Args:
    metric: The name of the metric.
    where: Text between name and unit.
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
  best_within: Sequence[str] | None = None,
) -> str:
  """Formats runs as an aligned plain-text table.

  Args:
    runs: One row per run, in this order.
    metrics: The metrics to show, in order; those that no run has are skipped.
      Default: all. Metrics named `...accuracy` are in percent.
    settings: The settings to show, in order, if runs differ in them. Default:
      all.
    best_within: Settings that describe the task. A star marks the best mean of
      a metric among the runs that agree in them, if there are two or more, and
      if it is over several seeds. Default: no stars.

  Returns:
    The table. Its columns are the algorithm, the data set if there are several,
    the settings in which runs differ, `mean ± standard deviation` of each
    metric (only the mean for one seed, `-` if a run lacks the metric), seconds
    per round, and, if any, the number of diverged client updates over all
    seeds, of seeds whose loss has risen, and of clients excluded from training
    or evaluation.
  """
  labels = {"algorithm": [run.algorithm for run in runs]}
  labels["dataset"] = [run.dataset for run in runs]
  if settings is None:
    settings = list(dict.fromkeys(name for run in runs for name in run.setting))
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
      cells = [_metric_cell(run, name) for run in runs]
      if best_within is not None and (best := _best(runs, name, best_within)):
        cells = [
          cell + (" *" if row in best else "  ")
          for row, cell in enumerate(cells)
        ]
      numbers[title(name)] = cells
  numbers["s/round"] = [f"{run.seconds_per_round:.3g}" for run in runs]
  diverged = [sum(run.num_diverged) for run in runs]
  if any(diverged):
    numbers["diverged"] = list(map(str, diverged))
  if any(run.risen for run in runs):
    numbers["loss rose"] = [
      f"{len(run.risen)} of {len(run.metrics_by_seed)}" for run in runs
    ]
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


def _best(
  runs: Sequence[RunSummary], metric: str, within: Sequence[str]
) -> set[int]:
  """Returns the rows with the best mean among runs of the same task.

  A ceiling has data that the other rows do not have: it is not compared.
  """
  by_task = {}
  for row, run in enumerate(runs):
    mean = run.mean(metric) if metric in run.metric_names else math.nan
    if math.isfinite(mean) and run.algorithm not in CEILINGS:
      task = run.dataset, *(run.setting.get(name) for name in within)
      score = -mean if metric in run.lower_is_better else mean
      by_task.setdefault(task, {})[row] = score
  return {
    row
    for scores in by_task.values()
    if len(scores) > 1
    for row, score in scores.items()
    # The best value of a single seed may be chance.
    if score == max(scores.values()) and len(runs[row].metrics_by_seed) > 1
  }


def _metric_cell(run: RunSummary, metric: str) -> str:
  """Returns the mean, and the standard deviation of several seeds."""
  if metric not in run.metric_names:
    return "-"
  # Percentages have fixed widths, so that decimal points align in a column.
  percent = metric.endswith("accuracy")
  mean = format(run.mean(metric), ".2f" if percent else ".4g")
  if len(run.metrics_by_seed) == 1:
    return mean
  spread = format(run.standard_deviation(metric), "5.2f" if percent else ".4g")
  return f"{mean} ± {spread}"
