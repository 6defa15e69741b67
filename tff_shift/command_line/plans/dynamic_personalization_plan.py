"""Dynamic personalization: flags and plan of the binary of this name."""

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
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import own_drift_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.plans import plan
from tff_shift.command_line.tuning import selection
from tff_shift.command_line.tuning import trials
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import own_drift
from tff_shift.shift import choices

if TYPE_CHECKING:
  from tff_shift.data.shifts import fixed_batches
  from tff_shift.models import split_model
  from tff_shift.simulation.scenarios import pretraining_hparams

FLAGS = flags.FLAGS

SCENARIO = "dynamic_personalization"
VALIDATION = "validation"
# The flags that draw periods.
_DRAWING = (
  *("test_distributions", "train_distributions", "period_size", "periods"),
  *("periods_per_distribution", "rest"),
)

# The paper gives no values. Learning rates were selected on digits with the
# default network, from the same few values for all algorithms.
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

# The width of the first layer of target networks. They have 5,000 to 20,000
# weights, because the hypernetwork has a hundred times as many.
_WIDTHS = {"mlp": 16, "cnn": 8}

_QUANTILE = 0.95
_LEAST_PERIOD_SIZE = 2


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
    rounds_help="Number of training rounds, each with a new period.",
    model_help="It is the target network. Default: the data set's.",
    model_width_help="All layers of mlp have this width, those of cnn 1, 2, 2"
    " and 4 times this width, those of other models as documented there."
    " Default: "
    + ", ".join(f"{name} {width}" for name, width in _WIDTHS.items())
    + ", otherwise the model's.",
  )
  flags.DEFINE_list(
    "test_distributions",
    list(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions of test periods, one stream each: "
    + ", ".join(dynamic_personalization.DISTRIBUTIONS)
    + ".",
  )
  flags.DEFINE_list(
    "train_distributions",
    list(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions of training periods; each client samples"
    " one for each period.",
  )
  flags.DEFINE_integer("period_size", 100, "Number of examples of a period.")
  flags.DEFINE_integer(
    "periods", 100, "Number of evaluated periods of a stream (the paper's n)."
  )
  flags.DEFINE_integer(
    "periods_per_distribution",
    5,
    "Number of consecutive periods of a stream with the same distribution and"
    " the same dominant labels. With 1, an update for the next period is always"
    " too late.",
  )
  flags.DEFINE_integer(
    "train_periods",
    None,
    "Number of leading domains that are training periods, for data with"
    " domains. Rounds use them in turn; the other domains are the stream."
    " Default: half of the domains, rounded up.",
  )
  flags.DEFINE_string(
    "rest",
    "others",
    "Labels of the remaining examples of a period, beyond the fractions that"
    " its distribution defines: others, sampled from labels without a fraction;"
    " or any, from all labels.",
  )
  flags.DEFINE_string(
    "representation",
    "moments",
    "Representation of the data of a period as a vector r: "
    + ", ".join(choices.REPRESENTATIONS)
    + ". t_sne takes a fraction of a second"
    " per client and round.",
  )
  flags.DEFINE_string(
    "distance_features",
    "pixels",
    "Features that the distance between periods compares: "
    + ", ".join(choices.FEATURES)
    + " (of a small network trained on"
    " public data).",
  )
  flags.DEFINE_float(
    "threshold_quantile",
    None,
    "Quantile of the distances between IID periods that is the drift threshold"
    f" (DT); larger distances are drifts. Default: {_QUANTILE}.",
  )
  flags.DEFINE_float(
    "distance_threshold",
    None,
    "The drift threshold DT itself, at least 0. 0: always a drift, inf: never.",
  )
  flags.DEFINE_string(
    "apply_update",
    "next",
    "First period of an updated model after a drift: next, the period after the"
    " drift was detected; or current, which predicts that period again.",
  )
  flags.DEFINE_float(
    "public_fraction",
    0.2,
    "Fraction of the examples outside the test split that is public: the server"
    " fits representations and trains the extractor on it.",
  )
  flags.DEFINE_integer(
    "max_examples",
    None,
    "Maximum number of examples of the data set to use. Default: all.",
  )
  pretrained.define_flags("extractors")
  flags.DEFINE_integer(
    "public_seed",
    0,
    "Seed of the data split and of the server's fits. All --seeds share one"
    " extractor and one threshold.",
  )
  common_flags.define_bounds(f"{common_flags.MAJORITY_HELP}.")
  selection_flags.define(
    VALIDATION,
    "the best mean accuracy over seeds on IID periods of the validation split"
    " (VACC); the test streams are never used",
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
  """The checked plan of a dynamic-personalization comparison.

  Attributes:
    dataset: The splits of the data set.
    extractor: The untrained feature extractor. None if it is not needed.
    pretraining: The hyper-parameters of the extractor's training.
    quantile: The quantile of distances that is the drift threshold.
  """

  dataset: dynamic_personalization.DynamicDataset
  extractor: split_model.SplitModel | None
  pretraining: pretraining_hparams.PretrainingHParams
  quantile: float


def representation_size(trial: selection.Trial) -> int | None:
  """Returns the length of r, or None if the trial needs no r."""
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
  has_own_drift = bool(own_drift_flags.time_names(SCENARIO))
  with common_flags.usage_errors():
    dataset = dynamic_personalization.load_dynamic(
      FLAGS.dataset,
      seed=FLAGS.public_seed,
      data_dir=FLAGS.data_dir,
      max_examples=FLAGS.max_examples,
      public_fraction=FLAGS.public_fraction,
      train_periods=FLAGS.train_periods,
      num_clients=FLAGS.num_clients if has_own_drift else None,
    )
    if has_own_drift:
      _check_own(dataset)
    else:
      memory.check(
        FLAGS.num_clients * FLAGS.period_size * dataset.train.x[0].nbytes,
        f"--num_clients={FLAGS.num_clients} with"
        f" --period_size={FLAGS.period_size}",
      )
    # Refuses periods that cannot be drawn.
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
    f"at most half of the {len(dataset.train.y)} training examples, on which"
    " the threshold is calibrated, unless --distance_threshold is set",
  )
  with common_flags.usage_errors():
    metric_flags.refuse_single_clients("each client is measured by itself")
  chosen = _trials(2 * extractor.embedding_size)
  common_flags.check_sizes(
    chosen,
    model,
    len(dataset.train.y)
    if has_own_drift
    else FLAGS.num_clients * FLAGS.period_size,
  )
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
    class_names=dataset.class_names,
    settings={
      **_drift_settings(has_own_drift),
      "num_clients": FLAGS.num_clients,
      "participation": FLAGS.participation,
      **participation_flags.settings(),
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


def _drift_settings(has_own_drift: bool) -> dict[str, Any]:
  """Returns the settings of the periods."""
  if has_own_drift:
    return {"train_periods": FLAGS.train_periods, "periods": FLAGS.periods}
  return {
    "train_distributions": ",".join(FLAGS.train_distributions),
    "period_size": FLAGS.period_size,
    "periods": FLAGS.periods,
    "periods_per_distribution": FLAGS.periods_per_distribution,
    "rest": FLAGS.rest,
  }


def _check_own(dataset: dynamic_personalization.DynamicDataset) -> None:
  """Sets the flags of periods from the data; warns of absent clients."""
  own = dataset.periods
  own_drift_flags.set_default("period_size", own.period_size)
  if own.period_size < _LEAST_PERIOD_SIZE:
    raise common_flags.UsageError(
      f"--dataset={dataset_flags.shown()}: a client must have at least"
      f" {_LEAST_PERIOD_SIZE} training examples in most training periods, and"
      f" all clients {2 * _LEAST_PERIOD_SIZE}; use longer periods"
    )
  sizes = [
    [
      len(own.train.batch(client, period).y)
      for period in range(FLAGS.train_periods)
    ]
    + [
      len(own.stream.batch(client, period).y)
      for period in range(1, FLAGS.periods + 1)
    ]
    for client in range(FLAGS.num_clients)
  ]
  own_drift_flags.check_absent(sizes, own.time_names, "periods")


def check_flags() -> None:
  """Checks the flags as far as possible without data.

  Raises:
    UsageError: If a flag is wrong.
  """
  common_flags.check_common_flags(SCENARIO)
  time_names = own_drift_flags.time_names(SCENARIO)
  if time_names:
    own_drift_flags.refuse(*_DRAWING)
    most = len(time_names) - 1
    own_drift_flags.set_default("train_periods", (most + 2) // 2)
    common_flags.require(
      "train_periods",
      1 <= FLAGS.train_periods <= most,
      f"from 1 to {most}, so that one of {most + 1} domains remains",
    )
    for flag in ("test_distributions", "train_distributions"):
      own_drift_flags.set_default(flag, [own_drift.STREAM])
    own_drift_flags.set_default("periods", most + 1 - FLAGS.train_periods)
  elif FLAGS.train_periods is not None:
    raise common_flags.UsageError(
      f"--train_periods={FLAGS.train_periods} belongs to data with domains, not"
      f" to --dataset={dataset_flags.shown()}; leave it out"
    )
  for flag, allowed in (
    ("rest", dynamic_personalization.RESTS),
    ("representation", choices.REPRESENTATIONS),
    ("distance_features", choices.FEATURES),
    ("apply_update", choices.APPLY_UPDATES),
  ):
    common_flags.require_choice(flag, allowed)
  pretrained.chosen_hparams()
  for flag in ("test_distributions", "train_distributions"):
    if not time_names:
      common_flags.require_choices(flag, dynamic_personalization.DISTRIBUTIONS)
  common_flags.require_at_least_one(
    "periods", "periods_per_distribution", "max_examples"
  )
  common_flags.require_at_least_one("period_size")
  # A distance needs two examples.
  common_flags.require(
    "period_size",
    FLAGS.period_size >= _LEAST_PERIOD_SIZE,
    f"at least {_LEAST_PERIOD_SIZE}",
  )
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
      f"--threshold_quantile={quantile:g} does not apply to"
      f" --distance_threshold={threshold:g}; leave one of them out"
    )
  # The size of the extractor's moments is not known yet.
  _trials(None, trials.described)
  seeds = common_flags.chosen_seeds("seeds")
  selection_flags.chosen_seeds(VALIDATION, seeds)
  # Last, because it imports algorithms and TensorFlow.
  _trials(None)


def _trials(
  moments_size: int | None,
  choose: Callable[..., list[selection.Trial]] = trials.chosen,
) -> list[selection.Trial]:
  """Returns the trials.

  Args:
    moments_size: The length of moments as r. None: not known yet.
    choose: `trials.chosen` or `trials.described`.
  """
  return choose(
    SCENARIO,
    lambda name, _: _DEFAULTS | _OWN_DEFAULTS.get(name, {}),
    lambda name: _overrides(name, moments_size),
  )


def _overrides(algorithm: str, moments_size: int | None) -> dict[str, Any]:
  """Returns the hyper-parameters of an algorithm that the data determine."""
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
    f"{moments_size}, two per feature of the extractor, with"
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
  # Only the target network: the extractor is trained on public data. A
  # hypernetwork initially generates nearly these weights.
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
    # A client may join after the training periods.
    may_lack=dataset.periods is not None,
  )


def train_periods(
  dataset: dynamic_personalization.DynamicDataset, seed: int
) -> dynamic_personalization.Periods | fixed_batches.Periods:
  """Returns the training periods, each with its own distribution."""
  if dataset.periods is not None:
    return dataset.periods.train
  return _periods(dataset, "train", FLAGS.train_distributions, seed)


def validation_periods(
  dataset: dynamic_personalization.DynamicDataset, seed: int
) -> dynamic_personalization.Periods:
  """Returns the validation periods, which are IID."""
  return _periods(dataset, "validation", "iid", seed)


def test_periods(
  dataset: dynamic_personalization.DynamicDataset, distribution: str, seed: int
) -> dynamic_personalization.Periods | fixed_batches.Periods:
  """Returns the periods of a test stream."""
  if dataset.periods is not None:
    return dataset.periods.stream
  return _periods(
    dataset, "test", distribution, seed, FLAGS.periods_per_distribution
  )
