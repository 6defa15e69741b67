"""Dynamic personalization: flags and plan of the binary of this name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift import algorithms
from tff_shift._util import memory
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration as configuration_lib
from tff_shift.command_line import plan
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import own_drift_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import selection
from tff_shift.command_line.tuning import trials
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import own_drift
from tff_shift.reporting import summary
from tff_shift.shift import choices

if TYPE_CHECKING:
  from tff_shift.data.shifts import fixed_batches
  from tff_shift.models import split_model
  from tff_shift.simulation import pretraining_hparams

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


def _described() -> dict[str, str]:
  """Returns the help texts of the defaults of hyper-parameters."""
  described = {name: str(value) for name, value in _DEFAULTS.items()}
  for name, own in _OWN_DEFAULTS.items():
    for field, value in own.items():
      described[field] += f"; {name}: {value}"
  return described


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(
  selection_flags.Configuration,
  pretrained.Configuration,
  common_flags.Configuration,
):
  """The flags of this binary."""

  scenario = SCENARIO
  hparam_defaults = _described()
  pretrained_models = "extractors"
  criterion = VALIDATION
  criterion_help = (
    "the best mean accuracy over seeds on IID periods of the validation split"
    " (VACC); the test streams are never used"
  )

  rounds: int = configuration_lib.setting(
    100,
    "Number of training rounds, each with a new period.",
    minimum=1,
    group="training",
  )
  model: str | None = configuration_lib.changed(
    common_flags.Configuration, "model", more_help="It is the target network."
  )
  model_width: int | None = configuration_lib.changed(
    common_flags.Configuration,
    "model_width",
    help="Width of the first layer, for models with the option width. All"
    " layers of mlp have this width, those of cnn 1, 2, 2 and 4 times this"
    " width, those of other models as documented there. Default: "
    + ", ".join(f"{name} {width}" for name, width in _WIDTHS.items())
    + ", otherwise the model's.",
  )
  test_distributions: tuple[str, ...] = configuration_lib.setting(
    tuple(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions of test periods, one stream each:"
    " {choices}.",
    choices=tuple(dynamic_personalization.DISTRIBUTIONS),
    # An entry of the summary has its own.
    is_compared=False,
  )
  train_distributions: tuple[str, ...] = configuration_lib.setting(
    tuple(dynamic_personalization.DISTRIBUTIONS),
    "Comma-separated distributions of training periods; each client samples"
    " one for each period.",
    choices=tuple(dynamic_personalization.DISTRIBUTIONS),
  )
  # A distance needs two examples.
  period_size: int = configuration_lib.setting(
    100, "Number of examples of a period.", minimum=_LEAST_PERIOD_SIZE
  )
  periods: int = configuration_lib.setting(
    100,
    "Number of evaluated periods of a stream (the paper's n).",
    minimum=1,
  )
  periods_per_distribution: int = configuration_lib.setting(
    5,
    "Number of consecutive periods of a stream with the same distribution and"
    " the same dominant labels. With 1, an update for the next period is always"
    " too late.",
    minimum=1,
  )
  train_periods: int | None = configuration_lib.setting(
    None,
    "Number of leading domains that are training periods, for data with"
    " domains. Rounds use them in turn; the other domains are the stream."
    " Default: half of the domains, rounded up.",
  )
  rest: str = configuration_lib.setting(
    "others",
    "Labels of the remaining examples of a period, beyond the fractions that"
    " its distribution defines: others, sampled from labels without a fraction;"
    " or any, from all labels.",
    choices=dynamic_personalization.RESTS,
  )
  representation: str = configuration_lib.setting(
    "moments",
    "Representation of the data of a period as a vector r: {choices}. t_sne"
    " takes a fraction of a second per client and round.",
    choices=choices.REPRESENTATIONS,
  )
  distance_features: str = configuration_lib.setting(
    "pixels",
    "Features that the distance between periods compares: {choices} (of a small"
    " network trained on public data).",
    choices=choices.FEATURES,
  )
  threshold_quantile: float | None = configuration_lib.setting(
    None,
    "Quantile of the distances between IID periods that is the drift threshold"
    f" (DT); larger distances are drifts. Default: {_QUANTILE}.",
    above=0,
    maximum=1,
  )
  distance_threshold: float | None = configuration_lib.setting(
    None,
    "The drift threshold DT itself, at least 0. 0: always a drift, inf: never.",
    minimum=0,
    infinite=True,
  )
  apply_update: str = configuration_lib.setting(
    "next",
    "First period of an updated model after a drift: next, the period after the"
    " drift was detected; or current, which predicts that period again.",
    choices=choices.APPLY_UPDATES,
    group="evaluation",
  )
  public_fraction: float = configuration_lib.setting(
    0.2,
    "Fraction of the examples outside the test split that is public: the server"
    " fits representations and trains the extractor on it.",
  )
  max_examples: int | None = configuration_lib.setting(
    None,
    "Maximum number of examples of the data set to use. Default: all.",
    minimum=1,
  )
  bounds: bool = configuration_lib.setting(
    False,
    f"{common_flags.MAJORITY_HELP}.",
    is_compared=False,
    group="evaluation",
  )
  public_seed: int = configuration_lib.seed(
    "Seed of the data split and of the server's fits. All --seeds share one"
    " extractor and one threshold."
  )

  def check_together(self) -> None:
    """Refuses two thresholds."""
    super().check_together()
    quantile, threshold = self.threshold_quantile, self.distance_threshold
    if None not in (quantile, threshold):
      raise ValueError(
        f"--threshold_quantile={quantile:g} does not apply to"
        f" --distance_threshold={threshold:g}; leave one of them out"
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

  configuration: Configuration
  dataset: dynamic_personalization.DynamicPersonalizationDataset
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
  configuration = check_flags()
  from tff_shift.scenarios.dynamic_personalization import drift_detector

  seeds = configuration.seeds
  has_own_drift = bool(own_drift_flags.time_names(SCENARIO))
  with common_flags.usage_errors():
    dataset = dynamic_personalization.load_dynamic_personalization(
      configuration.dataset,
      seed=configuration.public_seed,
      data_dir=configuration.data_dir,
      max_examples=configuration.max_examples,
      public_fraction=configuration.public_fraction,
      train_periods=configuration.train_periods,
      num_clients=configuration.num_clients if has_own_drift else None,
    )
    if has_own_drift:
      configuration = _check_own(configuration, dataset)
    else:
      memory.check(
        configuration.num_clients
        * configuration.period_size
        * dataset.train.x[0].nbytes,
        f"--num_clients={configuration.num_clients} with"
        f" --period_size={configuration.period_size}",
      )
    # Refuses periods that cannot be drawn.
    for distribution in configuration.test_distributions:
      test_periods(configuration, dataset, distribution, seeds[0])
    train_periods(configuration, dataset, seeds[0])
    model = _build_model(configuration, dataset)
    extractor = drift_detector.extractor_model(
      model.input_shape,
      model.num_classes,
      model.input_scaling,
      input_dtype=model.input_dtype,
    )
  common_flags.require(
    "period_size",
    configuration.distance_threshold is not None
    or 2 * configuration.period_size <= len(dataset.train.y),
    f"at most half of the {len(dataset.train.y)} training examples, on which"
    " the threshold is calibrated, unless --distance_threshold is set",
  )
  with common_flags.usage_errors():
    metric_flags.refuse_single_clients("each client is measured by itself")
  chosen = _trials(configuration, 2 * extractor.embedding_size)
  common_flags.check_sizes(
    chosen,
    model,
    len(dataset.train.y)
    if has_own_drift
    else configuration.num_clients * configuration.period_size,
  )
  input_flags.warn_of_extremes(
    [
      (
        [dataset.train.x],
        [dataset.validation.x, dataset.public.x, dataset.test.x],
      )
    ],
    dataset.schema.features or (),
  )
  needs_r = any(map(representation_size, chosen))
  needs_extractor = (
    needs_r and configuration.representation == "moments"
  ) or configuration.distance_features == "extractor"
  return Plan(
    scenario=SCENARIO,
    changed_data=common_flags.changed_data(["max_examples"]),
    configuration=configuration,
    trials=chosen,
    seeds=seeds,
    aggregators=common_flags.chosen_aggregators(chosen, configuration.rounds),
    model=model,
    schema=dataset.schema,
    groups=dataset.groups,
    uses=_uses(configuration, dataset, needs_extractor),
    settings={
      **_drift_settings(configuration, has_own_drift),
      "num_clients": configuration.num_clients,
      "participation": configuration.participation,
      **participation_flags.settings(),
      "representation": configuration.representation,
      "distance_features": configuration.distance_features,
      "apply_update": configuration.apply_update,
      "model": model.name,
      "input_scaling": FLAGS.input_scaling,
      "model_parameters": model.num_parameters,
    },
    num_steps=configuration.rounds,
    step_name="round or period",
    told_hparams=("learning_rate", "meta_learning_rate"),
    dataset=dataset,
    extractor=extractor if needs_extractor else None,
    pretraining=pretrained.chosen_hparams(),
    quantile=configuration.threshold_quantile or _QUANTILE,
    selection_seeds=configuration.seeds_of_selection,
  )


def _uses(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  needs_extractor: bool,
) -> list[str]:
  """Returns lines that say for what the data are used."""
  parts = [dataset.train, dataset.validation, dataset.public]
  sizes = [len(part.y) for part in parts]
  lines = [
    "rows for training, validation and the public part:"
    f" {', '.join(f'{size:,}' for size in sizes)}"
  ]
  if dataset.periods is not None:
    names = dataset.schema.times[: configuration.train_periods]
    lines[0] += f", of the periods {summary.shortened(names, ', ')}"
  if needs_extractor:
    lines.append(
      f"pre-training of the extractor on {sizes[-1]:,} of {sum(sizes):,} rows"
    )
  return lines


def _drift_settings(
  configuration: Configuration, has_own_drift: bool
) -> dict[str, Any]:
  """Returns the settings of the periods."""
  if has_own_drift:
    return {
      "train_periods": configuration.train_periods,
      "periods": configuration.periods,
    }
  return {
    "train_distributions": ",".join(configuration.train_distributions),
    "period_size": configuration.period_size,
    "periods": configuration.periods,
    "periods_per_distribution": configuration.periods_per_distribution,
    "rest": configuration.rest,
  }


def _check_own(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
) -> Configuration:
  """Warns of absent clients; returns the flags with the data's period size."""
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
      for period in range(configuration.train_periods)
    ]
    + [
      len(own.stream.batch(client, period).y)
      for period in range(1, configuration.periods + 1)
    ]
    for client in range(configuration.num_clients)
  ]
  own_drift_flags.check_absent(sizes, dataset.schema.times, "periods")
  own_drift.warn_of_times(dataset.schema.times, np.sum(sizes, axis=0), SCENARIO)
  return dataclasses.replace(configuration, period_size=FLAGS.period_size)


def check_flags() -> Configuration:
  """Returns the values of the flags, checked as far as possible without data.

  Raises:
    UsageError: If a flag is wrong.
  """
  configuration, time_names = own_drift_flags.chosen(Configuration, _DRAWING)
  if time_names:
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
    configuration = dataclasses.replace(
      configuration,
      train_periods=FLAGS.train_periods,
      test_distributions=tuple(FLAGS.test_distributions),
      train_distributions=tuple(FLAGS.train_distributions),
      periods=FLAGS.periods,
    )
  elif configuration.train_periods is not None:
    raise common_flags.UsageError(
      f"--train_periods={configuration.train_periods} belongs to data with"
      f" domains, not to --dataset={dataset_flags.shown()}; leave it out"
    )
  pretrained.chosen_hparams()
  # The size of the extractor's moments is not known yet.
  _trials(configuration, None, trials.described)
  # Last, because it imports algorithms and TensorFlow.
  _trials(configuration, None)
  return configuration


def _trials(
  configuration: Configuration,
  moments_size: int | None,
  choose: Callable[..., list[selection.Trial]] = trials.chosen,
) -> list[selection.Trial]:
  """Returns the trials.

  Args:
    configuration: The values of the flags.
    moments_size: The length of moments as r. None: not known yet.
    choose: `trials.chosen` or `trials.described`.
  """
  return choose(
    SCENARIO,
    lambda name, _: _DEFAULTS | _OWN_DEFAULTS.get(name, {}),
    lambda name: _overrides(configuration, name, moments_size),
  )


def _overrides(
  configuration: Configuration, algorithm: str, moments_size: int | None
) -> dict[str, Any]:
  """Returns the hyper-parameters of an algorithm that the data determine."""
  if (
    moments_size is None
    or not hasattr(
      algorithms.describe(algorithm).hparams, "representation_size"
    )
    or configuration.representation != "moments"
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
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
) -> split_model.SplitModel:
  name = common_flags.model_name(SCENARIO)
  width = configuration.model_width or _WIDTHS.get(name)
  options = model_flags.options()
  if name == "cnn":
    options["channels"] = width, 2 * width, 2 * width, 4 * width
    options["head_width"] = 4 * width
  elif width is not None:
    options["width"] = width
    if name == "mlp":
      options["head_width"] = width
  # --weights_file is only for the target network: the extractor is trained on
  # public data. A hypernetwork initially generates nearly these weights.
  return common_flags.built_model(
    SCENARIO,
    [dataset.train.x],
    dataset.schema,
    options,
  )


def _periods(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  part: str,
  distribution: str | Sequence[str],
  seed: int,
  periods_per_distribution: int = 1,
) -> dynamic_personalization.Periods:
  return dynamic_personalization.Periods(
    getattr(dataset, part),
    len(dataset.schema.classes),
    distribution,
    num_clients=configuration.num_clients,
    period_size=configuration.period_size,
    seed=seed,
    rest=configuration.rest,
    periods_per_distribution=periods_per_distribution,
    pool_client=None if dataset.clients is None else dataset.clients[part],
    # A client may join after the training periods.
    may_lack=dataset.periods is not None,
  )


def train_periods(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  seed: int,
) -> dynamic_personalization.Periods | fixed_batches.Periods:
  """Returns the training periods, each with its own distribution."""
  if dataset.periods is not None:
    return dataset.periods.train
  return _periods(
    configuration, dataset, "train", configuration.train_distributions, seed
  )


def validation_periods(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  seed: int,
) -> dynamic_personalization.Periods:
  """Returns the validation periods, which are IID."""
  return _periods(configuration, dataset, "validation", "iid", seed)


def test_periods(
  configuration: Configuration,
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  distribution: str,
  seed: int,
) -> dynamic_personalization.Periods | fixed_batches.Periods:
  """Returns the periods of a test stream."""
  if dataset.periods is not None:
    return dataset.periods.stream
  return _periods(
    configuration,
    dataset,
    "test",
    distribution,
    seed,
    configuration.periods_per_distribution,
  )
