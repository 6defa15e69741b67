"""Client guidance: flags and plan of `experiments.guidance`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift import models
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration as configuration_lib
from tff_shift.command_line import output_folder
from tff_shift.command_line import plan
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import selection_flags
from tff_shift.command_line.tuning import trials
from tff_shift.data.images import color_transforms
from tff_shift.data.shifts import guidance
from tff_shift.models.networks import shared_stages

if TYPE_CHECKING:
  from tff_shift.models import guided_model

FLAGS = flags.FLAGS

SCENARIO = "guidance"
VALIDATION = "validation"

# The width of the client branch that is added to a model without one.
_GUIDE_WIDTH = 64

# The settings of the FedDRM paper, shared by all algorithms.
_DEFAULTS = {
  "local_steps": 10,
  "batch_size": 128,
  "learning_rate": 0.01,
  "momentum": 0.9,
  "weight_decay": 5e-4,
  "client_weighting": "num_examples",
  "fine_tuning_steps": 100,
}
# Head and body steps add up to the steps of the other algorithms.
_OWN_DEFAULTS = {
  name: {"head_steps": 5, "local_steps": 5}
  for name in ("fed_rep", "flute", "fed_pac", "con_free")
}
# In the authors' program, these variants take the remaining steps for alignment
# or mixing weights. As published, they do so in addition to all steps.
_PROGRAM_DEFAULTS = {
  "fed_as": {"local_steps": 8},
  "fed_ala": {"local_steps": 5},
}


def _described() -> dict[str, str]:
  """Returns the help texts of the defaults of hyper-parameters."""
  described = {name: str(value) for name, value in _DEFAULTS.items()}
  described["local_steps"] += (
    "; fed_rep, flute, fed_pac, con_free: 5, plus 5 head steps; with"
    " --variant=program fed_as: 8, plus 2 alignment steps, and fed_ala: 5"
  )
  described["cosine_rounds"] = (
    "--rounds; with fine-tuning, plus the rounds that its steps correspond to"
  )
  return described


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(
  selection_flags.EarlyStopping,
  selection_flags.Configuration,
  common_flags.Configuration,
):
  """The flags of this binary."""

  scenario = SCENARIO
  hparam_defaults = _described()
  criterion = VALIDATION
  criterion_help = (
    "the best mean system accuracy over seeds on a fifth of each client's"
    " training examples, which is held out; the test examples are never used"
  )
  validation_help = (
    "the system accuracy on a fifth of each client's training examples, which"
    " is then not trained on"
  )

  num_clients: int = configuration_lib.changed(
    common_flags.Configuration, "num_clients", 8
  )
  rounds: int = configuration_lib.setting(
    60, "Number of rounds.", minimum=1, group="training"
  )
  evaluate_every: int = configuration_lib.setting(
    20, "Number of rounds between evaluations.", minimum=1, group="evaluation"
  )
  model: str | None = configuration_lib.changed(
    common_flags.Configuration,
    "model",
    more_help="A model without a client branch gets one on its embedding.",
  )
  # From the authors' program; the paper does not specify it.
  input_scaling: str = configuration_lib.changed(
    common_flags.Configuration, "input_scaling", "minus_one_one"
  )
  # The clients' models answer queries.
  save_clients: tuple[str, ...] = configuration_lib.changed(
    common_flags.Configuration, "save_clients", ("all",)
  )
  partition: str = configuration_lib.setting(
    "dirichlet_0.3",
    "Partition of classes into clients: dirichlet_<alpha>, with that Dirichlet"
    " concentration; or <S>_spc, with S shards per client.",
  )
  intensity: str | None = configuration_lib.setting(
    None,
    "Intensity of the clients' colour shift: {choices}. Default: high; none for"
    " your own data, images or vectors, which are then not changed.",
    choices=(*color_transforms.INTENSITIES, color_transforms.NONE),
  )
  max_examples: int | None = configuration_lib.setting(
    None,
    "Maximum number of examples of the data set to use. Default: all.",
    minimum=1,
  )
  final_rounds: int = configuration_lib.setting(
    1,
    "Number of last rounds over which final metrics are averaged; each of them"
    " is evaluated (50 in the paper).",
    minimum=1,
    group="evaluation",
  )
  bounds: bool = configuration_lib.setting(
    False,
    f"{common_flags.MAJORITY_HELP} (the system: of all).",
    is_compared=False,
    group="evaluation",
  )
  sharing: str | None = configuration_lib.setting(
    None,
    "Layers shared by the two tasks of --model=lenet: {choices}. Default:"
    " deep.",
    choices=tuple(shared_stages.SHARED_STAGES),
    group="training",
  )

  def check_together(self) -> None:
    """Refuses final rounds that the run does not have, or does not keep."""
    super().check_together()
    if self.final_rounds > self.rounds:
      raise ValueError(
        configuration_lib.refusal(
          "final_rounds", f"at most --rounds={self.rounds}"
        )
      )
    if self.keep != "last" and self.final_rounds != 1:
      raise ValueError(
        configuration_lib.refusal("keep", "last with --final_rounds above 1")
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
  """The checked plan of a guidance comparison.

  Attributes:
    datasets: The clients' data, by seed.
    selection_datasets: The clients' data for selection, by selection seed, with
      a part of the training data as hold-out.
  """

  configuration: Configuration
  datasets: Mapping[int, guidance.GuidanceDataset]
  selection_datasets: Mapping[int, guidance.GuidanceDataset]

  def what_follows(self, before: int) -> str | None:
    """Explains why a run cannot be extended."""
    return selection_flags.what_follows(before) or super().what_follows(before)


def check_flags() -> Configuration:
  """Returns the values of the flags, checked as far as possible without data.

  Raises:
    UsageError: If a flag is wrong.
  """
  configuration = common_flags.chosen(Configuration)
  if configuration.intensity is None:
    FLAGS.intensity = guidance.default_intensity(configuration.dataset)
    configuration = dataclasses.replace(
      configuration, intensity=FLAGS.intensity
    )
  trials.described(SCENARIO, _defaults)
  # Last, because it imports algorithms and TensorFlow.
  trials.chosen(SCENARIO, _defaults)
  return configuration


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written.

  Returns:
    The plan.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  configuration = check_flags()
  chosen = trials.chosen(SCENARIO, _defaults)
  seeds = configuration.seeds
  selection_seeds = configuration.seeds_of_selection
  with common_flags.usage_errors():
    if dataset_flags.clients_are_given("partition"):
      FLAGS.partition = None
      configuration = dataclasses.replace(configuration, partition=None)
    datasets = {
      seed: guidance.load_guidance(
        configuration.dataset,
        num_clients=configuration.num_clients,
        partition=configuration.partition,
        intensity=configuration.intensity,
        seed=seed,
        max_examples=configuration.max_examples,
        data_dir=configuration.data_dir,
      )
      for seed in seeds
    }
    selection_datasets = {}
    if configuration.select == VALIDATION:
      selection_datasets = {
        seed: guidance.held_out_validation(datasets[seed], seed)
        for seed in selection_seeds
      }
    model = _build_model(configuration, datasets[seeds[0]])
    _check_metrics(model)
    common_flags.check_sizes(
      chosen, model, sum(len(each.y) for each in datasets[seeds[0]].train)
    )
    aggregators = common_flags.chosen_aggregators(chosen, configuration.rounds)
  if dataset_flags.is_own():
    output_folder.warn_of_copies(
      dataset_flags.shown(),
      *(
        [each.x for each in part]
        for part in (datasets[seeds[0]].train, datasets[seeds[0]].test)
      ),
    )
  input_flags.warn_of_extremes(
    (
      (
        [each.x for each in dataset.train],
        [each.x for each in dataset.test],
      )
      for dataset in datasets.values()
    ),
    datasets[seeds[0]].schema.features or (),
  )
  changing = ["max_examples"]
  if configuration.intensity != guidance.default_intensity(
    configuration.dataset
  ):
    changing.append("intensity")
  return Plan(
    scenario=SCENARIO,
    changed_data=common_flags.changed_data(changing),
    configuration=configuration,
    trials=chosen,
    seeds=seeds,
    selection_seeds=selection_seeds,
    aggregators=aggregators,
    model=model,
    schema=datasets[seeds[0]].schema,
    schemas={seed: dataset.schema for seed, dataset in datasets.items()},
    settings={
      "partition": configuration.partition or "given",
      "intensity": configuration.intensity,
      "num_clients": configuration.num_clients,
      "participation": configuration.participation,
      **participation_flags.settings(),
      **selection_flags.settings(),
      "model": model.name,
      "input_scaling": FLAGS.input_scaling,
      "sharing": configuration.sharing,
      "final_rounds": configuration.final_rounds,
    },
    num_steps=configuration.rounds,
    told_hparams=("learning_rate", "lambda_"),
    hparams_of_steps=("cosine_rounds",),
    groups=datasets[seeds[0]].groups,
    datasets=datasets,
    selection_datasets=selection_datasets,
  )


def _check_metrics(model: guided_model.GuidedModel) -> None:
  """Refuses metrics that queries cannot measure."""
  from tff_shift.scenarios.guidance import simulation as scenario

  try:
    scenario.check_metrics(metric_flags.chosen(model.num_classes))
  except ValueError as error:
    raise common_flags.UsageError(f"--{str(error).lstrip('-')}") from error


def _defaults(algorithm: str, setting: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the defaults of an algorithm's hyper-parameters."""
  values = _DEFAULTS | _OWN_DEFAULTS.get(algorithm, {})
  if setting.get("variant") == "program":
    values |= _PROGRAM_DEFAULTS.get(algorithm, {})
  rounds = FLAGS.rounds
  if hasattr(algorithms.describe(algorithm).hparams, "fine_tuning_steps"):
    # Fine-tuning continues the decay of the learning rate after the rounds.
    steps, per_round = (
      setting.get(name, values[name])
      for name in ("fine_tuning_steps", "local_steps")
    )
    # A setting without steps is refused later.
    rounds += -(-steps // max(per_round, 1))
  if setting.get("decay_rounds"):
    rounds = 0  # Another schedule is chosen.
  return values | {"cosine_rounds": rounds}


def _build_model(
  configuration: Configuration,
  dataset: guidance.GuidanceDataset,
) -> guided_model.GuidedModel:
  from tff_shift.models import guided_model

  options = common_flags.model_options()
  if configuration.sharing is not None:
    options["sharing"] = configuration.sharing
  if "num_clients" in models.options(common_flags.model_name(SCENARIO)):
    options["num_clients"] = configuration.num_clients
  # Weight files have no client branch; it is initialized randomly.
  model = common_flags.built_model(
    SCENARIO,
    [each.x for each in dataset.train],
    dataset.schema,
    options,
  )
  if isinstance(model, guided_model.GuidedModel):
    return model
  return guided_model.with_guide(model, configuration.num_clients, _GUIDE_WIDTH)
