"""The flags of `experiments.online_adaptation`, and what they ask for."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable
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
from tff_shift.data import class_pools
from tff_shift.data import datasets
from tff_shift.data import examples
from tff_shift.data import schedules
from tff_shift.data import streams
from tff_shift.learning import aggregation
from tff_shift.models import split_model
from tff_shift.simulation import pretraining

FLAGS = flags.FLAGS

SCENARIO = "online_adaptation"


def define_flags() -> None:
  """Defines the flags of this binary."""
  command_line.define_common_flags(SCENARIO)
  flags.DEFINE_string(
    "dataset", "digits", "One of " + ", ".join(datasets.names(SCENARIO)) + "."
  )
  flags.DEFINE_list(
    "shift",
    ["linear"],
    "Comma-separated schedules of the shift, a run for each: "
    + ", ".join(schedules.names())
    + ".",
  )
  flags.DEFINE_string(
    "shift_kind",
    "label",
    "label: the classes of a client's data drift. covariate: its images are"
    " corrupted, each client's in a way of its own.",
  )
  flags.DEFINE_string(
    "corrupted_images",
    "computed",
    "Under covariate shift: computed from the images of --dataset, or"
    " archive, the published CIFAR-10-C or CIFAR-100-C.",
  )
  flags.DEFINE_string(
    "bernoulli_flip",
    "inverse_sqrt",
    "Probability that the Bernoulli schedule flips: inverse_sqrt, or"
    " as_printed in the paper, which flips at nearly every step.",
  )
  flags.DEFINE_integer("timesteps", 20, "Number of time steps (T).")
  flags.DEFINE_integer(
    "rounds_per_step", 1, "Rounds in a time step (the paper's R)."
  )
  flags.DEFINE_integer("num_clients", 10, "Number of clients.")
  flags.DEFINE_float(
    "participation",
    1.0,
    "Share of clients in a round, above 0 and at most 1.",
  )
  flags.DEFINE_integer(
    "samples_per_step",
    50,
    "Unlabelled examples that a client meets in a time step.",
  )
  flags.DEFINE_integer(
    "initial_examples",
    100,
    "Labelled examples that a client has from before deployment.",
  )
  flags.DEFINE_string(
    "dirichlet",
    "0.1",
    "Concentration of the class distribution that a client drifts to; inf is"
    " uniform.",
  )
  flags.DEFINE_string(
    "pretraining_distribution",
    "uniform",
    "Class distribution of pre-training: "
    + ", ".join(class_pools.PRETRAINING_DISTRIBUTIONS)
    + ".",
  )
  flags.DEFINE_integer(
    "max_pretraining_examples",
    None,
    "Pre-trains on at most so many. Default: half of what there is.",
  )
  flags.DEFINE_integer(
    "pretraining_epochs",
    None,
    "Pre-trains for at most so many epochs. Default: "
    f"{pretraining.PretrainingHParams().max_epochs}.",
  )
  flags.DEFINE_integer(
    "pretraining_seed",
    0,
    "Seed of the parts of the data set and of pre-training; one deployed"
    " model serves all --seeds.",
  )
  flags.DEFINE_string(
    "cache_dir", "runs/cache", "Folder in which pre-trained models are kept."
  )
  flags.DEFINE_string(
    "model",
    None,
    "One of " + ", ".join(models.names()) + ". Default: the data set's.",
  )
  flags.DEFINE_integer(
    "model_width",
    None,
    "Channels of the first layer of residual_cnn or resnet. Default: the"
    " model's.",
  )


class Contestant(NamedTuple):
  """An algorithm at one setting of its hyper-parameters."""

  algorithm: str
  hparams: Any
  learning_rate: float | None

  @property
  def label(self) -> str:
    """What tables and figures call it."""
    if self.learning_rate is None:
      return self.algorithm
    return f"{self.algorithm}, rate {self.learning_rate:g}"


class Plan(NamedTuple):
  """What the flags ask for, checked.

  Attributes:
    contestants: What is compared.
    omegas: The weight of eq. 1 by schedule and seed.
    seeds: The seeds.
    dirichlet: The concentration of the classes that a client drifts to.
    dataset: The data set in its parts.
    archive: Where corrupted images come from; None: they are computed.
    pretraining: How the model is pre-trained.
    model: The model, not yet pre-trained.
    aggregators: How the server combines updates, by algorithm.
  """

  contestants: Sequence[Contestant]
  omegas: Mapping[str, Mapping[int, np.ndarray]]
  seeds: Sequence[int]
  dirichlet: float
  dataset: streams.OnlineDataset
  archive: Callable[[str, int], examples.Examples] | None
  pretraining: pretraining.PretrainingHParams
  model: split_model.SplitModel
  aggregators: Mapping[str, aggregation.Aggregator | None]


def _contestants() -> list[Contestant]:
  found = []
  for name in command_line.chosen_algorithms(SCENARIO):
    kind = algorithms.get(name).HParams
    default = getattr(kind(), "learning_rate", None)
    if default is None:
      found.append(Contestant(name, command_line.make_hparams(name), None))
      continue
    for rate in command_line.chosen_learning_rates(default):
      hparams = command_line.make_hparams(name, learning_rate=rate)
      found.append(Contestant(name, hparams, rate))
  return found


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written.

  Returns:
    The plan.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  contestants = _contestants()
  seeds = command_line.chosen_seeds("seeds")
  for flag, allowed in (
    ("dataset", datasets.names(SCENARIO)),
    ("shift_kind", streams.SHIFT_KINDS),
    ("corrupted_images", ("computed", "archive")),
    ("bernoulli_flip", schedules.BERNOULLI_FLIPS),
    (
      "pretraining_distribution",
      tuple(class_pools.PRETRAINING_DISTRIBUTIONS),
    ),
    ("model", (None, *models.names())),
  ):
    command_line.require(
      flag,
      FLAGS[flag].value in allowed,
      "one of " + ", ".join(name for name in allowed if name),
    )
  if (FLAGS.corrupted_images, FLAGS.shift_kind) == ("archive", "label"):
    raise command_line.UsageError(
      "--corrupted_images=archive does not apply to --shift_kind=label;"
      " leave it out, or pass --shift_kind=covariate"
    )
  command_line.require(
    "shift",
    FLAGS.shift
    and set(FLAGS.shift) <= set(schedules.names())
    and len(set(FLAGS.shift)) == len(FLAGS.shift),
    "some of " + ", ".join(schedules.names()) + ", none twice",
  )
  for flag in (
    "timesteps",
    "rounds_per_step",
    "num_clients",
    "samples_per_step",
    "initial_examples",
    "max_pretraining_examples",
    "pretraining_epochs",
    "model_width",
  ):
    value = FLAGS[flag].value
    command_line.require(flag, value is None or value >= 1, "at least 1")
  command_line.require(
    "pretraining_seed",
    0 <= FLAGS.pretraining_seed < 2**31,
    "from 0 to 2147483647",
  )
  command_line.require(
    "participation", 0 < FLAGS.participation <= 1, "above 0 and at most 1"
  )
  omegas = {
    shift: {
      seed: schedules.omega(
        shift,
        FLAGS.timesteps,
        seed=seed,
        bernoulli_flip=FLAGS.bernoulli_flip,
      )
      for seed in seeds
    }
    for shift in FLAGS.shift
  }
  dirichlet = command_line.positive_number("dirichlet")
  with command_line.usage_errors():
    dataset = streams.load_online(
      FLAGS.dataset,
      pretraining_distribution=FLAGS.pretraining_distribution,
      max_pretraining_examples=FLAGS.max_pretraining_examples,
      data_dir=FLAGS.data_dir,
      seed=FLAGS.pretraining_seed,
    )
    archive = None
    if FLAGS.corrupted_images == "archive":
      archive = streams.archive_of(FLAGS.dataset, FLAGS.data_dir)
    plan = Plan(
      contestants=contestants,
      omegas=omegas,
      seeds=seeds,
      dirichlet=dirichlet,
      dataset=dataset,
      archive=archive,
      pretraining=_pretraining_hparams(),
      model=_build_model(dataset),
      aggregators=command_line.chosen_aggregators(
        [(each.algorithm, each.hparams) for each in contestants],
        num_clients=FLAGS.num_clients,
        participation=FLAGS.participation,
        num_rounds=FLAGS.timesteps * FLAGS.rounds_per_step,
      ),
    )
    # What cannot be drawn is refused here.
    for seed in seeds:
      streams.initial_examples(dataset, FLAGS.initial_examples, 0, seed)
      client_streams(plan, FLAGS.shift[0], seed).batch(0, 1)
      if archive is not None:
        for shift in FLAGS.shift:
          _draw_each_part(client_streams(plan, shift, seed))
  _make_cache_folder()
  return plan


def _draw_each_part(drawn: streams.Streams) -> None:
  """Draws a batch of every corruption at every severity of the streams.

  After it, all that the streams need of an archive has been read.
  """
  clients = {name: i for i, name in enumerate(drawn.corruption_names)}
  timesteps = {
    drawn.severity(timestep): timestep
    for timestep in range(1, drawn.num_timesteps + 1)
  }
  for client, timestep in itertools.product(
    clients.values(), timesteps.values()
  ):
    drawn.batch(client, timestep)


def _make_cache_folder() -> None:
  try:
    pathlib.Path(FLAGS.cache_dir).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise command_line.UsageError(
      f"--cache_dir={FLAGS.cache_dir}: it cannot be made ({error.strerror});"
      " name a folder that you may write to"
    ) from error


def _pretraining_hparams() -> pretraining.PretrainingHParams:
  hparams = pretraining.PretrainingHParams()
  if FLAGS.pretraining_epochs is None:
    return hparams
  return dataclasses.replace(hparams, max_epochs=FLAGS.pretraining_epochs)


def _build_model(dataset: streams.OnlineDataset) -> split_model.SplitModel:
  x = dataset.stream.x
  options = {}
  if FLAGS.model_width is not None:
    options["width"] = FLAGS.model_width
  return models.build(
    FLAGS.model or datasets.get(FLAGS.dataset).models[SCENARIO],
    input_shape=x.shape[1:],
    num_classes=len(dataset.class_names),
    input_dtype=tf.as_dtype(x.dtype),
    **options,
  )


def client_streams(plan: Plan, shift: str, seed: int) -> streams.Streams:
  """Draws the streams of all clients on a schedule with a seed."""
  return streams.Streams(
    plan.dataset.stream,
    len(plan.dataset.class_names),
    plan.omegas[shift][seed],
    num_clients=FLAGS.num_clients,
    samples_per_step=FLAGS.samples_per_step,
    shift_kind=FLAGS.shift_kind,
    dirichlet=plan.dirichlet,
    archive=plan.archive,
    seed=seed,
  )
