"""Evolving domains: flags and plan of `experiments.evolving`."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
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
_LAST, ROLLING = "last", "rolling"
_CONTINUE, _RESTART = "continue", "restart"
# The hyper-parameter of methods that learn the source domains of a run in turn.
_TASK_ROUNDS = "task_rounds"
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
  hparam_defaults = types.MappingProxyType({_TASK_ROUNDS: "--rounds"})
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
  rounds: int = configuration_lib.setting(
    10, "Number of rounds.", minimum=1, group="training"
  )
  evaluate_every: int = configuration_lib.setting(
    5,
    "Number of rounds between evaluations. The last round is always evaluated.",
    minimum=1,
    group="evaluation",
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
    group="evaluation",
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
    group="evaluation",
  )
  forgetting: bool = configuration_lib.setting(
    False,
    "Measures every domain at each evaluation, for the metric forgetting in"
    " summary.json. Evaluations take longer.",
    is_compared=False,
    group="evaluation",
  )
  mean_of_last: int = configuration_lib.setting(
    3,
    "Number of last evaluations whose mean tables report, in addition to the"
    " last evaluation. If there are fewer, the mean is over all.",
    minimum=1,
    group="evaluation",
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
    group="model",
  )

  target: str = configuration_lib.setting(
    _LAST,
    f"The domain that is predicted. {_LAST}: the last one. {ROLLING}: one after"
    " the other from --min_source_domains on, by a model of the domains before"
    " it; results are means over these targets.",
    choices=(_LAST, ROLLING),
    group="evaluation",
  )
  rolling: str | None = configuration_lib.setting(
    None,
    f"The model of the next target with --target={ROLLING}. {_CONTINUE}: that"
    " of the target before, trained for --rounds more rounds, now with this"
    f" target among its sources. {_RESTART}: a new one, of --rounds rounds."
    f" Default: {_CONTINUE}.",
    choices=(_CONTINUE, _RESTART),
    group="evaluation",
  )
  min_source_domains: int | None = configuration_lib.setting(
    None,
    f"Number of source domains of the first target with --target={ROLLING}."
    " Default: the fewest that all algorithms can train on.",
    minimum=1,
    group="evaluation",
  )

  @property
  def continues(self) -> bool:
    """Whether the model of a target continues that of the one before."""
    return self.target == ROLLING and self.rolling != _RESTART

  def check_together(self) -> None:
    """Refuses flags that contradict each other."""
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
      *(
        (
          flag,
          getattr(self, flag) == allowed or not self.continues,
          f"left out with --rolling={_CONTINUE}, the default, which starts from"
          f" the states after the last round; or set --rolling={_RESTART}",
        )
        for flag, allowed in (("keep", _LAST), ("max_states_in_memory", None))
      ),
    ):
      if not is_right:
        raise ValueError(configuration_lib.refusal(flag, requirement))
    is_rolling = self.target == ROLLING
    for flag, applies, condition in (
      *(
        (flag, self.concept_drift is not None, "without --concept_drift")
        for flag in ("relabeling", "num_concepts")
      ),
      *(
        (flag, is_rolling, f"without --target={ROLLING}")
        for flag in ("rolling", "min_source_domains")
      ),
      ("target_extra_angle", not is_rolling, f"with --target={ROLLING}"),
    ):
      if getattr(self, flag) and not applies:
        raise ValueError(
          f"--{flag}={getattr(self, flag)} does not apply {condition}; leave it"
          " out"
        )


class Target(NamedTuple):
  """The data of the runs that predict a target.

  Attributes:
    dataset: The domains up to the target.
    clients: The clients.
    fitted_on: The clients by whose training examples features are prepared and
      scaled: `clients`, or those of the first target if its model is continued.
  """

  dataset: evolving_data.EvolvingDataset
  clients: Sequence[evolving_data.Client]
  fitted_on: Sequence[evolving_data.Client]

  @property
  def name(self) -> str:
    """The name of the target."""
    return self.dataset.domains[-1].name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(plan.Plan):
  """The checked plan of an evolving-domains comparison.

  Attributes:
    targets: The data of the targets in order, by seed.
    concepts: The concepts of the clients, by seed; None: there is only one.
    held_out: The data without the first target, by selection seed; empty if
      nothing is selected.
  """

  configuration: Configuration
  targets: Mapping[int, Sequence[Target]]
  concepts: Mapping[int, concepts_lib.Concepts | None]
  held_out: Mapping[int, Target]

  def num_runs(self, trial: selection.Trial) -> int:
    """Returns the number of runs of a trial: one per seed and target."""
    return sum(map(len, self.targets.values()))

  def what_follows(self, before: int) -> str | None:
    """Explains why a run cannot be extended."""
    if self.configuration.continues:
      return (
        f"with --rolling={_CONTINUE} later targets follow from the rounds of"
        f" earlier ones; only --rolling={_RESTART} can be extended"
      )
    return selection_flags.what_follows(before) or super().what_follows(before)


def _defaults(*_: Any) -> dict[str, Any]:
  # Domains that are learned in sequence share all rounds.
  return {_TASK_ROUNDS: FLAGS.rounds}


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
    num_domains = len(datasets[seeds[0]].domains)
    first = _first_target(configuration, chosen, num_domains)
    _check_test_fraction(datasets[seeds[0]])
    concepts = {
      seed: _concepts(configuration, dataset, seed)
      for seed, dataset in datasets.items()
    }
    # Refuses splits that leave clients or domains without examples.
    targets = {
      seed: _targets(
        configuration, chosen, dataset, concepts[seed], seed, first
      )
      for seed, dataset in datasets.items()
    }

    def for_selection(dataset):
      return evolving_data.without_target(evolving_data.up_to(dataset, first))

    held_out = {
      seed: _target(
        configuration,
        chosen,
        for_selection(
          _with_words_of(configuration, datasets[seed], seed, for_selection)
        ),
        concepts[seed],
        seed,
      )
      for seed in selection_seeds
      if configuration.select == LAST_SOURCE
    }
    clients = {seed: of_seed[-1].clients for seed, of_seed in targets.items()}
    schemas = {
      seed: of_seed[-1].dataset.schema for seed, of_seed in targets.items()
    }
    trained = _trained(configuration, clients[seeds[0]])
    schema = schemas[seeds[0]]
    model = common_flags.built_model(
      SCENARIO,
      training_inputs(configuration, chosen[0], targets[seeds[0]][-1]),
      schema,
      _model_options(configuration),
    )
    common_flags.check_sizes(
      chosen, model, sum(len(client.train.y) for client in trained)
    )
    if configuration.evaluation_clients == 1:
      metric_flags.refuse_single_clients("--evaluation_clients is 1")
    num_continued = num_domains - first if configuration.continues else 1
    aggregators = common_flags.chosen_aggregators(
      chosen, num_continued * configuration.rounds
    )
  if dataset_flags.is_own():
    _warn(*targets[seeds[0]][-1][:2])
  input_flags.warn_of_extremes(
    (
      (
        training_inputs(configuration, chosen[0], targets[seed][-1]),
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
    settings=_settings(
      configuration,
      num_domains,
      first,
      model,
      "given" if are_given else str(configuration.dirichlet),
    ),
    num_steps=configuration.rounds,
    hparams_of_steps=(_TASK_ROUNDS,),
    targets=targets,
    concepts=concepts,
    selection_seeds=selection_seeds,
    held_out=held_out,
  )


def _settings(
  configuration: Configuration,
  num_domains: int,
  first_target: int,
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
    **(
      {
        "rolling": configuration.rolling or _CONTINUE,
        "min_source_domains": first_target,
      }
      if configuration.target == ROLLING
      else {}
    ),
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
    if configuration.target == _LAST:
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


def _first_target(
  configuration: Configuration,
  chosen: Sequence[selection.Trial],
  num_domains: int,
) -> int:
  """Returns the number of source domains of the first target.

  Raises:
    UsageError: If an algorithm cannot train on as few, or be continued.
  """
  is_rolling = configuration.target == ROLLING
  num_sources = configuration.min_source_domains
  num_held_out = 2 if FLAGS.select == LAST_SOURCE else 1
  least = 0
  for name, trial in {trial.algorithm: trial for trial in chosen}.items():
    needed = algorithms.min_source_domains(name) + num_held_out
    if num_domains < needed:
      raise common_flags.UsageError(
        f"--num_domains={num_domains}: {name} with --select={FLAGS.select}"
        f" needs at least {needed}, of which {num_held_out} held out"
      )
    least = max(least, needed - 1)
    if num_sources is not None:
      common_flags.require(
        "min_source_domains",
        needed - 1 <= num_sources < num_domains,
        f"at least {needed - 1} for {name} with --select={FLAGS.select}, and"
        f" below {num_domains}, the number of domains",
      )
    if configuration.continues and hasattr(trial.hparams, _TASK_ROUNDS):
      raise common_flags.UsageError(
        f"--rolling={_CONTINUE} is not allowed with {name}, which learns the"
        f" source domains of one run in turn; set --rolling={_RESTART}"
      )
  return (num_sources or least) if is_rolling else num_domains - 1


def _check_test_fraction(dataset: evolving_data.EvolvingDataset) -> None:
  """Refuses `--test_fraction` for data with their own test split."""
  if dataset.has_own_split and not FLAGS["test_fraction"].using_default_value:
    raise common_flags.UsageError(
      f"--test_fraction={FLAGS.test_fraction} does not apply to"
      f" --dataset={dataset_flags.shown()}, whose num_train defines the test"
      " split; leave it out"
    )


def _targets(
  configuration: Configuration,
  chosen: Sequence[selection.Trial],
  dataset: evolving_data.EvolvingDataset,
  concepts: concepts_lib.Concepts | None,
  seed: int,
  first: int,
) -> list[Target]:
  """Returns the data of the targets from the first one on.

  Later domains change nothing in them. A model that is continued keeps the
  features and words of the first target.
  """
  targets: list[Target] = []
  for number in range(first, len(dataset.domains)):
    cut = functools.partial(evolving_data.up_to, target=number)
    if not (targets and configuration.continues):
      with_words = _with_words_of(configuration, dataset, seed, cut)
      fitted = None
    targets.append(
      _target(configuration, chosen, cut(with_words), concepts, seed, fitted)
    )
    fitted = targets[0]
  return targets


def _target(
  configuration: Configuration,
  chosen: Sequence[selection.Trial],
  dataset: evolving_data.EvolvingDataset,
  concepts: concepts_lib.Concepts | None,
  seed: int,
  fitted: Target | None = None,
) -> Target:
  """Returns the data of a target, with prepared features.

  Args:
    configuration: The values of the flags.
    chosen: The trials.
    dataset: The domains up to the target.
    concepts: The concepts of the clients.
    seed: The seed.
    fitted: The target whose features are taken over. None: they are fitted to
      the training examples.

  Raises:
    UsageError: If an algorithm can train or evaluate no client.
  """
  from tff_shift.scenarios.evolving import simulation as evolving

  clients = _assemble(configuration, dataset, concepts, seed)
  trained = _trained(configuration, clients)
  for name in dict.fromkeys(trial.algorithm for trial in chosen):
    try:
      evolving.left_out(trained, algorithms.min_source_domains(name))
    except ValueError as error:
      raise common_flags.UsageError(
        f"--algorithm={name} with --dataset={dataset_flags.shown()}, target"
        f" {dataset.domains[-1].name}: {error}"
      ) from error
  if fitted is None:
    schema = preparation.fitted(
      dataset.schema, [client.train.x for client in trained]
    )
  else:
    schema = fitted.dataset.schema
  clients = preparation.applied(clients, schema)
  return Target(
    preparation.applied(dataset, schema)._replace(schema=schema),
    clients,
    clients if fitted is None else fitted.fitted_on,
  )


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


def _with_words_of(
  configuration: Configuration,
  dataset: evolving_data.EvolvingDataset,
  seed: int,
  part: Callable[
    [evolving_data.EvolvingDataset], evolving_data.EvolvingDataset
  ],
) -> evolving_data.EvolvingDataset:
  """Returns the data set with the words of the training examples of a part."""
  if dataset.vocabulary is None or (
    len(part(dataset).domains) == len(dataset.domains)
  ):
    return dataset
  return _load(configuration, seed, part)


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


def _trained(
  configuration: Configuration, clients: Sequence[evolving_data.Client]
) -> Sequence[evolving_data.Client]:
  """Returns the clients without the new ones, which never train."""
  return clients[: len(clients) - configuration.num_new_clients]


def training_inputs(
  configuration: Configuration,
  trial: selection.Trial,
  target: Target,
) -> list[np.ndarray]:
  """Returns the inputs x of the examples that features are scaled by.

  Args:
    configuration: The values of the flags.
    trial: The trial, whose algorithm may leave out clients.
    target: The data of the run.
  """
  least = algorithms.min_source_domains(trial.algorithm)
  return [
    client.train.x
    for client in _trained(configuration, target.fitted_on)
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
