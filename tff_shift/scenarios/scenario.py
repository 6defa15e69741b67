"""The base class of scenarios: the order in which a binary does its work.

A subclass says what differs: which data a run takes, how it runs, what is
measured, and which figures show it.
"""

import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import comparison
from tff_shift.command_line import plan as plan_lib
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import selection
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.reporting import table_results
from tff_shift.simulation import bounds as bounds_lib
from tff_shift.simulation.storage import results


class Scenario:
  """The runs of a plan.

  Attributes:
    plan: The plan.
    running: The comparison, from `run` on.
    criterion: The criterion of `--select`. None: there is no such flag.
    measure: What the criterion measures, in words.
    test: The value of the column `held_out` of runs that use the test data.
    lower_is_better: The metrics of `metrics` that are not metrics of
      predictions, and whose lower values are better.
  """

  criterion: str | None = None
  measure: str = ""
  test = "test"
  lower_is_better: Sequence[str] = ()

  def __init__(self, plan: plan_lib.Plan):
    self.plan = plan

  def data(self, seed: int, *, is_test: bool) -> Any:
    """Returns the data of the runs with a seed.

    Args:
      seed: The seed.
      is_test: Whether the run uses the test data; otherwise it only serves
        selection.
    """
    return self.plan.data[seed]

  def stages(
    self, seed: int, *, is_test: bool
  ) -> Iterable[tuple[Mapping[str, str], Any]]:
    """Returns the labels and the data of consecutive runs with a seed.

    Args:
      seed: The seed.
      is_test: See `data`.
    """
    return [({}, self.data(seed, is_test=is_test))]

  def combined(self, stages: Sequence[Any]) -> Any:
    """Returns the result with a seed from those of its `stages`."""
    (result,) = stages
    return result

  def build_options(self, data: Any) -> Mapping[str, Any]:
    """Returns the arguments of `algorithms.build` that the data determine."""
    raise NotImplementedError

  def training_inputs(
    self, trial: selection.Trial, data: Any
  ) -> Sequence[np.ndarray]:
    """Returns the inputs x of the examples that train in a run.

    The scaling of the run's model is computed from them, and from no others.
    None: all runs share the plan's model.

    Args:
      trial: The trial.
      data: The data of `data`.
    """
    return ()

  def model(self, trial: selection.Trial, data: Any) -> split_model.SplitModel:
    """Returns the model of a run, scaled by the examples that train in it."""
    if not input_flags.depends_on_data():
      return self.plan.model
    inputs = self.training_inputs(trial, data)
    if not inputs:
      return self.plan.model
    return split_model.with_input_scaling(
      self.plan.model, input_scaling.standardized(inputs)
    )

  def run_one(
    self,
    algorithm: algorithm_lib.FederatedAlgorithm,
    data: Any,
    seed: int,
    run: comparison.Run,
  ) -> Any:
    """Calls the driver.

    Args:
      algorithm: The algorithm.
      data: The data of `data`.
      seed: The seed.
      run: The trial, the number of steps, the checkpoint and the callbacks.

    Returns:
      The result of the driver.
    """
    raise NotImplementedError

  def metrics(
    self, trial: selection.Trial, seed: int, result: Any, **varied: str
  ) -> Mapping[str, float]:
    """Returns the final metrics of a result.

    Args:
      trial: The trial.
      seed: The seed.
      result: The result of `run_one`.
      **varied: The part of `parts`.
    """
    raise NotImplementedError

  def client_accuracy(self, result: Any, **varied: str) -> np.ndarray | None:
    """Returns the final accuracy of each client, in percent.

    Args:
      result: The result of `run_one`.
      **varied: The part of `parts`.

    Returns:
      [num_clients]; NaN: the client has none. None: it is not known.
    """
    return getattr(result, "client_accuracy", None)

  def columns(self) -> Sequence[str]:
    """Returns the metrics that the table shows."""
    raise NotImplementedError

  def compared(self) -> list[str]:
    """Returns the names of the metrics of predictions that tables show.

    A value per class needs too many columns.
    """
    metrics = self.running.metrics
    return [
      *evaluation.compared(),
      *(name for name, own in metrics.columns.items() if own == (name,)),
    ]

  def tables(self, result: Any, **varied: str) -> Mapping[str, np.ndarray]:
    """Returns the tables of counts of a result by name, such as a confusion.

    Args:
      result: The result of `run_one`.
      **varied: The part of `parts`.
    """
    return {}

  def score(self, result: Any) -> float:
    """Returns the score of a run that serves selection; higher is better."""
    raise NotImplementedError

  def run_options(self, data: Any) -> Mapping[str, Any]:
    """Returns further arguments of `Comparison.run`, such as `vocabulary`."""
    return {}

  def relative_metrics(
    self, by_label: Mapping[str, Mapping[int, Any]]
  ) -> Mapping[str, Mapping[int, Mapping[str, float]]]:
    """Returns metrics that compare trials, by label, seed and name.

    Args:
      by_label: The results by the label of the trial and by seed.
    """
    return {}

  def parts(
    self, by_seed: Mapping[int, Any]
  ) -> Iterator[tuple[Mapping[str, str], Mapping[int, Any]]]:
    """Yields the entries of summary.json for the results of a trial.

    Args:
      by_seed: The results by seed.

    Yields:
      The settings that distinguish the entry, and its results by seed.
    """
    yield {}, by_seed

  def ablations(
    self, reading: selection.TrialResult
  ) -> Iterable[selection.TrialResult]:
    """Runs the ablations of a trial."""
    return ()

  def bounds(
    self,
    readings: Sequence[selection.TrialResult],
  ) -> Iterator[tuple[selection.TrialResult, Mapping[str, str]]]:
    """Yields the bounds of accuracy, for `--bounds`.

    Args:
      readings: The results of all trials.

    Yields:
      A result, by seed a `bounds_lib.Bound` or a result of `run_one`, and the
      part of `parts` that it is of.
    """
    return iter(())

  def prepare(self) -> None:
    """Does what all runs share, before the output folder is made."""

  def begin(self, folder: results.RunFolder) -> None:
    """Does what all runs share, such as figures of the data.

    Args:
      folder: The output folder.
    """

  def draw_trial(
    self, reading: selection.TrialResult, folder: results.RunFolder
  ) -> None:
    """Draws the figures of a trial."""

  def draw_all(
    self, by_label: Mapping[str, Mapping[int, Any]], folder: results.RunFolder
  ) -> None:
    """Draws the figures that compare trials.

    Args:
      by_label: The results by the label of the trial and by seed.
      folder: The output folder.
    """

  def run(self) -> None:
    """Runs the plan, writes the results and prints the table."""
    by_label, readings = {}, []
    with common_flags.executor():
      self.prepare()
      self.running = comparison.Comparison(self.plan)
      if self.plan.changed_data:
        changes = ", ".join(self.plan.changed_data)
        print(f"the data are changed by {changes}", flush=True)
      if dataset_flags.is_own():
        lines = dataset_flags.description(self.plan.groups)
        for line in (*lines, *self.plan.uses):
          print(shown_names.line(line), flush=True)
      for line in hparam_flags.origins():
        print(shown_names.line(line), flush=True)
      self.begin(self.running.folder)
      rule = None
      if self.criterion is not None:
        rule = selection_flags.rule(self.criterion, self.measure, self._score)
      for reading in self.running.runs(
        functools.partial(self.run_trial, seeds=self.plan.seeds, is_test=True),
        rule=rule,
        all_settings=(
          rule is not None
          and getattr(self.plan.configuration, "all_settings", False)
        ),
      ):
        for each in itertools.chain([reading], self.ablations(reading)):
          by_label[each.trial.label] = each.by_seed
          readings.append(each)
          for varied, by_seed in self.parts(each.by_seed):
            self.running.summarize(
              each,
              by_seed,
              functools.partial(self.metrics, each.trial, **varied),
              self.lower_is_better,
              functools.partial(self.client_accuracy, **varied),
              **varied,
            )
            self._write_tables(each.trial, by_seed, varied)
        self.draw_trial(reading, self.running.folder)
      self.running.draw_clients()
      if getattr(self.plan.configuration, "bounds", None):
        self._add_bounds(readings)
    self.draw_all(by_label, self.running.folder)
    self.running.finish(self.columns(), self.relative_metrics(by_label))

  def _add_bounds(self, readings) -> None:
    """Adds the bounds to the table."""
    for each, varied in self.bounds(readings):

      def metrics(seed, result, trial=each.trial, varied=varied):
        if isinstance(result, bounds_lib.Bound):
          return result.metrics
        return self.metrics(trial, seed, result, **varied)

      self.running.summarize(
        each,
        each.by_seed,
        metrics,
        self.lower_is_better,
        lambda result: result.client_accuracy,
        **varied,
      )

  def baselines(
    self, bound_of: Callable[[Any, int], bounds_lib.Bound]
  ) -> Iterator[selection.TrialResult]:
    """Yields the baselines that the data allow.

    Args:
      bound_of: Takes one of `bounds_lib.BASELINES` and a seed, returns the
        bound.
    """
    model = self.plan.model
    is_table = len(model.input_shape) == 1 and model.input_dtype.is_floating
    for name, fit in bounds_lib.BASELINES.items():
      if name == bounds_lib.MAJORITY_CLASS or is_table:
        yield selection.TrialResult(
          selection.Trial(name, hyperparameters.HParams(), {}),
          selection.NONE,
          {seed: bound_of(fit, seed) for seed in self.plan.seeds},
        )

  def _write_tables(self, trial, by_seed, varied) -> None:
    """Writes and draws the tables of counts of a trial, if there are any."""
    tables = {
      seed: self.tables(result, **varied) for seed, result in by_seed.items()
    }
    for name in tables[self.plan.seeds[0]]:
      table_results.write(
        name,
        {seed: found[name] for seed, found in tables.items()},
        self.plan.schema.classes,
        " ".join([trial.label, *varied.values()]),
        self.running.folder,
      )

  def _score(self, trial: selection.Trial, num_rounds: int | None) -> float:
    """Returns the mean score over the seeds of selection."""
    by_seed = self.run_trial(
      trial, self.plan.selection_seeds, is_test=False, num_rounds=num_rounds
    )
    return float(np.mean([self.score(each) for each in by_seed.values()]))

  def run_trial(
    self,
    trial: selection.Trial,
    seeds: Iterable[int],
    is_test: bool,
    num_rounds: int | None = None,
  ) -> dict[int, Any]:
    """Returns the results of a trial by seed, without states.

    Args:
      trial: The trial.
      seeds: The seeds.
      is_test: Whether the runs use the test data.
      num_rounds: The number of rounds, of runs that serve selection. None: all.
    """
    built, by_seed = {}, {}
    varied: dict[str, Any] = {}
    if self.criterion is not None:
      varied["held_out"] = self.test if is_test else self.criterion
      if num_rounds is not None:
        varied["held_out"] += f" after {num_rounds} rounds"
    for seed in seeds:
      stages = []
      for labels, data in self.stages(seed, is_test=is_test):
        options = self.build_options(data)
        model = self.model(trial, data)
        key = model.input_scaling, *options.items()
        if key not in built:
          built[key] = self.running.build(trial, model, **options)
        with self.running.run(
          trial,
          seed,
          num_rounds or self.plan.num_steps,
          is_test=is_test,
          **self.run_options(data),
          **{**varied, **labels},
        ) as run:
          result = self.run_one(built[key], data, seed, run)
        stages.append(comparison.without_states(result))
      by_seed[seed] = self.combined(stages)
    return by_seed
