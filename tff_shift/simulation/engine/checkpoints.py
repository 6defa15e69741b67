"""Checkpoints: interrupted runs resume and give bit-identical results.

A driver loops over `steps`, which yields the remaining steps and saves a
checkpoint at regular intervals. Finished runs can be continued with more steps.
Each run has its own folder with its last two checkpoints. A checkpoint is

    state_<step>/       the states of the server and of the clients that have
                        taken part, in the format of
                        `tff.program.FileProgramStateManager`
    state_<step>.json   the record: the measurements so far, durations and
                        training losses of rounds, the clients' last losses if
                        they report them, and digests that detect damage

If the number of client states in memory is limited, one file has the states of
both checkpoints instead, and each checkpoint adds the changed states to it:

    states.sqlite       see `state_file`

TFF creates the folder atomically, and SQLite commits. The record is written
last, and a checkpoint without it is ignored. A process can therefore be killed
at any time without damage to the previous checkpoint. Damaged checkpoints and
those of another run are reported, and the checkpoint before them is used. All
random numbers are functions of seed and round (`randomness`), so nothing else
is saved.
"""

import hashlib
import itertools
import math
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import ClassVar

import msgspec
import numpy as np
import tensorflow_federated as tff

from tff_shift import arguments
from tff_shift import files
from tff_shift import records
from tff_shift import shown_names
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import asynchronous
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import state_file

_PREFIX = "state_"
_NUM_KEPT = 2
_STATES = "states.sqlite"

_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Record(records.Record):
  """A checkpoint's record, `state_<step>.json`.

  Attributes:
    step: The step after which it was saved.
    run: The key of the run.
    structure: The digest of the structure of everything that is saved.
    files: The digest of the folder of states.
    clients: The clients whose states are in the folder.
    states: The content of the file of states. None: there is no such file.
    seconds: The duration of each round, see `rounds.Rounds`.
    starts: The rounds before which the run started or resumed.
    num_diverged: The number of diverged client updates so far.
    losses: The training loss of each round.
    measured: The measurements, see `encoding.to_json`.
    client_losses: The last loss of each client, see `rounds.Rounds`; None if it
      has reported none. Unset: clients do not report losses.
  """

  FORMAT = 1
  # Files of format 0 have the same fields.
  UPGRADES: ClassVar = {0: dict}
  HAS_DIGEST = True
  HELD_CONSTANTS = True

  step: records.PositiveInt
  run: str
  structure: records.Sha256
  files: records.Sha256
  clients: tuple[records.Count, ...]
  states: state_file.Content | None
  seconds: tuple[_Seconds, ...]
  starts: tuple[records.Count, ...]
  num_diverged: records.Count
  losses: tuple[records.Exact, ...]
  measured: tuple[dict[str, Any], ...]
  client_losses: tuple[records.Exact | None, ...] | msgspec.UnsetType = (
    msgspec.UNSET
  )

  def __post_init__(self):
    if len(self.losses) > len(self.seconds):
      raise ValueError(
        f"losses has {len(self.losses)} rounds, and seconds has"
        f" {len(self.seconds)}"
      )


def _print_problem(message: str) -> None:
  print(shown_names.line(message), file=sys.stderr, flush=True)


class Checkpoints:
  """The checkpoints of all runs in an output folder."""

  def __init__(
    self,
    folder: results.RunFolder,
    identity: Mapping[str, Any],
    *,
    every: int,
    max_states_in_memory: int | None = None,
    on_problem: Callable[[str], None] = _print_problem,
  ):
    """Creates the checkpoints of an output folder.

    Args:
      folder: The output folder.
      identity: Everything that determines the results of the runs, in JSON
        types. Checkpoints of another identity are not used. The number of steps
        is left out if runs can be continued with more steps.
      every: The number of steps between checkpoints; the last step is always
        saved. 0: saves nothing.
      max_states_in_memory: The number of client states in memory; the others
        are on disk. None: all are in memory.
      on_problem: Called with a line for each unusable checkpoint.

    Raises:
      ValueError: If a number is not allowed.
    """
    self._folder = folder
    self._identity = identity
    self._every = every = arguments.integer("every", every, 0)
    self._max_states_in_memory = max_states_in_memory
    self._on_problem = on_problem
    self._names = set()
    if every:
      files.make_folder(folder.checkpoints)

  def run(
    self,
    labels: Mapping[str, Any],
    on_restored: Callable[[], None] = lambda: None,
  ) -> "Run":
    """Returns the checkpoints of a run.

    Args:
      labels: The values that distinguish the run, such as the columns of
        `metrics.csv` that are constant within a run.
      on_restored: Called after the measurements were restored, see `Run`.
    """
    label = "-".join(str(value) for value in labels.values())
    name = shown_names.file_name(label)
    self._names.add(name)

    def start():
      self._folder.cut_metrics()
      on_restored()

    return Run(
      self._folder.checkpoints / name,
      array_cache.key({"identity": self._identity, "run": label}),
      every=self._every,
      max_states_in_memory=self._max_states_in_memory,
      scratch=self._folder.path,
      on_restored=start,
      on_problem=self._on_problem,
    )

  def remove_others(self) -> None:
    """Removes the checkpoints of runs that this process has not requested."""
    with files.writing(self._folder.checkpoints):
      for path in list(self._folder.checkpoints.glob("*")):
        if path.is_dir() and path.name not in self._names:
          files.remove(path)


class Run:
  """The checkpoints of one run, for `steps`.

  Attributes:
    storage: The storage of client states for its `rounds.Rounds`.
  """

  def __init__(
    self,
    path: pathlib.Path,
    key: str,
    *,
    every: int,
    max_states_in_memory: int | None = None,
    scratch: pathlib.Path | None = None,
    on_restored: Callable[[], None] = lambda: None,
    on_problem: Callable[[str], None] = _print_problem,
  ):
    """Sets the paths; reads and writes nothing yet.

    Args:
      path: The folder of this run, created when needed.
      key: The key of everything that determines the results; see
        `array_cache.key`.
      every: The number of steps between checkpoints; the last step is always
        saved. 0: saves nothing.
      max_states_in_memory: The number of client states in memory; the others
        are on disk. None: all are in memory.
      scratch: A folder for states on disk if nothing is ever saved. Default:
        the parent of the folder of this run.
      on_restored: Called after earlier measurements were restored, if there are
        steps left.
      on_problem: Called with a line for each unusable checkpoint.

    Raises:
      ValueError: If a number is not allowed.
    """
    self._path = path
    self._key = key
    self._every = every = arguments.integer("every", every, 0)
    self._on_restored = on_restored
    self._on_problem = on_problem
    self._states = state_file.StateFile(path / _STATES, key)
    self.storage = None
    if max_states_in_memory is not None:
      max_states_in_memory = arguments.integer(
        "max_states_in_memory", max_states_in_memory
      )
      file = self._states
      if not every and not file.path.exists():
        file = state_file.StateFile(scratch or path.parent, is_temporary=True)
      self.storage = client_states.Storage(max_states_in_memory, file)

  def steps(
    self,
    num_steps: int,
    running: rounds.Rounds,
    measured: list[Any],
    make: Callable[..., Any],
    replay: Callable[[Any], None],
    revise: Callable[[int], int],
    is_over: Callable[[], bool] = lambda: False,
  ) -> Iterator[int]:
    """Yields the remaining steps of the run; see the function `steps`."""
    saved = done = self._restore(running, measured, make)
    if saved > num_steps:
      raise too_long(saved, num_steps)
    if saved:
      done = revise(saved)
    if done < saved and self._every:
      self._save_before(saved, done, running, measured)
    for each in measured:
      replay(each)
    remaining = () if is_over() else range(done + 1, num_steps + 1)
    if remaining:
      self._on_restored()
    for step in remaining:
      yield step
      # The driver has finished the step and requests the next one.
      is_last = step == num_steps or is_over()
      if self._every and (step % self._every == 0 or is_last):
        self._save(step, running, measured)
      if is_last:
        return

  def _manager(self, prefix: str = _PREFIX):
    return tff.program.FileProgramStateManager(
      self._path, prefix, keep_total=0, keep_first=False
    )

  def _state(self, step: int) -> pathlib.Path:
    return self._path / f"{_PREFIX}{step}"

  def _record(self, step: int) -> pathlib.Path:
    return self._path / f"{_PREFIX}{step}.json"

  def _recorded_steps(self) -> list[int]:
    """Returns the steps that have a record, in descending order."""
    names = re.compile(rf"{_PREFIX}(\d+)\.json")
    found = (names.fullmatch(path.name) for path in self._path.glob("*"))
    return sorted((int(each[1]) for each in found if each), reverse=True)

  def _save_before(
    self, saved: int, done: int, running: rounds.Rounds, measured: Sequence[Any]
  ) -> None:
    """Saves a restored run again at a smaller step.

    Later steps are discarded. If the process is killed in between, one of the
    two checkpoints remains.
    """
    with files.writing(self._path):
      # The checkpoints with the highest numbers would be kept.
      self._clear(0, kept=saved)
      self._save(done, running, measured, kept=saved)
      self._clear(done + 1)

  def _save(
    self,
    step: int,
    running: rounds.Rounds,
    measured: Sequence[Any],
    kept: int | None = None,
  ) -> None:
    """Saves a run after a step.

    Raises:
      files.WriteError: If it cannot be written; earlier checkpoints and the
        step `kept` remain.
    """
    states = running.states
    saved, content = {}, None
    if states.storage is None:
      saved = dict(sorted(states.in_memory.items()))
    values = running.server_state, tuple(saved.values())
    try:
      files.make_folder(self._path)
      self._save_states(step, encoding.join(values))
      if states.storage is not None:
        content = states.commit(step)
      record = Record(
        step=step,
        run=self._key,
        structure=_structure(running),
        files=_digest(self._state(step)),
        clients=tuple(saved),
        states=content,
        seconds=tuple(running.seconds),
        starts=tuple(running.starts),
        num_diverged=running.num_diverged,
        losses=tuple(map(records.exact, running.losses)),
        measured=tuple(map(encoding.to_json, measured)),
        client_losses=_saved_losses(running.client_losses),
      )
      # On one line, because a long run has many numbers.
      records.write(self._record(step), record, indent=None)
    except files.WriteError:
      self._clear(step, kept)
      raise
    with files.writing(self._path):
      for earlier in self._recorded_steps()[_NUM_KEPT:]:
        # In this order: a state without a record is not a checkpoint.
        self._record(earlier).unlink()
        shutil.rmtree(self._state(earlier), ignore_errors=True)
      self._prune(states)

  def _save_states(self, step: int, values: Any) -> None:
    # TFF's name for an unfinished folder is predictable.
    prefix = files.temporary_path(self._state(step)).name
    with files.writing(self._state(step)):
      asynchronous.run(self._manager(prefix).save(values, step))
      files.remove(self._state(step))
      os.rename(self._path / f"{prefix}{step}", self._state(step))

  def _prune(self, states: client_states.ClientStates) -> None:
    """Removes client states that no checkpoint needs any more."""
    steps = self._recorded_steps()
    if states.storage is not None:
      states.storage.file.prune(min(steps))
    elif self._states.path.exists() and not any(map(self._uses_file, steps)):
      self._states.remove()

  def _uses_file(self, step: int) -> bool:
    """Whether the checkpoint of a step needs the file of states."""
    try:
      return records.read(self._record(step), Record).states is not None
    except ValueError:
      # The record is damaged, so no run can use it.
      return False

  def _restore(
    self,
    running: rounds.Rounds,
    measured: list[Any],
    make: Callable[..., Any],
  ) -> int:
    """Restores the last usable checkpoint.

    Returns:
      Its step; 0 if there is none.
    """
    done = 0
    for step in self._recorded_steps():
      try:
        record = self._read_record(step, running)
        found = _made(record, make)
        server_state = self._restore_states(record, running)
      except state_file.UnusableError as error:
        self._on_problem(
          f"checkpoint {self._state(step)} cannot be used: {error}; the run"
          " resumes from the previous one, or starts again if there is none"
        )
        continue
      running.resume(
        server_state,
        None,
        list(record.seconds),
        list(record.starts),
        record.num_diverged,
        list(map(records.to_float, record.losses)),
        None
        if record.client_losses is msgspec.UNSET
        else list(map(records.to_float, record.client_losses)),
      )
      measured[:] = found
      done = step
      break
    with files.writing(self._path):
      self._clear(done + 1)
      if not done:
        self._states.remove()
    return done

  def _read_record(self, step: int, running: rounds.Rounds) -> Record:
    """Returns the validated record of a step."""
    path = self._record(step)
    try:
      record = records.read(path, Record)
      if record.step != step:
        raise ValueError(f"step is {record.step}, and its file name has {step}")
    except ValueError as error:
      reason = str(error).removeprefix(f"{path}: ")
      raise state_file.UnusableError(
        f"its record is damaged: {reason}"
      ) from error
    if record.run != self._key:
      raise state_file.UnusableError("it belongs to a run with other flags")
    if record.structure != _structure(running):
      raise state_file.UnusableError("its states have another structure")
    if _num_losses(record.client_losses) != _num_losses(running.client_losses):
      raise state_file.UnusableError("it has the losses of other clients")
    if record.files != _digest(self._state(step)):
      raise state_file.UnusableError("its states are damaged")
    return record

  def _restore_states(self, record: Record, running: rounds.Rounds) -> Any:
    """Restores the states of clients and returns the server state."""
    step, clients = record.step, record.clients
    template = (
      running.server_state,
      tuple([running.states.template] * len(clients)),
    )
    # TFF needs the structure; the values are ignored.
    joined = asynchronous.run(
      self._manager().load(step, encoding.join(template))
    )
    server_state, values = encoding.split(joined, template)
    if record.states is None:
      running.states.replace(dict(zip(clients, values, strict=True)))
    else:
      running.states.restore(
        self._states,
        step,
        record.states,
        oldest=min(self._recorded_steps()),
      )
      if running.states.storage is None:
        # All states were read into memory.
        self._states.close()
    return server_state

  def _clear(self, first: int, kept: int | None = None) -> None:
    """Removes everything from a step on except `kept`, and unfinished files."""
    name = re.compile(rf"\.?{_PREFIX}(\d+)(_temp\d+|\.json|\..*\.tmp.*)?")
    for path in list(self._path.glob("*")):
      found = name.fullmatch(path.name)
      is_finished = found and found[2] in (None, ".json")
      if not found or (is_finished and int(found[1]) == kept):
        continue
      if int(found[1]) >= first or not is_finished:
        files.remove(path)


def steps(
  checkpoint: Run | None,
  num_steps: int,
  running: rounds.Rounds,
  measured: list[Any],
  *,
  make: Callable[..., Any],
  replay: Callable[[Any], None],
  revise: Callable[[int], int] = lambda step: step,
  is_over: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
  """Yields the remaining steps of a run, from 1.

  The body of the loop does a step and appends its measurements. Before the
  first one, an interrupted run is restored from its last checkpoint.

  Args:
    checkpoint: The checkpoints of the run; None if it has none.
    num_steps: The number of rounds or time steps.
    running: The rounds, in their initial state.
    measured: An empty list, filled with the earlier measurements; named tuples
      of numbers, strings, None, arrays and named tuples.
    make: Makes such a named tuple from its fields; nested ones are passed as
      dictionaries.
    replay: Called with each earlier measurement, in order.
    revise: Called before that with the step of the checkpoint, which may belong
      to a run of fewer steps. It changes `measured` to the measurements of a
      run of this length and returns the number of completed steps.
    is_over: Whether the run ends after the step that was done or replayed last.

  Yields:
    The steps. The iteration raises a `files.WriteError` if a checkpoint cannot
    be written, and a `ValueError` if the restored run has more steps.
  """
  if checkpoint is None:
    # A step is requested when the one before it is done.
    return itertools.takewhile(
      lambda step: not is_over(), range(1, num_steps + 1)
    )
  return checkpoint.steps(
    num_steps, running, measured, make, replay, revise, is_over
  )


def too_long(done: int, requested: int, what: str = "steps") -> ValueError:
  """Returns the error for a run that has more steps than requested."""
  return ValueError(
    f"checkpoint: the run was saved after {done} {what}, more than the"
    f" {requested} requested; request at least as many, or start a new run in"
    " another folder"
  )


def _made(record: Record, make: Callable[..., Any]) -> list[Any]:
  """Returns the measurements, converted by `make`."""
  try:
    return [make(**encoding.from_json(each)) for each in record.measured]
  except (TypeError, ValueError, KeyError) as error:
    raise state_file.UnusableError(
      f"its measurements are from another version ({error})"
    ) from error


def _saved_losses(
  client_losses: np.ndarray | None,
) -> tuple[records.Exact | None, ...] | msgspec.UnsetType:
  """Returns the field `client_losses` of a record."""
  if client_losses is None:
    return msgspec.UNSET
  return tuple(
    None if math.isnan(loss) else records.exact(loss)
    for loss in client_losses.tolist()
  )


def _num_losses(client_losses: Sequence[Any] | msgspec.UnsetType | None) -> int:
  """Returns the number of clients whose losses are known or may become so."""
  if client_losses is None or client_losses is msgspec.UNSET:
    return 0
  return len(client_losses)


def _structure(running: rounds.Rounds) -> str:
  """Returns a digest of the structure of everything that is saved."""
  return array_cache.key(
    {
      "server": encoding.structure(running.server_state),
      "client": encoding.structure(running.states.template),
      "num_clients": len(running.states),
    }
  )


def _digest(folder: pathlib.Path) -> str:
  """Returns a digest of the names and contents of all files in a folder."""
  found = hashlib.sha256()
  for path in sorted(folder.rglob("*")):
    if path.is_file():
      with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
      found.update(f"{path.relative_to(folder)} {content}\n".encode())
  return found.hexdigest()
