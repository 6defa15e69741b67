"""Tracks parameters, scalars by step and files in Weights & Biases.

Weights & Biases is the extra `wandb` of this package. Runs are written to a
folder and nothing is sent, unless the environment variable `WANDB_MODE` says
otherwise; `wandb sync` sends a folder later.

Runs are written by a process of wandb, which ends with the program.
"""

import contextlib
import glob
import hashlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift import files
from tff_shift.reporting.trackers import trackers

_MODE = "WANDB_MODE"
# wandb's steps may not go back, and groups have their own. Points therefore
# have this column, which is the step of charts.
_STEP = "step"


def _import_wandb():
  # Reports of errors and usage, which are sent even offline.
  os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
  # The stream of the console is not a metric.
  os.environ.setdefault("WANDB_CONSOLE", "off")
  os.environ.setdefault("WANDB_SILENT", "true")
  # Imported here because it takes seconds and is optional.
  import wandb

  return wandb


@contextlib.contextmanager
def _writing(folder: pathlib.Path) -> Iterator[None]:
  """Converts exceptions of wandb to `files.WriteError`."""
  wandb = _import_wandb()
  try:
    with files.writing(folder):
      yield
  except wandb.Error as error:
    raise files.WriteError(folder, " ".join(str(error).split())) from error


class WandB:
  """Tracks runs in a project of Weights & Biases.

  A run that is started again with the same identity and name replaces its
  earlier files, because files cannot be continued offline. A resumed run tells
  all scalars again.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    project: str,
    identity: str,
    replaced: Sequence[str] = (),
  ):
    """Prepares the folder.

    Args:
      folder: The folder of the runs.
      project: The name of the project.
      identity: Distinguishes these runs from others of the same names.
      replaced: Identities whose runs are deleted from the folder.

    Raises:
      ModuleNotFoundError: If wandb is not installed.
      files.WriteError: If the folder cannot be written.
    """
    _import_wandb()
    self._folder = pathlib.Path(folder)
    self._project = project
    self._identity = identity
    self._replaced = tuple(replaced)
    files.make_folder(self._folder)

  def start(
    self, name: str, parameters: Mapping[str, Any]
  ) -> trackers.TrackedRun:
    """Starts a run, and deletes its earlier files.

    Args:
      name: The name of the run.
      parameters: Its parameters.

    Raises:
      files.WriteError: If wandb cannot write them.
    """
    wandb = _import_wandb()
    run_id = _run_id(self._identity, name)
    with _writing(self._folder):
      for identity in (self._identity, *self._replaced):
        pattern = f"wandb/*run-*-{_run_id(identity, name)}"
        for earlier in self._folder.glob(pattern):
          shutil.rmtree(earlier)
      run = wandb.init(
        # `reinit`: several runs of one process are open at a time.
        settings=wandb.Settings(
          mode=os.environ.get(_MODE, "offline"),
          reinit="create_new",
          # Neither the code nor the machine is part of a run.
          disable_code=True,
          disable_git=True,
          disable_job_creation=True,
          x_disable_meta=True,
          x_disable_stats=True,
        ),
        dir=str(self._folder),
        project=self._project,
        id=run_id,
        name=name,
        config={key: _plain(value) for key, value in parameters.items()},
      )
      run.define_metric(_STEP, hidden=True)
      run.define_metric("*", step_metric=_STEP)
    return _WandBRun(self._folder, run)


class _WandBRun:
  """A run of `WandB`."""

  def __init__(self, folder, run):
    self._folder = folder
    self._run = run

  def scalars(self, values, step, group=""):
    prefix = f"{group}/" if group else ""
    with _writing(self._folder):
      self._run.log(
        {f"{prefix}{name}": float(value) for name, value in values.items()}
        | {_STEP: int(step)}
      )

  def artifact(self, path, folder=""):
    # A copy at once: wandb would otherwise copy what the file has at the end.
    path = pathlib.Path(path)
    with _writing(self._folder):
      place = pathlib.Path(self._run.dir, folder)
      place.mkdir(parents=True, exist_ok=True)
      if path.is_dir():
        shutil.copytree(path, place / path.name, dirs_exist_ok=True)
      else:
        shutil.copy(path, place / path.name)
      for each in _files_of(place / path.name):
        self._run.save(
          glob.escape(str(each)), base_path=self._run.dir, policy="now"
        )

  def end(self, is_done=True):
    with _writing(self._folder):
      self._run.finish(exit_code=0 if is_done else 1)


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns a file, or all files in a folder."""
  if not path.is_dir():
    return [path]
  return sorted(each for each in path.rglob("*") if each.is_file())


def _run_id(identity: str, name: str) -> str:
  """Returns the id of a run: letters and digits, the same for each start."""
  text = f"{identity}\n{name}"
  return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _plain(value: Any) -> Any:
  """Converts values that are not JSON to text."""
  is_plain = value is None or isinstance(value, bool | int | float | str)
  return value if is_plain else str(value)
