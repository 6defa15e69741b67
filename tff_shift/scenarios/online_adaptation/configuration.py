"""Online adaptation: flags and plan of `experiments.online_adaptation`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift._util import memory
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration as configuration_lib
from tff_shift.command_line import output_folder
from tff_shift.command_line import plan as plan_lib
from tff_shift.command_line import pretrained
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import own_drift_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.tuning import selection
from tff_shift.command_line.tuning import trials
from tff_shift.data.images import corruptions
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.shifts import own_drift
from tff_shift.data.shifts import schedules
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import aggregator_hparams

if TYPE_CHECKING:
  from tff_shift.data import examples
  from tff_shift.learning.aggregators import factories
  from tff_shift.simulation import pretraining_hparams

FLAGS = flags.FLAGS

SCENARIO = "online_adaptation"
# The algorithm whose ablations `--controls` runs.
CONTROLLED = "fed_ade"
# The algorithm for which a reset changes nothing.
_NO_ADAPTATION = "source"
# The flags that draw the drift.
_DRAWING = (
  *("shift", "shift_kind", "corrupted_images", "bernoulli_flip"),
  *("samples_per_step", "dirichlet", "client_classes"),
  *("schedules", "severities", "corruption_set"),
)
# The flags that change the examples.
_CHANGING = ("shift_kind", "max_pretraining_examples")
# Settings of a run only where they differ from their defaults.
_UNLESS_DEFAULT = ("schedules", "severities", "corruption_set")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(pretrained.Configuration, common_flags.Configuration):
  """The flags of this binary."""

  scenario = SCENARIO
  pretrained_models = "pre-trained models"
  skip_help = (
    "0: --weights_file is the deployed model, and nothing is trained. "
  )

  # The paper standardizes CIFAR-10.
  input_scaling: str = configuration_lib.changed(
    common_flags.Configuration, "input_scaling", "standardized"
  )
  shift: tuple[str, ...] = configuration_lib.setting(
    ("linear",),
    "Comma-separated schedules of the shift, one run per schedule: {choices}.",
    choices=schedules.names(),
  )
  shift_kind: str = configuration_lib.setting(
    "label",
    "label: label shift, the label distribution of each client drifts."
    " covariate: covariate shift, the images of each client get a corruption of"
    " its own.",
    choices=online_adaptation.SHIFT_KINDS,
  )
  corrupted_images: str = configuration_lib.setting(
    "computed",
    "Source of corrupted images under covariate shift: computed, from the"
    " images of --dataset; or archive, the published CIFAR-10-C or"
    " CIFAR-100-C.",
    choices=("computed", "archive"),
  )
  bernoulli_flip: str = configuration_lib.setting(
    "inverse_sqrt",
    "Flip probability of the Bernoulli schedule: inverse_sqrt; or as_printed in"
    " the paper, which flips at nearly every step.",
    choices=schedules.BERNOULLI_FLIPS,
  )
  schedules: str = configuration_lib.setting(
    schedules.SOURCES[0],
    "Whose schedules --shift names: paper; program, those of the"
    " program that the authors of Fed-ADE released, whose Bernoulli weights are"
    " drawn for each client and step; online_label_shift, whose square phases"
    " have sqrt(T) steps (Baby et al. 2023).",
    choices=schedules.SOURCES,
  )
  severities: str = configuration_lib.setting(
    online_adaptation.SEVERITIES[0],
    "Severity of the corruptions at the weight omega: zero_to_five, 5 omega,"
    " rounded; one_to_five, 4 omega, rounded up, plus 1, as in the"
    " authors' program.",
    choices=online_adaptation.SEVERITIES,
  )
  corruption_set: str = configuration_lib.setting(
    online_adaptation.CORRUPTION_SETS[0],
    "Corruptions of the clients: all, 19; benchmark, the 15 without"
    " the extra ones, as in the authors' program.",
    choices=online_adaptation.CORRUPTION_SETS,
  )
  repeat_cohorts: bool = configuration_lib.setting(
    False,
    "Whether each time step samples the cohorts of the first time step, as the"
    " authors' program does: other clients never take part.",
    group="training",
  )
  timesteps: int = configuration_lib.setting(
    20,
    "Number of time steps (T). Default for data with domains: all after the"
    " first domain.",
    minimum=1,
  )
  rounds_per_step: int = configuration_lib.setting(
    1,
    "Number of rounds per time step (the paper's R).",
    minimum=1,
    group="training",
  )
  controls: bool = configuration_lib.setting(
    False,
    "Also runs two ablations with the same seeds and schedules: fix_lr_mean, a"
    " constant rate equal to Fed-ADE's mean, and fed_ade_shuffled, Fed-ADE's"
    " rates permuted over clients and steps. The advantage of"
    f" {CONTROLLED} over both is due to measuring the shift. They take twice"
    f" the time of {CONTROLLED}.",
    is_compared=False,
    group="evaluation",
  )
  bounds: bool = configuration_lib.setting(
    False,
    f"{common_flags.MAJORITY_HELP} from before deployment.",
    is_compared=False,
    group="evaluation",
  )
  reset_control: bool = configuration_lib.setting(
    False,
    "Also runs each algorithm with a reset: each time step starts from the"
    " deployed model (rows <algorithm>_reset). An algorithm that is not better"
    " than its reset accumulates nothing. It takes the same time again.",
    is_compared=False,
    group="evaluation",
  )
  save_deployment: bool = configuration_lib.setting(
    False,
    "Whether saved models have what ts.Adapter starts from: the deployed model,"
    " its confusion matrix, and the labelled examples of all clients.",
    group="output",
  )
  samples_per_step: int = configuration_lib.setting(
    50,
    "Number of unlabelled examples of a client per time step.",
    minimum=1,
  )
  initial_examples: int = configuration_lib.setting(
    100,
    "Number of labelled examples of a client from before deployment. Clients"
    " with fewer examples use all.",
    minimum=1,
  )
  dirichlet: float = configuration_lib.positive_or_infinite(
    0.1,
    "Dirichlet concentration of the label distribution to which a client"
    " drifts; inf: uniform.",
  )
  client_classes: str = configuration_lib.setting(
    "all",
    "all: each client may have all classes. disjoint: each class belongs to one"
    " client; its labelled examples and stream only have its own classes. The"
    " deployed model is trained on all classes.",
    choices=("all", "disjoint"),
  )
  pretraining_distribution: str = configuration_lib.setting(
    "uniform",
    "Label distribution of pre-training: {choices} (all labelled examples, as"
    " they are). Default for your own data: as_is.",
    choices=online_adaptation.PRETRAINING_DISTRIBUTIONS,
    group="training",
  )
  max_pretraining_examples: int | None = configuration_lib.setting(
    None,
    "Maximum number of examples for pre-training. Default: half of the data;"
    " all with --pretraining_distribution=as_is.",
    minimum=1,
    group="training",
  )
  pretraining_seed: int = configuration_lib.seed(
    "Seed of the data split and of pre-training. All --seeds share one deployed"
    " model."
  )

  def check_together(self) -> None:
    """Refuses flags that do not apply to the chosen shift."""
    super().check_together()
    for flag, applies_to, needed in (
      ("corrupted_images", "shift_kind", "covariate"),
      ("severities", "shift_kind", "covariate"),
      ("corruption_set", "shift_kind", "covariate"),
    ):
      value, other = getattr(self, flag), getattr(self, applies_to)
      if value != FLAGS[flag].default and other != needed:
        raise ValueError(
          f"--{flag}={value} does not apply to --{applies_to}={other}; leave it"
          f" out, or pass --{applies_to}={needed}"
        )
    default = FLAGS["bernoulli_flip"].default
    if self.schedules != "paper" and self.bernoulli_flip != default:
      raise ValueError(
        f"--bernoulli_flip={self.bernoulli_flip} does not apply to"
        f" --schedules={self.schedules}, which defines the flips; leave one of"
        " them out"
      )
    is_private = FLAGS.aggregator in aggregator_hparams.PRIVATE
    if self.repeat_cohorts and is_private:
      raise ValueError(
        "--repeat_cohorts is not allowed with"
        f" --aggregator={FLAGS.aggregator}: epsilon is computed for cohorts"
        " that are sampled in each round"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan_lib.Plan):
  """The checked plan of an online-adaptation comparison.

  Attributes:
    omegas: The weight omega of eq. 1 at each step, by schedule and seed; None
      if the data have their own drift.
    dataset: The splits of the data set.
    archive: Returns archived corrupted images. None: they are computed.
    pretraining: The hyper-parameters of pre-training; the plan's `model` is not
      trained yet. None: it stays as it is.
  """

  omegas: Mapping[str, Mapping[int, np.ndarray | None]]
  dataset: online_adaptation.OnlineAdaptationDataset
  archive: Callable[[str, int], examples.Examples] | None
  pretraining: pretraining_hparams.PretrainingHParams | None

  def num_runs(self, trial: selection.Trial) -> int:
    """Returns the number of runs of a trial, including its ablations."""
    from tff_shift.scenarios.online_adaptation import rate_controls

    controls = len(rate_controls.NAMES) * len(
      _controlled(self.configuration, [trial])
    )
    resets = int(is_reset(self.configuration, trial))
    return len(self.omegas) * len(self.seeds) * (1 + controls + resets)

  def what_follows(self, before: int) -> str | None:
    """Explains why a run cannot be extended to `num_steps` time steps."""
    for shift, by_seed in self.omegas.items():
      for seed, omega in by_seed.items():
        if omega is None:
          continue
        old = _omega(self.configuration, shift, before, seed)
        clients, steps = np.nonzero(
          np.atleast_2d(old != omega[..., : before + 1])
        )
        if len(steps):
          step, client = min(zip(steps, clients, strict=True))
          now, was = (
            np.atleast_2d(each)[client, step] for each in (omega, old)
          )
          return (
            f"--shift={shift} depends on it: omega of time step {step} would"
            f" become {now:.4g} instead of {was:.4g}"
          )
    if self.configuration.controls:
      return "--controls use the rates of all time steps at each step"
    return super().what_follows(before)


def _omega(
  configuration: Configuration, shift: str, timesteps: int, seed: int
) -> np.ndarray:
  """Returns the weight omega of eq. 1, see `online_adaptation.Streams`."""
  source = configuration.schedules

  def omega_of(seed):
    return schedules.omega(
      shift,
      timesteps,
      seed=seed,
      bernoulli_flip=configuration.bernoulli_flip,
      source=source,
    )

  if not schedules.is_per_client(shift, source):
    return omega_of(seed)
  clients = range(configuration.num_clients)
  return np.array([omega_of((seed, client)) for client in clients])


def participation(configuration: Configuration) -> dict[str, Any]:
  """Returns the arguments of the driver: who takes part in a round."""
  from tff_shift.simulation.engine import participation

  found = participation_flags.chosen()
  if configuration.repeat_cohorts:
    found["sampler"] = participation.repeated(
      found["sampler"], configuration.rounds_per_step
    )
  return found


def check_flags() -> Configuration:
  """Returns the values of the flags, checked as far as possible without data.

  Raises:
    UsageError: If a flag is wrong.
  """
  configuration, time_names = own_drift_flags.chosen(Configuration, _DRAWING)
  if time_names:
    own_drift_flags.set_default("shift", [own_drift.STREAM])
    own_drift_flags.set_default("timesteps", len(time_names) - 1)
    common_flags.require(
      "timesteps",
      FLAGS.timesteps < len(time_names),
      f"at most {len(time_names) - 1}, the number of domains after the first"
      " one",
    )
    configuration = dataclasses.replace(
      configuration, shift=tuple(FLAGS.shift), timesteps=FLAGS.timesteps
    )
  own_drift_flags.set_default(
    "pretraining_distribution",
    online_adaptation.default_distribution(configuration.dataset),
  )
  configuration = dataclasses.replace(
    configuration, pretraining_distribution=FLAGS.pretraining_distribution
  )
  chosen = trials.described(SCENARIO)
  pretrained.chosen_hparams(may_skip=True)
  _check_controls(configuration, chosen)
  # Last, because it imports algorithms and TensorFlow.
  trials.chosen(SCENARIO)
  return configuration


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written.

  Returns:
    The plan.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  configuration = check_flags()
  chosen = trials.chosen(SCENARIO)
  seeds = configuration.seeds
  has_own_drift = bool(own_drift_flags.time_names(SCENARIO))
  omegas = {
    shift: {
      seed: None
      if has_own_drift
      else _omega(configuration, shift, configuration.timesteps, seed)
      for seed in seeds
    }
    for shift in configuration.shift
  }
  with common_flags.usage_errors():
    dataset = online_adaptation.load_online_adaptation(
      configuration.dataset,
      pretraining_distribution=configuration.pretraining_distribution,
      max_pretraining_examples=configuration.max_pretraining_examples,
      data_dir=configuration.data_dir,
      seed=configuration.pretraining_seed,
      model_dir=model_flags.model_dir(),
      disjoint_clients=_num_disjoint_clients(configuration),
      num_clients=configuration.num_clients if has_own_drift else None,
    )
    if configuration.shift_kind == "covariate":
      _check_images(dataset.stream.x[:1])
    archive = None
    if configuration.corrupted_images == "archive":
      archive = online_adaptation.archive_of(
        configuration.dataset, configuration.data_dir
      )
    labelled = _labelled_sizes(configuration, dataset)
    num_examples = int(
      np.minimum(labelled, configuration.initial_examples).sum()
    )
    if has_own_drift:
      num_examples += max(_check_own(configuration, dataset))
    else:
      num_examples += configuration.num_clients * configuration.samples_per_step
      _check_memory(configuration, dataset, num_examples)
    # Pre-training starts from the weights of --weights_file, unless it is
    # skipped; clients start from the pre-trained model.
    model = common_flags.built_model(
      SCENARIO,
      [dataset.pretraining.x],
      dataset.schema,
      common_flags.model_options(),
    )
    common_flags.check_sizes(chosen, model, num_examples, will_be_trained=True)
    num_small = sum(
      0 < size < configuration.initial_examples for size in labelled
    )
    num_without = labelled.count(0)
    plan = Plan(
      scenario=SCENARIO,
      changed_data=common_flags.changed_data(_CHANGING),
      configuration=configuration,
      trials=chosen,
      seeds=seeds,
      aggregators=_aggregators(configuration, chosen),
      model=model,
      schema=dataset.schema,
      groups=dataset.groups,
      uses=[
        f"before deployment: {name}, {dataset.num_labelled:,} rows"
        for name in dataset.schema.times[:1]
      ],
      settings={
        **_drift_settings(configuration, has_own_drift),
        "num_clients": configuration.num_clients,
        "participation": configuration.participation,
        **participation_flags.settings(),
        **({"repeat_cohorts": True} if configuration.repeat_cohorts else {}),
        "rounds_per_step": configuration.rounds_per_step,
        **(
          {}
          if has_own_drift
          else {"samples_per_step": configuration.samples_per_step}
        ),
        "initial_examples": configuration.initial_examples,
        **({"clients_below_initial_examples": num_small} if num_small else {}),
        **(
          {"clients_without_labelled_examples": num_without}
          if num_without
          else {}
        ),
        "pretraining_distribution": configuration.pretraining_distribution,
        "model": model.name,
        "input_scaling": FLAGS.input_scaling,
      },
      num_steps=configuration.timesteps,
      step_name="time step",
      omegas=omegas,
      dataset=dataset,
      archive=archive,
      pretraining=pretrained.chosen_hparams(may_skip=True),
    )
    # Refuses streams that cannot be drawn.
    for seed in seeds:
      client_streams(plan, configuration.shift[0], seed).batch(0, 1)
      if archive is not None:
        for shift in configuration.shift:
          _draw_each_part(client_streams(plan, shift, seed))
  pretrained.check_cache_folder()
  input_flags.warn_of_extremes(
    [
      (
        [dataset.pretraining.x],
        [dataset.validation.x, dataset.initial.x, dataset.stream.x],
      )
    ],
    dataset.schema.features or (),
  )
  if has_own_drift:
    own_drift.warn_of_times(
      dataset.schema.times,
      [
        dataset.num_labelled,
        *(
          sum(
            len(dataset.streams.batch(client, timestep).y)
            for client in range(configuration.num_clients)
          )
          for timestep in range(1, len(dataset.schema.times))
        ),
      ],
      SCENARIO,
    )
  if num_small:
    output_folder.warn(
      f"{num_small} of {configuration.num_clients} clients have fewer labelled"
      f" examples than --initial_examples={configuration.initial_examples} and"
      " use all of them"
      f" (at least {min(filter(None, labelled))})"
    )
  if num_without:
    output_folder.warn(
      f"{num_without} of {configuration.num_clients} clients have no labelled"
      " examples of their own and get at most"
      f" --initial_examples={configuration.initial_examples} of the server's"
      " held-out examples"
    )
  return plan


def _drift_settings(
  configuration: Configuration, has_own_drift: bool
) -> dict[str, str]:
  """Returns the settings of a drawn drift; none of a drift of the data."""
  if has_own_drift:
    return {}
  return {
    "shift_kind": configuration.shift_kind,
    "dirichlet": str(configuration.dirichlet),
    "client_classes": configuration.client_classes,
    **{
      name: getattr(configuration, name)
      for name in _UNLESS_DEFAULT
      if getattr(configuration, name) != FLAGS[name].default
    },
  }


def _check_memory(
  configuration: Configuration,
  dataset: online_adaptation.OnlineAdaptationDataset,
  num_examples: int,
) -> None:
  """Refuses more examples of clients than fit into memory."""
  # Plus the label distribution to which each client drifts.
  num_bytes = num_examples * dataset.stream.x[0].nbytes
  num_bytes += configuration.num_clients * len(dataset.schema.classes) * 8
  memory.check(
    num_bytes,
    f"--num_clients={configuration.num_clients} with"
    f" --samples_per_step={configuration.samples_per_step} and"
    f" --initial_examples={configuration.initial_examples}",
  )


def _check_own(
  configuration: Configuration,
  dataset: online_adaptation.OnlineAdaptationDataset,
) -> list[int]:
  """Warns of absent clients; returns the number of examples of each step."""
  streams = dataset.streams.until(configuration.timesteps)
  sizes = np.array(
    [
      [
        len(streams.batch(client, timestep).y)
        for timestep in range(1, configuration.timesteps + 1)
      ]
      for client in range(configuration.num_clients)
    ]
  )
  own_drift_flags.check_absent(sizes, dataset.schema.times[1:], "time steps")
  return sizes.sum(axis=0).tolist()


def _labelled_sizes(
  configuration: Configuration,
  dataset: online_adaptation.OnlineAdaptationDataset,
) -> list[int]:
  """Returns the number of labelled examples of each client.

  Refuses clients without labelled examples, unless they may join later.
  """
  clients = range(configuration.num_clients)
  # Clients that share their examples have the same number.
  if dataset.initial_client is None and dataset.client_classes is None:
    clients = clients[:1]
  sizes = [
    online_adaptation.num_labelled(dataset, client) for client in clients
  ]
  return sizes * (configuration.num_clients // len(sizes))


def _num_disjoint_clients(configuration: Configuration) -> int | None:
  """Returns the number of clients with disjoint classes, or None."""
  # Refuses the flag if the data set assigns clients.
  dataset_flags.clients_are_given("client_classes")
  return (
    configuration.num_clients
    if configuration.client_classes == "disjoint"
    else None
  )


def _check_images(x: np.ndarray) -> None:
  """Refuses examples that cannot be corrupted."""
  try:
    corruptions.check_images(x)
  except ValueError as error:
    raise common_flags.UsageError(
      "--shift_kind=covariate cannot corrupt"
      f" --dataset={dataset_flags.shown()}: {error}"
    ) from error


def is_reset(configuration: Configuration, trial: selection.Trial) -> bool:
  """Returns whether a trial is also run with a reset at each time step."""
  return configuration.reset_control and trial.algorithm != _NO_ADAPTATION


def reset_name(algorithm: str) -> str:
  """Returns the name of an algorithm with a reset at each time step."""
  return f"{algorithm}_reset"


def _controlled(
  configuration: Configuration,
  chosen: Sequence[selection.Trial],
) -> list[selection.Trial]:
  """Returns the trials whose ablations are run."""
  return [
    each
    for each in chosen
    if configuration.controls and each.algorithm == CONTROLLED
  ]


def _aggregators(
  configuration: Configuration,
  chosen: Sequence[selection.Trial],
) -> dict[str, factories.Aggregator | None]:
  """Returns the aggregators of algorithms and ablations by name, checked."""
  from tff_shift.scenarios.online_adaptation import rate_controls

  controlled = _controlled(configuration, chosen)
  found = common_flags.chosen_aggregators(
    [*chosen, *map(fixed_rate, controlled)],
    configuration.timesteps * configuration.rounds_per_step,
  )
  if controlled:
    # Ablations run FixLR at other rates, see `fixed_rate`.
    found.update(dict.fromkeys(rate_controls.NAMES, found["fix_lr"]))
  for trial in chosen:
    if is_reset(configuration, trial):
      found[reset_name(trial.algorithm)] = found[trial.algorithm]
  return found


def _check_controls(
  configuration: Configuration, chosen: Sequence[selection.Trial]
) -> None:
  """Refuses `--controls` where the rates of Fed-ADE cannot be reused.

  It needs Fed-ADE, one rate per step, and the rounds of each client.
  """
  controlled = _controlled(configuration, chosen)
  if configuration.controls and not controlled:
    raise common_flags.UsageError(
      f"--controls belongs to {CONTROLLED}, which is not in"
      f" --algorithm={','.join(configuration.algorithm)}"
    )
  if configuration.controls and participation_flags.given():
    raise common_flags.UsageError(
      f"--controls does not apply to --{participation_flags.given()[0]}: it"
      " counts the rounds of clients that are sampled uniformly and all report;"
      " leave one of them out"
    )
  if configuration.rounds_per_step > 1 and any(
    each.hparams.compare == "rounds"
    and hyperparameters.switch(each.hparams, "reference") == "last"
    for each in controlled
  ):
    raise common_flags.UsageError(
      "--controls: with --compare=rounds a client has a rate for each round;"
      f" --rounds_per_step={configuration.rounds_per_step} must be 1"
    )


def fixed_rate(trial: selection.Trial) -> selection.Trial:
  """Returns the FixLR trial that runs a trial's ablations."""
  from tff_shift.scenarios.online_adaptation import rate_controls

  return trial._replace(
    algorithm="fix_lr", hparams=rate_controls.fixed_rate(trial.hparams)
  )


def _draw_each_part(drawn: online_adaptation.Streams) -> None:
  """Draws a batch of every corruption at every severity of the streams.

  This reads everything that the streams need from an archive.
  """
  parts = {
    (name, drawn.severity(timestep, client)): (client, timestep)
    for client, name in enumerate(drawn.corruption_names)
    for timestep in range(1, drawn.num_timesteps + 1)
  }
  for client, timestep in parts.values():
    drawn.batch(client, timestep)


def client_streams(
  plan: Plan, shift: str, seed: int
) -> online_adaptation.Streams:
  """Returns the streams of all clients for a schedule and a seed."""
  if plan.dataset.streams is not None:
    return plan.dataset.streams.until(plan.configuration.timesteps)
  return online_adaptation.Streams(
    plan.dataset.stream,
    len(plan.dataset.schema.classes),
    plan.omegas[shift][seed],
    num_clients=plan.configuration.num_clients,
    samples_per_step=plan.configuration.samples_per_step,
    shift_kind=plan.configuration.shift_kind,
    dirichlet=plan.configuration.dirichlet,
    archive=plan.archive,
    corruption_set=plan.configuration.corruption_set,
    severities=plan.configuration.severities,
    seed=seed,
    pool_client=plan.dataset.stream_client,
    client_classes=plan.dataset.client_classes,
  )
