"""Compares algorithms on clients whose data drift from period to period.

  python -m experiments.dynamic_personalization \
      --algorithm=fed_3da,p_fed_hn,fed_avg,local --dataset=digits \
      --test_distributions=iid,0.5,0.9

  python -m experiments.dynamic_personalization \
      --flagfile=experiments/presets/dynamic_personalization/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/ and checkpoints/ into
--output_dir, keeps extractors in --cache_dir, and prints one table. The same
flags and --resume let a run that was stopped go on.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from absl import flags

from experiments import command_line
from experiments import contestants
from experiments import dynamic_personalization_plan as planning
from experiments import program
from tff_shift import algorithms
from tff_shift.simulation import checkpoints
from tff_shift.simulation import dynamic
from tff_shift.simulation import dynamic_results
from tff_shift.simulation import instruments as instruments_lib
from tff_shift.simulation import pretraining
from tff_shift.simulation import results
from tff_shift.simulation import summary

FLAGS = flags.FLAGS

_COLUMNS = (
  "algorithm",
  "dataset",
  "learning_rate",
  "meta_learning_rate",
  "seed",
  "test_distribution",
  "period",
  "accuracy",
  "distance",
  "drifted_share",
  "detected_share",
  "requests",
)

# Those in which contestants differ. How well drifts are detected does not
# depend on the algorithm: summary.json tells.
_SHOWN_METRICS = (
  "validation_accuracy",
  "accuracy",
  "multi_period_variance",
  "low_accuracy_share",
  "request_share",
)


def _train_extractor(plan: planning.Plan) -> pretraining.Pretrained:
  """Trains the extractor on public data, or takes it from the cache."""
  train, held_out = instruments_lib.split_public(
    plan.dataset.public, FLAGS.public_seed
  )
  with command_line.progress_bar(
    plan.pretraining.max_epochs, f"extractor, {len(train.y)} examples"
  ) as bar:
    try:
      trained = pretraining.pretrain(
        plan.extractor,
        train,
        held_out,
        plan.pretraining,
        seed=FLAGS.public_seed,
        cache_dir=FLAGS.cache_dir,
        on_epoch=lambda epoch: bar.update(
          epoch.number,
          loss=epoch.validation_loss,
          accuracy=epoch.validation_accuracy,
        ),
      )
    except OSError as error:
      raise command_line.UsageError(
        f"--cache_dir={FLAGS.cache_dir}: it cannot be written"
        f" ({error.strerror}); name a folder that you may write to"
      ) from error
  print(
    f"extractor: {trained.validation_accuracy:.2f} % on {len(held_out.y)}"
    " held-out public examples",
    flush=True,
  )
  return trained


def _fit_instruments(plan: planning.Plan) -> instruments_lib.Instruments:
  """Fits what clients measure with."""
  extractor = None
  if plan.extractor is not None:
    extractor = instruments_lib.make_extractor(
      plan.extractor, _train_extractor(plan).weights
    )
  needs_r = plan.representation_size is not None
  return instruments_lib.fit(
    plan.dataset,
    representation=FLAGS.representation if needs_r else None,
    representation_size=plan.representation_size,
    distance_features=FLAGS.distance_features,
    period_size=FLAGS.period_size,
    extractor=extractor,
    threshold=FLAGS.distance_threshold,
    quantile=plan.quantile,
    seed=FLAGS.public_seed,
  )


class _Runner:
  """Runs the contestants of a plan and writes down what they give."""

  def __init__(
    self,
    plan: planning.Plan,
    instruments: instruments_lib.Instruments,
    folder: results.RunFolder,
    saved: checkpoints.Checkpoints,
  ):
    self._plan = plan
    self._instruments = instruments
    self._folder = folder
    self._saved = saved
    # What clients meet is the same for all contestants.
    self._streams = {
      (seed, distribution): self._measure(seed, distribution)
      for seed in plan.seeds
      for distribution in FLAGS.test_distributions
    }
    for distribution in FLAGS.test_distributions:
      dynamic_results.draw_distances(
        self._streams[plan.seeds[0], distribution],
        instruments.threshold,
        distribution,
        folder,
      )

  def _measure(self, seed: int, distribution: str) -> dynamic.Stream:
    with command_line.progress_bar(
      FLAGS.periods, f"distances, {distribution}, seed {seed}"
    ) as bar:
      return dynamic.measure_stream(
        planning.test_periods(self._plan.dataset, distribution, seed),
        FLAGS.periods,
        self._instruments,
        on_period=bar.update,
      )

  def run(
    self, contestant: contestants.Contestant
  ) -> dict[int, dynamic.DynamicResult]:
    """Runs a contestant with every seed."""
    algorithm = algorithms.build(
      contestant.algorithm,
      self._plan.model,
      contestant.hparams,
      num_evaluation_domains=FLAGS.num_clients,
      aggregator=self._plan.aggregators[contestant.algorithm],
    )
    return {
      seed: self._run_one(algorithm, contestant, seed)
      for seed in self._plan.seeds
    }

  def _run_one(self, algorithm, contestant, seed) -> dynamic.DynamicResult:
    """Trains with a seed, and uses what that gives on every stream."""
    labels = {
      "algorithm": contestant.algorithm,
      "dataset": FLAGS.dataset,
      "learning_rate": contestant.hparams.learning_rate,
      "meta_learning_rate": getattr(
        contestant.hparams, "meta_learning_rate", None
      ),
      "seed": seed,
    }
    names = FLAGS.test_distributions
    with command_line.progress_bar(
      FLAGS.rounds + len(names) * FLAGS.periods,
      f"{contestant.label}, seed {seed}",
    ) as bar:

      def on_period(name, period, accuracy):
        done = FLAGS.rounds + names.index(name) * FLAGS.periods + period
        bar.update(done, accuracy=float(np.mean(accuracy)))

      return dynamic.run(
        algorithm,
        planning.train_periods(self._plan.dataset, seed),
        planning.validation_periods(self._plan.dataset, seed),
        {name: self._streams[seed, name] for name in names},
        self._instruments.represent,
        num_rounds=FLAGS.rounds,
        run_seed=seed,
        threshold=self._instruments.threshold,
        participation=FLAGS.participation,
        apply_update=FLAGS.apply_update,
        on_round=bar.update,
        on_period=on_period,
        on_stream=functools.partial(self._write_rows, labels),
        checkpoint=self._saved.run(labels),
      )

  def _write_rows(self, labels, distribution, inference) -> None:
    """Writes a row for each period, of means over the clients."""
    for index in range(FLAGS.periods):
      self._folder.write_metrics(
        {
          **labels,
          "test_distribution": distribution,
          "period": index + 1,
          "accuracy": float(np.mean(inference.accuracy[index])),
          "distance": float(np.mean(inference.distances[index])),
          "drifted_share": 100 * float(np.mean(inference.drifted[index])),
          "detected_share": 100 * float(np.mean(inference.detected[index])),
          "requests": int(np.sum(inference.requested[index])),
        }
      )


def _summarize(
  plan: planning.Plan,
  contestant: contestants.Contestant,
  distribution: str,
  threshold: float,
  by_seed: Mapping[int, dynamic.DynamicResult],
) -> summary.RunSummary:
  """Makes the entry of summary.json of a contestant on a distribution."""
  return summary.RunSummary(
    algorithm=contestant.algorithm,
    dataset=FLAGS.dataset,
    setting={
      "test_distribution": distribution,
      "train_distributions": ",".join(FLAGS.train_distributions),
      "period_size": FLAGS.period_size,
      "periods": FLAGS.periods,
      "periods_per_distribution": FLAGS.periods_per_distribution,
      "rest": FLAGS.rest,
      "num_clients": FLAGS.num_clients,
      "participation": FLAGS.participation,
      "representation": FLAGS.representation,
      "distance_features": FLAGS.distance_features,
      "distance_threshold": threshold,
      "apply_update": FLAGS.apply_update,
      "model": plan.model.name,
      "model_parameters": plan.model.num_parameters,
      **dataclasses.asdict(contestant.hparams),
    },
    metrics_by_seed={
      seed: dynamic_results.final_metrics(
        result.inferences[distribution], result.validation_accuracy
      )
      for seed, result in by_seed.items()
    },
    rounds=FLAGS.rounds,
    seconds_per_round=float(
      np.mean([result.seconds_per_round for result in by_seed.values()])
    ),
    num_diverged=[result.num_diverged for result in by_seed.values()],
  )


def _table(summaries: list[summary.RunSummary]) -> str:
  """Returns the table, distribution by distribution."""
  shown = ("test_distribution", "learning_rate", "meta_learning_rate")
  order = FLAGS.test_distributions
  return summary.comparison_table(
    [
      dataclasses.replace(
        run,
        setting={key: run.setting[key] for key in shown if key in run.setting},
      )
      for run in sorted(
        summaries,
        key=lambda each: order.index(each.setting["test_distribution"]),
      )
    ],
    metrics=_SHOWN_METRICS,
  )


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  summaries, by_label = [], {}
  with command_line.executor():
    # The fit refuses what does not suit the data, and the folder comes after.
    with command_line.usage_errors():
      instruments = _fit_instruments(plan)
    folder, saved = command_line.open_folder(
      planning.SCENARIO, planning.__name__, _COLUMNS
    )
    runner = _Runner(plan, instruments, folder, saved)
    for contestant in plan.contestants:
      by_label[contestant.label] = by_seed = runner.run(contestant)
      summaries.extend(
        _summarize(
          plan, contestant, distribution, instruments.threshold, by_seed
        )
        for distribution in FLAGS.test_distributions
      )
      folder.write_summary(summaries)
  for distribution in FLAGS.test_distributions:
    dynamic_results.draw_accuracy(by_label, distribution, folder)
  print(_table(summaries))
  print(f"results: {folder.path}")


if __name__ == "__main__":
  program.run(main, planning.define_flags)
