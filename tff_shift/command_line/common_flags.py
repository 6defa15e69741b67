"""The flags that all binaries share, and the checks of flags."""

from __future__ import annotations

import contextlib
import datetime
import errno
import math
import pathlib
import re
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from tff_shift import algorithms
from tff_shift import arguments
from tff_shift import execution
from tff_shift import models
from tff_shift import shown_names
from tff_shift.command_line import output_folder
from tff_shift.command_line import saved_models
from tff_shift.command_line.flags import aggregator_flags
from tff_shift.command_line.flags import dataset_flags
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.flags import model_flags
from tff_shift.command_line.flags import tracker_flags
from tff_shift.command_line.flags import worker_flags
from tff_shift.command_line.tuning import selection
from tff_shift.reporting import progress

if TYPE_CHECKING:
  from tff_shift.learning.aggregators import factories
  from tff_shift.models import split_model
  from tff_shift.simulation.engine import checkpoints
  from tff_shift.simulation.storage import results

# Of anything that is counted. What has no end looks like a run that hangs.
_MOST = 10_000_000
# Of a value in a message.
_LONGEST_VALUE = 100
# Errors that tell of the name of a file, whatever is done to it.
_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES)

# Of all runs of the process.
_PRINTER = progress.LinePrinter()
# The flags as the user set them; the data set others later. See
# `output_folder.asked`.
_asked: dict[str, Any] = {}


class UsageError(ValueError):
  """A flag or file is wrong; its message is one line for the user."""


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
  """Makes the errors of checks and of loading data the user's."""
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


def define_common_flags(
  scenario: str,
  *,
  dataset: str = "digits",
  hparam_defaults: Mapping[str, str] | None = None,
  num_clients: int = 10,
  rounds: int | None = None,
  rounds_help: str = "Number of rounds.",
  evaluate_every: int | None = None,
  evaluate_help: str = "",
  model_help: str = "Default: the data set's.",
  model_width_help: str = "Default: the model's.",
  input_scaling: str = "zero_one",
  save_clients: str = "none",
) -> None:
  """Defines the flags that every binary has.

  Args:
    scenario: The binary's name, which its algorithms have in `SCENARIOS`.
    dataset: The default data set.
    hparam_defaults: Says the default of a hyper-parameter where it is not that
      of the algorithm's own file.
    num_clients: The default number of clients.
    rounds: The default number of rounds. None: no flag; the binary counts
      otherwise.
    rounds_help: What is said of them.
    evaluate_every: The default number of rounds between evaluations. None: no
      flag.
    evaluate_help: What is said of them.
    model_help: What is said of the model; the default is that of the data set.
    model_width_help: What is said of its width.
    input_scaling: How images are scaled by default.
    save_clients: The clients whose own models are saved by default.

  Raises:
    ValueError: If an algorithm of `--import` cannot be used.
    flags.Error: If a file of flags cannot be read.
  """
  hparam_flags.import_algorithms(sys.argv)
  flags.DEFINE_list(
    "algorithm",
    None,
    "Comma-separated algorithms to compare: "
    + ", ".join(algorithms.names(scenario)),
  )
  dataset_flags.define_flags(scenario, dataset)
  flags.DEFINE_list("seeds", ["0"], "Comma-separated seeds; one run for each.")
  flags.DEFINE_string(
    "output_dir",
    None,
    f"Folder of the results. Default: runs/{scenario}-<date>-<time>.",
  )
  flags.DEFINE_bool(
    "overwrite", False, "Replaces an earlier run in --output_dir."
  )
  flags.DEFINE_bool(
    "progress",
    None,
    "Shows what is running and how much time is left: a bar on a terminal, else"
    " a line on standard error about every 30 seconds. Default: on a terminal"
    " only.",
  )
  flags.DEFINE_string(
    "executor",
    "auto",
    "Where computations run: auto, in_process (this process, on a GPU if"
    " TensorFlow sees one), local (TFF's C++ executor, a child process) or"
    " remote (TFF's C++ executors on the machines of --workers).",
  )
  flags.DEFINE_integer(
    "max_concurrent_clients",
    0,
    "Clients that train at the same time. 0: one per core (in_process), no"
    " limit (local). Remote workers are told when they are started.",
  )
  flags.DEFINE_integer("num_clients", num_clients, "Number of clients.")
  flags.DEFINE_float(
    "participation",
    1.0,
    "Share of clients in a round, above 0 and at most 1.",
  )
  if rounds is not None:
    flags.DEFINE_integer("rounds", rounds, rounds_help)
  if evaluate_every is not None:
    flags.DEFINE_integer("evaluate_every", evaluate_every, evaluate_help)
  flags.DEFINE_string(
    "model",
    None,
    f"One of {', '.join(models.names())}; or a function of your own,"
    " my_package.my_model:build or path/to/file.py:build, which takes"
    " input_shape and num_classes and returns a SplitModel or a Keras model of"
    f" logits. {model_help}",
  )
  flags.DEFINE_integer(
    "model_width",
    None,
    "Width of the first layer, for models with an option width."
    f" {model_width_help}",
  )
  model_flags.define_flags()
  input_flags.define_flags(input_scaling)
  worker_flags.define_flags()
  output_folder.define_flags()
  tracker_flags.define_flags()
  saved_models.define_flags(save_clients)
  aggregator_flags.define_flags()
  hparam_flags.define_flags(scenario, hparam_defaults or {})


def check_common_flags(scenario: str) -> None:
  """Refuses wrong values of flags that every binary has.

  Args:
    scenario: The binary's name.

  Raises:
    UsageError: If there is one.
    output_folder.NothingToDoError: See `output_folder.asked`.
  """
  with usage_errors():
    dataset_flags.check(scenario)
  require_at_least_one("num_clients", "model_width", "max_states_in_memory")
  for flag in ("checkpoint_every", "max_concurrent_clients"):
    value = flags.FLAGS[flag].value
    require(flag, value >= 0, "at least 0")
    require(flag, value <= _MOST, f"at most {_MOST}")
  for flag in ("rounds", "evaluate_every"):
    if flag in flags.FLAGS:
      require_at_least_one(flag)
  require(
    "participation",
    0 < flags.FLAGS.participation <= 1,
    "above 0 and at most 1",
  )
  with usage_errors():
    saved_models.chosen_clients(flags.FLAGS.num_clients)
  if flags.FLAGS.model is not None:
    try:
      models.check_name(flags.FLAGS.model)
    except ValueError as error:
      raise UsageError(f"--model={flags.FLAGS.model}: {error}") from error
  with usage_errors():
    tracker_flags.check()
    aggregator_flags.check()
    worker_flags.chosen()
    output_folder.check()
    _asked.clear()
    _asked.update(output_folder.asked(_flag_values()))


def check_texts() -> None:
  """Refuses texts that no name may be, or that results cannot hold.

  Raises:
    UsageError: If a flag of the binary's has a NUL character, which only a file
      of flags can bring, or is not UTF-8.
  """
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    for flag in defined if module.startswith(f"{__package__}.") else ():
      values = flag.value if isinstance(flag.value, list) else [flag.value]
      for each in values:
        if isinstance(each, str) and "\0" in each:
          raise UsageError(f"--{flag.name}: it must not hold a NUL character")
        if isinstance(each, str) and not shown_names.is_encodable(each):
          raise UsageError(f"--{flag.name}={each}: it must be UTF-8 text")


def parse_numbers(
  flag: str, kind: Callable[[str], Any], requirement: str
) -> list[Any]:
  """Parses a comma-separated flag.

  Args:
    flag: The flag's name.
    kind: Turns a part into a number.
    requirement: What is right, for the message.

  Returns:
    The numbers, at least one and all different.

  Raises:
    UsageError: If a part is no such number, one comes twice or there is none.
  """
  parts = flags.FLAGS[flag].value
  try:
    numbers = [kind(part) for part in parts]
  except ValueError as error:
    raise UsageError(
      f"--{flag}={','.join(parts)}: {requirement} wanted"
    ) from error
  if not numbers or len(set(numbers)) != len(numbers):
    raise UsageError(
      f"--{flag}={','.join(parts)}: {requirement} wanted, at least one and"
      " none twice"
    )
  return numbers


def chosen_algorithms(scenario: str) -> list[str]:
  """Returns the algorithms of `--algorithm`, checked.

  Args:
    scenario: The binary's name.

  Returns:
    The names.

  Raises:
    UsageError: If one does not run in the scenario, if one comes twice, if
      there is none, or if a flag is set that belongs to none of them.
  """
  names = flags.FLAGS.algorithm
  known = algorithms.names(scenario)
  if not names:
    raise UsageError(f"--algorithm: name at least one of {', '.join(known)}")
  for name in names:
    if name not in known:
      raise UsageError(
        f"--algorithm={name}: there is no such algorithm; there are"
        f" {', '.join(known)}{arguments.did_you_mean(name, known)}"
      )
  if len(set(names)) != len(names):
    raise UsageError(f"--algorithm={','.join(names)}: an algorithm comes twice")
  for flag, owners in hparam_flags.owners(scenario).items():
    if flags.FLAGS[flag].value is None:
      continue
    if not set(owners) & set(names):
      raise UsageError(
        f"--{flag} belongs to {', '.join(owners)}, none of which is in"
        f" --algorithm={','.join(names)}"
      )
  return names


def chosen_seeds(flag: str) -> list[int]:
  """Returns the seeds of a flag, checked."""

  def parse(text):
    seed = int(text)
    if not 0 <= seed < 2**31:
      raise ValueError(text)
    return seed

  return parse_numbers(flag, parse, "integers from 0 to 2147483647")


def positive_number(flag: str) -> float:
  """Returns the number above 0, infinity included, that a flag's text is."""
  text = flags.FLAGS[flag].value
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  require(flag, value > 0, "a number above 0, or inf")
  return value


def chosen_aggregators(
  trials: Iterable[selection.Trial], num_rounds: int
) -> dict[str, factories.Aggregator | None]:
  """Returns the aggregator of `--aggregator` for each algorithm, checked.

  Args:
    trials: What is compared.
    num_rounds: The number of rounds of a run.

  Returns:
    What `build` takes as `aggregator`, by the algorithm's name.

  Raises:
    UsageError: If a flag is wrong or an algorithm cannot do with it.
  """
  with usage_errors():
    return aggregator_flags.chosen(
      [(each.algorithm, each.hparams) for each in trials],
      num_clients=flags.FLAGS.num_clients,
      participation=flags.FLAGS.participation,
      num_rounds=num_rounds,
    )


def require(flag: str, is_right: bool, requirement: str) -> None:
  """Refuses a flag's value unless it is right."""
  if not is_right:
    value = flags.FLAGS[flag].value
    shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    shown = shown_names.shortened(shown_names.printable(shown), _LONGEST_VALUE)
    raise UsageError(f"--{flag}={shown}: it must be {requirement}")


def require_at_least_one(*names: str) -> None:
  """Refuses numbers below 1, or beyond all that can be meant.

  A flag that is not set is right.
  """
  for flag in names:
    value = flags.FLAGS[flag].value
    require(flag, value is None or value >= 1, "at least 1")
    require(flag, value is None or value <= _MOST, f"at most {_MOST}")


def require_choice(flag: str, allowed: Iterable[str]) -> None:
  """Refuses what is not allowed."""
  value = flags.FLAGS[flag].value
  require(
    flag,
    value in allowed,
    f"one of {', '.join(allowed)}{arguments.did_you_mean(value, allowed)}",
  )


def require_choices(flag: str, allowed: Iterable[str]) -> None:
  """Refuses a list of which a part is not allowed or comes twice, or none."""
  values = flags.FLAGS[flag].value
  require(
    flag,
    values and set(values) <= set(allowed) and len(set(values)) == len(values),
    f"some of {', '.join(allowed)}, none twice"
    + "".join(
      arguments.did_you_mean(each, allowed)
      for each in values
      if each not in allowed
    ),
  )


def require_seed(flag: str) -> None:
  """Refuses a number that is no seed."""
  require(flag, 0 <= flags.FLAGS[flag].value < 2**31, "from 0 to 2147483647")


def check_sizes(
  chosen: Iterable[selection.Trial],
  model: split_model.SplitModel,
  num_examples: int,
  will_be_trained: bool = False,
) -> None:
  """Refuses what cannot fit in memory, and batches larger than all data.

  A client who has fewer examples than a batch sees some of them twice in it.
  Where a default or a preset says how large a batch is, so may all clients.

  Args:
    chosen: What is compared.
    model: The model.
    num_examples: How many examples all clients together train on.
    will_be_trained: Whether the model is pre-trained before a round.

  Raises:
    UsageError: If there is such a thing.
  """
  from tff_shift.learning import algorithm
  from tff_shift.learning import sizes

  is_given = _is_given("batch_size")
  for each in chosen:
    with usage_errors():
      algorithms.check_normalization(
        each.algorithm, model, each.hparams, will_be_trained
      )
    try:
      sizes.check_batch(model, each.hparams)
    except ValueError as error:
      raise UsageError(f"--{error}") from error
    if is_given:
      require(
        "batch_size",
        getattr(each.hparams, "batch_size", 0) <= num_examples,
        f"at most {num_examples}, the number of examples on which all clients"
        " together train",
      )
    # The graphs of a default run are not traced twice.
    if sizes.asks_for_much(each.hparams):
      work = algorithms.get(each.algorithm).build
      with usage_errors():
        algorithm.check_sizes(
          each.algorithm,
          work,
          model,
          each.hparams,
          algorithms.running_statistics(each.algorithm),
        )


def _is_given(flag: str) -> bool:
  """Tells whether the user set a flag, and not only a preset did."""
  arguments = flags.FLAGS.read_flags_from_files(sys.argv[1:])
  return any(re.match(f"--?{flag}(=|$)", each) for each in arguments)


def model_name(scenario: str) -> str:
  """Returns the model of `--model`, or that of the data set."""
  return flags.FLAGS.model or dataset_flags.entry().models[scenario]


def model_options() -> dict[str, Any]:
  """Returns the options of a model that the flags set."""
  width = flags.FLAGS.model_width
  return model_flags.options() | ({} if width is None else {"width": width})


def output_dir(scenario: str) -> pathlib.Path:
  """Returns `--output_dir` or a new name below runs/."""
  if flags.FLAGS.output_dir is not None:
    return pathlib.Path(flags.FLAGS.output_dir)
  now = datetime.datetime.now().astimezone()
  return pathlib.Path("runs") / f"{scenario}-{now:%Y%m%d-%H%M%S}"


def _flag_values(
  model: split_model.SplitModel | None = None,
) -> dict[str, Any]:
  """Returns all flags of the binary with their values.

  Files of the user stand with their digests: another version of one is another
  run. So do the frozen weights of a model of the user's, where that is given:
  its function may draw them anew in each process.
  """
  values = dataset_flags.named(
    {
      flag.name: flag.value
      for module, defined in flags.FLAGS.flags_by_module_dict().items()
      if module.startswith(f"{__package__}.")
      for flag in defined
    }
  )
  digests = {
    "import": hparam_flags.digests_of_imports(),
    "weights_file": model_flags.digest_of_weights(),
  }
  if values.get("model") and models.is_user_function(values["model"]):
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
  what_follows: Callable[[int], str | None] = lambda before: None,
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Makes the folder of the run, or opens it again with `--resume`.

  Args:
    scenario: The binary's name.
    model: The model that is trained.
    what_follows: See `output_folder.open_folder`.

  Returns:
    The folder, with `config.json` in it, and the checkpoints there.

  Raises:
    UsageError: If the folder cannot be used, or the flags are not those of the
      run to be resumed.
  """
  with usage_errors():
    return output_folder.open_folder(
      output_dir(scenario), _flag_values(model), what_follows
    )


def note_done(folder: results.RunFolder) -> None:
  """Notes in the folder that the run came to its end."""
  folder.write_done(_asked)


def executor() -> contextlib.AbstractContextManager:
  """Returns the executor of the flags, to be used in a `with`."""
  with usage_errors():
    return execution.use(
      flags.FLAGS.executor,
      max_concurrent_clients=flags.FLAGS.max_concurrent_clients or None,
      remote_workers=worker_flags.chosen(),
    )


def progress_bar(
  total: int, description: str, **options: Any
) -> contextlib.AbstractContextManager[progress.Progress]:
  """Returns what shows progress as `--progress` asks, to be used in a `with`.

  Args:
    total: The number of rounds, time steps or epochs.
    description: Stands beside it.
    **options: `unit`, `run` and `is_replayed` of `progress.progress`.
  """
  return progress.progress(
    total,
    enabled=flags.FLAGS.progress,
    description=description,
    printer=_PRINTER,
    **options,
  )
