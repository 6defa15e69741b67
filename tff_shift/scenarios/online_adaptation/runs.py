"""Runs the plan of `experiments.online_adaptation`."""

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tff_shift.command_line import comparison
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.tuning import selection
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.learning import evaluation
from tff_shift.scenarios import scenario
from tff_shift.scenarios.online_adaptation import configuration as planning
from tff_shift.scenarios.online_adaptation import (
  figures as online_adaptation_figures,
)
from tff_shift.scenarios.online_adaptation import rate_controls
from tff_shift.scenarios.online_adaptation import (
  results as online_adaptation_results,
)
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.shift import bbse
from tff_shift.simulation import pretraining
from tff_shift.simulation.storage import results


class OnlineAdaptation(scenario.Scenario):
  """Clients adapt a deployed model to their streams."""

  def begin(self, folder):
    """Draws the corruptions, and trains the deployed model."""
    if self.plan.configuration.shift_kind == "covariate":
      online_adaptation_results.draw_corruptions(
        self.plan.dataset.stream.x[0], folder
      )
    dataset = self.plan.dataset
    if self.plan.pretraining is not None:
      number = len((dataset.labelled or dataset.pretraining).y)
      distribution = self.plan.configuration.pretraining_distribution
      if distribution == online_adaptation_data.AS_IS:
        distribution = "as they are"
      print(
        f"pre-training on {number} of {dataset.num_labelled} labelled rows,"
        f" distribution {distribution}",
        flush=True,
      )
    self._trained = pretrained.train(
      self.plan.model,
      dataset.pretraining,
      dataset.validation,
      self.plan.pretraining,
      seed=self.plan.configuration.pretraining_seed,
      name="pre-trained model",
      refit=dataset.labelled,
    )
    self._model = pretraining.with_pretrained(self.plan.model, self._trained)

  def run_trial(self, trial, seeds, is_test, num_rounds=None):
    """Returns the results by seed and schedule."""
    algorithm = self.running.build(trial, self._model)
    return self._run_all(algorithm, trial, _no_rates)

  def ablations(self, reading):
    """Runs the ablations of a trial.

    These are a reset (`--reset_control`) and those of Fed-ADE (`--controls`),
    whose trials have Fed-ADE's hyper-parameters, from which their learning
    rates come.
    """
    trial = reading.trial
    if planning.is_reset(self.plan.configuration, trial):
      algorithm = self.running.build(trial, self._model)
      reset = trial._replace(algorithm=planning.reset_name(trial.algorithm))
      yield reading._replace(
        trial=reset,
        by_seed=self._run_all(algorithm, reset, _no_rates, resets=True),
      )
    if (
      not self.plan.configuration.controls
      or trial.algorithm != planning.CONTROLLED
    ):
      return
    algorithm = self.running.build(planning.fixed_rate(trial), self._model)
    for name in rate_controls.NAMES:
      control = trial._replace(algorithm=name)
      rates_of = functools.partial(_prescribed_rates, self.plan, name, reading)
      yield reading._replace(
        trial=control,
        by_seed=self._run_all(algorithm, control, rates_of),
      )

  def _run_all(self, algorithm, trial, rates_of, resets=False):
    """Runs every schedule and seed with the rates `rates_of(shift, seed)`."""
    found = {seed: {} for seed in self.plan.seeds}
    for shift in self.plan.configuration.shift:
      for seed, by_shift in found.items():
        by_shift[shift] = self._run_one(
          algorithm, trial, shift, seed, rates_of(shift, seed), resets
        )
    return found

  def _run_one(self, algorithm, trial, shift, seed, prescribed_rates, resets):
    with self.running.run(
      trial,
      seed,
      self.plan.num_steps,
      time_names=self.plan.dataset.schema.times,
      shift=shift,
    ) as run:
      result = online_adaptation.run(
        algorithm,
        planning.client_streams(self.plan, shift, seed),
        self._deployment(trial, seed),
        run_seed=seed,
        rounds_per_step=self.plan.configuration.rounds_per_step,
        **planning.participation(self.plan.configuration),
        prescribed_rates=prescribed_rates,
        resets=resets,
        callbacks=run.callbacks,
        checkpoint=run.checkpoint,
      )
    return comparison.without_states(result)

  def _deployment(self, trial: selection.Trial, seed: int):
    """Returns the clients' data from before deployment."""
    confusion = bbse.confusion_matrix(
      tf.constant(self._trained.validation_logits),
      tf.constant(self._trained.validation_y),
      soft=getattr(trial.hparams, "soft_predictions", False),
    )
    initial = [
      online_adaptation_data.initial_examples(
        self.plan.dataset,
        self.plan.configuration.initial_examples,
        client,
        seed,
      )
      for client in range(self.plan.configuration.num_clients)
    ]
    held_out = None
    if not all(len(each.y) for each in initial):
      held_out = online_adaptation_data.held_out_examples(
        self.plan.dataset, self.plan.configuration.initial_examples, seed
      )
    return online_adaptation.Deployment(
      initial,
      examples_lib.read_only(confusion.numpy()),
      held_out,
      self.plan.dataset.schema.clients,
      self.plan.dataset.schema.features,
    )

  def parts(self, by_seed):
    """Yields each schedule with its results."""
    for shift in self.plan.configuration.shift:
      yield (
        {"shift": shift},
        {seed: found[shift] for seed, found in by_seed.items()},
      )

  def metrics(self, trial, seed, result, shift):
    """Returns means over time steps, and correlations of the measured shift."""
    found = {}
    for name in (*evaluation.METRICS, *self.running.metrics.directions):
      found[name] = result.mean(name)
      found[f"before_adaptation_{name}"] = result.mean(f"{name}_before")
    measured = _measured_shift(self.plan, trial, result)
    if measured is not None and self.plan.configuration.shift_kind == "label":
      true = online_adaptation_results.true_shift(
        planning.client_streams(self.plan, shift, seed)
      )
      measured, true, are_known = online_adaptation_results.both_known(
        measured, true
      )
      has_any = are_known.any(axis=0)
      # Over clients, as in the theorems, and over clients and steps.
      found["cumulative_shift_correlation"] = (
        online_adaptation_results.rank_correlation(
          measured.sum(axis=0)[has_any], true.sum(axis=0)[has_any]
        )
      )
      found["step_shift_correlation"] = (
        online_adaptation_results.rank_correlation(
          measured[are_known], true[are_known]
        )
      )
    return found

  def columns(self):
    """Returns the metrics after and before adaptation, and correlations."""
    return [
      *self.compared(),
      *(f"before_adaptation_{name}" for name in self.compared()),
      "cumulative_shift_correlation",
      "step_shift_correlation",
    ]

  def bounds(self, readings):
    """Yields the baselines of each schedule."""
    trial = readings[0].trial
    for shift in self.plan.configuration.shift:

      def bound_of(fit, seed, shift=shift):
        return online_adaptation.baseline(
          fit,
          self._deployment(trial, seed),
          planning.client_streams(self.plan, shift, seed),
        )

      for reading in self.baselines(bound_of):
        yield reading, {"shift": shift}

  def tables(self, result, shift):
    """Returns the tables of the last time step, after adaptation."""
    return result.timesteps[-1].tables or {}

  def draw_trial(self, reading, folder):
    """Draws how the learning rates of the first seed arise."""
    if hasattr(reading.trial.hparams, "eta_min"):
      _draw_rates(
        self.plan, folder, reading.trial, reading.by_seed[self.plan.seeds[0]]
      )

  def draw_all(self, by_label, folder):
    """Draws the accuracy over time for each schedule."""
    for shift in self.plan.configuration.shift:
      omega = list(self.plan.omegas[shift].values())
      if np.ndim(omega[0]) == 2:
        omega = [each.mean(axis=0) for each in omega]
      online_adaptation_results.draw_accuracy(
        {
          label: {seed: found[shift] for seed, found in by_seed.items()}
          for label, by_seed in by_label.items()
        },
        None if omega[0] is None else np.array(omega),
        folder,
        shift,
        time_names=self.plan.dataset.schema.times,
      )


def _no_rates(shift: str, seed: int) -> None:
  """Lets clients use their own learning rates."""


def _prescribed_rates(
  plan: planning.Plan,
  control: str,
  reading: selection.TrialResult,
  shift: str,
  seed: int,
) -> np.ndarray:
  """Returns an ablation's rates for a schedule and a seed."""
  rates = online_adaptation_results.learning_rates(reading.by_seed[seed][shift])
  counts = rate_controls.num_rounds(
    # Absent clients have no rate.
    ~np.isnan(rates),
    run_seed=seed,
    rounds_per_step=plan.configuration.rounds_per_step,
    participation=plan.configuration.participation,
    repeats_cohorts=plan.configuration.repeat_cohorts,
  )
  return rate_controls.prescribe(control, rates, counts, seed)


def _measured_shift(
  plan: planning.Plan,
  trial: selection.Trial,
  result: online_adaptation.OnlineResult,
) -> np.ndarray | None:
  """Returns the measured shift S, [timesteps, num_clients].

  None if learning rates do not come from the measured shift at every step.
  """
  low = getattr(trial.hparams, "eta_min", None)
  if (
    low is None
    or plan.configuration.participation < 1
    or participation_flags.given()
  ):
    return None
  if trial.algorithm in rate_controls.NAMES:
    return None
  if trial.algorithm.endswith(planning.reset_name("")):
    return None
  high = trial.hparams.eta_max
  if low == high:
    return None
  return online_adaptation_results.measured_shift(result, low, high)


def _draw_rates(
  plan: planning.Plan,
  folder: results.RunFolder,
  trial: selection.Trial,
  by_shift: Mapping[str, online_adaptation.OnlineResult],
) -> None:
  """Plots how the learning rates of the first seed arise."""
  # Names distinguish the figures of several settings.
  names = [trial.label] if trial.compared else []
  true, measured = {}, {}
  for shift, result in by_shift.items():
    client_streams = planning.client_streams(plan, shift, plan.seeds[0])
    online_adaptation_results.draw_adaptation(
      result,
      client_streams,
      plan.dataset.schema.classes,
      folder,
      shift,
      plan.seeds[0],
      *names,
      time_names=plan.dataset.schema.times,
    )
    signal = _measured_shift(plan, trial, result)
    if signal is not None:
      signal, shifts, are_known = online_adaptation_results.both_known(
        signal, online_adaptation_results.true_shift(client_streams)
      )
      has_any = are_known.any(axis=0)
      true[shift] = shifts.sum(axis=0)[has_any]
      measured[shift] = signal.sum(axis=0)[has_any]
  if measured:
    online_adaptation_figures.shift_scatter(
      true,
      measured,
      folder.figure_path("measured_shift", *names),
      xlabel="True cumulative shift of a client",
      ylabel="Cumulative S",
      title=f"{trial.label}, each client with seed {plan.seeds[0]}",
    )
