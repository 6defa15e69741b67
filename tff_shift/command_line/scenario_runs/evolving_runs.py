"""Runs the plan of `experiments.evolving`."""

from collections.abc import Mapping

import numpy as np
from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import comparison
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.plans import evolving_plan as planning
from tff_shift.command_line.tuning import selection
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.reporting.results import evolving_results
from tff_shift.simulation.scenarios import evolving

FLAGS = flags.FLAGS

_TARGET = "target"


class _Runner:
  """Runs the trials of a plan."""

  def __init__(self, running: comparison.Comparison):
    self._running = running
    self._plan = running.plan

  def run(self, trial: selection.Trial) -> dict[int, evolving.EvolvingResult]:
    """Runs a trial with each seed; evaluates on the target domain."""
    return self._run(trial, _TARGET, self._plan.clients)

  def score(self, trial: selection.Trial) -> float:
    """Returns the client accuracy on the last source domain, in percent.

    Trains without the target and without the last source domain. The accuracy
    is the mean over selection seeds.
    """
    by_seed = self._run(
      trial, planning.LAST_SOURCE, self._plan.clients_without_target
    )
    return float(
      np.mean([r.final.client["accuracy"] for r in by_seed.values()])
    )

  def _run(self, trial, held_out, clients_by_seed):
    domains = self._plan.datasets[self._plan.seeds[0]].domains
    algorithm = self._running.build(
      trial,
      num_evaluation_domains=len(domains) - (held_out != _TARGET),
    )
    by_seed = {}
    for seed, clients in clients_by_seed.items():
      dataset = self._plan.datasets[seed]
      with self._running.run(
        trial,
        seed,
        FLAGS.rounds,
        class_names=dataset.class_names if held_out == _TARGET else None,
        vocabulary=dataset.vocabulary,
        shown_metric="client_accuracy",
        early_stopping=selection_flags.early_stopping(),
        held_out=held_out,
      ) as run:
        result = evolving.run(
          algorithm,
          clients,
          num_rounds=FLAGS.rounds,
          run_seed=seed,
          **participation_flags.chosen(),
          evaluate_every=FLAGS.evaluate_every,
          evaluation_clients=FLAGS.evaluation_clients,
          validates=selection_flags.validates(),
          callbacks=run.callbacks,
          checkpoint=run.checkpoint,
        )
      by_seed[seed] = comparison.without_states(result)
    return by_seed


def _final_metrics(
  seed: int, result: evolving.EvolvingResult
) -> Mapping[str, float]:
  """Returns the final metrics on the target domain."""
  del seed
  return summary.last_and_mean(
    [each.measured() for each in result.evaluations], FLAGS.mean_of_last
  )


def run(plan: planning.Plan) -> None:
  """Runs the comparison of a plan."""
  dataset = plan.datasets[plan.seeds[0]]
  by_label = {}
  with common_flags.executor():
    running = comparison.Comparison(plan)
    evolving_results.draw_domains(dataset, running.folder)
    runner = _Runner(running)
    rule = selection_flags.rule(
      planning.LAST_SOURCE,
      "client accuracy (%) on the last source domain",
      runner.score,
    )
    for reading in running.runs(
      runner.run, rule=rule, all_settings=FLAGS.all_settings
    ):
      running.summarize(reading, reading.by_seed, _final_metrics)
      by_label[reading.trial.label] = reading.by_seed
  evolving_results.draw_results(by_label, dataset, running.folder)
  running.finish(
    [
      f"{which}{who}_{name}"
      for which in ("", summary.MEAN_OF_LAST)
      for who in ("client", "server")
      for name in evaluation.compared()
    ]
  )
