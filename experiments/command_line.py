"""The flags that all binaries share, and their checks."""

import contextlib
import dataclasses
import datetime
import math
import pathlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import aggregator_flags
from experiments import output_folder
from experiments import worker_flags
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.learning import aggregation
from tff_shift.learning import hyperparameters
from tff_shift.simulation import checkpoints
from tff_shift.simulation import progress
from tff_shift.simulation import results

_PARSERS = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}


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


def define_common_flags(
  scenario: str,
  *,
  defaults: Mapping[str, str] | None = None,
  grids: tuple[str, ...] = ("learning_rate",),
) -> None:
  """Defines the flags that every binary has.

  Args:
    scenario: The binary's name, which its algorithms have in `SCENARIOS`.
    defaults: Says the default of a hyper-parameter where it is not that of the
      algorithm's own file.
    grids: The hyper-parameters of which several values may be compared.
  """
  flags.DEFINE_list(
    "algorithm",
    None,
    "Comma-separated algorithms to compare: "
    + ", ".join(algorithms.names(scenario)),
  )
  flags.DEFINE_list("seeds", ["0"], "Comma-separated seeds; one run for each.")
  flags.DEFINE_string(
    "output_dir",
    None,
    f"Folder of the results. Default: runs/{scenario}-<date>-<time>.",
  )
  flags.DEFINE_bool(
    "overwrite", False, "Replaces an earlier run in --output_dir."
  )
  flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of the data sets. Default: TFDS_DATA_DIR, else"
    " ~/tensorflow_datasets.",
  )
  flags.DEFINE_bool(
    "progress",
    None,
    "Shows a progress bar. Default: if standard error is a terminal.",
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
  worker_flags.define_flags()
  output_folder.define_flags()
  aggregator_flags.define_flags()
  _define_hparam_flags(scenario, defaults or {}, grids)


def _define_hparam_flags(
  scenario: str, defaults: Mapping[str, str], grids: tuple[str, ...]
) -> None:
  """Defines a flag for each hyper-parameter of each algorithm."""
  names = algorithms.names(scenario)
  defined = set()
  for name in names:
    for field in dataclasses.fields(algorithms.get(name).HParams):
      if field.name in defined:
        continue
      defined.add(field.name)
      owners = owners_of(field.name, scenario)
      scope = "" if len(owners) == len(names) else f" ({', '.join(owners)})"
      default = defaults.get(field.name, field.default)
      text = f"{field.metadata['help']} Default: {default}.{scope}"
      if field.name in grids:
        # A list: the values that are compared.
        flags.DEFINE_list(field.name, None, text + " Several: comma-separated.")
      else:
        _PARSERS[type(field.default)](field.name, None, text)


def owners_of(hparam: str, scenario: str) -> list[str]:
  """Returns the algorithms of a scenario that have a hyper-parameter."""
  return [
    name
    for name in algorithms.names(scenario)
    if hparam
    in {
      field.name for field in dataclasses.fields(algorithms.get(name).HParams)
    }
  ]


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
        f" {', '.join(known)}"
      )
  if len(set(names)) != len(names):
    raise UsageError(f"--algorithm={','.join(names)}: an algorithm comes twice")
  for flag in flags.FLAGS:
    if flags.FLAGS[flag].value is None:
      continue
    owners = owners_of(flag, scenario)
    if owners and not set(owners) & set(names):
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


def chosen_learning_rates(default: float) -> list[float]:
  """Returns the rates of `--learning_rate`, or the default."""
  return chosen_grid("learning_rate", default, "numbers above 0")


def chosen_grid(flag: str, default: float, requirement: str) -> list[float]:
  """Returns the values of a flag to be compared, or the default.

  Args:
    flag: The flag's name, one of the `grids` of `define_common_flags`.
    default: What counts where the flag is not set.
    requirement: What is right, for the message.

  Returns:
    The values.

  Raises:
    UsageError: See `parse_numbers`.
  """
  if flags.FLAGS[flag].value is None:
    return [default]
  return parse_numbers(flag, float, requirement)


def make_hparams(
  algorithm: str,
  defaults: Mapping[str, Any] | None = None,
  **overrides: Any,
) -> Any:
  """Makes the hyper-parameters of an algorithm from the flags.

  Args:
    algorithm: The algorithm's name.
    defaults: Values of hyper-parameters whose flags are not set; those that the
      algorithm does not have are left out.
    **overrides: Values that count instead of the flags'.

  Returns:
    The algorithm's `HParams`.

  Raises:
    UsageError: If a value is not allowed; names the flag and what is allowed.
  """
  kind = algorithms.get(algorithm).HParams
  names = {field.name for field in dataclasses.fields(kind)} - set(overrides)
  values = {
    name: flags.FLAGS[name].value
    for name in names
    if flags.FLAGS[name].value is not None
  }
  if {"local_steps", "local_epochs"} & set(values) == {"local_steps"}:
    # Who asks for steps does not want the epochs of the default.
    values["local_epochs"] = 0
  for name in names & set(defaults or {}):
    values.setdefault(name, defaults[name])
  hparams = kind(**values, **overrides)
  try:
    hyperparameters.validate(hparams)
  except ValueError as error:
    raise UsageError(f"--{error}") from error
  return hparams


def chosen_aggregators(
  contestants: Iterable[tuple[str, Any]], **federation: Any
) -> dict[str, aggregation.Aggregator | None]:
  """Returns the aggregator of `--aggregator` for each algorithm, checked.

  Args:
    contestants: See `aggregator_flags.chosen`.
    **federation: See `aggregator_flags.chosen`.

  Returns:
    What `build` takes as `aggregator`, by the algorithm's name.

  Raises:
    UsageError: If a flag is wrong or an algorithm cannot do with it.
  """
  with usage_errors():
    return aggregator_flags.chosen(contestants, **federation)


def require(flag: str, is_right: bool, requirement: str) -> None:
  """Refuses a flag's value unless it is right."""
  if not is_right:
    value = flags.FLAGS[flag].value
    shown = ",".join(value) if isinstance(value, list) else value
    raise UsageError(f"--{flag}={shown}: it must be {requirement}")


def output_dir(scenario: str) -> pathlib.Path:
  """Returns `--output_dir` or a new name below runs/."""
  if flags.FLAGS.output_dir is not None:
    return pathlib.Path(flags.FLAGS.output_dir)
  now = datetime.datetime.now().astimezone()
  return pathlib.Path("runs") / f"{scenario}-{now:%Y%m%d-%H%M%S}"


def flag_values(module: str) -> dict[str, Any]:
  """Returns the flags of a binary and the common ones with their values.

  Args:
    module: The name of the module that defines the binary's own flags.

  Returns:
    The values by name.
  """
  by_module = flags.FLAGS.flags_by_module_dict()
  return {
    flag.name: flag.value
    for name in (
      module,
      __name__,
      aggregator_flags.__name__,
      output_folder.__name__,
      worker_flags.__name__,
    )
    for flag in by_module[name]
  }


def open_folder(
  scenario: str, module: str, columns: Sequence[str]
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Makes the folder of the run, or opens it again with `--resume`.

  Args:
    scenario: The binary's name.
    module: See `flag_values`.
    columns: The columns of `metrics.csv`.

  Returns:
    The folder, with `config.json` in it, and the checkpoints there.

  Raises:
    UsageError: If the folder cannot be used, or the flags are not those of the
      run to be resumed.
  """
  with usage_errors():
    return output_folder.open_folder(
      output_dir(scenario), columns, flag_values(module)
    )


def executor() -> contextlib.AbstractContextManager:
  """Returns the executor of the flags, to be used in a `with`."""
  require(
    "max_concurrent_clients",
    flags.FLAGS.max_concurrent_clients >= 0,
    "at least 0",
  )
  with usage_errors():
    return execution.use(
      flags.FLAGS.executor,
      max_concurrent_clients=flags.FLAGS.max_concurrent_clients or None,
      remote_workers=worker_flags.chosen(),
    )


def progress_bar(
  total: int, description: str
) -> contextlib.AbstractContextManager[progress.ProgressBar]:
  """Returns a progress bar that heeds `--progress`, to be used in a `with`.

  Args:
    total: The number of rounds, time steps or epochs.
    description: What stands beside the bar.
  """
  return progress.progress(
    total,
    enabled=False if flags.FLAGS.progress is False else None,
    description=description,
  )
