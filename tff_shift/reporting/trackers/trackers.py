"""Trackers: where what runs measure can be looked at, beside their own files.

A tracker is started for each run with its name and parameters, and then given
scalars by step, files, and word of the end. `TensorBoard` is here, `mlflow` in
`mlflow_tracker`; any object with the methods of `Tracker` will do. A driver
takes one through its callbacks:

    with trackers.started(tracker, "fed_avg", {"learning_rate": 0.1}) as run:
      evolving.run(..., on_round=trackers.on_round(run))
"""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from tff_shift import files


class TrackedRun(Protocol):
  """A run that was started. A run that goes on tells all from its first step.

  A tracker that keeps what a stopped run has told must therefore take each step
  of a scalar once.
  """

  def scalars(
    self, values: Mapping[str, float], step: int, group: str = ""
  ) -> None:
    """Takes scalars by name.

    Args:
      values: The scalars, which need not be finite.
      step: The round, time step or period.
      group: Tells scalars of one name and run apart, such as by data set.
    """

  def artifact(self, path: pathlib.Path, folder: str = "") -> None:
    """Takes a file as it is now.

    Args:
      path: The file.
      folder: Where it is to be among the run's files.
    """

  def end(self, is_done: bool = True) -> None:
    """Ends the run.

    Args:
      is_done: Whether it came to its end, or was stopped by an error.
    """


class Tracker(Protocol):
  """What starts runs."""

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts a run, or goes on with it.

    Args:
      name: The name, one for each run; slashes group runs.
      parameters: What tells the run from others.
    """


@contextlib.contextmanager
def started(
  tracker: Tracker, name: str, parameters: Mapping[str, Any] | None = None
) -> Iterator[TrackedRun]:
  """Starts a run, and ends it with the `with` block.

  Args:
    tracker: The tracker.
    name: The name of the run.
    parameters: Its parameters.

  Yields:
    The run.
  """
  run = tracker.start(name, parameters or {})
  try:
    yield run
  except BaseException:
    # What went wrong first is what is told.
    with contextlib.suppress(OSError):
      run.end(is_done=False)
    raise
  run.end()


def on_round(run: TrackedRun) -> Callable[[int, float, Any], None]:
  """Returns an `on_round` of `evolving.run` and `guidance.run`.

  It tracks what evaluations measure; `on_loss` tracks losses.

  Args:
    run: The run.
  """

  def track(round_num, train_loss, evaluation):
    del train_loss
    if evaluation is not None:
      run.scalars(present(evaluation.measured()), round_num)

  return track


def on_timestep(run: TrackedRun) -> Callable[[Any], None]:
  """Returns an `on_timestep` of `online_adaptation.run`.

  Args:
    run: The run.
  """
  return lambda step: run.scalars(present(step.measured()), step.timestep)


def on_loss(run: TrackedRun) -> Callable[[int, float], None]:
  """Returns a callback for the losses of a run.

  It is an `on_loss` of any driver, or the `on_round` of
  `dynamic_personalization.run`.

  Args:
    run: The run.
  """
  return lambda round_num, loss: run.scalars({"train_loss": loss}, round_num)


def present(measured: Mapping[str, float | None]) -> dict[str, float]:
  """Returns what was measured, without what was not and is None."""
  return {name: value for name, value in measured.items() if value is not None}


class TensorBoard:
  """Writes scalars as event files, a folder for each run.

  A group is a folder in that of its run. Parameters and files go nowhere.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Writes nothing yet.

    Args:
      folder: What TensorBoard is to be given as `--logdir`.
    """
    self._folder = pathlib.Path(folder)
    self._writers = {}

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts a run, see `Tracker`; what it wrote before, it writes anew."""
    del parameters
    return _TensorBoardRun(self, name)

  def release(self, name: str, values: Mapping[str, float], step: int) -> None:
    """Writes scalars to the folder of a name.

    Args:
      name: The run, with its group.
      values: The scalars.
      step: The step.

    Raises:
      files.WriteError: If they cannot be written.
    """
    # Imported here because importing TensorFlow takes seconds.
    import tensorflow as tf

    path = self._folder / name
    with files.writing(path):
      if name not in self._writers:
        files.make_folder(self._folder, *pathlib.PurePath(name).parts)
        # What a run that was stopped released, it releases again. Folders
        # within are other names.
        for earlier in path.glob("events*"):
          files.remove(earlier)
        # TensorFlow opens through a link, by a name that could be guessed.
        self._writers[name] = tf.summary.create_file_writer(
          str(path), filename_suffix=f".{secrets.token_hex(8)}"
        )
      with self._writers[name].as_default(step):
        for scalar, value in values.items():
          tf.summary.scalar(scalar, value)


class _TensorBoardRun:
  """A run of `TensorBoard`."""

  def __init__(self, board, name):
    self._board = board
    self._name = name

  def scalars(self, values, step, group=""):
    self._board.release(
      f"{self._name}/{group}" if group else self._name, values, step
    )

  def artifact(self, path, folder=""):
    pass

  def end(self, is_done=True):
    pass


class Several:
  """Hands everything to each of several trackers, or to none."""

  def __init__(self, trackers: Sequence[Tracker]):
    """Makes one tracker of them.

    Args:
      trackers: The trackers, in the order in which they are told.
    """
    self._trackers = tuple(trackers)

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts a run with each tracker, see `Tracker`."""
    return _SeveralRuns(
      [tracker.start(name, parameters) for tracker in self._trackers]
    )


class _SeveralRuns:
  """The runs of one name with several trackers."""

  def __init__(self, runs):
    self._runs = runs

  def scalars(self, values, step, group=""):
    for run in self._runs:
      run.scalars(values, step, group)

  def artifact(self, path, folder=""):
    for run in self._runs:
      run.artifact(path, folder)

  def end(self, is_done=True):
    for run in self._runs:
      run.end(is_done)
