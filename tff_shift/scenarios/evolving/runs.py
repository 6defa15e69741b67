"""Runs the plan of `experiments.evolving`."""

import dataclasses

from tff_shift import algorithms
from tff_shift._util import shown_names
from tff_shift.command_line import comparison
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import selection
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.scenarios import scenario
from tff_shift.scenarios.evolving import configuration as planning
from tff_shift.scenarios.evolving import results as evolving_results
from tff_shift.scenarios.evolving import rolling
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation import bounds as bounds_lib
from tff_shift.simulation.engine import rounds

_FORGETTING = "forgetting"
# The algorithm of the ceiling.
_CEILING = "fed_avg"


class Evolving(scenario.Scenario):
  """Clients train on the source domains; the last domain is the target.

  Selection holds out the last source domain too, and never uses the target.
  """

  plan: planning.Plan

  criterion = planning.LAST_SOURCE
  measure = "client accuracy (%) on the last source domain"
  test = "target"
  lower_is_better = (_FORGETTING, rolling.MEAN_RANK)

  @property
  def _is_rolling(self):
    return self.plan.configuration.target == planning.ROLLING

  def data(self, seed, *, is_test):
    """Returns the last target, or what selection holds out."""
    return self.plan.targets[seed][-1] if is_test else self.plan.held_out[seed]

  def stages(self, seed, *, is_test):
    """Returns the targets with their names; the last one, if not rolling."""
    self._previous = None
    if not self._is_rolling:
      return super().stages(seed, is_test=is_test)
    targets = self.plan.targets[seed] if is_test else [self.plan.held_out[seed]]
    return [({"target": target.name}, target) for target in targets]

  def combined(self, stages):
    """Returns the results of the targets."""
    if self._is_rolling:
      return rolling.RollingResult(tuple(stages))
    return super().combined(stages)

  def build_options(self, data):
    """Returns the number of domains."""
    return {"num_evaluation_domains": len(data.dataset.domains)}

  def run_options(self, data):
    """Returns what a saved model knows, and the shown metric."""
    num_domains = len(data.dataset.domains)
    return {
      # Of the models of targets, the last one is saved.
      "saves_model": num_domains == self.plan.settings["num_domains"],
      "vocabulary": data.dataset.vocabulary,
      "shown_metric": "client_accuracy",
      "early_stopping": selection_flags.early_stopping(),
    }

  def training_inputs(self, trial, data):
    """Returns the source domains of the clients that train."""
    return planning.training_inputs(self.plan.configuration, trial, data)

  def run_one(self, algorithm, data, seed, run):
    """Trains and evaluates."""
    result = evolving.run(
      algorithm,
      data.clients,
      num_rounds=run.num_steps,
      run_seed=seed,
      **participation_flags.chosen(),
      evaluate_every=self.plan.configuration.evaluate_every,
      evaluation_clients=self.plan.configuration.evaluation_clients,
      validates=selection_flags.validates(),
      measures_forgetting=self.plan.configuration.forgetting,
      num_new_clients=self.plan.configuration.num_new_clients,
      previous=self._previous,
      callbacks=run.callbacks,
      checkpoint=run.checkpoint,
    )
    if self.plan.configuration.continues:
      self._previous = result
    return result

  def score(self, result):
    """Returns the client accuracy in percent."""
    return result.final.client["accuracy"]

  def metrics(self, trial, seed, result):
    """Returns the metrics of the last evaluations on the target.

    And the forgetting of the source domains, if it was measured.
    """
    if isinstance(result, bounds_lib.Bound):
      return result.metrics
    if isinstance(result, rolling.RollingResult):
      return rolling.over_targets(
        [self.metrics(trial, seed, target) for target in result.targets]
      )
    found = summary.last_and_mean(
      [each.measured() for each in result.evaluations],
      self.plan.configuration.mean_of_last,
    )
    if self.plan.configuration.forgetting and result.forgetting is not None:
      found[_FORGETTING] = result.forgetting
    return found

  def relative_metrics(self, by_label):
    """Returns the mean rank over targets, if there are several trials."""
    if not self._is_rolling or len(by_label) < 2:
      return {}
    ranks = rolling.mean_ranks(
      [
        [results[seed].accuracies for seed in self.plan.seeds]
        for results in by_label.values()
      ]
    )
    return {
      label: {
        seed: {rolling.MEAN_RANK: rank}
        for seed, rank in zip(self.plan.seeds, of_seeds, strict=True)
      }
      for label, of_seeds in zip(by_label, ranks.tolist(), strict=True)
    }

  def columns(self):
    """Returns the metrics of clients and server, last and mean.

    Means of the metrics of `--metrics` are only in summary.json, and with
    several targets also means of the last evaluations.
    """
    if self._is_rolling:
      return [
        rolling.MEAN_RANK,
        *(
          f"{which}{who}_{name}"
          for who in ("client", "server", "new_client")
          for name in self.compared()
          for which in ("", rolling.WORST)
        ),
      ]
    return [
      f"{which}{who}_{name}"
      for which, names in (
        ("", self.compared()),
        (summary.MEAN_OF_LAST, evaluation.compared()),
      )
      for who in ("client", "server", "new_client")
      for name in names
    ]

  def bounds(self, readings):
    """Yields the baselines, and the ceiling of FedAvg on pooled data."""
    num_new = self.plan.configuration.num_new_clients
    for reading in self.baselines(
      lambda fit, seed: self.combined(
        [
          evolving.baseline(fit, target.clients, num_new)
          for target in self.plan.targets[seed]
        ]
      )
    ):
      yield reading, {}
    if self._is_rolling:
      output_folder.warn(
        f"--bounds: {bounds_lib.POOLED} is not computed with"
        f" --target={planning.ROLLING}"
      )
      return
    if self.plan.configuration.concept_drift is not None:
      output_folder.warn(
        f"--bounds: {bounds_lib.POOLED} is not computed: with --concept_drift,"
        " pooled data contradict each other"
      )
      return
    trials = [each for each in readings if each.trial.algorithm == _CEILING]
    if len(trials) > 1:
      trials = [each for each in trials if each.selection != selection.NONE]
    if len(trials) != 1:
      output_folder.warn(
        f"--bounds: {bounds_lib.POOLED} is not computed: it has the"
        f" hyper-parameters of {_CEILING}, and the comparison has not exactly"
        " one setting of it, or a selected one"
      )
      return
    yield self._pooled(trials[0]), {}

  def _pooled(self, reading):
    """Runs FedAvg with all training data in one client."""
    hparams = reading.trial.hparams
    num_clients = (
      self.plan.configuration.num_clients
      - self.plan.configuration.num_new_clients
    )
    # Epochs grow with the data, and steps do not.
    hparams = dataclasses.replace(
      hparams,
      local_steps=hparams.local_steps
      * rounds.num_sampled(num_clients, self.plan.configuration.participation),
      straggler_ratio=0.0,
    )
    trial = selection.Trial(bounds_lib.POOLED, hparams, reading.trial.compared)
    self.running.expect_more_runs(len(self.plan.seeds))
    by_seed, built = {}, {}
    for seed in self.plan.seeds:
      data = self.data(seed, is_test=True)
      options = self.build_options(data)
      model = self.model(reading.trial, data)
      key = model.input_scaling, *options.items()
      if key not in built:
        # One client needs no aggregator.
        built[key] = algorithms.build(
          _CEILING,
          model,
          hparams,
          metrics=metric_flags.names(),
          class_names=self.plan.schema.classes,
          **options,
        )
      with self.running.run(
        trial,
        seed,
        self.plan.num_steps,
        shown_metric="client_accuracy",
        held_out=self.test,
      ) as run:
        result = evolving.run(
          built[key],
          evolving.pooled(
            data.clients, self.plan.configuration.num_new_clients
          ),
          num_rounds=run.num_steps,
          run_seed=seed,
          evaluate_every=self.plan.configuration.evaluate_every,
          measures_forgetting=self.plan.configuration.forgetting,
          num_new_clients=self.plan.configuration.num_new_clients,
          callbacks=run.callbacks,
          checkpoint=run.checkpoint,
        )
      # That other clients do not train is no finding.
      by_seed[seed] = comparison.without_states(result)._replace(
        left_out=result.left_out._replace(training=())
      )
    return selection.TrialResult(trial, selection.NONE, by_seed)

  def tables(self, result):
    """Returns the tables of the last evaluation."""
    return result.tables if self._is_rolling else result.final.tables or {}

  def begin(self, folder):
    """Draws examples of each domain, and the concepts of the first seed."""
    dataset = self._first_dataset()
    note = "" if self._is_rolling else "; the last {}is the target"
    if self._is_rolling or dataset_flags.is_own():
      first = len(dataset.domains) - len(self._target_names())
      line = evolving_data.target_line(dataset, first)
      print(shown_names.line(line), flush=True)
    evolving_results.draw_domains(dataset, folder, note.format(""))
    concepts = self.plan.concepts[self.plan.seeds[0]]
    if concepts is not None:
      names = [domain.name for domain in dataset.domains]
      evolving_results.draw_concepts(
        concepts, names, folder, note.format("domain ")
      )

  def draw_all(self, by_label, folder):
    """Draws the curves and the accuracy of each domain, or of each target."""
    if self._is_rolling:
      evolving_results.draw_targets(by_label, self._target_names(), folder)
    else:
      evolving_results.draw_results(by_label, self._first_dataset(), folder)

  def _target_names(self):
    return [target.name for target in self.plan.targets[self.plan.seeds[0]]]

  def _first_dataset(self):
    return self.data(self.plan.seeds[0], is_test=True).dataset
