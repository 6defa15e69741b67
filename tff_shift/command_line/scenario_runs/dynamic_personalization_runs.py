"""Runs the plan of `experiments.dynamic_personalization`."""

import dataclasses
import functools

import numpy as np
from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import comparison
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.plans import (
  dynamic_personalization_plan as planning,
)
from tff_shift.command_line.tuning import selection
from tff_shift.learning import evaluation
from tff_shift.reporting.results import dynamic_personalization_results
from tff_shift.simulation.scenarios import drift_detector as instruments_lib
from tff_shift.simulation.scenarios import dynamic_personalization

FLAGS = flags.FLAGS

_TEST = "test"


def _fit_instruments(
  plan: planning.Plan,
) -> dict[int | None, instruments_lib.Instruments]:
  """Fits drift detector and representation for each length of r.

  Returns:
    The fits by length of r (None: without r). They only differ in r.
  """
  extractor = None
  if plan.extractor is not None:
    train, held_out = instruments_lib.split_public(
      plan.dataset.public, FLAGS.public_seed
    )
    trained = pretrained.train(
      plan.extractor,
      train,
      held_out,
      plan.pretraining,
      seed=FLAGS.public_seed,
      name="extractor",
    )
    extractor = instruments_lib.make_extractor(plan.extractor, trained.weights)
  sizes = dict.fromkeys(map(planning.representation_size, plan.trials))
  return {
    size: instruments_lib.fit(
      plan.dataset,
      representation=FLAGS.representation if size else None,
      representation_size=size,
      distance_features=FLAGS.distance_features,
      period_size=FLAGS.period_size,
      extractor=extractor,
      input_scaling=plan.model.input_scaling,
      threshold=FLAGS.distance_threshold,
      quantile=plan.quantile,
      seed=FLAGS.public_seed,
    )
    for size in sizes
  }


class _Runner:
  """Runs the trials of a plan and writes their results."""

  def __init__(
    self,
    running: comparison.Comparison,
    instruments: dict[int | None, instruments_lib.Instruments],
  ):
    self._running = running
    self._plan = running.plan
    self._instruments = instruments
    # All trials share the clients' test streams.
    shared = next(iter(instruments.values()))
    self._streams = {}
    for seed in self._plan.seeds:
      for distribution in FLAGS.test_distributions:
        if self._plan.dataset.periods is None or not self._streams:
          stream = self._measure(seed, distribution, shared)
        # All seeds share a stream that is not drawn.
        self._streams[seed, distribution] = stream
    self._time_names = stream_names(self._plan)
    for distribution in FLAGS.test_distributions:
      dynamic_personalization_results.draw_distances(
        self._streams[self._plan.seeds[0], distribution],
        shared.threshold,
        distribution,
        self._plan.seeds[0],
        running.folder,
        self._time_names,
      )

  def _measure(
    self,
    seed: int,
    distribution: str,
    instruments: instruments_lib.Instruments,
  ) -> dynamic_personalization.Stream:
    with common_flags.progress_bar(
      FLAGS.periods, f"distances, {distribution}, seed {seed}", unit="period"
    ) as bar:
      return dynamic_personalization.measure_stream(
        planning.test_periods(self._plan.dataset, distribution, seed),
        FLAGS.periods,
        instruments,
        on_period=bar.update,
      )

  def run(
    self, trial: selection.Trial
  ) -> dict[int, dynamic_personalization.DynamicResult]:
    """Trains a trial with every seed and evaluates it on every stream."""
    return self._run(trial, _TEST, self._plan.seeds, FLAGS.test_distributions)

  def score(
    self, trial: selection.Trial, num_rounds: int | None = None
  ) -> float:
    """Returns the mean VACC over seeds in percent; evaluates no stream."""
    by_seed = self._run(
      trial, planning.VALIDATION, self._plan.selection_seeds, []
    )
    return float(np.mean([r.validation_accuracy for r in by_seed.values()]))

  def _run(self, trial, held_out, seeds, names):
    algorithm = self._running.build(
      trial, num_evaluation_domains=FLAGS.num_clients
    )
    return {
      seed: self._run_one(algorithm, trial, held_out, seed, names)
      for seed in seeds
    }

  def _run_one(
    self, algorithm, trial, held_out, seed, names
  ) -> dynamic_personalization.DynamicResult:
    """Trains with a seed and evaluates on streams."""
    instruments = self._instruments[planning.representation_size(trial)]
    num_steps = FLAGS.rounds + len(names) * FLAGS.periods
    classes = self._plan.dataset.class_names if held_out == _TEST else None
    with self._running.run(
      trial,
      seed,
      num_steps,
      class_names=classes,
      time_names=self._time_names,
      held_out=held_out,
    ) as run:
      result = dynamic_personalization.run(
        algorithm,
        planning.train_periods(self._plan.dataset, seed),
        planning.validation_periods(self._plan.dataset, seed),
        {name: self._streams[seed, name] for name in names},
        instruments.represent,
        num_rounds=FLAGS.rounds,
        run_seed=seed,
        threshold=instruments.threshold,
        **participation_flags.chosen(),
        apply_update=FLAGS.apply_update,
        callbacks=[run],
        checkpoint=run.checkpoint,
      )
    return comparison.without_states(result)


def stream_names(plan: planning.Plan) -> tuple[str, ...]:
  """Returns the names of a stream's periods from 0; empty if they have none."""
  if plan.dataset.periods is None:
    return ()
  # Period 0 is the last training period.
  return plan.dataset.periods.time_names[FLAGS.train_periods - 1 :]


def _final_metrics(
  distribution: str, seed: int, result: dynamic_personalization.DynamicResult
) -> dict[str, float]:
  """Returns the final metrics on a stream."""
  del seed
  return dynamic_personalization_results.final_metrics(
    result.inferences[distribution], result.validation_accuracy
  )


def run(plan: planning.Plan) -> None:
  """Runs the comparison of a plan."""
  by_label = {}
  with common_flags.executor():
    # The fit refuses unsuitable data, so it comes before the output folder.
    with common_flags.usage_errors():
      instruments = _fit_instruments(plan)
    threshold = next(iter(instruments.values())).threshold
    running = comparison.Comparison(
      dataclasses.replace(
        plan, settings={**plan.settings, "distance_threshold": threshold}
      )
    )
    runner = _Runner(running, instruments)
    rule = selection_flags.rule(
      planning.VALIDATION, "accuracy (%) on validation periods", runner.score
    )
    for reading in running.runs(
      runner.run, rule=rule, all_settings=FLAGS.all_settings
    ):
      by_label[reading.trial.label] = reading.by_seed
      for distribution in FLAGS.test_distributions:
        running.summarize(
          reading,
          reading.by_seed,
          functools.partial(_final_metrics, distribution),
          test_distribution=distribution,
        )
  for distribution in FLAGS.test_distributions:
    dynamic_personalization_results.draw_accuracy(
      by_label, distribution, running.folder, stream_names(plan)
    )
  # Drift detection does not depend on the algorithm; summary.json reports it.
  running.finish(
    [
      "validation_accuracy",
      *evaluation.compared(),
      "multi_period_variance",
      "multi_period_variance_below",
      "low_accuracy_share",
      "request_share",
    ]
  )
