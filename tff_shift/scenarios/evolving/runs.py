"""Runs the plan of `experiments.evolving`."""

import dataclasses

from tff_shift import algorithms
from tff_shift.command_line import comparison
from tff_shift.command_line import output_folder
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import selection
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.scenarios import scenario
from tff_shift.scenarios.evolving import configuration as planning
from tff_shift.scenarios.evolving import results as evolving_results
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
  lower_is_better = (_FORGETTING,)

  def data(self, seed, *, is_test):
    """Returns whether it has the target, the data set, and the clients."""
    clients = self.plan.clients if is_test else self.plan.clients_without_target
    return is_test, self.plan.datasets[seed], clients[seed]

  def build_options(self, data):
    """Returns the number of domains."""
    has_target, dataset, _ = data
    return {"num_evaluation_domains": len(dataset.domains) - (not has_target)}

  def run_options(self, data):
    """Returns what a saved model knows, and the shown metric."""
    _, dataset, _ = data
    return {
      "vocabulary": dataset.vocabulary,
      "shown_metric": "client_accuracy",
      "early_stopping": selection_flags.early_stopping(),
    }

  def training_inputs(self, trial, data):
    """Returns the source domains of the clients that train."""
    *_, clients = data
    return planning.training_inputs(self.plan.configuration, trial, clients)

  def run_one(self, algorithm, data, seed, run):
    """Trains and evaluates."""
    *_, clients = data
    return evolving.run(
      algorithm,
      clients,
      num_rounds=run.num_steps,
      run_seed=seed,
      **participation_flags.chosen(),
      evaluate_every=self.plan.configuration.evaluate_every,
      evaluation_clients=self.plan.configuration.evaluation_clients,
      validates=selection_flags.validates(),
      measures_forgetting=self.plan.configuration.forgetting,
      num_new_clients=self.plan.configuration.num_new_clients,
      callbacks=run.callbacks,
      checkpoint=run.checkpoint,
    )

  def score(self, result):
    """Returns the client accuracy in percent."""
    return result.final.client["accuracy"]

  def metrics(self, trial, seed, result):
    """Returns the metrics of the last evaluations on the target.

    And the forgetting of the source domains, if it was measured.
    """
    found = summary.last_and_mean(
      [each.measured() for each in result.evaluations],
      self.plan.configuration.mean_of_last,
    )
    if self.plan.configuration.forgetting and result.forgetting is not None:
      found[_FORGETTING] = result.forgetting
    return found

  def columns(self):
    """Returns the metrics of clients and server, last and mean.

    Means of the metrics of `--metrics` are only in summary.json.
    """
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
      lambda fit, seed: evolving.baseline(fit, self.plan.clients[seed], num_new)
    ):
      yield reading, {}
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
            self.plan.clients[seed], self.plan.configuration.num_new_clients
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
    return result.final.tables or {}

  def begin(self, folder):
    """Draws examples of each domain, and the concepts of the first seed."""
    dataset = self._first_dataset()
    evolving_results.draw_domains(dataset, folder)
    concepts = self.plan.concepts[self.plan.seeds[0]]
    if concepts is not None:
      names = [domain.name for domain in dataset.domains]
      evolving_results.draw_concepts(concepts, names, folder)

  def draw_all(self, by_label, folder):
    """Draws the curves and the accuracy of each domain."""
    evolving_results.draw_results(by_label, self._first_dataset(), folder)

  def _first_dataset(self):
    return self.plan.datasets[self.plan.seeds[0]]
