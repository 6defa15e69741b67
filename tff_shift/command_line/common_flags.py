"""Common flags: the flags that all scenarios share, and checks of flags.

Choices:
  * A batch larger than the data is refused if the user sets it. It is compared
    with the data of all clients together: a client with fewer examples sees
    some of them twice, and defaults and presets are for data of any size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import pathlib
import re
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import ClassVar
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift._util import arguments
from tff_shift._util import shown_names
from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.command_line import saved_models
from tff_shift.command_line.flags import aggregator_flags
from tff_shift.command_line.flags import config_file
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import metric_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import participation_flags
from tff_shift.command_line.flags import server_optimizer_flags
from tff_shift.command_line.flags import tracker_flags
from tff_shift.command_line.flags import worker_flags
from tff_shift.command_line.tuning import selection
from tff_shift.data import table
from tff_shift.reporting import progress

if TYPE_CHECKING:
  import numpy as np

  from tff_shift.learning.aggregators import factories
  from tff_shift.models import split_model
  from tff_shift.simulation.engine import checkpoints
  from tff_shift.simulation.storage import results

GROUP = "training"

# Errors caused by the name of a file.
_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES)

# Shared by all runs of the process.
_PRINTER = progress.LinePrinter()
# The flags as the user set them; loading data sets other flags later. See
# `output_folder.asked`.
_asked: dict[str, Any] = {}


class UsageError(ValueError):
  """A flag or a file is wrong; the message is one line for the user."""


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
  """Turns errors of checks and of loading data into `UsageError`s."""
  try:
    yield
  except UsageError:
    raise
  except (ValueError, FileNotFoundError) as error:
    raise UsageError(str(error)) from error
  except OSError as error:
    if error.errno not in _OF_NAMES:
      raise
    raise UsageError(f"{error.filename}: {error.strerror}") from error


MAJORITY_HELP = (
  "Adds bounds of the accuracy to the table: majority_class, the floor: each"
  " client predicts the most frequent class of its own training examples; for"
  " tables, local_logistic_regression of each client and"
  " pooled_logistic_regression of all training examples"
)


# The values of `--batch_clients`, as `execution.use` takes them.
_BATCHES: dict[str, bool | str] = {"auto": "auto", "true": True, "false": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(
  saved_models.Configuration,
  tracker_flags.Configuration,
  output_folder.Configuration,
  worker_flags.Configuration,
  metric_flags.Configuration,
  input_flags.Configuration,
  model_flags.Configuration,
  participation_flags.Configuration,
  dataset_flags.Configuration,
):
  """The flags that all scenarios share.

  Attributes:
    scenario: The name of the scenario, as in the `SCENARIOS` of algorithms.
    hparam_defaults: The help text for the default of a hyper-parameter, where
      it differs from the algorithm's own default.
  """

  scenario: ClassVar[str]
  hparam_defaults: ClassVar[Mapping[str, str]] = {}

  algorithm: tuple[str, ...] | None = configuration.setting(
    None,
    lambda kind: (
      "Comma-separated algorithms to compare: "
      + ", ".join(algorithms.names(kind.scenario))
    ),
    is_compared=False,
  )
  seeds: tuple[int, ...] = configuration.seeds(
    (0,), "Comma-separated seeds, one run per seed."
  )
  output_dir: str | None = configuration.setting(
    None,
    lambda kind: (
      f"Folder of the results. Default: runs/{kind.scenario}-<date>-<time>."
    ),
    group="output",
  )
  overwrite: bool = configuration.setting(
    False, "Replaces an earlier run in --output_dir.", group="output"
  )
  progress: bool | None = configuration.setting(
    None,
    "Shows progress and the remaining time: a bar on a terminal, otherwise a"
    " line on standard error about every 30 seconds. Default: only on a"
    " terminal.",
    group="output",
  )
  executor: str = configuration.setting(
    "auto",
    "Where computations run: auto; in_process, in this process, on a GPU if"
    " TensorFlow sees one; local, TFF's C++ executor in a child process; or"
    " remote, TFF's C++ executors on the machines of --workers.",
    group="execution",
  )
  max_concurrent_clients: int = configuration.setting(
    0,
    "Number of clients that train in parallel. 0: one per core (in_process), no"
    " limit (local). Remote workers take their limit when they start.",
    minimum=0,
    group="execution",
  )
  batch_clients: str = configuration.setting(
    "auto",
    "Whether clients run in batches, each operation once for many of them: one"
    " of {choices}. auto: on a GPU. true: what cannot is an error, instead of"
    " running client by client. Results change by rounding.",
    choices=tuple(_BATCHES),
    is_compared=False,
    group="execution",
  )
  clients_per_batch: int = configuration.setting(
    0,
    "Number of clients of a batch, at most. 0: the power of two that fits in"
    " memory.",
    minimum=0,
    is_compared=False,
    group="execution",
  )
  compile_clients: bool = configuration.setting(
    False,
    "Whether XLA compiles batches of clients as a whole, seconds for each new"
    " size. On a CPU it saves little. Results change by rounding.",
    is_compared=False,
    group="execution",
  )
  num_clients: int = configuration.setting(
    10, "Number of clients.", minimum=1, group="data"
  )
  participation: float = configuration.setting(
    1.0,
    "Fraction of the clients in the cohort of a round, above 0 and at most 1.",
    above=0,
    maximum=1,
  )
  model: str | None = configuration.setting(
    None,
    f"One of {', '.join(models.names())}; or your own function,"
    " my_package.my_model:build or path/to/file.py:build, which takes"
    " input_shape and num_classes and returns a SplitModel or a Keras model"
    " with logits as outputs; or a file of model.save, path/to/model.keras,"
    " with its weights. Default: the data set's.",
    group="model",
  )
  model_width: int | None = configuration.setting(
    None,
    "Width of the first layer, for models with the option width. Default: the"
    " model's.",
    minimum=1,
    group="model",
  )

  @classmethod
  def define_flags(cls) -> None:
    """Defines the flags of a scenario and of its algorithms.

    Raises:
      ValueError: If a file of `--import` cannot be used.
      flags.Error: If a flag file cannot be read.
    """
    hparam_flags.import_files(config_file.expand(sys.argv))
    configuration.define(cls)
    output_folder.define_flags()
    aggregator_flags.define_flags()
    server_optimizer_flags.define_flags()
    hparam_flags.define_flags(cls.scenario, cls.hparam_defaults)


def chosen(
  kind: type[Configuration],
  unchecked: Callable[[], Collection[str]] = lambda: (),
) -> Any:
  """Returns the values of the flags of a scenario, checked without data.

  Args:
    kind: The configuration of the scenario.
    unchecked: Returns the names of flags that the data set determines.

  Raises:
    UsageError: If a flag is wrong.
    output_folder.NothingToDoError: If the run is finished and `--resume=auto`
      was given.
  """
  with usage_errors():
    dataset_flags.check(kind.scenario)
    found = configuration.chosen(kind, unchecked())
    saved_models.chosen_clients(found.num_clients, dataset_flags.client_names())
  if found.model is not None:
    try:
      models.check_name(found.model)
    except ValueError as error:
      raise UsageError(f"--model={found.model}: {error}") from error
  with usage_errors():
    tracker_flags.check()
    metric_flags.check()
    aggregator_flags.check()
    participation_flags.check()
    server_optimizer_flags.check()
    worker_flags.chosen()
    output_folder.check()
    _asked.clear()
    _asked.update(output_folder.asked(_flag_values()))
  return found


def check_texts() -> None:
  """Checks that text flags can be file names and can be saved.

  Raises:
    UsageError: If a flag of the binary is empty, contains a NUL character
      (possible in flag files) or is not UTF-8.
  """
  for flag in configuration.own_flags():
    if flag.value == "" != flag.default:
      # Such as --output_dir=$UNSET, which would be the working folder.
      raise UsageError(f"--{flag.name}: it must be set, or left out")
    values = flag.value if isinstance(flag.value, list) else [flag.value]
    for each in values:
      if isinstance(each, str) and "\0" in each:
        raise UsageError(f"--{flag.name}: it must not contain NUL characters")
      if isinstance(each, str) and not shown_names.is_encodable(each):
        raise UsageError(f"--{flag.name}={each}: it must be UTF-8 text")


def chosen_algorithms(scenario: str) -> list[str]:
  """Returns the names in `--algorithm`, checked.

  Raises:
    UsageError: If no algorithm is given, a name is duplicate or not an
      algorithm of the scenario, or a flag is set that no chosen algorithm has.
  """
  names = flags.FLAGS.algorithm
  known = algorithms.names(scenario)
  if not names:
    raise UsageError(f"--algorithm: name at least one of {', '.join(known)}")
  for name in names:
    if name not in known:
      raise UsageError(
        f"--algorithm={name}: unknown algorithm; it must be one of"
        f" {', '.join(known)}{arguments.did_you_mean(name, known)}"
      )
  if len(set(names)) != len(names):
    raise UsageError(f"--algorithm={','.join(names)}: an algorithm is repeated")
  for name, hparam in hparam_flags.named_flags():
    if name not in names:
      raise UsageError(
        f"--{name}.{hparam}: {name} is not in --algorithm={','.join(names)}"
      )
  for flag, owners in hparam_flags.owners(scenario).items():
    if flags.FLAGS[flag].value is None:
      continue
    reached = [name for name in names if name in owners]
    if not reached:
      raise UsageError(
        f"--{flag} belongs to {', '.join(owners)}, none of which is in"
        f" --algorithm={','.join(names)}"
      )
    if all(hparam_flags.flag_of(name, flag) is None for name in reached):
      raise UsageError(
        f"--{flag} would replace the published value of {', '.join(reached)};"
        f" --{reached[0]}.{flag} does"
      )
  return names


def chosen_aggregators(
  trials: Iterable[selection.Trial], num_rounds: int
) -> dict[str, factories.Aggregator | None]:
  """Returns the aggregator of `--aggregator` for each algorithm, checked.

  Checks the flags of participation too, since both depend on the cohort.

  Args:
    trials: The trials to run.
    num_rounds: The number of rounds of a run.

  Returns:
    The argument `aggregator` of `build`, by algorithm.

  Raises:
    UsageError: If a flag is wrong or an algorithm does not support the
      aggregator.
  """
  with usage_errors():
    participation_flags.check_cohort()
    return aggregator_flags.chosen(
      [(each.algorithm, each.hparams) for each in trials],
      num_clients=flags.FLAGS.num_clients,
      participation=flags.FLAGS.participation,
      num_rounds=num_rounds,
      server_optimizer=server_optimizer_flags.name(),
    )


def require(flag: str, is_right: bool, requirement: str) -> None:
  """Raises a `UsageError` for a flag unless its value is right."""
  if not is_right:
    raise UsageError(configuration.refusal(flag, requirement))


def changed_data(names: Iterable[str]) -> list[str]:
  """Returns the flags that are set and change the examples.

  Args:
    names: The names of the flags of the scenario that do so.
  """
  return [
    f"--{name}={flags.FLAGS[name].value}"
    for name in (*names, "image_size")
    if not flags.FLAGS[name].using_default_value
  ]


def check_sizes(
  chosen: Iterable[selection.Trial],
  model: split_model.SplitModel,
  num_examples: int,
  will_be_trained: bool = False,
) -> None:
  """Refuses trials that exceed memory, and batches larger than all data.

  A client with fewer examples than a batch repeats some of them in the batch.
  All clients may do so if the batch size comes from a default or a preset.

  Args:
    chosen: The trials to run.
    model: The model.
    num_examples: The number of training examples of all clients together.
    will_be_trained: Whether the model is pre-trained before the first round.

  Raises:
    UsageError: If a trial is too large, or the algorithm does not support its
      hyper-parameters or the model.
  """
  from tff_shift.learning import algorithm
  from tff_shift.learning import sizes

  with usage_errors():
    # Refuses metrics that the model's number of classes does not suit.
    metric_flags.chosen(model.num_classes)
  is_given = _is_given("batch_size")
  for each in chosen:
    with usage_errors():
      algorithms.check_normalization(
        each.algorithm, model, each.hparams, will_be_trained
      )
      build = algorithms.spec_builder(each.algorithm, flags.FLAGS.num_clients)
      # Refuses models and hyper-parameters that do not fit together.
      build(model, each.hparams)
    try:
      sizes.check_batch(model, each.hparams)
    except ValueError as error:
      raise UsageError(f"--{error}") from error
    if is_given:
      require(
        "batch_size",
        getattr(each.hparams, "batch_size", 0) <= num_examples,
        f"at most {num_examples}, the number of training examples of all"
        " clients together",
      )
    # Ordinary sizes are not checked: graphs would be traced twice.
    if sizes.asks_for_much(each.hparams):
      with usage_errors():
        algorithm.check_sizes(
          each.algorithm,
          build,
          model,
          each.hparams,
          algorithms.running_statistics(each.algorithm),
        )


def _is_given(flag: str) -> bool:
  """Returns whether the command line sets a flag, not only its preset."""
  arguments = flags.FLAGS.read_flags_from_files(sys.argv[1:])
  return any(re.match(f"--?{flag}(=|$)", each) for each in arguments)


def model_name(scenario: str) -> str:
  """Returns `--model`, or the default model of the data set."""
  return flags.FLAGS.model or dataset_flags.entry().models[scenario]


def model_options() -> dict[str, Any]:
  """Returns the model options that are set by flags."""
  width = flags.FLAGS.model_width
  return model_flags.options() | ({} if width is None else {"width": width})


def built_model(
  scenario: str,
  inputs: Sequence[np.ndarray],
  schema: table.Schema,
  options: Mapping[str, Any],
) -> split_model.SplitModel:
  """Builds the model of the flags.

  Args:
    scenario: The scenario, for its default model.
    inputs: The inputs x of the training examples.
    schema: The names of the classes and features.
    options: The options of the model.

  Returns:
    The model, as `--normalization` and `--weights_file` change it.
  """
  import tensorflow as tf

  model = models.build(
    model_name(scenario),
    input_shape=inputs[0].shape[1:],
    num_classes=len(schema.classes),
    input_dtype=tf.as_dtype(inputs[0].dtype),
    input_scaling=input_flags.chosen(inputs, schema.features or ()),
    **options,
  )
  return model_flags.changed(model, schema)


def output_dir(scenario: str) -> pathlib.Path:
  """Returns `--output_dir`, or a new folder name in runs/."""
  if flags.FLAGS.output_dir is not None:
    return pathlib.Path(flags.FLAGS.output_dir)
  now = datetime.datetime.now().astimezone()
  return pathlib.Path("runs") / f"{scenario}-{now:%Y%m%d-%H%M%S}"


def _flag_values(
  model: split_model.SplitModel | None = None,
) -> dict[str, Any]:
  """Returns all flags of the binary with their values.

  Digests of the user's files are included, because a changed file makes a
  different run. If a model is given, the digest of its frozen weights is
  included for a user's model, whose function may draw them in each process.
  """
  values = dataset_flags.named(
    {flag.name: flag.value for flag in configuration.own_flags()}
  )
  digests = {
    "import": hparam_flags.digests_of_imports(),
    "weights_file": model_flags.digest_of_weights(),
  }
  if values.get("model") and models.is_user_model(values["model"]):
    digests["model"] = models.digest(values["model"])
    if model is not None:
      digests["frozen weights of --model"] = _frozen_digest(model)
  return values | {
    f"{flag} (SHA-256)": digest for flag, digest in digests.items() if digest
  }


def _frozen_digest(model: split_model.SplitModel) -> str | None:
  """Returns the SHA-256 of a model's frozen weights; None if it has none."""
  from tff_shift.learning import frozen_weights
  from tff_shift.models import fingerprint

  if not frozen_weights.has_any(model):
    return None
  return fingerprint.frozen_digest(model)


def open_folder(
  scenario: str,
  model: split_model.SplitModel,
  what_follows: Callable[[int], str | None],
  schema: table.Schema,
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Creates the folder of the run, or reopens it with `--resume`.

  Args:
    scenario: The name of the binary.
    model: The model to train.
    what_follows: As in `output_folder.open_folder`.
    schema: The names of the data.

  Returns:
    The folder, with `config.json` in it, and its checkpoints.

  Raises:
    UsageError: If the folder cannot be used, or if the flags differ from those
      of the run to resume.
  """
  with usage_errors():
    return output_folder.open_folder(
      output_dir(scenario), _flag_values(model), what_follows, schema
    )


def note_done(folder: results.RunFolder) -> None:
  """Marks the run in the folder as finished."""
  folder.write_done(_asked)


def executor() -> contextlib.AbstractContextManager:
  """Returns a context manager that runs computations on `--executor`."""
  with usage_errors():
    return execution.use(
      flags.FLAGS.executor,
      max_concurrent_clients=flags.FLAGS.max_concurrent_clients or None,
      batch_clients=_BATCHES[flags.FLAGS.batch_clients],
      clients_per_batch=flags.FLAGS.clients_per_batch,
      compile_clients=flags.FLAGS.compile_clients,
      remote_workers=worker_flags.chosen(),
    )


def progress_bar(
  total: int, description: str, **options: Any
) -> contextlib.AbstractContextManager[progress.Progress]:
  """Returns a context manager that shows progress according to `--progress`.

  Args:
    total: The number of rounds, time steps or epochs.
    description: The text next to the bar.
    **options: `unit`, `run` and `is_replayed` of `progress.progress`.
  """
  return progress.progress(
    total,
    enabled=flags.FLAGS.progress,
    description=description,
    printer=_PRINTER,
    **options,
  )
