"""Runs the plan of `experiments.evolving`."""

from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.scenarios import scenario
from tff_shift.scenarios.evolving import configuration as planning
from tff_shift.scenarios.evolving import results as evolving_results
from tff_shift.scenarios.evolving import simulation as evolving


class Evolving(scenario.Scenario):
  """Clients train on the source domains; the last domain is the target.

  Selection holds out the last source domain too, and never uses the target.
  """

  criterion = planning.LAST_SOURCE
  measure = "client accuracy (%) on the last source domain"
  test = "target"

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
      "class_names": dataset.class_names,
      "vocabulary": dataset.vocabulary,
      "shown_metric": "client_accuracy",
      "early_stopping": selection_flags.early_stopping(),
    }

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
      num_new_clients=self.plan.configuration.num_new_clients,
      callbacks=run.callbacks,
      checkpoint=run.checkpoint,
    )

  def score(self, result):
    """Returns the client accuracy in percent."""
    return result.final.client["accuracy"]

  def metrics(self, trial, seed, result):
    """Returns the metrics of the last evaluations on the target."""
    return summary.last_and_mean(
      [each.measured() for each in result.evaluations],
      self.plan.configuration.mean_of_last,
    )

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

  def tables(self, result):
    """Returns the tables of the last evaluation."""
    return result.final.tables or {}

  def begin(self, folder):
    """Draws examples of each domain."""
    evolving_results.draw_domains(self._first_dataset(), folder)

  def draw_all(self, by_label, folder):
    """Draws the curves and the accuracy of each domain."""
    evolving_results.draw_results(by_label, self._first_dataset(), folder)

  def _first_dataset(self):
    return self.plan.datasets[self.plan.seeds[0]]


def run(plan: planning.Plan) -> None:
  """Runs the comparison of a plan."""
  Evolving(plan).run()
