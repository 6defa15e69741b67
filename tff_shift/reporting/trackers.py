"""Trackers: callbacks that tell a run to TensorBoard, MLflow or W&B.

A tracker is one run in the other program, with a name and parameters:

    with trackers.TensorBoard("runs/mine", "fed_avg") as tracker:
      evolving.run(..., callbacks=[tracker])

A resumed run tells all scalars again from its first step, so a tracker first
deletes what an interrupted run of the same identity and name has left.

Choices:
  * MLflow runs are identified by the run's identity, which `config.json` has,
    and its name, so that a kill at any moment does not lead to two MLflow runs
    for one. MLflow cannot delete a point: a resumed run logs all steps from its
    first, and skips the steps that MLflow has. Their first value stays, while
    TensorBoard's files are rewritten; they differ only if the executor was
    changed.
  * TensorBoard's names of event files (time, host, process) can be guessed and
    get an unpredictable suffix; TFF's release manager takes no suffix, so
    scalars go to `tf.summary` directly.
"""

import contextlib
import glob
import hashlib
import os
import pathlib
import re
import shutil
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self

from tff_shift._util import files
from tff_shift.simulation.engine import callbacks

# Of one request to MLflow.
_MOST_PARAMETERS = 100
# W&B's steps may not go back, and groups have their own. Points therefore have
# this column, which is the step of charts.
_STEP = "step"


class Tracker(callbacks.Callback):
  """A tracked run, which ends with its `with` block."""

  def __enter__(self) -> Self:
    """Returns the tracker."""
    return self

  def __exit__(self, kind, error, traceback) -> None:
    """Ends the run, as failed after an error."""
    # The first error is reported, not one of the tracker.
    with contextlib.suppress(*([OSError] if kind else [])):
      self.end(is_done=kind is None)

  def on_loss(self, round_num, loss):
    """Tells the training loss."""
    self.scalars({"train_loss": loss}, round_num)

  def on_step(self, step, loss, measured):
    """Tells the metrics of each row."""
    for place, metrics in () if measured is None else measured.rows(step):
      *groups, number = place.values()
      values = {k: v for k, v in metrics.items() if v is not None}
      self.scalars(values, number, "/".join(groups))

  def scalars(
    self, values: Mapping[str, float], step: int, group: str = ""
  ) -> None:
    """Tells scalars by name, infinite and NaN ones too.

    Args:
      values: The scalars by name.
      step: The round, time step or period.
      group: Distinguishes scalars of the same name within a run.
    """

  def artifact(self, path: pathlib.Path, folder: str = "") -> None:
    """Tells the current content of a file or folder.

    Args:
      path: The file.
      folder: Its folder among the files of the run.
    """

  def end(self, is_done: bool = True) -> None:
    """Ends the run.

    Args:
      is_done: Whether it finished; False after an error.
    """


class TensorBoard(Tracker):
  """Event files, one folder per run and group."""

  def __init__(self, folder: str | os.PathLike[str], name: str):
    """Takes the folder for `tensorboard --logdir` and the name of the run."""
    self._folder = pathlib.Path(folder, name)
    self._writers = {}

  def scalars(self, values, step, group=""):
    """Writes scalars, which are in the files when the call returns."""
    # Imported here because importing TensorFlow takes seconds.
    import tensorflow as tf

    path = self._folder / group
    with files.writing(path):
      if path not in self._writers:
        # Subfolders belong to other names.
        for earlier in path.glob("events*"):
          earlier.unlink()
        self._writers[path] = tf.summary.create_file_writer(str(path))
      with self._writers[path].as_default(step):
        for name, value in values.items():
          tf.summary.scalar(name, value)
      self._writers[path].flush()


@contextlib.contextmanager
def _telling(
  place: str | os.PathLike[str], kind: type[Exception]
) -> Iterator[None]:
  """Converts exceptions of a tracker's package to `files.WriteError`."""
  try:
    with files.writing(place):
      yield
  except kind as error:
    raise files.WriteError(place, " ".join(str(error).split())) from error


class MLflow(Tracker):
  """A run of an experiment of MLflow, by its client alone."""

  def __init__(
    self,
    uri: str,
    experiment: str,
    name: str,
    parameters: Mapping[str, Any],
    identities: Sequence[str] = ("",),
  ):
    """Starts the run.

    Args:
      uri: The tracking URI: a folder, `file:`, `http:` and so on.
      experiment: The name of the experiment.
      name: The name of the run.
      parameters: Its parameters.
      identities: The identity that distinguishes this run from others of the
        same name, and those whose runs of this name it replaces.

    Raises:
      ModuleNotFoundError: If MLflow is not installed.
      files.WriteError: If MLflow cannot use the URI.
    """
    # MLflow 3 sends telemetry unless this is set before its import.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Newer releases want a database by default; a folder needs no server.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    # Imported here because it takes seconds and is optional.
    import mlflow

    self._telling = lambda: _telling(uri, mlflow.MlflowException)
    with self._telling():
      self._client = client = mlflow.MlflowClient(tracking_uri=uri)
      known = client.get_experiment_by_name(experiment)
      place = (
        known.experiment_id if known else client.create_experiment(experiment)
      )
      ids = [_digest(identity, name) for identity in identities]
      for earlier in ids:
        for run in client.search_runs([place], f"tags.tff_shift = '{earlier}'"):
          client.delete_run(run.info.run_id)
      tags = {"tff_shift": ids[0]}
      self._run = client.create_run(place, run_name=name, tags=tags).info.run_id
      entities = [
        mlflow.entities.Param(_key(key), str(value))
        for key, value in parameters.items()
      ]
      for first in range(0, len(entities), _MOST_PARAMETERS):
        part = entities[first : first + _MOST_PARAMETERS]
        client.log_batch(self._run, params=part)

  def scalars(self, values, step, group=""):
    """Tells scalars; a group is a folder of charts."""
    from mlflow import entities

    now, prefix = round(1000 * time.time()), f"{group}/" if group else ""
    metrics = [
      entities.Metric(_key(prefix + name), float(value), now, int(step))
      for name, value in values.items()
    ]
    with self._telling():
      self._client.log_batch(self._run, metrics=metrics)

  def artifact(self, path, folder=""):
    """Copies a file."""
    with self._telling():
      self._client.log_artifact(self._run, str(path), folder or None)

  def end(self, is_done=True):
    """Ends the run."""
    with self._telling():
      self._client.set_terminated(
        self._run, "FINISHED" if is_done else "FAILED"
      )


def _key(name: str) -> str:
  """Returns a key of MLflow's signs; names that differ have other keys."""
  return re.sub(
    r"[^\w\-. /]", lambda sign: f"_{ord(sign[0]):x}_", name, flags=re.ASCII
  )


class WandB(Tracker):
  """A run of Weights & Biases, written to a folder; nothing is sent.

  The environment variable `WANDB_MODE` may say otherwise; `wandb sync` sends a
  folder later.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    project: str,
    name: str,
    parameters: Mapping[str, Any],
    identities: Sequence[str] = ("",),
  ):
    """Starts the run, and deletes its earlier files.

    Args:
      folder: The folder of the runs.
      project: The name of the project.
      name: The name of the run.
      parameters: Its parameters.
      identities: See `MLflow`.

    Raises:
      ModuleNotFoundError: If wandb is not installed.
      files.WriteError: If the folder cannot be written.
    """
    # Reports of errors and usage are sent even offline, and the console is not
    # a metric.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_CONSOLE", "off")
    os.environ.setdefault("WANDB_SILENT", "true")
    # Imported here because it takes seconds and is optional.
    import wandb

    self._telling = lambda: _telling(folder, wandb.Error)
    ids = [_digest(identity, name) for identity in identities]
    with self._telling():
      for earlier in ids:
        for place in pathlib.Path(folder).glob(f"wandb/*run-*-{earlier}"):
          shutil.rmtree(place)
      self._run = wandb.init(
        # `reinit`: several runs of one process are open at a time.
        settings=wandb.Settings(
          mode=os.environ.get("WANDB_MODE", "offline"),
          reinit="create_new",
          # Neither the code nor the machine is part of a run.
          disable_code=True,
          disable_git=True,
          disable_job_creation=True,
          x_disable_meta=True,
          x_disable_stats=True,
        ),
        dir=str(folder),
        project=project,
        id=ids[0],
        name=name,
        config={
          key: value
          if isinstance(value, bool | int | float | str | None)
          else str(value)
          for key, value in parameters.items()
        },
      )
      self._run.define_metric(_STEP, hidden=True)
      self._run.define_metric("*", step_metric=_STEP)

  def scalars(self, values, step, group=""):
    """Tells scalars; a group is a section of charts."""
    prefix = f"{group}/" if group else ""
    point = {prefix + name: float(value) for name, value in values.items()}
    with self._telling():
      self._run.log(point | {_STEP: int(step)})

  def artifact(self, path, folder=""):
    """Copies a file at once: wandb would copy what it has at the end."""
    with self._telling():
      place = pathlib.Path(self._run.dir, folder, pathlib.Path(path).name)
      place.parent.mkdir(parents=True, exist_ok=True)
      if pathlib.Path(path).is_dir():
        shutil.copytree(path, place, dirs_exist_ok=True)
      else:
        shutil.copy(path, place)
      for copied in [place, *place.rglob("*")]:
        if copied.is_file():
          self._run.save(
            glob.escape(str(copied)), base_path=self._run.dir, policy="now"
          )

  def end(self, is_done=True):
    """Ends the run."""
    with self._telling():
      self._run.finish(exit_code=0 if is_done else 1)


def _digest(identity: str, name: str) -> str:
  """Returns letters and digits, the same for the same identity and name."""
  text = f"{identity}\n{name}"
  return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
