"""Checkpoints: interrupted runs resume and give bit-identical results.

A driver loops over `steps`, which yields the remaining steps and saves a
checkpoint at regular intervals. Finished runs can be continued with more steps.
Each run has one file with its last two checkpoints, see `run_file`. A
checkpoint consists of the states of the server and of the clients that have
taken part, and of the record: the measurements so far, durations and training
losses of rounds, and the clients' last losses if they report them.

A checkpoint is one transaction, so a process can be killed at any time without
damage to the previous checkpoint. Damaged checkpoints and those of another run
are reported, and the checkpoint before them is used. All random numbers are
functions of seed and round (`randomness`), so nothing else is saved.

Choices:
  * Training losses of all rounds are in the record, whether or not the round
    was evaluated: a resumed run rewrites TensorBoard's files, which would
    otherwise lack the earlier rounds. On drifting streams the steps of losses
    are rounds, those of evaluations time steps.
  * A damaged checkpoint does not end a run, because the results from the one
    before are bit-identical. A damaged `config.json` does, because the run's
    flags are then unknown.
"""

import itertools
import math
import pathlib
import sys
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Annotated
from typing import Any

import msgspec
import numpy as np

from tff_shift._util import arguments
from tff_shift._util import files
from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_file

_SUFFIX = ".sqlite"

_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Record(records.Record):
  """A checkpoint's record.

  Attributes:
    structure: The digest of the structure of everything that is saved.
    seconds: The duration of each round, see `rounds.Rounds`.
    starts: The rounds before which the run started or resumed.
    num_diverged: The number of diverged client updates so far.
    losses: The training loss of each round.
    measured: The measurements, see `encoding.to_json`.
    client_losses: The last loss of each client, see `rounds.Rounds`; None if it
      has reported none. Unset: clients do not report losses.
  """

  structure: records.Sha256
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
      ValueError: If a number is not allowed, or if the folder has checkpoints
        of another format; it stays as it is.
    """
    self._folder = folder
    self._identity = identity
    self._every = every = arguments.integer("every", every, 0)
    self._max_states_in_memory = max_states_in_memory
    self._on_problem = on_problem
    self._paths = set()
    for path in folder.checkpoints.glob(f"*{_SUFFIX}"):
      run_file.RunFile(path).check_format()
    if every:
      files.make_folder(folder.checkpoints)
      run_file.remove_leftovers(folder.checkpoints, f"*{_SUFFIX}")

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
    name = shown_names.file_name(label) + _SUFFIX
    path = self._folder.checkpoints / name
    self._paths.add(path)

    def start():
      self._folder.cut_metrics()
      on_restored()

    return Run(
      path,
      array_cache.key({"identity": self._identity, "run": label}),
      every=self._every,
      max_states_in_memory=self._max_states_in_memory,
      scratch=self._folder.path,
      on_restored=start,
      on_problem=self._on_problem,
      labels=records.to_json(dict(labels)),
    )

  def remove_others(self) -> None:
    """Removes the checkpoints of runs that this process has not requested."""
    with files.writing(self._folder.checkpoints):
      for path in list(self._folder.checkpoints.glob(f"*{_SUFFIX}")):
        if path not in self._paths:
          run_file.RunFile(path).remove()


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
    labels: Mapping[str, Any] = types.MappingProxyType({}),
  ):
    """Sets the path; reads and writes nothing yet.

    Args:
      path: The file of this run, created when needed.
      key: The key of everything that determines the results; see
        `array_cache.key`.
      every: The number of steps between checkpoints; the last step is always
        saved. 0: saves nothing.
      max_states_in_memory: The number of client states in memory; the others
        are on disk. None: all are in memory.
      scratch: A folder for states on disk if nothing is ever saved. Default:
        the folder of the file.
      on_restored: Called after earlier measurements were restored, if there are
        steps left.
      on_problem: Called with a line for each unusable checkpoint.
      labels: The columns of the run in `metrics.csv`, in JSON types, for
        readers of the file.

    Raises:
      ValueError: If a number is not allowed.
    """
    self._labels = labels
    self._every = every = arguments.integer("every", every, 0)
    self._on_restored = on_restored
    self._on_problem = on_problem
    self._file = run_file.RunFile(path, key)
    if max_states_in_memory is not None:
      max_states_in_memory = arguments.integer(
        "max_states_in_memory", max_states_in_memory
      )
      if not every and not self._file.exists():
        self._file = run_file.RunFile(scratch or path.parent, is_temporary=True)
    self.storage = client_states.Storage(max_states_in_memory, self._file)

  def steps(
    self,
    num_steps: int,
    running: rounds.Rounds,
    measured: list[Any],
    make: Callable[..., Any],
    replay: Callable[[Any], None],
    revise: Callable[[int], int],
    is_over: Callable[[], bool] = lambda: False,
    client_names: Sequence[str] | None = None,
  ) -> Iterator[int]:
    """Yields the remaining steps of the run; see the function `steps`."""
    self._client_names = client_names
    running.states.attach(self.storage)
    saved = done = self._restore(running, measured, make)
    if saved > num_steps:
      raise too_long(saved, num_steps)
    if saved:
      done = revise(saved)
    if done < saved and self._every:
      self._file.move(done)
      self._save(done, running, measured)
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

  def _save(
    self, step: int, running: rounds.Rounds, measured: Sequence[Any]
  ) -> None:
    """Saves a run after a step.

    Raises:
      files.WriteError: If it cannot be written; earlier checkpoints remain.
    """
    server_state = running.server_state
    content = encoding.to_bytes(server_state, server_state)
    running.states.write()
    self._file.write([(run_file.SERVER, content)])
    self._file.write_details(self._labels, self._client_names)
    self._file.write_measurements(list(client_values.found_in(measured)))
    record = Record(
      structure=_structure(running),
      seconds=tuple(running.seconds),
      starts=tuple(running.starts),
      num_diverged=running.num_diverged,
      losses=tuple(map(records.exact, running.losses)),
      measured=tuple(map(encoding.to_json, measured)),
      client_losses=_saved_losses(running.client_losses),
    )
    self._file.commit(step, records.encode(record, indent=None))

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
    self._file.check_format()
    for step, text in self._saved().items():
      try:
        record = _read_record(text, running)
        found = _made(record, make, self._file.read_measurements())
        self._file.restore(step)
      except run_file.UnusableError as error:
        self._on_problem(
          f"checkpoint {step} in {self._file.path} cannot be used: {error}; the"
          " run resumes from the previous one, or starts again if there is none"
        )
        continue
      running.states.restore()
      running.resume(
        encoding.from_bytes(
          self._file.read(run_file.SERVER), running.server_state
        ),
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
      self._file.keep_measurements(client_values.found_in(found))
      return step
    with files.writing(self._file.path):
      self._file.remove()
    return 0

  def _saved(self) -> dict[int, str]:
    """Returns the records in the file by step, the last one first."""
    path = self._file.path
    try:
      saved = self._file.checkpoints()
      if saved and self._file.last_step() > max(saved):
        self._on_problem(
          f"the record of the last checkpoint in {path} is missing; the run"
          " resumes from the previous one"
        )
    except run_file.UnusableError as error:
      self._on_problem(
        f"checkpoints in {path} cannot be used: {error}; the run starts again"
      )
      return {}
    return saved


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
  client_names: Sequence[str] | None = None,
) -> Iterator[int]:
  """Yields the remaining steps of a run, from 1.

  The body of the loop does a step and appends its measurements. Before the
  first one, an interrupted run is restored from its last checkpoint.

  Args:
    checkpoint: The checkpoints of the run; None if it has none.
    num_steps: The number of rounds or time steps.
    running: The rounds, in their initial state.
    measured: An empty list, filled with the earlier measurements; named tuples
      of numbers, strings, None, arrays, `client_values.ClientValues` and named
      tuples.
    make: Makes such a named tuple from its fields; nested ones are passed as
      dictionaries.
    replay: Called with each earlier measurement, in order.
    revise: Called before that with the step of the checkpoint, which may belong
      to a run of fewer steps. It changes `measured` to the measurements of a
      run of this length and returns the number of completed steps.
    is_over: Whether the run ends after the step that was done or replayed last.
    client_names: The names of the clients, for readers of the file. None:
      unknown.

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
    num_steps, running, measured, make, replay, revise, is_over, client_names
  )


def too_long(done: int, requested: int, what: str = "steps") -> ValueError:
  """Returns the error for a run that has more steps than requested."""
  return ValueError(
    f"checkpoint: the run was saved after {done} {what}, more than the"
    f" {requested} requested; request at least as many, or start a new run in"
    " another folder"
  )


def _read_record(text: str, running: rounds.Rounds) -> Record:
  """Returns the validated record of a checkpoint."""
  try:
    record = records.decode(text, Record)
  except ValueError as error:
    raise run_file.UnusableError(f"its record is damaged: {error}") from error
  if record.structure != _structure(running):
    raise run_file.UnusableError("its states have another structure")
  if _num_losses(record.client_losses) != _num_losses(running.client_losses):
    raise run_file.UnusableError("it has the losses of other clients")
  return record


def _made(
  record: Record, make: Callable[..., Any], contents: Mapping[str, bytes]
) -> list[Any]:
  """Returns the measurements, converted by `make`.

  Args:
    record: The record.
    make: Makes measurements from their fields.
    contents: The values of clients in the file, by digest.
  """
  try:
    return [
      make(**encoding.from_json(each, contents)) for each in record.measured
    ]
  except (TypeError, ValueError, KeyError) as error:
    raise run_file.UnusableError(
      f"its measurements are damaged or from another version ({error})"
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


def _num_losses(
  client_losses: np.ndarray | Sequence[Any] | msgspec.UnsetType | None,
) -> int:
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
