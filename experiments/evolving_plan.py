"""The flags of `experiments.evolving`, and what they ask for."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf
from absl import flags

from experiments import command_line
from tff_shift import algorithms
from tff_shift import models
from tff_shift.data import datasets as datasets_lib
from tff_shift.data import domains
from tff_shift.learning import aggregation
from tff_shift.models import split_model
from tff_shift.simulation import selection

FLAGS = flags.FLAGS

SCENARIO = "evolving"
LAST_SOURCE = "last_source"


def define_flags() -> None:
  """Defines the flags of this binary."""
  command_line.define_common_flags(SCENARIO)
  flags.DEFINE_string(
    "dataset",
    "rotated_digits",
    "One of " + ", ".join(datasets_lib.names(SCENARIO)) + ".",
  )
  flags.DEFINE_integer(
    "num_domains",
    None,
    "Number of domains, the target included. Default: the data set's.",
  )
  flags.DEFINE_float(
    "angle_step",
    None,
    "Degrees between two domains of a rotated data set. Default: the set's.",
  )
  flags.DEFINE_float(
    "first_angle", 0.0, "Degrees of the first domain of a rotated data set."
  )
  flags.DEFINE_float(
    "target_extra_angle",
    0.0,
    "Degrees by which the target alone is turned further (Table 12).",
  )
  flags.DEFINE_integer(
    "max_examples_per_domain",
    None,
    "Keeps at most so many random examples of a domain. Default: all.",
  )
  flags.DEFINE_integer("num_clients", 10, "Number of clients.")
  flags.DEFINE_float(
    "participation",
    1.0,
    "Share of clients in a round, above 0 and at most 1.",
  )
  flags.DEFINE_integer("rounds", 10, "Number of rounds.")
  flags.DEFINE_integer(
    "evaluate_every", 5, "Evaluates after every so many rounds and the last."
  )
  flags.DEFINE_integer(
    "evaluation_clients",
    0,
    "So many clients, drawn anew for each evaluation, are evaluated, and the"
    " server on their shares. 0: all. This changes what is measured: a part"
    " of the clients stands for all, so that results scatter, and curves,"
    " final accuracies and --select look at that part alone.",
  )
  flags.DEFINE_string(
    "dirichlet",
    "inf",
    "Concentration of the classes of a client; inf is iid, small is uneven.",
  )
  flags.DEFINE_float(
    "test_fraction",
    0.2,
    "Share of a source domain that a client keeps for testing.",
  )
  flags.DEFINE_string(
    "model",
    None,
    "One of " + ", ".join(models.names()) + ". Default: the data set's.",
  )
  flags.DEFINE_string(
    "weights_file",
    None,
    "File of weights to start from (resnet for caltran). Default: random.",
  )
  flags.DEFINE_string(
    "select",
    "none",
    "none: every rate of --learning_rate is a run. last_source: the rate of"
    " each algorithm is the one with the best client accuracy, mean over"
    " seeds, on the last source domain when that is held out; the target is"
    " never looked at.",
  )
  flags.DEFINE_list(
    "selection_seeds",
    None,
    "The seeds over which --select=last_source takes the mean. Default: all"
    " of --seeds.",
  )
  flags.DEFINE_bool(
    "all_rates",
    False,
    "With --select=last_source: runs the rates that were not chosen as well.",
  )


class Plan(NamedTuple):
  """What the flags ask for, checked.

  Attributes:
    datasets: The domains, by seed.
    hparams: The hyper-parameters by algorithm and learning rate.
    seeds: The seeds.
    selection_seeds: Those of them that choose the learning rate.
    model: The model.
    dirichlet: The concentration of classes.
    aggregators: How the server combines updates, by algorithm.
  """

  datasets: Mapping[int, domains.EvolvingDataset]
  hparams: Mapping[str, Mapping[float, Any]]
  seeds: Sequence[int]
  selection_seeds: Sequence[int]
  model: split_model.SplitModel
  dirichlet: float
  aggregators: Mapping[str, aggregation.Aggregator | None]


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written."""
  chosen = command_line.chosen_algorithms(SCENARIO)
  seeds = command_line.chosen_seeds("seeds")
  selection_seeds = seeds
  if FLAGS.selection_seeds is not None:
    selection_seeds = command_line.chosen_seeds("selection_seeds")
    command_line.require(
      "selection_seeds",
      set(selection_seeds) <= set(seeds),
      "a part of --seeds",
    )
  command_line.require(
    "dataset",
    FLAGS.dataset in datasets_lib.names(SCENARIO),
    "one of " + ", ".join(datasets_lib.names(SCENARIO)),
  )
  command_line.require(
    "select",
    FLAGS.select in (selection.NONE, LAST_SOURCE),
    "none or last_source",
  )
  command_line.require(
    "model",
    FLAGS.model is None or FLAGS.model in models.names(),
    "one of " + ", ".join(models.names()),
  )
  for flag in ("rounds", "evaluate_every", "num_clients"):
    command_line.require(flag, FLAGS[flag].value >= 1, "at least 1")
  command_line.require(
    "evaluation_clients",
    0 <= FLAGS.evaluation_clients <= FLAGS.num_clients,
    "at least 0 and at most --num_clients",
  )
  command_line.require(
    "participation", 0 < FLAGS.participation <= 1, "above 0 and at most 1"
  )
  command_line.require(
    "test_fraction", 0 < FLAGS.test_fraction < 1, "above 0 and below 1"
  )
  dirichlet = command_line.positive_number("dirichlet")
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
      assemble(dataset, seed, dirichlet)
    if FLAGS.select == LAST_SOURCE:
      for seed, dataset in datasets.items():
        assemble(without_target(dataset), seed, dirichlet)
    model = _build_model(datasets[seeds[0]])
  aggregators = command_line.chosen_aggregators(
    [(name, each) for name in chosen for each in hparams[name].values()],
    num_clients=FLAGS.num_clients,
    participation=FLAGS.participation,
    num_rounds=FLAGS.rounds,
  )
  return Plan(
    datasets, hparams, seeds, selection_seeds, model, dirichlet, aggregators
  )


def _check_num_domains(chosen: Sequence[str], num_domains: int) -> None:
  """Refuses fewer source domains than an algorithm can train on."""
  num_held_out = 2 if FLAGS.select == LAST_SOURCE else 1
  for name in chosen:
    needed = getattr(algorithms.get(name), "MIN_SOURCE_DOMAINS", 1)
    if num_domains < needed + num_held_out:
      raise command_line.UsageError(
        f"--num_domains={num_domains}: {name} with --select={FLAGS.select}"
        f" needs at least {needed + num_held_out}, {num_held_out} of which"
        " held out"
      )


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


def assemble(
  dataset: domains.EvolvingDataset, seed: int, dirichlet: float
) -> tuple[domains.Client, ...]:
  """Gives each client its part of all domains."""
  return domains.assemble_clients(
    dataset,
    num_clients=FLAGS.num_clients,
    dirichlet=dirichlet,
    test_fraction=FLAGS.test_fraction,
    seed=seed,
  )


def without_target(
  dataset: domains.EvolvingDataset,
) -> domains.EvolvingDataset:
  """Leaves the last domain out."""
  return dataset._replace(domains=dataset.domains[:-1])


def _build_model(dataset: domains.EvolvingDataset) -> split_model.SplitModel:
  x = dataset.domains[0].x
  model = models.build(
    FLAGS.model or datasets_lib.get(FLAGS.dataset).models[SCENARIO],
    input_shape=x.shape[1:],
    num_classes=len(dataset.class_names),
    input_dtype=tf.as_dtype(x.dtype),
  )
  if FLAGS.weights_file is not None:
    model = split_model.load_weights(model, FLAGS.weights_file)
  return model
