"""Evolving domains: flags and plan of `experiments.evolving`."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np
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
from tff_shift.command_line.tuning import selection
from tff_shift.command_line.tuning import trials
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data.shifts import concepts as concepts_lib
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.data.shifts import own_drift
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.reporting import summary

if TYPE_CHECKING:
  from tff_shift.models import split_model

FLAGS = flags.FLAGS

SCENARIO = "evolving"
LAST_SOURCE = "last_source"
# The flags that change the examples.
_CHANGING = (
  *("angle_step", "first_angle", "target_extra_angle"),
  *("max_examples_per_domain", "concept_drift"),
)
_RELABELING, _NUM_CONCEPTS = "reversed", 2
# More degrees would be lost in rounding.
_DEGREES: dict[str, Any] = {
  "minimum": -1_000_000,
  "maximum": 1_000_000,
  "unit": "degrees",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(
  selection_flags.EarlyStopping,
  selection_flags.Configuration,
  common_flags.Configuration,
):
  """The flags of this binary."""

  scenario = SCENARIO
  hparam_defaults = types.MappingProxyType({"task_rounds": "--rounds"})
  criterion = LAST_SOURCE
  criterion_help = (
    "the best mean client accuracy over seeds on the last source domain, which"
    " is held out from its training; the target is never used"
  )
  validation_help = (
    "the client accuracy on the test examples of the last source domain"
  )

  dataset: str = configuration_lib.changed(
    common_flags.Configuration, "dataset", "rotated_digits"
  )
  rounds: int = configuration_lib.setting(10, "Number of rounds.", minimum=1)
  evaluate_every: int = configuration_lib.setting(
    5,
    "Number of rounds between evaluations. The last round is always evaluated.",
    minimum=1,
  )
  num_domains: int | None = configuration_lib.setting(
    None,
    "Number of domains, including the target. Default: the data set's.",
    minimum=1,
  )
  angle_step: float | None = configuration_lib.setting(
    None,
    "Degrees between consecutive domains of a rotated data set. Default: the"
    " data set's. Setting it turns your own images without domains into a"
    " rotated data set. 0: domains of equal distribution, also of your own data"
    " that are not images.",
    **_DEGREES,
  )
  first_angle: float = configuration_lib.setting(
    0.0, "Degrees of the first domain of a rotated data set.", **_DEGREES
  )
  target_extra_angle: float = configuration_lib.setting(
    0.0,
    "Additional rotation of the target in degrees (Table 12).",
    **_DEGREES,
  )
  max_examples_per_domain: int | None = configuration_lib.setting(
    None,
    "Maximum number of random examples of a domain to keep. Default: all.",
    minimum=1,
  )
  evaluation_clients: int = configuration_lib.setting(
    0,
    "Number of clients sampled for each evaluation (0: all). The server is"
    " evaluated on their pooled test data. Sampling makes curves, final"
    " accuracy and --select noisier.",
    minimum=0,
  )
  num_new_clients: int = configuration_lib.setting(
    0,
    "Number of clients, the last ones, that never train. They are evaluated"
    " apart, each with the state of a client that joins then (columns"
    " new_client_...).",
    minimum=0,
  )
  bounds: bool = configuration_lib.setting(
    False,
    f"{common_flags.MAJORITY_HELP} (the server: of all); pooled, the ceiling:"
    " fed_avg with all training data in one client, and as many gradient steps"
    " as a whole cohort.",
    is_compared=False,
  )
  forgetting: bool = configuration_lib.setting(
    False,
    "Measures every domain at each evaluation, for the metric forgetting in"
    " summary.json. Evaluations take longer.",
    is_compared=False,
  )
  mean_of_last: int = configuration_lib.setting(
    3,
    "Number of last evaluations whose mean tables report, in addition to the"
    " last evaluation. If there are fewer, the mean is over all.",
    minimum=1,
  )
  dirichlet: float = configuration_lib.positive_or_infinite(
    math.inf,
    "Dirichlet concentration of the clients' label distributions; inf: IID,"
    " small: heterogeneous.",
  )
  concept_drift: str | None = configuration_lib.setting(
    None,
    "Gives labels another meaning, a concept, for some clients: groups, from"
    " the start for one group of clients per concept; staggered, for all"
    " clients, which start with the first concept and drift once, at different"
    " times. Default: one concept.",
    choices=concepts_lib.DRIFTS,
  )
  relabeling: str | None = configuration_lib.setting(
    None,
    "Labels of C classes in concept k > 0: reversed, C - 1 - c for class c (two"
    " concepts); shifted, c + k mod C; swapped, classes 2 k - 1 and 2 k are"
    f" exchanged. Default: {_RELABELING}.",
    choices=concepts_lib.RELABELINGS,
  )
  num_concepts: int | None = configuration_lib.setting(
    None, f"Number of concepts. Default: {_NUM_CONCEPTS}.", minimum=2
  )
  test_fraction: float = configuration_lib.setting(
    0.2,
    "Fraction of a client's examples of a source domain that is held out for"
    " testing. Not for data sets with their own test split.",
    above=0,
    below=1,
  )
  embedding_width: int | None = configuration_lib.setting(
    None,
    "Width of word embeddings, for models with the option embedding_width"
    " (bi_lstm). Default: the model's.",
    minimum=1,
  )

  def check_together(self) -> None:
    """Refuses numbers of clients that contradict each other."""
    super().check_together()
    for flag, is_right, requirement in (
      (
        "evaluation_clients",
        self.evaluation_clients <= self.num_clients,
        "at least 0 and at most --num_clients",
      ),
      (
        "num_new_clients",
        self.num_new_clients < self.num_clients,
        "at least 0 and below --num_clients",
      ),
    ):
      if not is_right:
        raise ValueError(configuration_lib.refusal(flag, requirement))
    for flag in ("relabeling", "num_concepts"):
      if self.concept_drift is None and getattr(self, flag) is not None:
        raise ValueError(
          f"--{flag}={getattr(self, flag)} does not apply without"
          " --concept_drift; leave it out"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
  """The checked plan of an evolving-domains comparison.

  Attributes:
    datasets: The domains, by seed.
    concepts: The concepts of the clients, by seed; None: there is only one.
    clients: The clients, by seed.
    clients_without_target: The clients without the target domain, by selection
      seed; empty if nothing is selected.
  """

  configuration: Configuration
  datasets: Mapping[int, evolving_data.EvolvingDataset]
  concepts: Mapping[int, concepts_lib.Concepts | None]
  clients: Mapping[int, Sequence[evolving_data.Client]]
  clients_without_target: Mapping[int, Sequence[evolving_data.Client]]

  def what_follows(self, before: int) -> str | None:
    """Explains why a run cannot be extended."""
    return selection_flags.what_follows(before) or super().what_follows(before)


def _defaults(*_: Any) -> dict[str, Any]:
  # Domains that are learned in sequence share all rounds.
  return {"task_rounds": FLAGS.rounds}


def check_flags() -> Configuration:
  """Returns the values of the flags, checked as far as possible without data.

  Raises:
    UsageError: If a flag is wrong.
  """
  configuration = common_flags.chosen(Configuration)
  trials.described(SCENARIO, _defaults)
  common_flags.require(
    "num_new_clients",
    not configuration.num_new_clients
    or FLAGS.aggregator not in aggregator_hparams.PRIVATE,
    f"0 with --aggregator={FLAGS.aggregator}, whose epsilon is computed for"
    " cohorts of all clients",
  )
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
    are_given = dataset_flags.clients_are_given("dirichlet")
    datasets = {seed: _load(configuration, seed) for seed in seeds}
    _check_num_domains(chosen, len(datasets[seeds[0]].domains))
    _check_test_fraction(datasets[seeds[0]])
    concepts = {
      seed: _concepts(configuration, dataset, seed)
      for seed, dataset in datasets.items()
    }
    # Refuses splits that leave clients or domains without examples.
    clients = {
      seed: _checked(
        configuration,
        _assemble(configuration, dataset, concepts[seed], seed),
        chosen,
      )
      for seed, dataset in datasets.items()
    }
    without_target = {
      seed: _checked(
        configuration,
        _assemble(
          configuration,
          _for_selection(configuration, datasets[seed], seed),
          concepts[seed],
          seed,
        ),
        chosen,
      )
      for seed in selection_seeds
      if configuration.select == LAST_SOURCE
    }
    clients, schemas = _prepared(configuration, clients, datasets)
    without_target, _ = _prepared(configuration, without_target, datasets)
    datasets = {
      seed: preparation.applied(dataset, schemas[seed])._replace(
        schema=schemas[seed]
      )
      for seed, dataset in datasets.items()
    }
    trained = _trained(configuration, clients[seeds[0]])
    schema = schemas[seeds[0]]
    model = common_flags.built_model(
      SCENARIO,
      training_inputs(configuration, chosen[0], clients[seeds[0]]),
      schema,
      _model_options(configuration),
    )
    common_flags.check_sizes(
      chosen, model, sum(len(client.train.y) for client in trained)
    )
    if configuration.evaluation_clients == 1:
      metric_flags.refuse_single_clients("--evaluation_clients is 1")
    aggregators = common_flags.chosen_aggregators(chosen, configuration.rounds)
  if dataset_flags.is_own():
    _warn(datasets[seeds[0]], clients[seeds[0]])
  input_flags.warn_of_extremes(
    (
      (
        training_inputs(configuration, chosen[0], clients[seed]),
        [
          part.x
          for client in clients[seed]
          for part in (client.train, client.test)
        ],
      )
      for seed in seeds
    ),
    schema.features or (),
  )
  return Plan(
    scenario=SCENARIO,
    changed_data=common_flags.changed_data(_CHANGING),
    configuration=configuration,
    trials=chosen,
    seeds=seeds,
    aggregators=aggregators,
    model=model,
    schema=schema,
    schemas=schemas,
    groups=evolving_data.groups_of(clients[seeds[0]]),
    uses=[evolving_data.target_line(datasets[seeds[0]])],
    settings=_settings(
      configuration,
      len(datasets[seeds[0]].domains),
      model,
      "given" if are_given else str(configuration.dirichlet),
    ),
    num_steps=configuration.rounds,
    hparams_of_steps=("task_rounds",),
    datasets=datasets,
    concepts=concepts,
    selection_seeds=selection_seeds,
    clients=clients,
    clients_without_target=without_target,
  )


def _settings(
  configuration: Configuration,
  num_domains: int,
  model: split_model.SplitModel,
  dirichlet: str,
) -> dict[str, Any]:
  """Returns the settings that distinguish these runs from others."""
  settings = {
    "dirichlet": dirichlet,
    "num_clients": configuration.num_clients,
    "num_domains": num_domains,
    "participation": configuration.participation,
    **participation_flags.settings(),
    **selection_flags.settings(),
    "evaluation_clients": configuration.evaluation_clients,
    **(
      {"num_new_clients": num_new}
      if (num_new := configuration.num_new_clients)
      else {}
    ),
    **_drift_settings(configuration),
    "model": model.name,
    "input_scaling": FLAGS.input_scaling,
    "mean_of_last": configuration.mean_of_last,
  }
  step = evolving_data.evolution_of(
    configuration.dataset,
    configuration.angle_step,
    data_dir=configuration.data_dir,
  ).angle_step
  if step is not None:
    settings["angle_step"] = step
    settings["target_rotation_degrees"] = (
      configuration.first_angle
      + step * (num_domains - 1)
      + configuration.target_extra_angle
    )
  return settings


def _drift_settings(configuration: Configuration) -> dict[str, Any]:
  """Returns the settings of the concepts."""
  if configuration.concept_drift is None:
    return {}
  return {
    "concept_drift": configuration.concept_drift,
    "relabeling": configuration.relabeling or _RELABELING,
    "num_concepts": configuration.num_concepts or _NUM_CONCEPTS,
  }


def _concepts(
  configuration: Configuration,
  dataset: evolving_data.EvolvingDataset,
  seed: int,
) -> concepts_lib.Concepts | None:
  """Draws the clients' concepts; None: there is only one."""
  settings = _drift_settings(configuration)
  if not settings:
    return None
  return concepts_lib.draw(
    settings["concept_drift"],
    settings["relabeling"],
    num_concepts=settings["num_concepts"],
    num_clients=configuration.num_clients,
    num_domains=len(dataset.domains),
    num_classes=len(dataset.schema.classes),
    seed=seed,
  )


def _check_num_domains(
  chosen: Sequence[selection.Trial], num_domains: int
) -> None:
  """Refuses fewer source domains than an algorithm can train on."""
  num_held_out = 2 if FLAGS.select == LAST_SOURCE else 1
  for name in dict.fromkeys(each.algorithm for each in chosen):
    needed = algorithms.min_source_domains(name)
    if num_domains < needed + num_held_out:
      raise common_flags.UsageError(
        f"--num_domains={num_domains}: {name} with --select={FLAGS.select}"
        f" needs at least {needed + num_held_out}, of which {num_held_out}"
        " held out"
      )


def _check_test_fraction(dataset: evolving_data.EvolvingDataset) -> None:
  """Refuses `--test_fraction` for data with their own test split."""
  if dataset.has_own_split and not FLAGS["test_fraction"].using_default_value:
    raise common_flags.UsageError(
      f"--test_fraction={FLAGS.test_fraction} does not apply to"
      f" --dataset={dataset_flags.shown()}, whose num_train defines the test"
      " split; leave it out"
    )


def _checked(
  configuration: Configuration,
  clients: Sequence[evolving_data.Client],
  chosen: Sequence[selection.Trial],
) -> Sequence[evolving_data.Client]:
  """Returns the clients; refuses them if an algorithm can train none."""
  from tff_shift.scenarios.evolving import simulation as evolving

  for name in dict.fromkeys(each.algorithm for each in chosen):
    try:
      evolving.left_out(
        _trained(configuration, clients), algorithms.min_source_domains(name)
      )
    except ValueError as error:
      raise common_flags.UsageError(
        f"--algorithm={name} with --dataset={dataset_flags.shown()}: {error}"
      ) from error
  return clients


def _warn(
  dataset: evolving_data.EvolvingDataset,
  clients: Sequence[evolving_data.Client],
) -> None:
  """Warns of domains, and of test examples in training."""
  if dataset_flags.entry().evolution is not None:
    own_drift.warn_of_times(
      [domain.name for domain in dataset.domains],
      [len(domain.y) for domain in dataset.domains],
      SCENARIO,
    )
  lacking = {
    client.name: [
      domain.name
      for domain, train, test in zip(
        dataset.domains,
        client.train.domain_sizes,
        client.test.domain_sizes,
        strict=True,
      )
      if not train + test
    ]
    for client in clients
  }
  lacking = {client: names for client, names in lacking.items() if names}
  if lacking:
    output_folder.warn(
      f"{len(lacking)} of {len(clients)} clients of {dataset_flags.shown()}"
      " lack domains: "
      + summary.shortened(
        f"{client} lacks {', '.join(names)}"
        for client, names in lacking.items()
      )
    )
  output_folder.warn_of_copies(
    dataset_flags.shown(),
    [client.train.x for client in clients],
    [client.test.x for client in clients],
  )


def _for_selection(
  configuration: Configuration,
  dataset: evolving_data.EvolvingDataset,
  seed: int,
) -> evolving_data.EvolvingDataset:
  """Returns the data set without its target, and without its words."""
  if dataset.vocabulary is not None:
    dataset = _load(configuration, seed, evolving_data.without_target)
  return evolving_data.without_target(dataset)


def _load(
  configuration: Configuration,
  seed: int,
  training_part: Callable[
    [evolving_data.EvolvingDataset], evolving_data.EvolvingDataset
  ] = lambda dataset: dataset,
) -> evolving_data.EvolvingDataset:
  """Loads the data set; its vocabulary has the words of what trains alone.

  Args:
    configuration: The values of the flags.
    seed: The seed.
    training_part: Takes the data set, returns the one that clients train on.
  """

  def counted(dataset):
    clients = _assemble(
      configuration,
      training_part(dataset),
      _concepts(configuration, dataset, seed),
      seed,
    )
    return [client.train.x for client in _trained(configuration, clients)]

  return evolving_data.load_evolving(
    configuration.dataset,
    num_domains=configuration.num_domains,
    angle_step=configuration.angle_step,
    first_angle=configuration.first_angle,
    target_extra_angle=configuration.target_extra_angle,
    max_examples_per_domain=configuration.max_examples_per_domain,
    data_dir=configuration.data_dir,
    seed=seed,
    counted=counted,
  )


def _assemble(
  configuration: Configuration,
  dataset: evolving_data.EvolvingDataset,
  concepts: concepts_lib.Concepts | None,
  seed: int,
) -> tuple[evolving_data.Client, ...]:
  """Partitions all domains into clients."""
  return evolving_data.assemble_clients(
    dataset,
    num_clients=configuration.num_clients,
    dirichlet=configuration.dirichlet,
    test_fraction=None
    if dataset.has_own_split
    else configuration.test_fraction,
    concepts=concepts,
    seed=seed,
  )


def _prepared(
  configuration: Configuration,
  clients: Mapping[int, Sequence[evolving_data.Client]],
  datasets: Mapping[int, evolving_data.EvolvingDataset],
) -> tuple[dict[int, Sequence[evolving_data.Client]], dict[int, table.Schema]]:
  """Returns the clients and the schema of each seed, with prepared features."""
  schemas = {
    seed: preparation.fitted(
      datasets[seed].schema,
      [client.train.x for client in _trained(configuration, of_seed)],
    )
    for seed, of_seed in clients.items()
  }
  prepared = {
    seed: preparation.applied(tuple(of_seed), schemas[seed])
    for seed, of_seed in clients.items()
  }
  return prepared, schemas


def _trained(
  configuration: Configuration, clients: Sequence[evolving_data.Client]
) -> Sequence[evolving_data.Client]:
  """Returns the clients without the new ones, which never train."""
  return clients[: len(clients) - configuration.num_new_clients]


def training_inputs(
  configuration: Configuration,
  trial: selection.Trial,
  clients: Sequence[evolving_data.Client],
) -> list[np.ndarray]:
  """Returns the inputs x of the examples that train in a run.

  Args:
    configuration: The values of the flags.
    trial: The trial, whose algorithm may leave out clients.
    clients: The clients of the run.
  """
  least = algorithms.min_source_domains(trial.algorithm)
  return [
    client.train.x
    for client in _trained(configuration, clients)
    if np.count_nonzero(client.train.domain_sizes[:-1]) >= least
  ]


def _model_options(configuration: Configuration) -> dict[str, Any]:
  options = common_flags.model_options()
  if configuration.embedding_width is not None:
    options["embedding_width"] = configuration.embedding_width
  size = dataset_flags.entry().vocabulary_size
  name = common_flags.model_name(SCENARIO)
  if size is not None and "vocabulary_size" in models.options(name):
    options["vocabulary_size"] = size
  return options
