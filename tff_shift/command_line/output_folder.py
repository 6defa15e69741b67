"""Checkpoints and output: the flags, and the folder of a run.

Choices:
  * `--resume=auto` with fewer rounds or seeds than the folder has is refused,
    as with `--resume`. "Done" refers to the flags as they were given, before
    the data determine some of them (`--input_mean`), so that no data need to be
    loaded.
  * Flags that do not affect results may differ on resume (executor, workers,
    progress, trackers, checkpoint intervals); any other flag is refused by
    name. Another version or commit gives a warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from tff_shift import execution
from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.command_line import configuration
from tff_shift.data import examples
from tff_shift.data import table
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records

if TYPE_CHECKING:
  from tff_shift.simulation.engine import checkpoints

GROUP = "output"

FLAGS = flags.FLAGS

# Flags that may change when a run resumes, because they do not change results
# (another executor only changes rounding). Pages compare runs that differ in
# them.
WITHOUT_EFFECT = frozenset(
  {
    "checkpoint_every",
    "executor",
    "max_concurrent_clients",
    "max_states_in_memory",
    "mlflow_uri",
    "output_dir",
    "overwrite",
    "progress",
    "resume",
    "tracker",
    "save_clients",
    "save_deployment",
    "save_model",
    *(field.name for field in dataclasses.fields(execution.RemoteWorkers)),
  }
)
# Flags that may grow when a run resumes: more steps, or additional seeds.
_STEPS = frozenset({"rounds", "timesteps"})
_SEEDS = "seeds"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# A finished run has nothing to do if only these flags have changed.
_WITHOUT_WORK = WITHOUT_EFFECT - {
  "mlflow_uri",
  "save_clients",
  "save_deployment",
  "save_model",
  "tracker",
}

_AUTO = "auto"


class NothingToDoError(Exception):
  """Nothing is left to run; the message is one line for the user."""


class _ResumeParser(flags.BooleanParser):
  """Parses true, false or auto."""

  def parse(self, argument: Any) -> bool | str:
    """Returns True, False or "auto"."""
    if isinstance(argument, str) and argument.lower() == _AUTO:
      return _AUTO
    try:
      return super().parse(argument)
    except ValueError as error:
      raise ValueError(f"it must be true, false or {_AUTO}") from error

  def flag_type(self) -> str:
    """Returns the description of the type."""
    return f"bool or {_AUTO}"


class _ResumeFlag(flags.Flag):
  """--resume, --noresume, or --resume=auto."""

  def _serialize(self, value: bool | str) -> str:
    if value == _AUTO:
      return f"--{self.name}={_AUTO}"
    return f"--{self.name}" if value else f"--no{self.name}"


def define_resume(what: str) -> None:
  """Defines the flag `resume`: true, false or auto.

  Args:
    what: The help text.
  """
  flags.DEFINE_flag(
    _ResumeFlag(
      _ResumeParser(),
      None,
      "resume",
      False,
      f"{what} --resume={_AUTO} starts a new run in a folder without one, and"
      " does nothing if the run is complete.",
      # Makes absl accept --resume without a value, and --noresume.
      boolean=True,
    )
  )


def is_auto() -> bool:
  """Whether `--resume=auto` was given."""
  return FLAGS.resume == _AUTO


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of checkpoints."""

  # Saving takes about 0.1 s, less than one of ten rounds except in toy runs.
  checkpoint_every: int = configuration.setting(
    10,
    "Number of rounds or time steps between checkpoints, for --resume. Each run"
    " also saves one at its end. 0: no checkpoints.",
    minimum=0,
  )
  max_states_in_memory: int | None = configuration.setting(
    None,
    "Number of clients whose personal states stay in memory (the most recently"
    " used); the others are kept in a file in --output_dir. Does not change"
    " results. Default: no limit.",
    minimum=1,
  )


def define_flags() -> None:
  """Defines the flag `resume`, which is more than a value."""
  define_resume(
    "Resumes the run in --output_dir from its last checkpoints, with the same"
    " flags. Finished runs are not repeated. --rounds or --timesteps may grow,"
    " and --seeds may get additional ones.",
  )


def check() -> None:
  """Checks the flags.

  Raises:
    ValueError: If a flag is wrong.
  """
  if FLAGS.resume:
    if FLAGS.output_dir is None:
      raise ValueError("--resume needs --output_dir, the folder of the run")
    if FLAGS.overwrite:
      raise ValueError("--resume and --overwrite exclude each other")


def asked(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the flags that determine the work, as JSON types.

  Args:
    values: All flags of the binary with their values, before data are loaded.

  Raises:
    ValueError: If the run is finished but another process still has its folder.
    NothingToDoError: If the run is finished and `--resume=auto` was given.
  """
  folder = results.RunFolder(pathlib.Path(FLAGS.output_dir or ""))
  described = {
    name: value
    for name, value in results.flags_to_json(values).items()
    if name not in _WITHOUT_WORK
  }
  if is_auto() and folder.is_done(described):
    raise NothingToDoError(
      "nothing to do: all rounds and seeds of this command line are done in"
      f" {folder.path}"
    )
  return described


@contextlib.contextmanager
def unwritable_refused(flag: str) -> Iterator[None]:
  """Turns write errors into errors of a flag, before the run starts.

  Args:
    flag: The flag that names the file or its folder.
  """
  try:
    yield
  except files.WriteError as error:
    raise ValueError(f"--{flag}: {error}") from error


def open_folder(
  path: pathlib.Path,
  values: Mapping[str, Any],
  what_follows: Callable[[int], str | None],
  schema: table.Schema,
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Creates the folder of the run, or reopens it with `--resume`.

  Args:
    path: The folder.
    values: All flags of the binary with their values.
    what_follows: Takes the earlier, smaller number of rounds or time steps and
      returns which results depend on that number, or None. Only runs without
      such results can be extended.
    schema: The names of the data.

  Returns:
    The folder, with `config.json` in it, and its checkpoints.

  Raises:
    ValueError: If the folder cannot be used, or if the flags differ from those
      of the run to resume.
  """
  with unwritable_refused("output_dir"):
    goes_on = FLAGS.resume
    if is_auto():
      goes_on = results.RunFolder(path).has_run()
    folder = (
      results.RunFolder.resume(path)
      if goes_on
      else results.RunFolder.create(path, overwrite=FLAGS.overwrite)
    )
    with folder.beginning():
      return folder, _open(folder, values, goes_on, what_follows, schema)


def _open(
  folder, values, goes_on, what_follows, schema
) -> checkpoints.Checkpoints:
  from tff_shift.simulation.engine import checkpoints

  # Also the digests of the files of flags, see `common_flags`.
  folder.not_compared = tuple(
    name
    for name in sorted(values)
    if name.partition(" ")[0] in configuration.not_compared() | WITHOUT_EFFECT
  )
  folder.batch_memory = execution.batch_memory()
  folder.batch_convolutions = execution.batch_convolutions()
  described = folder.describe(values)
  grown = {}
  if goes_on:
    before = folder.read_config() or described
    if before.draws != described.draws:
      raise ValueError(
        f"--resume: the run in {folder.path} was started by another version of"
        " tff_shift, which draws other random numbers; start a new run, with"
        " --overwrite or in another --output_dir"
      )
    grown = _check_flags(before.flags, described.flags, what_follows)
    _check_tensorflow(folder.path, before.versions, described.versions)
    folder.batch_memory = before.batch_memory
    execution.keep_batch_memory(before.batch_memory)
    _warn_of_other_software(before, described)
  saved = checkpoints.Checkpoints(
    folder,
    {
      name: value
      for name, value in described.flags.items()
      # Seed and number of steps are stored with each run.
      if name not in {*WITHOUT_EFFECT, *_STEPS, _SEEDS}
    }
    | {"schema": schema.comparable()},
    every=FLAGS.checkpoint_every,
    max_states_in_memory=FLAGS.max_states_in_memory,
    on_problem=warn,
  )
  if goes_on:
    # The best round of the shorter run may be the best of the longer one.
    folder.write_resumption(
      values,
      grown,
      schema=schema,
      keeps_models=values.get("keep") == "best",
    )
  else:
    folder.write_config(values, schema)
  # Messages name the folder with --resume, also if its name was generated.
  FLAGS.output_dir = str(folder.path)
  return saved


def _check_flags(
  before: Mapping[str, Any],
  now: Mapping[str, Any],
  what_follows: Callable[[int], str | None],
) -> dict[str, Any]:
  """Checks that the flags equal the earlier ones, except steps and seeds.

  Returns:
    The earlier values of the flags that have grown.
  """
  grown, changes = {}, []
  for name in sorted({*before, *now} - WITHOUT_EFFECT):
    old, new = before.get(name), now.get(name)
    if old == new:
      continue
    change = f"--{name} was {_shown(old)} and is {_shown(new)}"
    # A flag is missing if another binary wrote the folder.
    is_comparable = old is not None and type(old) is type(new)
    if is_comparable and name in _STEPS:
      if new > old:
        grown[name] = old
        continue
      change += " (it may grow, not shrink)"
    elif is_comparable and name == _SEEDS:
      if new[: len(old)] == old:
        grown[name] = old
        continue
      change += " (additional seeds may follow the earlier ones)"
    changes.append(change)
  if changes:
    raise ValueError(
      "--resume needs the flags of the earlier run: " + "; ".join(changes)
    )
  for name in _STEPS & grown.keys():
    reason = what_follows(grown[name])
    if reason is not None:
      raise ValueError(
        f"--{name} was {grown[name]} and is {now[name]}: {reason}; keep"
        f" --{name}={grown[name]}, or start a new run in another --output_dir"
      )
  return grown


def _check_tensorflow(
  path: pathlib.Path,
  before: Mapping[str, str | None],
  now: Mapping[str, str | None],
) -> None:
  """Refuses to go on with kernels that round differently."""
  old, new = (str(versions.get("tensorflow")) for versions in (before, now))
  # Patches of a release have its kernels.
  if old.rpartition(".")[0] != new.rpartition(".")[0]:
    raise ValueError(
      f"--resume: the run in {path} was started with TensorFlow {old}, and this"
      f" is {new}, which rounds differently; go on with {old}, or start a new"
      " run, with --overwrite or in another --output_dir"
    )


def _warn_of_other_software(
  before: run_records.RunConfig, now: run_records.RunConfig
) -> None:
  for name in ("versions", "git_commit", "batch_convolutions"):
    if getattr(before, name) != getattr(now, name):
      warn(
        f"{name} differ from the earlier run; results may differ from an"
        " uninterrupted run"
      )


def _shown(value: Any) -> str:
  if value is None:
    return "not set"
  return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def warn(message: str) -> None:
  """Prints a warning, one line on standard error."""
  binary = pathlib.Path(sys.argv[0]).stem
  print(shown_names.line(f"{binary}: {message}"), file=sys.stderr, flush=True)


def warn_of_copies(
  dataset: str, train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> None:
  """Warns if test examples are also training examples.

  Args:
    dataset: The name of the data set, for the message.
    train: The inputs x of each client's training examples.
    test: The inputs x of each client's test examples.
  """
  number = examples.num_trained_on(train, test)
  if number:
    warn(
      f"{number} of {sum(map(len, test))} test examples of {dataset} are exact"
      " copies of training examples"
    )


def is_full(error: OSError) -> bool:
  """Returns whether an error means a full or read-only disk."""
  return isinstance(error, files.WriteError) or error.errno in _FULL


def what_is_kept() -> str:
  """Returns how to continue, for the message of an early end."""
  text = "partial results were saved"
  path = FLAGS.output_dir if "output_dir" in FLAGS else None
  if path is None or not (pathlib.Path(path) / "checkpoints").is_dir():
    return "files written so far were kept"
  if is_auto():
    return f"{text}; repeat the command to continue"
  return f"{text}; continue with --resume --output_dir={path}"
