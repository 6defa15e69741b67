"""Experiment trackers: record the metrics of runs outside their run folders.

A tracker starts a run with a name and parameters. The run then receives scalars
by step and files, and is ended. `TensorBoard` is defined here, MLflow in
`mlflow_tracker`; any object with the methods of `Tracker` works. Pass a tracker
to a driver by a callback:

    with trackers.started(tracker, "fed_avg", {"learning_rate": 0.1}) as run:
      evolving.run(..., callbacks=[trackers.Tracking(run)])
"""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from tff_shift import files
from tff_shift.simulation.engine import callbacks


class TrackedRun(Protocol):
  """A started run.

  A resumed run reports all scalars again from its first step. A tracker that
  keeps scalars of the interrupted run must ignore repeated steps.
  """

  def scalars(
    self, values: Mapping[str, float], step: int, group: str = ""
  ) -> None:
    """Records scalars.

    Args:
      values: The scalars by name; they may be infinite or NaN.
      step: The round, time step or period.
      group: Distinguishes scalars of the same name within a run.
    """

  def artifact(self, path: pathlib.Path, folder: str = "") -> None:
    """Records the current content of a file.

    Args:
      path: The file.
      folder: Its folder among the files of the run.
    """

  def end(self, is_done: bool = True) -> None:
    """Ends the run.

    Args:
      is_done: Whether it finished; False after an error.
    """


class Tracker(Protocol):
  """Starts tracked runs."""

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts or resumes a run.

    Args:
      name: The unique name of the run; slashes group runs.
      parameters: The parameters of the run.
    """


@contextlib.contextmanager
def started(
  tracker: Tracker, name: str, parameters: Mapping[str, Any] | None = None
) -> Iterator[TrackedRun]:
  """Starts a run and ends it at the end of the `with` block.

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
    # The first error is reported, not one of the tracker.
    with contextlib.suppress(OSError):
      run.end(is_done=False)
    raise
  run.end()


class Tracking(callbacks.Callback):
  """Tracks the metrics of evaluations and the training losses of a run."""

  def __init__(self, run: TrackedRun):
    self._run = run

  def on_loss(self, round_num, loss):
    """Tracks the loss."""
    self._run.scalars({"train_loss": loss}, round_num)

  def on_step(self, step, loss, measured):
    """Tracks the metrics of each row."""
    for place, metrics in () if measured is None else measured.rows(step):
      *others, number = place.values()
      self._run.scalars(present(metrics), number, group="/".join(others))


def present(measured: Mapping[str, float | None]) -> dict[str, float]:
  """Returns the metrics without those that are None."""
  return {name: value for name, value in measured.items() if value is not None}


class TensorBoard:
  """Writes scalars as event files, one folder per run.

  Groups are subfolders. Parameters and files are ignored.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Initializes the tracker.

    Args:
      folder: The folder for `tensorboard --logdir`.
    """
    self._folder = pathlib.Path(folder)
    self._writers = {}

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts a run, and replaces its earlier event files."""
    del parameters
    return _TensorBoardRun(self, name)

  def release(self, name: str, values: Mapping[str, float], step: int) -> None:
    """Writes scalars to the folder of a run.

    Args:
      name: The name of the run, with its group.
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
        # A resumed run writes all scalars again. Subfolders belong to other
        # names.
        for earlier in path.glob("events*"):
          files.remove(earlier)
        # TensorFlow follows links, so the name must not be predictable.
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
  """Forwards everything to several trackers, or to none."""

  def __init__(self, trackers: Sequence[Tracker]):
    """Combines trackers.

    Args:
      trackers: The trackers, in calling order.
    """
    self._trackers = tuple(trackers)

  def start(self, name: str, parameters: Mapping[str, Any]) -> TrackedRun:
    """Starts a run with each tracker."""
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
