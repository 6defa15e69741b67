"""Compares algorithms on domains that evolve; the last domain is unseen.

  python -m experiments.evolving --algorithm=fed_avg,fed_evolve,fed_evp \
      --dataset=rotated_digits --rounds=10

  python -m experiments.evolving \
      --flagfile=experiments/presets/evolving/circle.flags \
      --algorithm=fed_evolve --learning_rate=1e-5,1e-4 --select=last_source \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ into --output_dir, and prints one table. The same flags and
--resume let a run that was stopped go on.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from absl import flags

from experiments import command_line
from experiments import evolving_plan as planning
from experiments import program
from tff_shift import algorithms
from tff_shift.data import datasets as datasets_lib
from tff_shift.simulation import checkpoints
from tff_shift.simulation import evolving
from tff_shift.simulation import results
from tff_shift.simulation import selection
from tff_shift.simulation import summary

FLAGS = flags.FLAGS

_COLUMNS = (
  "algorithm",
  "dataset",
  "held_out",
  "learning_rate",
  "seed",
  "round",
  "train_loss",
  "client_accuracy",
  "server_accuracy",
  "client_loss",
  "server_loss",
  "seconds_per_round",
)


class _Runner:
  """Runs an algorithm of a plan and writes down what it gives."""

  def __init__(
    self,
    plan: planning.Plan,
    folder: results.RunFolder,
    saved: checkpoints.Checkpoints,
  ):
    self._plan = plan
    self._folder = folder
    self._saved = saved

  def run(
    self, name: str, rate: float, held_out: str
  ) -> dict[int, evolving.EvolvingResult]:
    """Runs an algorithm at a rate for each seed.

    Args:
      name: The algorithm.
      rate: The learning rate.
      held_out: `target`, or `last_source` to train without the target and
        without the domain before it, which is then predicted.

    Returns:
      The results, by seed.
    """
    plan = self._plan
    is_selection = held_out == planning.LAST_SOURCE
    seeds = plan.selection_seeds if is_selection else plan.seeds
    datasets = {
      seed: planning.without_target(plan.datasets[seed])
      if is_selection
      else plan.datasets[seed]
      for seed in seeds
    }
    algorithm = algorithms.build(
      name,
      plan.model,
      plan.hparams[name][rate],
      num_evaluation_domains=len(datasets[seeds[0]].domains),
      aggregator=plan.aggregators[name],
    )
    by_seed = {}
    for seed, dataset in datasets.items():
      labels = {
        "algorithm": name,
        "dataset": dataset.name,
        "held_out": held_out,
        "learning_rate": rate,
        "seed": seed,
      }
      shown = f"{name}, rate {rate:g}, seed {seed}"
      with command_line.progress_bar(
        FLAGS.rounds, f"{shown}, {held_out}" if is_selection else shown
      ) as bar:
        by_seed[seed] = evolving.run(
          algorithm,
          planning.assemble(dataset, seed, plan.dirichlet),
          num_rounds=FLAGS.rounds,
          run_seed=seed,
          participation=FLAGS.participation,
          evaluate_every=FLAGS.evaluate_every,
          evaluation_clients=FLAGS.evaluation_clients,
          on_round=self._recorder(labels, bar),
          checkpoint=self._saved.run(labels),
        )
    return by_seed

  def _recorder(self, labels, bar):
    """Returns what is to be done after each round of a run."""
    curve = "{algorithm}/{held_out}/rate_{learning_rate:g}/seed_{seed}"
    accuracy = None

    def on_round(round_num, train_loss, evaluation):
      nonlocal accuracy
      if evaluation is not None:
        accuracy = evaluation.client_accuracy
        measured = {
          key: value
          for key, value in evaluation._asdict().items()
          if isinstance(value, float)
        }
        self._folder.write_metrics({**labels, "round": round_num, **measured})
        self._folder.release_to_tensorboard(
          curve.format(**labels), measured, round_num
        )
      bar.update(round_num, loss=train_loss, accuracy=accuracy)

    return on_round


def _score(by_seed: Mapping[int, evolving.EvolvingResult]) -> float:
  return float(np.mean([r.final.client_accuracy for r in by_seed.values()]))


def _report_choice(name, scores, chosen) -> None:
  listed = ", ".join(f"{rate:g}: {scores[rate]:.2f}" for rate in sorted(scores))
  print(
    f"{name}: client accuracy (%) on the last source domain by rate: "
    f"{listed};"
    f" chosen: {chosen:g}",
    flush=True,
  )


def _summarize(
  plan: planning.Plan, reading: selection.Reading
) -> summary.RunSummary:
  """Makes the entry of summary.json of an algorithm at a rate."""
  dataset = plan.datasets[plan.seeds[0]]
  setting = {
    "dirichlet": str(plan.dirichlet),
    "num_clients": FLAGS.num_clients,
    "num_domains": len(dataset.domains),
    "participation": FLAGS.participation,
    "evaluation_clients": FLAGS.evaluation_clients,
    "model": plan.model.name,
    "selection": reading.selection,
    **dataclasses.asdict(
      plan.hparams[reading.algorithm][reading.learning_rate]
    ),
  }
  evolution = datasets_lib.get(FLAGS.dataset).evolution
  if evolution.angle_step is not None:
    step = FLAGS.angle_step
    step = evolution.angle_step if step is None else step
    setting["angle_step"] = step
    setting["target_rotation_degrees"] = (
      FLAGS.first_angle
      + step * (len(dataset.domains) - 1)
      + FLAGS.target_extra_angle
    )
  metrics_by_seed = {}
  for seed, result in reading.by_seed.items():
    metrics = {"client_accuracy": result.final.client_accuracy}
    if result.final.server_accuracy is not None:
      metrics["server_accuracy"] = result.final.server_accuracy
    metrics_by_seed[seed] = metrics
  return summary.RunSummary(
    algorithm=reading.algorithm,
    dataset=dataset.name,
    setting=setting,
    metrics_by_seed=metrics_by_seed,
    rounds=FLAGS.rounds,
    seconds_per_round=float(
      np.mean([r.seconds_per_round for r in reading.by_seed.values()])
    ),
    num_diverged=[r.num_diverged for r in reading.by_seed.values()],
  )


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  executor = command_line.executor()
  folder, saved = command_line.open_folder(
    planning.SCENARIO, planning.__name__, _COLUMNS
  )
  dataset = plan.datasets[plan.seeds[0]]
  evolving.draw_domains(dataset, folder)
  summaries, by_label = [], {}
  with executor:
    for reading in selection.compare(
      {name: list(rates) for name, rates in plan.hparams.items()},
      _Runner(plan, folder, saved).run,
      select=FLAGS.select,
      score=_score,
      all_rates=FLAGS.all_rates,
      on_choice=_report_choice,
    ):
      summaries.append(_summarize(plan, reading))
      folder.write_summary(summaries)
      label = reading.algorithm
      if len(plan.hparams[label]) > 1:
        label += f", rate {reading.learning_rate:g}"
      by_label[label] = reading.by_seed
  evolving.draw_results(by_label, dataset, folder)
  shown = ("learning_rate", "selection")
  table = summary.comparison_table(
    [
      dataclasses.replace(run, setting={key: run.setting[key] for key in shown})
      for run in summaries
    ]
  )
  print(table)
  print(f"results: {folder.path}")


if __name__ == "__main__":
  program.run(main, planning.define_flags)
