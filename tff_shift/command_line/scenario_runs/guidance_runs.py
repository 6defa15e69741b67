"""Runs the plan of `experiments.guidance`."""

import functools
from collections.abc import Sequence

import numpy as np
from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import comparison
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.plans import guidance_plan as planning
from tff_shift.command_line.tuning import selection
from tff_shift.data import examples
from tff_shift.data.shifts import guidance as guidance_data
from tff_shift.reporting.results import guidance_results
from tff_shift.simulation.scenarios import guidance

FLAGS = flags.FLAGS

# The metric of selection and of the progress bar.
_CHOSEN = "system_accuracy"
_TEST = "test"

# The number of hold-out examples differs slightly between seeds; rounding it up
# to a multiple avoids rebuilding the algorithm.
_QUERY_STEP = 64


def _num_queries(test: Sequence[examples.Examples]) -> int:
  """Returns the query batch size, which holds all queries of a seed.

  It only depends on this seed, so that results do not depend on other seeds.
  """
  size = sum(len(each.y) for each in test)
  return -(-size // _QUERY_STEP) * _QUERY_STEP


class _Runner:
  """Runs the trials of a plan and writes their results."""

  def __init__(self, running: comparison.Comparison):
    self._running = running
    self._plan = running.plan

  def run(self, trial: selection.Trial) -> dict[int, guidance.GuidanceResult]:
    """Runs a trial with each seed; queries are the test sets."""
    return self._run(trial, _TEST, self._plan.datasets)

  def score(self, trial: selection.Trial) -> float:
    """Returns the mean system accuracy in percent on validation data."""
    by_seed = self._run(
      trial, planning.VALIDATION, self._plan.selection_datasets
    )
    return float(np.mean([r.final()[_CHOSEN] for r in by_seed.values()]))

  def _run(self, trial, held_out, datasets):
    build = functools.cache(
      lambda num_queries: self._running.build(trial, num_queries=num_queries)
    )
    by_seed = {}
    for seed, dataset in datasets.items():
      validation = None
      if selection_flags.validates():
        # The test examples stay; the validation examples are not trained on.
        held = guidance_data.held_out_validation(dataset, seed)
        dataset, validation = dataset._replace(train=held.train), held.test
      with self._running.run(
        trial,
        seed,
        FLAGS.rounds,
        class_names=dataset.class_names if held_out == _TEST else None,
        shown_metric=_CHOSEN,
        early_stopping=selection_flags.early_stopping(),
        held_out=held_out,
      ) as run:
        result = guidance.run(
          build(max(map(_num_queries, (dataset.test, validation or ())))),
          dataset.train,
          dataset.test,
          num_rounds=FLAGS.rounds,
          run_seed=seed,
          **participation_flags.chosen(),
          evaluate_every=FLAGS.evaluate_every,
          num_final_rounds=FLAGS.final_rounds,
          client_names=dataset.client_names,
          validation=validation,
          callbacks=run.callbacks,
          checkpoint=run.checkpoint,
        )
      by_seed[seed] = comparison.without_states(result)
    return by_seed


def run(plan: planning.Plan) -> None:
  """Runs the comparison of a plan."""
  by_label = {}
  with common_flags.executor():
    running = comparison.Comparison(plan)
    first = plan.seeds[0]
    guidance_results.draw_clients(plan.datasets[first], first, running.folder)
    runner = _Runner(running)
    rule = selection_flags.rule(
      planning.VALIDATION, "system accuracy (%) on held-out parts", runner.score
    )
    for reading in running.runs(
      runner.run, rule=rule, all_settings=FLAGS.all_settings
    ):
      label = reading.trial.label
      by_label[label] = reading.by_seed
      running.summarize(
        reading, reading.by_seed, lambda seed, result: result.final()
      )
      guidance_results.draw_routing(
        label, first, reading.by_seed[first], running.folder
      )
  guidance_results.draw_accuracy(by_label, running.folder)
  guidance_results.draw_trade_off(running.summaries, running.folder)
  running.finish(
    [name for name in guidance.Evaluation._fields if name != "not_finite"]
  )
