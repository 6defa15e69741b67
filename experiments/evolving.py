"""Compares algorithms on domains that evolve; the last domain is unseen.

  python -m experiments.evolving --algorithm=fed_avg,fed_evolve,fed_evp \
      --dataset=rotated_digits --rounds=10

  python -m experiments.evolving --flagfile=experiments/presets/circle.flags \
      --algorithm=fed_evolve --learning_rate=1e-5,1e-4 --select=last_source \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/ and tensorboard/ into
--output_dir, and prints one table.
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from experiments import command_line
from tff_shift import algorithms
from tff_shift import models
from tff_shift.data import domains
from tff_shift.models import split_model
from tff_shift.simulation import evolving
from tff_shift.simulation import progress
from tff_shift.simulation import results
from tff_shift.simulation import selection

FLAGS = flags.FLAGS

_MODELS = {
    "rotated_digits": "cnn",
    "circle": "mlp",
    "rotated_mnist": "cnn",
    "rotated_emnist_letters": "cnn",
    "portraits": "wide_resnet",
    "caltran": "resnet",
}
_COLUMNS = (
    "algorithm", "dataset", "held_out", "learning_rate", "seed", "round",
    "train_loss", "client_accuracy", "server_accuracy", "client_loss",
    "server_loss", "seconds_per_round",
)
_LAST_SOURCE = "last_source"

command_line.define_common_flags("evolving")
command_line.define_hparam_flags()
flags.DEFINE_string(
    "dataset", "rotated_digits", "One of " + ", ".join(domains.EVOLUTIONS) + "."
)
flags.DEFINE_integer(
    "num_domains", None,
    "Number of domains, the target included. Default: the data set's.",
)
flags.DEFINE_float(
    "angle_step", None,
    "Degrees between two domains of a rotated data set. Default: the set's.",
)
flags.DEFINE_float(
    "first_angle", 0.0, "Degrees of the first domain of a rotated data set."
)
flags.DEFINE_float(
    "target_extra_angle", 0.0,
    "Degrees by which the target alone is turned further (Table 12).",
)
flags.DEFINE_integer(
    "max_examples_per_domain", None,
    "Keeps at most so many random examples of a domain. Default: all.",
)
flags.DEFINE_integer("num_clients", 10, "Number of clients.")
flags.DEFINE_float(
    "participation", 1.0, "Share of clients in a round, above 0 and at most 1."
)
flags.DEFINE_integer("rounds", 10, "Number of rounds.")
flags.DEFINE_integer(
    "evaluate_every", 5, "Evaluates after every so many rounds and the last."
)
flags.DEFINE_string(
    "dirichlet", "inf",
    "Concentration of the classes of a client; inf is iid, small is uneven.",
)
flags.DEFINE_float(
    "test_fraction", 0.2,
    "Share of a source domain that a client keeps for testing.",
)
flags.DEFINE_string(
    "model", None,
    "One of " + ", ".join(models.names()) + ". Default: the data set's.",
)
flags.DEFINE_string(
    "weights_file", None,
    "File of weights to start from (resnet for caltran). Default: random.",
)
flags.DEFINE_string(
    "select", "none",
    "none: every rate of --learning_rate is a run. last_source: the rate of"
    " each algorithm is the one with the best client accuracy, mean over seeds,"
    " on the last source domain when that is held out; the target is never"
    " looked at.",
)
flags.DEFINE_list(
    "selection_seeds", None,
    "The seeds over which --select=last_source takes the mean. Default: all of"
    " --seeds.",
)
flags.DEFINE_bool(
    "all_rates", False,
    "With --select=last_source: runs the rates that were not chosen as well.",
)


class _Plan(NamedTuple):
  """What the flags ask for, checked.

  Attributes:
    datasets: The domains, by seed.
    hparams: The hyper-parameters by algorithm and learning rate.
    seeds: The seeds.
    selection_seeds: Those of them that choose the learning rate.
    model: The model.
    dirichlet: The concentration of classes.
  """

  datasets: Mapping[int, domains.EvolvingDataset]
  hparams: Mapping[str, Mapping[float, Any]]
  seeds: Sequence[int]
  selection_seeds: Sequence[int]
  model: split_model.SplitModel
  dirichlet: float


def _make_plan() -> _Plan:
  """Checks all flags and loads the data, before anything is written."""
  chosen = command_line.chosen_algorithms()
  command_line.refuse_foreign_flags(chosen)
  seeds = command_line.chosen_seeds("seeds")
  selection_seeds = seeds
  if FLAGS.selection_seeds is not None:
    selection_seeds = command_line.chosen_seeds("selection_seeds")
    command_line.require(
        "selection_seeds", set(selection_seeds) <= set(seeds),
        "a part of --seeds",
    )
  command_line.require(
      "dataset", FLAGS.dataset in domains.EVOLUTIONS,
      "one of " + ", ".join(domains.EVOLUTIONS),
  )
  command_line.require(
      "select", FLAGS.select in (selection.NONE, _LAST_SOURCE),
      "none or last_source",
  )
  command_line.require(
      "model", FLAGS.model is None or FLAGS.model in models.names(),
      "one of " + ", ".join(models.names()),
  )
  for flag in ("rounds", "evaluate_every", "num_clients"):
    command_line.require(flag, FLAGS[flag].value >= 1, "at least 1")
  command_line.require(
      "participation", 0 < FLAGS.participation <= 1, "above 0 and at most 1"
  )
  command_line.require(
      "test_fraction", 0 < FLAGS.test_fraction < 1, "above 0 and below 1"
  )
  dirichlet = _parse_dirichlet()
  hparams = {}
  for name in chosen:
    default = algorithms.get(name).HParams().learning_rate
    hparams[name] = {
        rate: command_line.make_hparams(name, learning_rate=rate)
        for rate in command_line.chosen_learning_rates(default)
    }
  with command_line.usage_errors():
    datasets = {seed: _load(seed) for seed in seeds}
    _check_num_domains(chosen, len(datasets[seeds[0]].domains))
    # Splits that leave a client without examples are refused here.
    for seed, dataset in datasets.items():
      _assemble(dataset, seed, dirichlet)
    if FLAGS.select == _LAST_SOURCE:
      for seed, dataset in datasets.items():
        _assemble(_without_target(dataset), seed, dirichlet)
    model = _build_model(datasets[seeds[0]])
  return _Plan(
      datasets, hparams, seeds, selection_seeds, model, dirichlet
  )


def _check_num_domains(chosen: Sequence[str], num_domains: int) -> None:
  """Refuses fewer source domains than an algorithm can train on."""
  num_held_out = 2 if FLAGS.select == _LAST_SOURCE else 1
  for name in chosen:
    needed = getattr(algorithms.get(name), "MIN_SOURCE_DOMAINS", 1)
    if num_domains < needed + num_held_out:
      raise command_line.UsageError(
          f"--num_domains={num_domains}: {name} with --select={FLAGS.select}"
          f" needs at least {needed + num_held_out}, {num_held_out} of which"
          " held out"
      )


def _parse_dirichlet() -> float:
  try:
    value = float(FLAGS.dirichlet)
  except ValueError:
    value = math.nan
  command_line.require("dirichlet", value > 0, "a number above 0, or inf")
  return value


def _load(seed: int) -> domains.EvolvingDataset:
  return domains.load_evolving(
      FLAGS.dataset,
      num_domains=FLAGS.num_domains,
      angle_step=FLAGS.angle_step,
      first_angle=FLAGS.first_angle,
      target_extra_angle=FLAGS.target_extra_angle,
      max_examples_per_domain=FLAGS.max_examples_per_domain,
      data_dir=FLAGS.data_dir,
      seed=seed,
  )


def _assemble(
    dataset: domains.EvolvingDataset, seed: int, dirichlet: float
) -> tuple[domains.Client, ...]:
  return domains.assemble_clients(
      dataset,
      num_clients=FLAGS.num_clients,
      dirichlet=dirichlet,
      test_fraction=FLAGS.test_fraction,
      seed=seed,
  )


def _without_target(
    dataset: domains.EvolvingDataset,
) -> domains.EvolvingDataset:
  return dataset._replace(domains=dataset.domains[:-1])


def _build_model(dataset: domains.EvolvingDataset) -> split_model.SplitModel:
  x = dataset.domains[0].x
  model = models.build(
      FLAGS.model or _MODELS[FLAGS.dataset],
      input_shape=x.shape[1:],
      num_classes=len(dataset.class_names),
      input_dtype=tf.as_dtype(x.dtype),
  )
  if FLAGS.weights_file is not None:
    model = split_model.load_weights(model, FLAGS.weights_file)
  return model


class _Runner:
  """Runs an algorithm of a plan and writes down what it gives."""

  def __init__(self, plan: _Plan, folder: results.RunFolder):
    self._plan = plan
    self._folder = folder

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
    is_selection = held_out == _LAST_SOURCE
    seeds = plan.selection_seeds if is_selection else plan.seeds
    datasets = {
        seed: _without_target(plan.datasets[seed])
        if is_selection
        else plan.datasets[seed]
        for seed in seeds
    }
    algorithm = algorithms.get(name).build(
        plan.model,
        plan.hparams[name][rate],
        num_evaluation_domains=len(datasets[seeds[0]].domains),
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
      with progress.progress(
          FLAGS.rounds,
          enabled=False if FLAGS.progress is False else None,
          description=f"{shown}, {held_out}" if is_selection else shown,
      ) as bar:
        by_seed[seed] = evolving.run(
            algorithm,
            _assemble(dataset, seed, plan.dirichlet),
            num_rounds=FLAGS.rounds,
            run_seed=seed,
            participation=FLAGS.participation,
            evaluate_every=FLAGS.evaluate_every,
            on_round=self._recorder(labels, bar),
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
    plan: _Plan, reading: selection.Reading
) -> results.RunSummary:
  """Makes the entry of summary.json of an algorithm at a rate."""
  dataset = plan.datasets[plan.seeds[0]]
  setting = {
      "dirichlet": str(plan.dirichlet),
      "num_clients": FLAGS.num_clients,
      "num_domains": len(dataset.domains),
      "participation": FLAGS.participation,
      "model": plan.model.name,
      "selection": reading.selection,
      **dataclasses.asdict(
          plan.hparams[reading.algorithm][reading.learning_rate]
      ),
  }
  evolution = domains.EVOLUTIONS[FLAGS.dataset]
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
  return results.RunSummary(
      algorithm=reading.algorithm,
      dataset=dataset.name,
      setting=setting,
      metrics_by_seed=metrics_by_seed,
      rounds=FLAGS.rounds,
      seconds_per_round=float(
          np.mean([r.seconds_per_round for r in reading.by_seed.values()])
      ),
  )


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = _make_plan()
  executor = command_line.executor()
  with command_line.usage_errors():
    folder = results.RunFolder.create(
        command_line.output_dir("evolving"),
        columns=_COLUMNS,
        overwrite=FLAGS.overwrite,
    )
  folder.write_config(command_line.flag_values(__name__))
  dataset = plan.datasets[plan.seeds[0]]
  evolving.draw_domains(dataset, folder)
  summaries, by_label = [], {}
  with executor:
    for reading in selection.compare(
        {name: list(rates) for name, rates in plan.hparams.items()},
        _Runner(plan, folder).run,
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
  table = results.comparison_table([
      dataclasses.replace(
          summary, setting={key: summary.setting[key] for key in shown}
      )
      for summary in summaries
  ])
  print(table)
  print(f"results: {folder.path}")


if __name__ == "__main__":
  command_line.run(main)
