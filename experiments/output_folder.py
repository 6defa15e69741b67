"""The flags of saving and going on, and the folder of a run."""

import dataclasses
import errno
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from tff_shift import execution
from tff_shift import files
from tff_shift.data import examples
from tff_shift.simulation import checkpoints
from tff_shift.simulation import results
from tff_shift.simulation import run_records

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
# Flags that may become longer when a run is resumed, and whether they have.
_MAY_GROW = {
  "rounds": lambda old, new: new > old,
  "timesteps": lambda old, new: new > old,
  "seeds": lambda old, new: len(new) > len(old) and new[: len(old)] == old,
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_bool(
    "resume",
    False,
    "Continues the run in --output_dir after its last checkpoints, with the"
    " same flags; --rounds may be larger, and --seeds may have more behind"
    " those of the start. Runs that were finished are not run again.",
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


def open_folder(
  path: pathlib.Path,
  values: Mapping[str, Any],
  why_not: Callable[[str, Any], str] = lambda *_: "",
) -> tuple[results.RunFolder, checkpoints.Checkpoints]:
  """Makes the folder of the run, or opens it again with `--resume`.

  Args:
    path: The folder.
    values: Every flag of the binary with its value.
    why_not: Called with the name of a flag that has become longer, such as
      `rounds`, and its value before; returns why the run cannot go on so, or
      "".

  Returns:
    The folder, with `config.json` in it, and the checkpoints there.

  Raises:
    ValueError: If the folder cannot be used, or the flags are not those of the
      run to be resumed.
  """
  if FLAGS.checkpoint_every < 0:
    raise ValueError(
      f"--checkpoint_every={FLAGS.checkpoint_every}: it must be at least 0"
    )
  limit = FLAGS.max_states_in_memory
  if limit is not None and limit < 1:
    raise ValueError(f"--max_states_in_memory={limit}: it must be at least 1")
  if FLAGS.resume:
    if FLAGS.output_dir is None:
      raise ValueError("--resume: name the folder of the run by --output_dir")
    if FLAGS.overwrite:
      raise ValueError("--resume goes on, --overwrite starts again: choose one")
    folder = results.RunFolder.resume(path)
  else:
    folder = results.RunFolder.create(path, overwrite=FLAGS.overwrite)
  described = folder.describe(values)
  begun_with = {}
  if FLAGS.resume:
    before = folder.read_config() or described
    begun_with = _check_same(before, described, why_not)
  saved = checkpoints.Checkpoints(
    folder,
    {
      name: value
      for name, value in (described.flags | begun_with).items()
      if name not in _WITHOUT_EFFECT
    },
    is_extended="rounds" in begun_with,
    every=FLAGS.checkpoint_every,
    max_states_in_memory=FLAGS.max_states_in_memory,
    on_problem=warn,
  )
  if FLAGS.resume:
    folder.write_resumption(values, begun_with)
  else:
    folder.write_config(values)
  # So that it is known how to resume, should the name be a new one.
  FLAGS.output_dir = str(folder.path)
  return folder, saved


def _check_same(
  before: run_records.RunConfig,
  now: run_records.RunConfig,
  why_not: Callable[[str, Any], str],
) -> dict[str, Any]:
  """Refuses other flags than those of the start; warns of other software.

  Args:
    before: The configuration in the folder.
    now: That of this command line.
    why_not: See `open_folder`.

  Returns:
    The values of the start of those flags that have become longer.
  """
  begun_with = dict(before.begun_with)
  changes = []
  for name in sorted({*before.flags, *now.flags} - _WITHOUT_EFFECT):
    old, new = (each.flags.get(name) for each in (before, now))
    if old == new:
      continue
    change = f"--{name} was {_shown(old)} and is {_shown(new)}"
    may_grow = name in _MAY_GROW and type(old) is type(new)
    if may_grow and _MAY_GROW[name](old, new):
      reason = why_not(name, old)
      if not reason:
        begun_with.setdefault(name, old)
        continue
      change += f", {reason}"
    changes.append(change)
  if changes:
    raise ValueError(
      "--resume goes on with the flags of the start: " + "; ".join(changes)
    )
  for name in ("versions", "git_commit"):
    if getattr(before, name) != getattr(now, name):
      warn(
        f"{name} differ from those of the start; what follows may not be what"
        " a run that never stopped gives"
      )
  return begun_with


def _shown(value: Any) -> str:
  if value is None:
    return "not set"
  return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def warn(message: str) -> None:
  """Prints a line for the user that stops nothing."""
  binary = pathlib.Path(sys.argv[0]).stem
  print(f"{binary}: {message}", file=sys.stderr, flush=True)


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
  return f"{text}; to go on, add --resume --output_dir={path}"
