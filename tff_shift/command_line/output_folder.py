"""The flags of saving and going on, and the folder of a run."""

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
from tff_shift import files
from tff_shift import shown_names
from tff_shift.data import examples
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records

if TYPE_CHECKING:
  from tff_shift.simulation.engine import checkpoints

FLAGS = flags.FLAGS

# Flags that may change when a run is resumed: they leave its results as they
# are; another executor to within its rounding.
_WITHOUT_EFFECT = frozenset(
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
    "save_model",
    *(field.name for field in dataclasses.fields(execution.RemoteWorkers)),
  }
)
# Flags that may grow when a run is resumed: to more, or by further ones.
_STEPS = frozenset({"rounds", "timesteps"})
_SEEDS = "seeds"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# Flags with another value of which a run that is done is done all the same.
_WITHOUT_WORK = _WITHOUT_EFFECT - {
  "mlflow_uri",
  "save_clients",
  "save_model",
  "tracker",
}

_AUTO = "auto"


class NothingToDoError(Exception):
  """What was asked for is there; its message is one line for the user."""


class _ResumeParser(flags.BooleanParser):
  """Parses a truth value, or auto."""

  def parse(self, argument: Any) -> bool | str:
    """See base class."""
    if isinstance(argument, str) and argument.lower() == _AUTO:
      return _AUTO
    try:
      return super().parse(argument)
    except ValueError as error:
      raise ValueError(f"it must be true, false or {_AUTO}") from error

  def flag_type(self) -> str:
    """See base class."""
    return f"bool or {_AUTO}"


class _ResumeFlag(flags.Flag):
  """--resume, --noresume, or --resume=auto."""

  def _serialize(self, value: bool | str) -> str:
    if value == _AUTO:
      return f"--{self.name}={_AUTO}"
    return f"--{self.name}" if value else f"--no{self.name}"


def define_resume(what: str) -> None:
  """Defines the flag `resume`: a truth value, or auto.

  Args:
    what: What is said of it.
  """
  flags.DEFINE_flag(
    _ResumeFlag(
      _ResumeParser(),
      None,
      "resume",
      False,
      f"{what} --resume={_AUTO} starts where there is nothing to go on with,"
      " and does nothing where all is done.",
      # For absl: it may stand alone, and has a --noresume.
      boolean=True,
    )
  )


def is_auto() -> bool:
  """Whether `--resume=auto` was given."""
  return FLAGS.resume == _AUTO


def define_flags() -> None:
  """Defines the flags."""
  define_resume(
    "Continues the run in --output_dir after its last checkpoints, with the"
    " same flags. Runs that were finished are not run again, but take more"
    " --rounds or --timesteps, and further --seeds.",
  )
  # To save takes about 0.1 s, less than one of ten rounds of all but toys.
  flags.DEFINE_integer(
    "checkpoint_every",
    10,
    "Saves each run after every so many rounds or time steps, and at its end,"
    " for --resume. 0: never.",
  )
  flags.DEFINE_integer(
    "max_states_in_memory",
    None,
    "Personal states of so many clients stay in memory, those used last; the"
    " others are kept in a file in --output_dir. Results are the same."
    " Default: no limit.",
  )


def check() -> None:
  """Refuses wrong values of the flags.

  Raises:
    ValueError: If there is one.
  """
  if FLAGS.resume:
    if FLAGS.output_dir is None:
      raise ValueError("--resume: name the folder of the run by --output_dir")
    if FLAGS.overwrite:
      raise ValueError("--resume goes on, --overwrite starts again: choose one")


def asked(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the flags that say what is to be done, of JSON types.

  Args:
    values: Every flag of the binary with its value, before data are looked at.

  Raises:
    ValueError: If all is done and a process is still there.
    NothingToDoError: If all is done, and `--resume=auto` was given.
  """
  folder = results.RunFolder(pathlib.Path(FLAGS.output_dir or ""))
  described = {
    name: value
    for name, value in results.flags_to_json(values).items()
    if name not in _WITHOUT_WORK
  }
  if is_auto() and folder.is_done(described):
    raise NothingToDoError(
      "nothing is left to do, for the rounds and seeds of this command line"
      f" are done: {folder.path}"
    )
  return described


@contextlib.contextmanager
def unwritable_refused(flag: str) -> Iterator[None]:
  """Makes a file that cannot be written the user's, before the run begins.

  Args:
    flag: Names the file or its folder.
  """
  try:
    yield
  except files.WriteError as error:
    raise ValueError(f"--{flag}: {error}") from error


def open_folder(
  path: pathlib.Path,
  values: Mapping[str, Any],
  what_follows: Callable[[int], str | None] = lambda before: None,
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Makes the folder of the run, or opens it again with `--resume`.

  Args:
    path: The folder.
    values: Every flag of the binary with its value.
    what_follows: Called with a number of rounds or time steps that was smaller:
      what in their results depends on it, or None. A run takes more steps only
      where nothing does.

  Returns:
    The folder, with `config.json` in it, and the checkpoints there.

  Raises:
    ValueError: If the folder cannot be used, or the flags are not those of the
      run to be resumed.
  """
  with unwritable_refused("output_dir"):
    goes_on = FLAGS.resume
    if is_auto():
      goes_on = results.RunFolder(path).has_run()
    if goes_on:
      return _open(
        results.RunFolder.resume(path), values, goes_on, what_follows
      )
    folder = results.RunFolder.create(path, overwrite=FLAGS.overwrite)
    with folder.beginning():
      return _open(folder, values, goes_on, what_follows)


def _open(
  folder: results.RunFolder,
  values: Mapping[str, Any],
  goes_on: bool,
  what_follows: Callable[[int], str | None],
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  from tff_shift.simulation.engine import checkpoints

  described = folder.describe(values)
  grown = {}
  if goes_on:
    before = folder.read_config() or described
    grown = _check_flags(before.flags, described.flags, what_follows)
    _warn_of_other_software(before, described)
  saved = checkpoints.Checkpoints(
    folder,
    {
      name: value
      for name, value in described.flags.items()
      # A run's seed tells it from others, and its steps are counted.
      if name not in {*_WITHOUT_EFFECT, *_STEPS, _SEEDS}
    },
    every=FLAGS.checkpoint_every,
    max_states_in_memory=FLAGS.max_states_in_memory,
    on_problem=warn,
  )
  if goes_on:
    folder.write_resumption(values, grown)
  else:
    folder.write_config(values)
  # So that it is known how to resume, should the name be a new one.
  FLAGS.output_dir = str(folder.path)
  return folder, saved


def _check_flags(
  before: Mapping[str, Any],
  now: Mapping[str, Any],
  what_follows: Callable[[int], str | None],
) -> dict[str, Any]:
  """Refuses other flags than those of before, but for more of the same.

  Returns:
    The values of before of the flags that have grown.
  """
  grown, changes = {}, []
  for name in sorted({*before, *now} - _WITHOUT_EFFECT):
    old, new = before.get(name), now.get(name)
    if old == new:
      continue
    change = f"--{name} was {_shown(old)} and is {_shown(new)}"
    # A flag is missing where the folder is of another binary.
    is_comparable = old is not None and type(old) is type(new)
    if is_comparable and name in _STEPS:
      if new > old:
        grown[name] = old
        continue
      change += " (it may be more, not fewer)"
    elif is_comparable and name == _SEEDS:
      if new[: len(old)] == old:
        grown[name] = old
        continue
      change += " (further ones may follow those of before)"
    changes.append(change)
  if changes:
    raise ValueError(
      "--resume goes on with the flags of the start: " + "; ".join(changes)
    )
  for name in _STEPS & grown.keys():
    reason = what_follows(grown[name])
    if reason is not None:
      raise ValueError(
        f"--{name} was {grown[name]} and is {now[name]}: {reason}; keep"
        f" --{name}={grown[name]}, or start anew in another --output_dir"
      )
  return grown


def _warn_of_other_software(
  before: run_records.RunConfig, now: run_records.RunConfig
) -> None:
  for name in ("versions", "git_commit"):
    if getattr(before, name) != getattr(now, name):
      warn(
        f"{name} differ from those of the start; what follows may not be what"
        " a run that never stopped gives"
      )


def _shown(value: Any) -> str:
  if value is None:
    return "not set"
  return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def warn(message: str) -> None:
  """Prints a line for the user that stops nothing."""
  binary = pathlib.Path(sys.argv[0]).stem
  print(shown_names.line(f"{binary}: {message}"), file=sys.stderr, flush=True)


def warn_of_copies(
  dataset: str, train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> None:
  """Prints how many test examples are trained on, if any are.

  Args:
    dataset: What the line calls the data set.
    train: The x of the training examples of each client.
    test: Likewise of the test examples.
  """
  number = examples.num_trained_on(train, test)
  if number:
    warn(
      f"{number} of {sum(map(len, test))} test examples of {dataset} stand"
      " among the training examples too, bit for bit"
    )


def is_full(error: OSError) -> bool:
  """Whether an error tells that nothing can be written, as on a full disk."""
  return isinstance(error, files.WriteError) or error.errno in _FULL


def what_is_kept() -> str:
  """Returns what the user is told at an end that came too early."""
  text = "what was written is kept"
  path = FLAGS.output_dir if "output_dir" in FLAGS else None
  if path is None or not (pathlib.Path(path) / "checkpoints").is_dir():
    return text
  if is_auto():
    return f"{text}; to go on, give the same command once more"
  return f"{text}; to go on, add --resume --output_dir={path}"
