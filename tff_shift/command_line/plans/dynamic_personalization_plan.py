"""The flags of `experiments.dynamic_personalization`, and what they ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift import memory
from tff_shift import models
from tff_shift.command_line import common_flags
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.plans import plan
from tff_shift.command_line.tuning import selection
from tff_shift.command_line.tuning import trials
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.shift import choices

if TYPE_CHECKING:
  from tff_shift.models import split_model
  from tff_shift.simulation.scenarios import pretraining_hparams

FLAGS = flags.FLAGS

SCENARIO = "dynamic_personalization"
VALIDATION = "validation"

# The paper gives none. Rates are the best of a few on digits with the default
# network, the same few for all algorithms.
_DEFAULTS = {
  "local_epochs": 2,
  "batch_size": 10,
  "learning_rate": 0.03,
  "meta_learning_rate": 0.01,
}
_OWN_DEFAULTS = {
  "fed_3da": {"meta_learning_rate": 0.03},
  "fed_avg": {"learning_rate": 0.1},
}

# Target networks of 5,000 to 20,000 weights, for the hypernetwork has a hundred
# times as many: the width of their first layer.
_WIDTHS = {"mlp": 16, "cnn": 8}

_QUANTILE = 0.95


def define_flags() -> None:
  """Defines the flags of this binary."""
  described = {name: str(value) for name, value in _DEFAULTS.items()}
  for name, own in _OWN_DEFAULTS.items():
    for field, value in own.items():
      described[field] += f"; {name}: {value}"
  common_flags.define_common_flags(
    SCENARIO,
    hparam_defaults=described,
    rounds=100,
    rounds_help="Rounds of training, a new period each.",
    model_help="The target network. Default: the data set's.",
    model_width_help="All layers of mlp are that wide, those of cnn 1, 2, 2 and"
    " 4 times, and those of others as the model says. Default: "
    + ", ".join(f"{name} {width}" for name, width in _WIDTHS.items())
    + ", else the model's.",
  )
  flags.DEFINE_list(
    "test_distributions",
    list(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions of the periods in use, a stream for each: "
    + ", ".join(dynamic_personalization.DISTRIBUTIONS)
    + ".",
  )
  flags.DEFINE_list(
    "train_distributions",
    list(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions; each client draws one of them for each"
    " period of training.",
  )
  flags.DEFINE_integer("period_size", 100, "Examples of a period.")
  flags.DEFINE_integer(
    "periods", 100, "Measured periods of a stream (the paper's n)."
  )
  flags.DEFINE_integer(
    "periods_per_distribution",
    5,
    "How many periods in a row of a stream keep a distribution and its heavy"
    " labels. With 1, an update for the next period comes too late by"
    " construction.",
  )
  flags.DEFINE_string(
    "rest",
    "others",
    "What the examples without a share are drawn from: others, the labels"
    " without one, or any.",
  )
  flags.DEFINE_string(
    "representation",
    "moments",
    "How the data of a period become a vector r: "
    + ", ".join(choices.REPRESENTATIONS)
    + ". t_sne takes part of a second for"
    " each client and round.",
  )
  flags.DEFINE_string(
    "distance_features",
    "pixels",
    "What the distance of two periods compares: "
    + ", ".join(choices.FEATURES)
    + ", a small network that is trained on"
    " public data.",
  )
  flags.DEFINE_float(
    "threshold_quantile",
    None,
    "The distance above which there is a drift (DT) is this quantile of the"
    f" distances between iid periods. Default: {_QUANTILE}.",
  )
  flags.DEFINE_float(
    "distance_threshold",
    None,
    "DT itself, at least 0: 0 is always a drift, inf never.",
  )
  flags.DEFINE_string(
    "apply_update",
    "next",
    "From when a model for a drift is in use: next, the period after the one"
    " that showed the drift, or current, which predicts that one again.",
  )
  flags.DEFINE_float(
    "public_fraction",
    0.2,
    "Share of the examples not for the test that the server knows; it fits"
    " representations and trains the extractor on them.",
  )
  flags.DEFINE_integer(
    "max_examples",
    None,
    "Uses at most so many examples of the data set. Default: all.",
  )
  pretrained.define_flags("extractors")
  flags.DEFINE_integer(
    "public_seed",
    0,
    "Seed of the parts of the data set and of what the server fits to them;"
    " one extractor and one threshold serve all --seeds.",
  )
  selection_flags.define(
    VALIDATION,
    "the best accuracy, mean over seeds, on iid periods of the validation part"
    " (VACC); the streams of the test part are never looked at",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
  """What the flags ask for, checked.

  Attributes:
    dataset: The data set in its parts.
    extractor: The network of the extractor, not yet trained; None where nothing
      needs it.
    pretraining: How it is trained.
    quantile: That of the threshold.
  """

  dataset: dynamic_personalization.DynamicDataset
  extractor: split_model.SplitModel | None
  pretraining: pretraining_hparams.PretrainingHParams
  quantile: float


def representation_size(trial: selection.Trial) -> int | None:
  """Returns the length of r; None where a trial needs no r."""
  return getattr(trial.hparams, "representation_size", None)


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written.

  Returns:
    The plan.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  check_flags()
  from tff_shift.simulation.scenarios import drift_detector

  seeds = common_flags.chosen_seeds("seeds")
  selection_seeds = selection_flags.chosen_seeds(VALIDATION, seeds)
  with common_flags.usage_errors():
    dataset = dynamic_personalization.load_dynamic(
      FLAGS.dataset,
      seed=FLAGS.public_seed,
      data_dir=FLAGS.data_dir,
      max_examples=FLAGS.max_examples,
      public_fraction=FLAGS.public_fraction,
    )
    memory.check(
      FLAGS.num_clients * FLAGS.period_size * dataset.train.x[0].nbytes,
      f"--num_clients={FLAGS.num_clients} with"
      f" --period_size={FLAGS.period_size}",
    )
    # What cannot be drawn is refused here.
    for distribution in FLAGS.test_distributions:
      test_periods(dataset, distribution, seeds[0])
    train_periods(dataset, seeds[0])
    model = _build_model(dataset)
    extractor = drift_detector.extractor_model(
      model.input_shape,
      model.num_classes,
      model.input_scaling,
      input_dtype=model.input_dtype,
    )
  common_flags.require(
    "period_size",
    FLAGS.distance_threshold is not None
    or 2 * FLAGS.period_size <= len(dataset.train.y),
    f"at most half of the {len(dataset.train.y)} examples of training, on"
    " which the threshold is calibrated, or --distance_threshold given",
  )
  chosen = _contestants(2 * extractor.embedding_size)
  common_flags.check_sizes(chosen, model, FLAGS.num_clients * FLAGS.period_size)
  needs_r = any(map(representation_size, chosen))
  needs_extractor = (
    needs_r and FLAGS.representation == "moments"
  ) or FLAGS.distance_features == "extractor"
  return Plan(
    scenario=SCENARIO,
    trials=chosen,
    seeds=seeds,
    aggregators=common_flags.chosen_aggregators(chosen, FLAGS.rounds),
    model=model,
    settings={
      "train_distributions": ",".join(FLAGS.train_distributions),
      "period_size": FLAGS.period_size,
      "periods": FLAGS.periods,
      "periods_per_distribution": FLAGS.periods_per_distribution,
      "rest": FLAGS.rest,
      "num_clients": FLAGS.num_clients,
      "participation": FLAGS.participation,
      "representation": FLAGS.representation,
      "distance_features": FLAGS.distance_features,
      "apply_update": FLAGS.apply_update,
      "model": model.name,
      "input_scaling": FLAGS.input_scaling,
      "model_parameters": model.num_parameters,
    },
    num_steps=FLAGS.rounds,
    step_name="round or period",
    told_hparams=("learning_rate", "meta_learning_rate"),
    dataset=dataset,
    extractor=extractor if needs_extractor else None,
    pretraining=pretrained.chosen_hparams(),
    quantile=FLAGS.threshold_quantile or _QUANTILE,
    selection_seeds=selection_seeds,
  )


def check_flags() -> None:
  """Refuses values that are wrong whatever the data hold.

  Raises:
    UsageError: If there is one.
  """
  common_flags.check_common_flags(SCENARIO)
  for flag, allowed in (
    ("rest", dynamic_personalization.RESTS),
    ("representation", choices.REPRESENTATIONS),
    ("distance_features", choices.FEATURES),
    ("apply_update", choices.APPLY_UPDATES),
  ):
    common_flags.require_choice(flag, allowed)
  pretrained.chosen_hparams()
  for flag in ("test_distributions", "train_distributions"):
    common_flags.require_choices(flag, dynamic_personalization.DISTRIBUTIONS)
  common_flags.require_at_least_one(
    "periods", "periods_per_distribution", "max_examples"
  )
  common_flags.require_at_least_one("period_size")
  # A distance needs two examples.
  common_flags.require("period_size", FLAGS.period_size >= 2, "at least 2")
  common_flags.require_seed("public_seed")
  quantile, threshold = FLAGS.threshold_quantile, FLAGS.distance_threshold
  common_flags.require(
    "threshold_quantile",
    quantile is None or 0 < quantile <= 1,
    "above 0 and at most 1",
  )
  common_flags.require(
    "distance_threshold",
    threshold is None or threshold >= 0,
    "a number of at least 0, or inf",
  )
  if None not in (quantile, threshold):
    raise common_flags.UsageError(
      f"--threshold_quantile={quantile:g} does not apply to a given"
      f" --distance_threshold={threshold:g}; leave one of them out"
    )
  # That of the extractor is not known yet.
  _contestants(None, trials.described)
  seeds = common_flags.chosen_seeds("seeds")
  selection_flags.chosen_seeds(VALIDATION, seeds)
  # Last, because it imports the algorithms and TensorFlow.
  _contestants(None)


def _contestants(
  moments_size: int | None,
  choose: Callable[..., list[selection.Trial]] = trials.chosen,
) -> list[selection.Trial]:
  """Returns what is compared; None where the length of moments is not known."""
  return choose(
    SCENARIO,
    lambda name, _: _DEFAULTS | _OWN_DEFAULTS.get(name, {}),
    lambda name: _overrides(name, moments_size),
  )


def _overrides(algorithm: str, moments_size: int | None) -> dict[str, Any]:
  """Returns the hyper-parameters of an algorithm that the data fix."""
  if (
    moments_size is None
    or not hasattr(
      algorithms.describe(algorithm).hparams, "representation_size"
    )
    or FLAGS.representation != "moments"
  ):
    return {}
  common_flags.require(
    "representation_size",
    FLAGS.representation_size in (None, [moments_size]),
    f"{moments_size}, two for each feature of the extractor, for"
    " --representation=moments",
  )
  return {"representation_size": moments_size}


def _build_model(
  dataset: dynamic_personalization.DynamicDataset,
) -> split_model.SplitModel:
  import tensorflow as tf

  name = common_flags.model_name(SCENARIO)
  width = FLAGS.model_width or _WIDTHS.get(name)
  options = model_flags.options()
  if name == "cnn":
    options["channels"] = width, 2 * width, 2 * width, 4 * width
    options["head_width"] = 4 * width
  elif width is not None:
    options["width"] = width
    if name == "mlp":
      options["head_width"] = width
  model = models.build(
    name,
    input_shape=dataset.train.x.shape[1:],
    num_classes=len(dataset.class_names),
    input_dtype=tf.as_dtype(dataset.train.x.dtype),
    input_scaling=input_flags.chosen([dataset.train.x]),
    **options,
  )
  # Of the target network alone: the extractor is trained on public data. A
  # hypernetwork gives nearly these weights at its start.
  return model_flags.changed(model)


def _periods(
  dataset: dynamic_personalization.DynamicDataset,
  part: str,
  distribution: str | Sequence[str],
  seed: int,
  periods_per_distribution: int = 1,
) -> dynamic_personalization.Periods:
  return dynamic_personalization.Periods(
    getattr(dataset, part),
    len(dataset.class_names),
    distribution,
    num_clients=FLAGS.num_clients,
    period_size=FLAGS.period_size,
    seed=seed,
    rest=FLAGS.rest,
    periods_per_distribution=periods_per_distribution,
    pool_client=dataset.clients and dataset.clients[part],
  )


def train_periods(
  dataset: dynamic_personalization.DynamicDataset, seed: int
) -> dynamic_personalization.Periods:
  """Draws the periods of training; each has a distribution of its own."""
  return _periods(dataset, "train", FLAGS.train_distributions, seed)


def validation_periods(
  dataset: dynamic_personalization.DynamicDataset, seed: int
) -> dynamic_personalization.Periods:
  """Draws the periods of validation, which are iid."""
  return _periods(dataset, "validation", "iid", seed)


def test_periods(
  dataset: dynamic_personalization.DynamicDataset, distribution: str, seed: int
) -> dynamic_personalization.Periods:
  """Draws the periods of a stream."""
  return _periods(
    dataset, "test", distribution, seed, FLAGS.periods_per_distribution
  )
