"""Compares algorithms that adapt a deployed model to unlabelled, drifting data.

  python -m experiments.online_adaptation --algorithm=source,fix_lr,fed_ade \
      --dataset=digits --shift=linear,square --timesteps=20

  python -m experiments.online_adaptation \
      --flagfile=experiments/presets/online_adaptation/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/ and checkpoints/ into
--output_dir, keeps pre-trained models in --cache_dir, and prints one table. The
same flags and --resume let a run that was stopped go on.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import flags

from experiments import command_line
from experiments import online_adaptation_plan as planning
from experiments import program
from tff_shift import algorithms
from tff_shift.data import streams
from tff_shift.shift import bbse
from tff_shift.simulation import checkpoints
from tff_shift.simulation import online
from tff_shift.simulation import online_figures
from tff_shift.simulation import online_results
from tff_shift.simulation import pretraining
from tff_shift.simulation import results
from tff_shift.simulation import summary

FLAGS = flags.FLAGS

_COLUMNS = (
  "algorithm",
  "dataset",
  "shift",
  "shift_kind",
  "learning_rate",
  "seed",
  "timestep",
  "omega",
  "accuracy_before",
  "accuracy",
  "loss",
  "mean_learning_rate",
)


def _pretrain(plan: planning.Plan) -> pretraining.Pretrained:
  """Pre-trains the model or takes it from the cache."""
  dataset = plan.dataset
  with (
    command_line.progress_bar(
      plan.pretraining.max_epochs,
      f"pre-training on {len(dataset.pretraining.y)} examples",
    ) as bar,
    command_line.usage_errors(),
  ):
    pretrained = pretraining.pretrain(
      plan.model,
      dataset.pretraining,
      dataset.validation,
      plan.pretraining,
      seed=FLAGS.pretraining_seed,
      cache_dir=FLAGS.cache_dir,
      on_epoch=lambda epoch: bar.update(
        epoch.number,
        loss=epoch.validation_loss,
        accuracy=epoch.validation_accuracy,
      ),
    )
  print(
    f"pre-trained model: {pretrained.validation_accuracy:.2f} % on"
    f" {len(dataset.validation.y)} held-out examples, epoch"
    f" {pretrained.best_epoch} of {pretrained.num_epochs}",
    flush=True,
  )
  return pretrained


class _Runner:
  """Runs the contestants of a plan and writes down what they give."""

  def __init__(
    self,
    plan: planning.Plan,
    pretrained: pretraining.Pretrained,
    folder: results.RunFolder,
    saved: checkpoints.Checkpoints,
  ):
    self._plan = plan
    self._pretrained = pretrained
    self._folder = folder
    self._saved = saved
    self._model = pretraining.with_pretrained(plan.model, pretrained)

  def _deployment(self, contestant: planning.Contestant, seed: int):
    """Returns what clients hold from before deployment."""
    confusion = bbse.confusion_matrix(
      tf.constant(self._pretrained.validation_logits),
      tf.constant(self._pretrained.validation_y),
      soft=getattr(contestant.hparams, "soft_predictions", False),
    )
    initial = [
      streams.initial_examples(
        self._plan.dataset, FLAGS.initial_examples, client, seed
      )
      for client in range(FLAGS.num_clients)
    ]
    return online.Deployment(initial, confusion.numpy())

  def run(
    self, contestant: planning.Contestant
  ) -> dict[str, dict[int, online.OnlineResult]]:
    """Runs a contestant on every schedule with every seed."""
    algorithm = algorithms.build(
      contestant.algorithm,
      self._model,
      contestant.hparams,
      aggregator=self._plan.aggregators[contestant.algorithm],
    )
    return {
      shift: {
        seed: self._run_one(algorithm, contestant, shift, seed)
        for seed in self._plan.seeds
      }
      for shift in FLAGS.shift
    }

  def _run_one(self, algorithm, contestant, shift, seed):
    labels = {
      "algorithm": contestant.algorithm,
      "dataset": FLAGS.dataset,
      "shift": shift,
      "shift_kind": FLAGS.shift_kind,
      "learning_rate": contestant.learning_rate,
      "seed": seed,
    }
    with command_line.progress_bar(
      FLAGS.timesteps, f"{contestant.label}, {shift}, seed {seed}"
    ) as bar:

      def on_timestep(step):
        self._folder.write_metrics(
          {
            **labels,
            "timestep": step.timestep,
            "omega": step.omega,
            "accuracy_before": step.accuracy_before,
            "accuracy": step.accuracy,
            "loss": step.loss,
            "mean_learning_rate": (
              None
              if np.isnan(step.learning_rates).any()
              else float(np.mean(step.learning_rates))
            ),
          }
        )
        bar.update(step.timestep, loss=step.loss, accuracy=step.accuracy)

      return online.run(
        algorithm,
        planning.client_streams(self._plan, shift, seed),
        self._deployment(contestant, seed),
        run_seed=seed,
        rounds_per_step=FLAGS.rounds_per_step,
        participation=FLAGS.participation,
        on_timestep=on_timestep,
        checkpoint=self._saved.run(labels),
      )


def _measured_shift(
  contestant: planning.Contestant, result: online.OnlineResult
) -> np.ndarray | None:
  """Returns S of each client at each step, [timesteps, num_clients].

  None where the rate does not come from a measured shift, or not at each step.
  """
  low = getattr(contestant.hparams, "eta_min", None)
  if low is None or FLAGS.participation < 1:
    return None
  high = contestant.hparams.eta_max
  if low == high:
    return None
  return online_results.measured_shift(result, low, high)


def _summarize(
  plan: planning.Plan,
  contestant: planning.Contestant,
  shift: str,
  by_seed: Mapping[int, online.OnlineResult],
) -> summary.RunSummary:
  """Makes the entry of summary.json of a contestant on a schedule."""
  metrics_by_seed = {}
  for seed, result in by_seed.items():
    metrics_by_seed[seed] = {
      "accuracy": result.mean("accuracy"),
      "before_adaptation_accuracy": result.mean("accuracy_before"),
    }
    measured = _measured_shift(contestant, result)
    if measured is not None and FLAGS.shift_kind == "label":
      true = online_results.true_shift(
        planning.client_streams(plan, shift, seed)
      )
      metrics_by_seed[seed] |= {
        # Over clients, as the theorems have it; and over clients and steps.
        "cumulative_shift_correlation": online_results.rank_correlation(
          measured.sum(axis=0), true.sum(axis=0)
        ),
        "step_shift_correlation": online_results.rank_correlation(
          measured, true
        ),
      }
  return summary.RunSummary(
    algorithm=contestant.algorithm,
    dataset=FLAGS.dataset,
    setting={
      "shift": shift,
      "shift_kind": FLAGS.shift_kind,
      "dirichlet": str(plan.dirichlet),
      "num_clients": FLAGS.num_clients,
      "participation": FLAGS.participation,
      "rounds_per_step": FLAGS.rounds_per_step,
      "samples_per_step": FLAGS.samples_per_step,
      "initial_examples": FLAGS.initial_examples,
      "pretraining_distribution": FLAGS.pretraining_distribution,
      "model": plan.model.name,
      **dataclasses.asdict(contestant.hparams),
    },
    metrics_by_seed=metrics_by_seed,
    rounds=FLAGS.timesteps,
    seconds_per_round=float(
      np.mean([result.seconds_per_round for result in by_seed.values()])
    ),
    num_diverged=[result.num_diverged for result in by_seed.values()],
  )


def _draw_rates(
  plan: planning.Plan,
  contestant: planning.Contestant,
  by_shift: Mapping[str, Mapping[int, online.OnlineResult]],
  folder: results.RunFolder,
) -> None:
  """Draws where the rates of the first seed came from."""
  seed = plan.seeds[0]
  true, measured = {}, {}
  for shift, by_seed in by_shift.items():
    client_streams = planning.client_streams(plan, shift, seed)
    online_results.draw_adaptation(
      by_seed[seed], client_streams, plan.dataset.class_names, folder, shift
    )
    signal = _measured_shift(contestant, by_seed[seed])
    if signal is not None:
      true[shift] = online_results.true_shift(client_streams).sum(axis=0)
      measured[shift] = signal.sum(axis=0)
  if measured:
    online_figures.shift_scatter(
      true,
      measured,
      folder.figure_path("measured_shift"),
      xlabel="True cumulative shift of a client",
      ylabel="Cumulative S",
    )


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  executor = command_line.executor()
  folder, saved = command_line.open_folder(
    planning.SCENARIO, planning.__name__, _COLUMNS
  )
  if FLAGS.shift_kind == "covariate":
    online_results.draw_corruptions(plan.dataset.stream.x[0], folder)
  runner = _Runner(plan, _pretrain(plan), folder, saved)
  summaries, by_shift = [], {shift: {} for shift in FLAGS.shift}
  with executor:
    for contestant in plan.contestants:
      found = runner.run(contestant)
      for shift, by_seed in found.items():
        by_shift[shift][contestant.label] = by_seed
        summaries.append(_summarize(plan, contestant, shift, by_seed))
      folder.write_summary(summaries)
      if hasattr(contestant.hparams, "eta_min"):
        _draw_rates(plan, contestant, found, folder)
  for shift, by_label in by_shift.items():
    omega = np.mean(list(plan.omegas[shift].values()), axis=0)
    online_results.draw_accuracy(by_label, omega, folder, shift)
  shown = ("shift", "learning_rate")
  table = summary.comparison_table(
    [
      dataclasses.replace(
        run,
        setting={key: run.setting[key] for key in shown if key in run.setting},
      )
      for run in sorted(
        summaries, key=lambda each: FLAGS.shift.index(each.setting["shift"])
      )
    ]
  )
  print(table)
  print(f"results: {folder.path}")


if __name__ == "__main__":
  program.run(main, planning.define_flags)
