"""Runs the plan of `experiments.guidance`."""

from collections.abc import Sequence

from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.data import examples
from tff_shift.data.shifts import guidance as guidance_data
from tff_shift.scenarios import scenario
from tff_shift.scenarios.guidance import configuration as planning
from tff_shift.scenarios.guidance import results as guidance_results
from tff_shift.scenarios.guidance import simulation as guidance

# The metric of selection and of the progress bar.
_CHOSEN = "system_accuracy"

# The number of hold-out examples differs slightly between seeds; rounding it up
# to a multiple avoids rebuilding the algorithm.
_QUERY_STEP = 64


def _num_queries(test: Sequence[examples.Examples]) -> int:
  """Returns the query batch size, which holds all queries of a seed.

  It only depends on this seed, so that results do not depend on other seeds.
  """
  size = sum(len(each.y) for each in test)
  return -(-size // _QUERY_STEP) * _QUERY_STEP


class Guidance(scenario.Scenario):
  """Clients train; the server receives queries from all of them.

  Selection uses queries from a part of the training examples.
  """

  plan: planning.Plan

  criterion = planning.VALIDATION
  measure = "system accuracy (%) on held-out parts"

  def data(self, seed, *, is_test):
    """Returns the clients' data, and validation examples or None."""
    by_seed = self.plan.datasets if is_test else self.plan.selection_datasets
    dataset = by_seed[seed]
    if not selection_flags.validates():
      return dataset, None
    # The test examples stay; the validation examples are not trained on.
    held = guidance_data.held_out_validation(dataset, seed)
    return dataset._replace(train=held.train), held.test

  def build_options(self, data):
    """Returns the number of queries."""
    dataset, validation = data
    return {
      "num_queries": max(map(_num_queries, (dataset.test, validation or ())))
    }

  def run_options(self, data):
    """Returns what a saved model knows, and the shown metric."""
    return {
      "shown_metric": _CHOSEN,
      "early_stopping": selection_flags.early_stopping(),
    }

  def training_inputs(self, trial, data):
    """Returns the training examples of all clients."""
    dataset, _ = data
    return [each.x for each in dataset.train]

  def run_one(self, algorithm, data, seed, run):
    """Trains and evaluates."""
    dataset, validation = data
    return guidance.run(
      algorithm,
      dataset.train,
      dataset.test,
      num_rounds=run.num_steps,
      run_seed=seed,
      **participation_flags.chosen(),
      evaluate_every=self.plan.configuration.evaluate_every,
      num_final_rounds=self.plan.configuration.final_rounds,
      client_names=dataset.schema.clients,
      validation=validation,
      callbacks=run.callbacks,
      checkpoint=run.checkpoint,
    )

  def score(self, result):
    """Returns the system accuracy in percent."""
    return result.final()[_CHOSEN]

  def metrics(self, trial, seed, result):
    """Returns the means over the final rounds."""
    return result.final()

  def columns(self):
    """Returns the accuracies, and the metrics of `--metrics`."""
    return [
      *(
        name
        for name in guidance.Evaluation._fields
        if name not in ("not_finite", "others", "tables")
      ),
      *(
        f"{who}_{name}"
        for who in ("own", "system")
        for name, columns in self.running.metrics.columns.items()
        if columns == (name,)
      ),
    ]

  def bounds(self, readings):
    """Yields the baselines."""
    by_seed = self.plan.datasets
    for reading in self.baselines(
      lambda fit, seed: guidance.baseline(
        fit, by_seed[seed].train, by_seed[seed].test
      )
    ):
      yield reading, {}

  def tables(self, result):
    """Returns the tables of the last evaluation."""
    return result.evaluations[max(result.evaluations)].tables or {}

  def begin(self, folder):
    """Draws examples and classes of the clients."""
    seed = self.plan.seeds[0]
    guidance_results.draw_clients(self.plan.datasets[seed], seed, folder)

  def draw_trial(self, reading, folder):
    """Draws which client answers whose queries."""
    seed = self.plan.seeds[0]
    guidance_results.draw_routing(
      reading.trial.label, seed, reading.by_seed[seed], folder
    )

  def draw_all(self, by_label, folder):
    """Draws the curves, and system against average accuracy."""
    guidance_results.draw_accuracy(by_label, folder)
    guidance_results.draw_trade_off(self.running.summaries, folder)
