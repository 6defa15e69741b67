"""Runs the plan of `experiments.dynamic_personalization`."""

import dataclasses

from tff_shift.command_line import common_flags
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import participation_flags
from tff_shift.scenarios import scenario
from tff_shift.scenarios.dynamic_personalization import (
  configuration as planning,
)
from tff_shift.scenarios.dynamic_personalization import (
  drift_detector as instruments_lib,
)
from tff_shift.scenarios.dynamic_personalization import (
  results as dynamic_personalization_results,
)
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)


def _fit_instruments(
  plan: planning.Plan,
) -> dict[int | None, instruments_lib.Instruments]:
  """Fits drift detector and representation for each length of r.

  Returns:
    The fits by length of r (None: without r). They only differ in r.
  """
  extractor = None
  if plan.extractor is not None:
    groups = plan.dataset.groups
    train, held_out = instruments_lib.split_public(
      plan.dataset.public,
      plan.configuration.public_seed,
      None if groups is None else groups.train[-1],
    )
    trained = pretrained.train(
      plan.extractor,
      train,
      held_out,
      plan.pretraining,
      seed=plan.configuration.public_seed,
      name="extractor",
    )
    extractor = instruments_lib.make_extractor(plan.extractor, trained.weights)
  sizes = dict.fromkeys(map(planning.representation_size, plan.trials))
  return {
    size: instruments_lib.fit(
      plan.dataset,
      representation=plan.configuration.representation if size else None,
      representation_size=size,
      distance_features=plan.configuration.distance_features,
      period_size=plan.configuration.period_size,
      extractor=extractor,
      input_scaling=plan.model.input_scaling,
      threshold=plan.configuration.distance_threshold,
      quantile=plan.quantile,
      seed=plan.configuration.public_seed,
    )
    for size in sizes
  }


class DynamicPersonalization(scenario.Scenario):
  """Clients train in periods, then meet streams that drift.

  Selection uses periods of the validation part, and evaluates no stream.
  """

  plan: planning.Plan

  criterion = planning.VALIDATION
  measure = "accuracy (%) on validation periods"
  lower_is_better = (
    *("multi_period_variance", "multi_period_variance_below"),
    *("low_accuracy_share", "request_share", "false_positive_rate"),
    *("detection_delay", "missed_drifts", "false_alarms"),
  )

  def prepare(self):
    """Fits the drift detector, which refuses unsuitable data."""
    with common_flags.usage_errors():
      self._instruments = _fit_instruments(self.plan)
    # All trials share the clients' test streams.
    self._shared = next(iter(self._instruments.values()))
    self.plan = dataclasses.replace(
      self.plan,
      settings={
        **self.plan.settings,
        "distance_threshold": self._shared.threshold,
      },
    )

  def begin(self, folder):
    """Measures the drift of all streams, and draws that of the first seed."""
    self._streams = {}
    for seed in self.plan.seeds:
      for distribution in self.plan.configuration.test_distributions:
        if self.plan.dataset.periods is None or not self._streams:
          stream = self._measured(seed, distribution)
        # All seeds share a stream that is not drawn.
        self._streams[seed, distribution] = stream
    self._time_names = _stream_names(self.plan)
    for distribution in self.plan.configuration.test_distributions:
      dynamic_personalization_results.draw_distances(
        self._streams[self.plan.seeds[0], distribution],
        self._shared.threshold,
        distribution,
        self.plan.seeds[0],
        folder,
        self._time_names,
      )

  def _measured(
    self, seed: int, distribution: str
  ) -> dynamic_personalization.Stream:
    with common_flags.progress_bar(
      self.plan.configuration.periods,
      f"distances, {distribution}, seed {seed}",
      unit="period",
    ) as bar:
      return dynamic_personalization.measure_stream(
        planning.test_periods(
          self.plan.configuration, self.plan.dataset, distribution, seed
        ),
        self.plan.configuration.periods,
        self._shared,
        on_period=bar.update,
      )

  def data(self, seed, *, is_test):
    """Returns the streams by name."""
    names = self.plan.configuration.test_distributions if is_test else []
    return {name: self._streams[seed, name] for name in names}

  def build_options(self, data):
    """Returns the number of clients."""
    return {"num_evaluation_domains": self.plan.configuration.num_clients}

  def run_options(self, data):
    """Returns what a saved model knows, and the steps of the progress bar."""
    return {
      "time_names": self._time_names,
      "num_more": len(data) * self.plan.configuration.periods,
    }

  def run_one(self, algorithm, data, seed, run):
    """Trains, validates and evaluates on streams."""
    instruments = self._instruments[planning.representation_size(run.trial)]
    return dynamic_personalization.run(
      algorithm,
      planning.train_periods(self.plan.configuration, self.plan.dataset, seed),
      planning.validation_periods(
        self.plan.configuration, self.plan.dataset, seed
      ),
      data,
      instruments.represent,
      num_rounds=run.num_steps,
      run_seed=seed,
      threshold=instruments.threshold,
      **participation_flags.chosen(),
      apply_update=self.plan.configuration.apply_update,
      client_names=self.plan.dataset.schema.clients,
      callbacks=run.callbacks,
      checkpoint=run.checkpoint,
    )

  def score(self, result):
    """Returns VACC in percent."""
    return result.validation_accuracy

  def parts(self, by_seed):
    """Yields the name of each stream."""
    for distribution in self.plan.configuration.test_distributions:
      yield {"test_distribution": distribution}, by_seed

  def metrics(self, trial, seed, result, test_distribution):
    """Returns the metrics on a stream."""
    return dynamic_personalization_results.final_metrics(
      result.inferences[test_distribution], result.validation_accuracy
    )

  def client_accuracy(self, result, test_distribution):
    """Returns the mean accuracy of each client on a stream."""
    return result.inferences[test_distribution].client_accuracy

  def columns(self):
    """Returns the metrics of accuracy and requests.

    Drift detection does not depend on the algorithm; summary.json reports it.
    """
    return [
      "validation_accuracy",
      *self.compared(),
      "multi_period_variance",
      "multi_period_variance_below",
      "low_accuracy_share",
      "request_share",
    ]

  def bounds(self, readings):
    """Yields the baselines on each stream."""
    for name in self.plan.configuration.test_distributions:

      def bound_of(fit, seed, name=name):
        return dynamic_personalization.baseline(
          fit,
          planning.train_periods(
            self.plan.configuration, self.plan.dataset, seed
          ),
          self.plan.num_steps,
          self._streams[seed, name].drawn,
          self.plan.configuration.periods,
        )

      for reading in self.baselines(bound_of):
        yield reading, {"test_distribution": name}

  def tables(self, result, test_distribution):
    """Returns the tables of the last period of a stream."""
    return result.inferences[test_distribution].tables

  def draw_all(self, by_label, folder):
    """Draws the accuracy over the periods and clients of each stream."""
    for distribution in self.plan.configuration.test_distributions:
      for draw in (
        dynamic_personalization_results.draw_accuracy,
        dynamic_personalization_results.draw_timeline,
      ):
        draw(by_label, distribution, folder, self._time_names)


def _stream_names(plan: planning.Plan) -> tuple[str, ...]:
  """Returns the names of a stream's periods from 0; empty if they have none."""
  if plan.dataset.periods is None:
    return ()
  # Period 0 is the last training period.
  times = plan.dataset.schema.times
  return times[plan.configuration.train_periods - 1 :]
