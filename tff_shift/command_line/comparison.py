"""Runs the trials of a plan and writes their results; shared by scenarios.

A binary makes its `plan.Plan`, starts a `Comparison`, runs the trials
(`Comparison.runs`, `Comparison.run`), adds their results to the summary
(`Comparison.summarize`), and prints the table (`Comparison.finish`).
"""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift._util import shown_names
from tff_shift._util import user_modules
from tff_shift.command_line import common_flags
from tff_shift.command_line import output_folder
from tff_shift.command_line import plan as plan_lib
from tff_shift.command_line import saved_models
from tff_shift.command_line.flags import aggregator_flags
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import server_optimizer_flags
from tff_shift.command_line.flags import tracker_flags
from tff_shift.command_line.tuning import selection
from tff_shift.data import table
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.learning import metric as metric_lib
from tff_shift.learning import traffic
from tff_shift.learning import work
from tff_shift.learning.aggregators import update_noise
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.reporting import clients as clients_lib
from tff_shift.reporting import progress
from tff_shift.reporting import relative_metrics
from tff_shift.reporting import summary
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import evaluation_figures
from tff_shift.simulation.engine import callbacks
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import early_stopping as early_stopping_lib
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import results

FLAGS = flags.FLAGS

# The number of clients whose gradients are counted.
_MOST_COUNTED = 32


class Spending(NamedTuple):
  """What a client spends in a round; None: not known.

  Attributes:
    bytes_down: The bytes that it receives.
    bytes_up: The bytes that it sends.
    gradients: The gradients that it computes in the first round, the mean over
      the counted clients.
  """

  bytes_down: int | None = None
  bytes_up: int | None = None
  gradients: float | None = None


def spending(running: rounds.Rounds) -> Spending:
  """Returns what a client spends in a round of a run that starts."""
  clients = running.present
  if clients is None:
    clients = range(len(running.data))
  # Spread over all clients, whose order may follow their sizes.
  stride = max(1, -(-len(clients) // _MOST_COUNTED))
  return Spending(
    *traffic.of_round(running.algorithm),
    work.gradients_of_round(
      running.algorithm, [running.data[each] for each in clients[::stride]]
    ),
  )


@dataclasses.dataclass(eq=False)
class Run(callbacks.Callback):
  """Writes and shows one run, a trial with a seed.

  Attributes:
    trial: The trial.
    num_steps: The number of steps.
    labels: The first columns of its rows.
    curve: The parts of the name of the run.
    bar: The progress bar.
    checkpoint: The checkpoints of the run.
    folder: The output folder.
    trackers: The trackers of the run.
    saves_model: Whether the model is saved, if `--save_model` is set.
    vocabulary: See `Comparison.run`, as the others.
    what_may_help: Advice on predictions that are not finite.
    measure_spending: Takes the rounds of a run that starts. None: not measured.
    schema: The names of the data.
    note_rise: Called at the end if the training loss has risen. None: no one.
  """

  trial: selection.Trial
  num_steps: int
  labels: Mapping[str, Any]
  curve: Sequence[str]
  bar: progress.Progress
  checkpoint: checkpoints.Run
  folder: results.RunFolder
  trackers: Sequence[callbacks.Callback]
  saves_model: bool
  vocabulary: Sequence[str] | None = None
  what_may_help: str = ""
  shown_metric: str = "accuracy"
  early_stopping: early_stopping_lib.EarlyStopping | None = None
  time_names: Sequence[str] = ()
  measure_spending: Callable[[rounds.Rounds], None] | None = None
  schema: table.Schema = dataclasses.field(default_factory=table.Schema)
  note_rise: Callable[[], None] | None = None
  _latest = None
  # A stream is one step, with a step of the bar for each period.
  _num_more = 0
  _has_warned = False

  @property
  def callbacks(self) -> list[callbacks.Callback]:
    """The callbacks of the run, this one among them."""
    # Early stopping is told first.
    return [each for each in (self.early_stopping, self) if each]

  def on_start(self, running):
    """Remembers the rounds."""
    self._running = running
    if self.measure_spending is not None:
      self.measure_spending(running)

  def on_loss(self, round_num, loss):
    """Tracks the loss."""
    for tracker in self.trackers:
      tracker.on_loss(round_num, loss)

  def on_step(self, step, loss, measured):
    """Writes and tracks the measurements, and shows progress."""
    in_row = {} if loss is None else {"train_loss": loss}
    rows = list(measured.rows(step)) if measured is not None else []
    for place, metrics in rows:
      time = {}
      if self.time_names:
        # The number of the step or period comes last.
        *_, number = place.values()
        time["time"] = self.time_names[number]
      self.folder.write_metrics(
        {**self.labels, **place, **time, **in_row, **metrics}
      )
      self._warn_of_not_finite(metrics)
      self._latest = metrics.get(self.shown_metric)
    for tracker in self.trackers:
      tracker.on_step(step, loss, measured)
    if loss is None and rows:
      loss = rows[-1][1].get("loss")
    self._num_more += max(0, len(rows) - 1)
    # After a stream, `on_period` has shown its last period.
    if step <= self.num_steps:
      self.bar.update(step, loss=loss, accuracy=self._latest)
    # The states of an earlier, replayed step are gone, and its model is saved.
    if (
      self._keeps_best()
      and self.early_stopping.is_best
      and self._running.round_num == step
    ):
      self._save()

  def on_period(self, step, stream, period, accuracy):
    """Shows progress within a stream."""
    self.bar.update(
      step - 1 + self._num_more + period, accuracy=float(np.nanmean(accuracy))
    )

  def on_end(self, running):
    """Writes the model of the run, if that of the best round is not kept."""
    if self.note_rise is not None and summary.has_risen(running.losses):
      self.note_rise()
    if not self._keeps_best():
      self._save()

  def _keeps_best(self) -> bool:
    return bool(self.early_stopping and self.early_stopping.keeps_best)

  def _save(self) -> None:
    """Writes the model of the run, unless it only serves selection."""
    if self.saves_model:
      saved_models.save(
        self._running,
        self.folder.path,
        self.curve,
        self.schema,
        self.vocabulary,
      )

  def _warn_of_not_finite(self, measured):
    """Warns once of predictions that are not finite."""
    fractions = [
      value for name, value in measured.items() if name.endswith("not_finite")
    ]
    if not self._has_warned and any(each and each > 0 for each in fractions):
      self._has_warned = True
      output_folder.warn(
        f"{', '.join(self.curve)}: predictions that are not finite count as"
        f" wrong (column not_finite); {self.what_may_help}"
      )


def _left_out(
  results_of_seeds: Iterable[Any],
  chosen: Mapping[str, metric_lib.Metric],
  varied: Mapping[str, str],
) -> dict[str, list[str]]:
  """Returns the clients that are excluded with any seed, by reason.

  Args:
    results_of_seeds: The results.
    chosen: The metrics whose means may exclude clients, by name.
    varied: Settings that distinguish parts of the results.
  """
  found: dict[str, dict[str, None]] = {}
  results = [
    part
    for each in results_of_seeds
    for part in getattr(each, "targets", [each])
  ]
  for result in results:
    parts = []
    if hasattr(result, "left_out"):
      parts.append(result.left_out._asdict())
    if chosen and hasattr(result, "clients_to_dataframe"):
      frame = result.clients_to_dataframe()
      for name, value in varied.items():
        if name in frame:
          frame = frame[frame[name] == value]
      parts.append(clients_lib.undefined(frame, chosen))
    for part in parts:
      for what, names in part.items():
        found.setdefault(what, {}).update(dict.fromkeys(names))
  return {what: list(names) for what, names in found.items()}


def _client_values() -> dict[str, str]:
  """Returns the setting that says if values of clients are not kept."""
  if FLAGS.num_clients <= client_values.MAX_CLIENTS:
    return {}
  return {
    summary.CLIENT_VALUES: "not kept for more than"
    f" {client_values.MAX_CLIENTS:,} clients"
  }


def without_states(result: Any) -> Any:
  """Returns the result of a run with final values only, to save memory."""
  if hasattr(result, "without_earlier_clients"):
    result = result.without_earlier_clients()
  return result._replace(server_state=None, client_states=None)


class Comparison:
  """The runs of a binary, from the creation of the folder to the table.

  Attributes:
    plan: The plan.
    folder: The output folder.
    metrics: The metrics of `--metrics`.
  """

  def __init__(self, plan: plan_lib.Plan):
    """Creates the folder, or reopens it with `--resume`.

    Raises:
      UsageError: If the folder cannot be used, the flags differ from those of
        the run to resume, the model is too large for the executor, or the plan
        does not support `--metrics`.
    """
    with common_flags.usage_errors():
      execution.check_bytes_sent(
        FLAGS.executor, frozen_weights.num_bytes(plan.model)
      )
    self.plan = plan
    if metric_flags.names() and not plan.schema.classes:
      raise common_flags.UsageError(
        f"--metrics is not allowed: {plan.scenario} does not report them"
      )
    with common_flags.usage_errors():
      self.metrics = metric_flags.chosen(
        plan.model.num_classes, plan.schema.classes
      )
    self.folder, self._saved = common_flags.open_folder(
      plan.scenario, plan.model, plan.what_follows, plan.schema
    )
    with (
      self.folder.beginning(),
      common_flags.usage_errors(),
      output_folder.unwritable_refused("mlflow_uri"),
      # A tracker that cannot be used is refused here; `finish` replaces it.
      tracker_flags.started(
        plan.scenario, self.folder, "comparison", plan.settings
      ),
    ):
      pass
    self._summaries = []
    # The label of the trial of each summary.
    self._labels = []
    # The final accuracy of each client in the runs of each summary, by seed.
    self._client_accuracies = []
    # Of the first seed, by varied settings and label of the trial.
    self._clients: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    self._num_runs = self._num_begun = 0
    # The ratios of the built algorithms, see `update_noise.ratio`.
    self._noise_ratios = {}
    # The `Spending` of each trial, by label.
    self._spending = {}
    # The values of each setting in which the runs of a trial differ.
    self._varied = {}
    # The seeds of runs whose training loss has risen, by label of the trial.
    self._risen = collections.defaultdict(list)

  def build(
    self,
    trial: selection.Trial,
    model: split_model.SplitModel | None = None,
    **options: Any,
  ) -> algorithm_lib.FederatedAlgorithm:
    """Builds the algorithm of a trial.

    Args:
      trial: The trial.
      model: The model. Default: the plan's.
      **options: Further arguments of `algorithms.build`.

    Returns:
      The algorithm.

    Raises:
      UsageError: If an algorithm of `--import` cannot be built.
    """
    name = trial.algorithm
    aggregator = self.plan.aggregators[name]
    try:
      built = algorithms.build(
        name,
        model or self.plan.model,
        trial.hparams,
        aggregator=aggregator,
        # Algorithms that aggregate nothing have no step of the server.
        server_optimizer=aggregator and server_optimizer_flags.chosen(),
        num_clients=FLAGS.num_clients,
        reports_losses=participation_flags.needs_losses(),
        metrics=metric_flags.names(),
        class_names=self.plan.schema.classes,
        **options,
      )
    except Exception as error:
      file = user_modules.asked(algorithms.get(name))
      # `program` reports errors that a line of the file raised, with the line.
      if file is None or user_modules.blame(error) is not None:
        raise
      raise common_flags.UsageError(
        f"{file}: {user_modules.describe(error)}"
      ) from error
    self._noise_ratios[name] = built.noise_ratio
    return built

  def _of_aggregator(self, trial: selection.Trial) -> dict[str, Any]:
    # Algorithms that aggregate nothing have no aggregator.
    aggregator = self.plan.aggregators.get(trial.algorithm)
    if aggregator is None:
      return {}
    return (
      aggregator_flags.settings()
      | aggregator.guarantee
      | server_optimizer_flags.settings()
    )

  def runs(
    self,
    run: Callable[[selection.Trial], Mapping[int, Any]],
    *,
    rule: selection.SelectionCriterion | None = None,
    all_settings: bool = False,
  ) -> Iterator[selection.TrialResult]:
    """Runs the trials with `selection.compare`; prints the selection.

    Args:
      run: Takes a trial and returns its results by seed.
      rule: Selects among the trials of each algorithm. None: runs all.
      all_settings: Whether to run also the trials that were not selected.

    Returns:
      An iterator over the trials' results.
    """

    def report(trials, scores, chosen):
      listed = "; ".join(
        f"{each.label}: {score:.2f}"
        if math.isfinite(score)
        else f"{each.label}: diverged"
        for each, score in zip(trials, scores, strict=True)
      )
      chosen_line = f"{rule.measure}: {listed}; chosen: {chosen.label}"
      print(shown_names.line(chosen_line), flush=True)

    self._num_runs = self._count_runs(rule, all_settings)
    if rule is not None:
      rule = rule._replace(score=self._counted(rule.score))
    return selection.compare(
      self.plan.trials,
      run,
      rule=rule,
      all_settings=all_settings,
      on_choice=report,
    )

  def expect_more_runs(self, num_runs: int) -> None:
    """Increases the number of runs that progress shows."""
    self._num_runs += num_runs

  def _count_runs(
    self, rule: selection.SelectionCriterion | None, all_settings: bool
  ) -> int:
    """Returns the number of runs, including those for selection."""
    run = list(self.plan.trials)
    num_runs = 0
    if rule is not None:
      by_algorithm = collections.Counter(each.algorithm for each in run)
      num_runs = len(self.plan.selection_seeds) * sum(
        count
        for num_trials in by_algorithm.values()
        for count, _ in rule.rungs(num_trials)
      )
      if not all_settings:
        # One trial of each algorithm, not known yet.
        run = list({each.algorithm: each for each in run}.values())
    return num_runs + sum(map(self.plan.num_runs, run))

  def _counted(
    self, score: Callable[[selection.Trial, int | None], float]
  ) -> Callable[[selection.Trial, int | None], float]:
    """Counts the runs of a score, also if a diverged run ends it early."""

    def count(trial, num_rounds):
      end = self._num_begun + len(self.plan.selection_seeds)
      try:
        return score(trial, num_rounds)
      finally:
        self._num_begun = end

    return count

  @contextlib.contextmanager
  def run(
    self,
    trial: selection.Trial,
    seed: int,
    num_steps: int,
    *,
    num_more: int = 0,
    vocabulary: Sequence[str] | None = None,
    shown_metric: str = "accuracy",
    early_stopping: early_stopping_lib.EarlyStopping | None = None,
    time_names: Sequence[str] = (),
    is_test: bool = True,
    saves_model: bool = True,
    **varied: str,
  ) -> Iterator[Run]:
    """Opens the outputs of a run and shows its progress.

    Args:
      trial: The trial.
      seed: The seed.
      num_steps: The number of steps.
      num_more: The number of steps that only the progress bar has.
      vocabulary: The word of each token id, saved with a model of titles.
      shown_metric: The metric that the progress bar shows.
      early_stopping: The early stopping of the run.
      time_names: The names of the time steps or periods by number, for the
        column `time`. Empty: they have no names.
      is_test: Whether the run uses the test data; otherwise it only serves
        selection.
      saves_model: Whether a run that uses the test data saves its model.
      **varied: Settings that distinguish the runs of a trial and seed.

    Yields:
      The outputs of the run.
    """
    hparams = {
      name: getattr(trial.hparams, name, None)
      for name in self.plan.hparam_names
    }
    own = {name: value for name, value in hparams.items() if value is not None}
    run_labels = {
      "algorithm": trial.algorithm,
      "dataset": dataset_flags.short_name(),
      **varied,
    }
    curve = [
      trial.algorithm,
      *varied.values(),
      *(
        f"{name.removeprefix('learning_')}_{selection.shown(value)}"
        for name, value in own.items()
      ),
      f"seed_{seed}",
    ]
    aggregators = [each for each in self.plan.aggregators.values() if each]
    # Columns of all runs, empty for algorithms that aggregate nothing.
    guarantee = dict.fromkeys(
      name for each in aggregators for name in each.guarantee
    )
    if (aggregator := self.plan.aggregators.get(trial.algorithm)) is not None:
      guarantee |= aggregator.guarantee
    tracked_run = tracker_flags.started(
      self.plan.scenario,
      self.folder,
      "/".join(curve),
      {
        **run_labels,
        **self.plan.settings,
        **self._of_aggregator(trial),
        **dataclasses.asdict(trial.hparams),
        "seed": seed,
      },
    )
    self._num_begun += 1
    progress_bar = common_flags.progress_bar(
      num_steps + num_more,
      ", ".join([trial.label, *varied.values(), f"seed {seed}"]),
      unit=self.plan.step_name,
      run=(self._num_begun, self._num_runs),
      is_replayed=True,
    )
    with tracked_run as tracked, progress_bar as bar:
      yield Run(
        trial,
        num_steps,
        {
          **run_labels,
          **self.plan.settings,
          **hparams,
          **guarantee,
          "seed": seed,
        },
        curve,
        bar,
        self._saved.run({**run_labels, **own, "seed": seed}, bar.start),
        self.folder,
        tracked,
        is_test and saves_model,
        vocabulary,
        update_noise.what_may_help(
          self._noise_ratios.get(trial.algorithm, 0.0),
          input_scaling.advice(
            self.plan.model.input_dtype, self.plan.model.input_scaling
          ),
        ),
        shown_metric,
        early_stopping,
        time_names,
        functools.partial(self._measure_spending, trial) if is_test else None,
        self.plan.schemas.get(seed, self.plan.schema),
        functools.partial(self._risen[trial.label].append, seed)
        if is_test
        else None,
      )

  def _measure_spending(
    self, trial: selection.Trial, running: rounds.Rounds
  ) -> None:
    """Measures once what a client spends in a round of a trial."""
    if trial.label not in self._spending:
      self._spending[trial.label] = spending(running)

  def summarize(
    self,
    reading: selection.TrialResult,
    by_seed: Mapping[int, Any],
    metrics: Callable[[int, Any], Mapping[str, float]],
    lower_is_better: Sequence[str] = (),
    client_accuracy: Callable[[Any], np.ndarray | None] = lambda result: None,
    **varied: str,
  ) -> None:
    """Adds an entry to `summary.json`.

    Args:
      reading: The trial, and the criterion that selected it.
      by_seed: The results by seed, with `seconds_per_round` and `num_diverged`,
        and `left_out` if clients can be excluded. Clients that are excluded
        with any seed are listed.
      metrics: Takes a seed and its result, returns the final metrics.
      lower_is_better: Those that are no metrics of predictions, and whose lower
        values are better.
      client_accuracy: Takes a result, returns the final accuracy of each
        client; None: it is not known.
      **varied: Settings that distinguish the entries of a trial.
    """
    for name, value in varied.items():
      self._varied.setdefault(name, {}).setdefault(value)
    accuracies = {
      seed: client_accuracy(result) for seed, result in by_seed.items()
    }
    over_clients = {seed: {} for seed in by_seed}
    if all(each is not None for each in accuracies.values()):
      over_clients = {
        seed: relative_metrics.over_clients(each)
        for seed, each in accuracies.items()
      }
    self._client_accuracies.append(accuracies)
    first = next(iter(accuracies.values()))
    if first is not None and np.isfinite(first).any():
      part = self._clients.setdefault(tuple(varied.items()), {})
      part[reading.trial.label] = first
    self._labels.append(reading.trial.label)
    self._summaries.append(
      summary.RunSummary(
        algorithm=reading.trial.algorithm,
        dataset=dataset_flags.short_name(),
        setting={
          **self.plan.settings,
          **varied,
          "selection": reading.selection,
          summary.METRICS: ",".join(metric_flags.names()),
          **_client_values(),
          **self._of_aggregator(reading.trial),
          **dataclasses.asdict(reading.trial.hparams),
        },
        metrics_by_seed={
          seed: {**metrics(seed, result), **over_clients[seed]}
          for seed, result in by_seed.items()
        },
        rounds=self.plan.num_steps,
        seconds_per_round=float(
          np.mean([result.seconds_per_round for result in by_seed.values()])
        ),
        num_diverged=[result.num_diverged for result in by_seed.values()],
        risen=list(dict.fromkeys(self._risen[reading.trial.label])),
        scores=reading.scores,
        left_out=_left_out(by_seed.values(), self.metrics.metrics, varied),
        directions={
          **self.metrics.directions,
          **dict.fromkeys(
            (*lower_is_better, *relative_metrics.lower_is_better()), False
          ),
        },
        **self._spending.get(reading.trial.label, Spending())._asdict(),
      )
    )
    self.folder.write_summary(each.to_record() for each in self._summaries)

  def draw_clients(self) -> None:
    """Draws the final accuracies of single clients, of the first seed."""
    for varied, by_label in self._clients.items():
      told = [f"{name.replace('_', ' ')} {value}" for name, value in varied]
      drawing.save(
        evaluation_figures.distribution_over_clients(
          by_label, title=", ".join(["Clients", *told])
        ),
        self.folder.figure_path("clients", *(value for _, value in varied)),
      )

  @property
  def summaries(self) -> Sequence[summary.RunSummary]:
    """The entries of `summary.json`."""
    return self._summaries

  def finish(
    self,
    metrics: Sequence[str],
    relative: Mapping[str, Mapping[int, Mapping[str, float]]],
  ) -> None:
    """Prints the table and the output folder.

    Args:
      metrics: The metrics that the table shows.
      relative: Metrics that compare trials, by label, seed and name.
    """
    # More rounds or seeds may have changed the selection.
    self.folder.cut_metrics()
    self._saved.remove_others()
    self._summaries = relative_metrics.relative_to_baselines(
      self._summaries, self._client_accuracies, list(self._varied)
    )
    self._summaries = [
      dataclasses.replace(
        run,
        metrics_by_seed={
          seed: {**metrics_of_seed, **relative.get(label, {}).get(seed, {})}
          for seed, metrics_of_seed in run.metrics_by_seed.items()
        },
      )
      for run, label in zip(self._summaries, self._labels, strict=True)
    ]
    self.folder.write_summary(each.to_record() for each in self._summaries)
    runs = sorted(
      self._summaries,
      key=lambda run: [
        list(values).index(run.setting[name])
        for name, values in self._varied.items()
      ],
    )
    table = summary.comparison_table(
      runs,
      metrics,
      [*self._varied, *self.plan.hparam_names, "selection"],
      best_within=list(self._varied),
    )
    print(table)
    if " *" in table:
      print("*: the best mean of its column")
    for line in (*summary.left_out_lines(runs), *summary.risen_lines(runs)):
      print(shown_names.line(line))
    with tracker_flags.started(
      self.plan.scenario, self.folder, "comparison", self.plan.settings
    ) as tracked:
      for name, path in self.folder.products():
        for tracker in tracked:
          tracker.artifact(path, name)
    common_flags.note_done(self.folder)
    print(shown_names.printable(f"results: {self.folder.path}"))
