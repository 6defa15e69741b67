r"""Compares algorithms that answer queries from anywhere in a federation.

  python -m experiments.guidance --algorithm=fed_drm,fed_avg_ft,fed_rep \
      --dataset=digits --partition=dirichlet_0.3

  python -m experiments.guidance \
      --flagfile=experiments/presets/guidance/demo.flags --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ into --output_dir, and prints one table. The same flags and
--resume let a run that was stopped go on.
"""

import functools

from absl import flags

from experiments import command_line
from experiments import comparison
from experiments import guidance_plan as planning
from experiments import program
from tff_shift.simulation import guidance
from tff_shift.simulation import guidance_results
from tff_shift.simulation import selection

FLAGS = flags.FLAGS


def _run(
  running: comparison.Comparison, contestant: selection.Contestant
) -> dict[int, guidance.GuidanceResult]:
  """Runs a contestant with every seed, and writes down what it gives."""
  datasets = running.plan.datasets
  algorithm = running.build(
    contestant,
    # All test examples of a seed at once; seeds may differ by a few.
    num_queries=max(
      sum(len(each.y) for each in dataset.test) for dataset in datasets.values()
    ),
  )
  by_seed = {}
  for seed, dataset in datasets.items():
    with running.run(contestant, seed, FLAGS.rounds) as run:
      by_seed[seed] = guidance.run(
        algorithm,
        dataset.train,
        dataset.test,
        num_rounds=FLAGS.rounds,
        run_seed=seed,
        participation=FLAGS.participation,
        evaluate_every=FLAGS.evaluate_every,
        num_final_rounds=FLAGS.final_rounds,
        on_round=run.recorder("system_accuracy"),
        on_loss=run.write_loss,
        checkpoint=run.checkpoint,
      )
  return by_seed


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  by_label = {}
  with command_line.executor():
    running = comparison.Comparison(plan)
    guidance_results.draw_clients(plan.datasets[plan.seeds[0]], running.folder)
    for reading in running.runs(functools.partial(_run, running)):
      label = reading.contestant.label
      by_label[label] = reading.by_seed
      running.summarize(
        reading, reading.by_seed, lambda seed, result: result.final()
      )
      guidance_results.draw_routing(
        label, reading.by_seed[plan.seeds[0]], running.folder
      )
  guidance_results.draw_accuracy(by_label, running.folder)
  guidance_results.draw_trade_off(running.summaries, running.folder)
  running.finish(guidance.Evaluation._fields)


if __name__ == "__main__":
  program.run(main, planning.define_flags)
