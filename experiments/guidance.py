"""Compares algorithms that answer queries from anywhere in a federation.

  python -m experiments.guidance --algorithm=fed_drm,fed_avg_ft,fed_rep \
      --dataset=digits --partition=dirichlet_0.3

  python -m experiments.guidance \
      --flagfile=experiments/presets/guidance/demo.flags --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/ and checkpoints/ into
--output_dir, and prints one table. The same flags and --resume let a run that
was stopped go on.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from absl import flags

from experiments import command_line
from experiments import contestants
from experiments import guidance_plan as planning
from experiments import program
from tff_shift import algorithms
from tff_shift.simulation import checkpoints
from tff_shift.simulation import guidance
from tff_shift.simulation import guidance_results
from tff_shift.simulation import results
from tff_shift.simulation import summary

FLAGS = flags.FLAGS

_COLUMNS = (
  "algorithm",
  "dataset",
  "partition",
  "intensity",
  "learning_rate",
  "lambda_",
  "seed",
  "round",
  "train_loss",
  *guidance.Evaluation._fields,
)


def _run(
  plan: planning.Plan,
  contestant: contestants.Contestant,
  folder: results.RunFolder,
  saved: checkpoints.Checkpoints,
) -> dict[int, guidance.GuidanceResult]:
  """Runs a contestant with every seed, and writes down what it gives."""
  algorithm = algorithms.build(
    contestant.algorithm,
    plan.model,
    contestant.hparams,
    # All test examples of a seed at once; seeds may differ by a few.
    num_queries=max(
      sum(len(each.y) for each in dataset.test)
      for dataset in plan.datasets.values()
    ),
    aggregator=plan.aggregators[contestant.algorithm],
  )
  by_seed = {}
  for seed in plan.seeds:
    labels = {
      "algorithm": contestant.algorithm,
      "dataset": FLAGS.dataset,
      "partition": FLAGS.partition,
      "intensity": FLAGS.intensity,
      "learning_rate": contestant.hparams.learning_rate,
      "lambda_": getattr(contestant.hparams, "lambda_", None),
      "seed": seed,
    }
    with command_line.progress_bar(
      FLAGS.rounds, f"{contestant.label}, seed {seed}"
    ) as bar:
      by_seed[seed] = guidance.run(
        algorithm,
        plan.datasets[seed].train,
        plan.datasets[seed].test,
        num_rounds=FLAGS.rounds,
        run_seed=seed,
        participation=FLAGS.participation,
        evaluate_every=FLAGS.evaluate_every,
        num_final_rounds=FLAGS.final_rounds,
        on_round=_recorder(folder, labels, bar),
        checkpoint=saved.run(labels),
      )
  return by_seed


def _recorder(folder, labels, bar):
  """Returns what is to be done after each round of a run."""
  accuracy = None

  def on_round(round_num, train_loss, evaluation):
    nonlocal accuracy
    if evaluation is not None:
      accuracy = evaluation.system_accuracy
      folder.write_metrics(
        {
          **labels,
          "round": round_num,
          "train_loss": train_loss,
          **evaluation._asdict(),
        }
      )
    bar.update(round_num, loss=train_loss, accuracy=accuracy)

  return on_round


def _summarize(
  plan: planning.Plan,
  contestant: contestants.Contestant,
  by_seed: Mapping[int, guidance.GuidanceResult],
) -> summary.RunSummary:
  """Makes the entry of summary.json of a contestant."""
  return summary.RunSummary(
    algorithm=contestant.algorithm,
    dataset=FLAGS.dataset,
    setting={
      "partition": FLAGS.partition,
      "intensity": FLAGS.intensity,
      "num_clients": FLAGS.num_clients,
      "participation": FLAGS.participation,
      "model": plan.model.name,
      "sharing": FLAGS.sharing,
      "final_rounds": FLAGS.final_rounds,
      **dataclasses.asdict(contestant.hparams),
    },
    metrics_by_seed={seed: result.final() for seed, result in by_seed.items()},
    rounds=FLAGS.rounds,
    seconds_per_round=float(
      np.mean([result.seconds_per_round for result in by_seed.values()])
    ),
    num_diverged=[result.num_diverged for result in by_seed.values()],
  )


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  executor = command_line.executor()
  folder, saved = command_line.open_folder(
    planning.SCENARIO, planning.__name__, _COLUMNS
  )
  guidance_results.draw_clients(plan.datasets[plan.seeds[0]], folder)
  summaries, by_label = [], {}
  with executor:
    for contestant in plan.contestants:
      by_seed = _run(plan, contestant, folder, saved)
      by_label[contestant.label] = by_seed
      summaries.append(_summarize(plan, contestant, by_seed))
      folder.write_summary(summaries)
      guidance_results.draw_routing(
        contestant.label, by_seed[plan.seeds[0]], folder
      )
  guidance_results.draw_accuracy(by_label, folder)
  guidance_results.draw_trade_off(summaries, folder)
  shown = ("learning_rate", "lambda_")
  table = summary.comparison_table(
    [
      dataclasses.replace(
        run,
        setting={key: run.setting[key] for key in shown if key in run.setting},
      )
      for run in summaries
    ],
    metrics=guidance.Evaluation._fields,
  )
  print(table)
  print(f"results: {folder.path}")


if __name__ == "__main__":
  program.run(main, planning.define_flags)
