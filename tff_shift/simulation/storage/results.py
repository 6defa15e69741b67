"""The output folder of a run, in the same format for every binary.

    config.json    flags, versions, commit, start time, command line, cores
    metrics.csv    one row per evaluation, written to disk immediately; the
                   first row names the columns
    summary.json   mean, standard deviation and every seed's value of each final
                   metric, see `run_records.Entry`
    figures/       PNG and PDF files
    tensorboard/   event files, one folder per run name, see `trackers`
    mlruns/        MLflow's runs, see there; kept when a run is
                   overwritten
    checkpoints/   one SQLite file per run name, from which interrupted runs
                   resume, see `checkpoints`
    model/         trained models, one folder per run name, see `serving`
    done.json      only in finished runs: the flags, see `Done`

Values are written as passed. All accuracies are in percent.

Choices:
  * Links within an output folder are replaced if they stand for a file, and
    refused if they stand for a folder, `metrics.csv` or the lock: anyone who
    can write there could have created them to change files elsewhere.
    `--output_dir`, `--cache_dir` and the folders above them are the user's, and
    may be links.
  * A last line of `metrics.csv` without a line end was written only partly and
    is not a row.
"""

import contextlib
import csv
import datetime
import glob
import io
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.data import table
from tff_shift.simulation.storage import folder_lock
from tff_shift.simulation.storage import run_records

_METRICS = "metrics.csv"
_CHECKPOINTS = "checkpoints"
_DONE = "done.json"
_FIGURES = "figures"
_MODEL = "model"
_FOLDERS = (_FIGURES, "tensorboard", _CHECKPOINTS, _MODEL)
# Files that a resumed run writes again.
_DERIVED = (run_records.SUMMARY, _FIGURES, "tensorboard", _MODEL)
_OTHERS = (_DONE, run_records.CONFIG, run_records.SUMMARY, *_FOLDERS)
# Kept when a run is overwritten.
_MLFLOW = "mlruns"


class Done(records.Record):
  """The record of a finished run, which need not be resumed.

  Attributes:
    flags: The flags that requested it, in JSON types.
    ended: The time when it finished.
  """

  FORMAT = 3

  flags: dict[str, Any]
  ended: records.TimeOrNone = ""


class RunFolder:
  """The output folder `path` of one run.

  Create it with `RunFolder.create`, or open it with `RunFolder.resume` for an
  interrupted run. In a resumed run, rows that are written again have no effect:
  `metrics.csv` keeps its rows until a row differs or the rest is cut off.

  Attributes:
    path: The folder.
    identity: A unique id of the run, which differs from the id of a run that it
      overwrites. It is saved in `config.json` and kept on resumption.
    replaced: The identities that the run had before it was continued with more
      rounds, time steps or seeds.
    batch_memory: As in `run_records.RunConfig`.
    batch_convolutions: As in `run_records.RunConfig`.
    not_compared: The flags that `config.json` names as such, see
      `run_records.RunConfig`.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.identity = uuid.uuid4().hex
    self.replaced: tuple[str, ...] = ()
    self.not_compared: tuple[str, ...] = ()
    self.batch_memory: int | None = None
    self.batch_convolutions: Any = None
    # Of `metrics.csv`; known after the first row.
    self._columns: tuple[str, ...] | None = None
    self._start_time = datetime.datetime.now(datetime.UTC)
    # The folders that `create` has created, outermost first.
    self._made = []
    self._is_new = False
    # Rows of `metrics.csv` that the run has not yet written again.
    self._earlier_rows = b""

  @classmethod
  def create(
    cls,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
  ) -> "RunFolder":
    """Creates the folder and an empty `metrics.csv` in it.

    Args:
      path: The folder. Missing parents are created.
      overwrite: Whether an earlier run's files may be replaced; other files in
        the folder are kept. Files without an earlier run are always refused.

    Raises:
      ValueError: If the folder has files that may not be replaced, if a run is
        active in it, or if it cannot be written. Then nothing was created or
        changed.
    """
    made_by = cls(pathlib.Path(path))
    path, made = made_by.path, made_by._made
    try:
      has_files = _check_folder(path, overwrite)
      for folder in reversed([path, *path.parents]):
        if not folder.exists():
          # Another run that starts at the same time may create it, too.
          with contextlib.suppress(FileExistsError):
            folder.mkdir()
            made.append(folder)
      # Before files of an earlier run are removed: it may be active.
      folder_lock.take(path)
      if has_files:
        # Replaced first: if this fails, the earlier run is still complete.
        files.write_atomically(path / _METRICS, "")
        for name in _OTHERS:
          files.remove(path / name)
      else:
        # Exclusive: of two runs that start at once, only one gets the folder.
        (path / _METRICS).touch(exist_ok=False)
        made_by._is_new = True
    except OSError as error:
      if path in made:
        with contextlib.suppress(OSError):
          (path / folder_lock.NAME).unlink()
      made_by._remove_made()
      reason = f"{str(path)!r} cannot be written ({error.strerror})"
      if isinstance(error, files.WriteError):
        reason = str(error)
      raise ValueError(
        f"--output_dir: {reason}; name a folder that you may write to"
      ) from error
    return made_by

  @contextlib.contextmanager
  def beginning(self) -> Iterator[None]:
    """Removes what `create` has created if the run fails to start.

    If the run has overwritten another run, the folder stays.
    """
    try:
      yield
    except Exception:
      if self._is_new:
        for name in (*_OTHERS, _MLFLOW, _METRICS, folder_lock.NAME):
          with contextlib.suppress(OSError):
            files.remove(self.path / name)
        self._remove_made()
      raise

  def _remove_made(self) -> None:
    for folder in reversed(self._made):
      with contextlib.suppress(OSError):
        folder.rmdir()

  @classmethod
  def resume(cls, path: str | os.PathLike[str]) -> "RunFolder":
    """Opens the folder of an interrupted run without changing it.

    Call `write_resumption` before anything else is written.

    Raises:
      ValueError: If there is no run in the folder, or an active one.
    """
    folder = cls(pathlib.Path(path))
    if not folder.has_run():
      raise ValueError(
        f"--output_dir: {str(path)!r} holds no run to resume (no {_METRICS});"
        " start it without --resume"
      )
    folder_lock.take(folder.path)
    return folder

  def has_run(self) -> bool:
    """Whether there is a run in the folder, finished or not."""
    return (self.path / _METRICS).is_file()

  def is_done(self, flags: Mapping[str, Any]) -> bool:
    """Returns whether the run finished with these flags; changes nothing.

    Args:
      flags: As for `write_done`.

    Raises:
      ValueError: If it did, and its process is still active.
    """
    done = self.read_done()
    is_done = done is not None and done.flags == flags
    if is_done and (self.path / folder_lock.NAME).exists():
      # Nothing will be written: the folder may be read-only.
      with contextlib.suppress(files.WriteError):
        folder_lock.take(self.path)
    return is_done

  def read_done(self) -> Done | None:
    """Returns the record of a finished run; None if a file is missing.

    A run without valid records resumes and writes them again, or says which of
    its files is damaged.
    """
    try:
      done = records.read(self.path / _DONE, Done)
      records.read(self.path / run_records.CONFIG, run_records.RunConfig)
      records.read(self.path / run_records.SUMMARY, run_records.Summary)
    except (FileNotFoundError, ValueError):
      return None
    return done if (self.path / _METRICS).exists() else None

  def write_done(self, flags: Mapping[str, Any]) -> None:
    """Records that the run is finished; nothing may be written afterwards.

    Args:
      flags: The flags that requested the run, in JSON types.
    """
    ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    records.write(self.path / _DONE, Done(flags=dict(flags), ended=ended))

  @property
  def checkpoints(self) -> pathlib.Path:
    """The folder of checkpoints, created by its writer."""
    return self.path / _CHECKPOINTS

  def figure_path(self, *parts: str) -> pathlib.Path:
    """Returns the path of a figure; creates the folder of figures if needed.

    Args:
      *parts: The parts of its name, joined by `_`. Characters that do not suit
        a file name, as in a label such as `fed_drm, lambda 0.6`, become `_`.
    """
    folder = files.make_folder(self.path / _FIGURES)
    # With the sign of numbers: 1e-05 is not 1e+05.
    name = re.sub(r"[^\w.-]+", "_", "_".join(parts))
    return folder / f"{shown_names.file_name(name)}.png"

  def products(self) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields the output files for readers.

    Yields:
      The name of the folder within this one, or "", and the file.
    """
    for name in (run_records.CONFIG, _METRICS, run_records.SUMMARY):
      yield "", self.path / name
    for path in sorted((self.path / _FIGURES).glob("*")):
      yield _FIGURES, path

  def describe(
    self,
    flags: Mapping[str, Any],
    schema: table.Schema | None = None,
  ) -> run_records.RunConfig:
    """Returns the flags and everything else that the results depend on.

    Args:
      flags: Every flag of the binary with its value.
      schema: The names of the data. None: unknown.

    Raises:
      TypeError: If a value cannot be written as JSON.
    """
    return run_records.RunConfig(
      flags=flags_to_json(flags),
      versions={
        "python": platform.python_version(),
        "tensorflow": installed.version("tensorflow"),
        "tensorflow_federated": installed.version("tensorflow_federated"),
        "numpy": np.__version__,
        "tff_shift": installed.version("tff_shift"),
      },
      git_commit=_git_commit(pathlib.Path(__file__)),
      start_time=self._start_time.isoformat(timespec="seconds"),
      command_line=shlex.join(sys.orig_argv),
      cores=len(os.sched_getaffinity(0)),
      machine=_machine(),
      schema=schema,
      draws=run_records.DRAWS,
      identity=self.identity,
      not_compared=self.not_compared,
      batch_memory=self.batch_memory,
      batch_convolutions=self.batch_convolutions,
    )

  def write_config(
    self,
    flags: Mapping[str, Any],
    schema: table.Schema | None = None,
  ) -> None:
    """Writes `config.json`, the result of `describe`."""
    described = self.describe(flags, schema)
    records.write(self.path / run_records.CONFIG, described)

  def read_config(self) -> run_records.RunConfig | None:
    """Returns the content of `config.json`; None if it does not exist.

    Raises:
      ValueError: If it is not valid.
    """
    try:
      return records.read(
        self.path / run_records.CONFIG,
        run_records.RunConfig,
        "without it the flags of the run are unknown: restore it, or start"
        " again with --overwrite in place of --resume",
      )
    except FileNotFoundError:
      return None

  def write_resumption(
    self,
    flags: Mapping[str, Any],
    grown: Mapping[str, Any] | None = None,
    *,
    schema: table.Schema | None = None,
    keeps_models: bool = False,
  ) -> None:
    """Takes over the folder and records the resumption in `config.json`.

    Args:
      flags: As for `write_config`, for a run that was stopped before that.
      grown: The earlier values of the flags that have changed because the run
        continues with more rounds, time steps or seeds. Outputs derived from
        the shorter run are removed, and the run gets a new identity.
      schema: As for `write_config`.
      keeps_models: Whether models of the shorter run may be the final ones.
    """
    files.remove(self.path / _DONE)
    for folder, pattern in (
      (self.path, ".*.tmp"),
      (self.path / _FIGURES, ".*.tmp"),
      (self.path / _MODEL, "**/.*.tmp"),
    ):
      for leftover in list(folder.glob(pattern)):
        files.remove(leftover)
    self._earlier_rows = (self.path / _METRICS).read_bytes()
    config = self.read_config() or self.describe(flags, schema)
    if grown:
      for name in _DERIVED:
        if name != _MODEL or not keeps_models:
          files.remove(self.path / name)
      now = self.describe(flags).flags
      config = config.replace(
        flags=config.flags | {name: now[name] for name in grown},
        identity=None,
        replaced=(*config.replaced, *filter(None, [config.identity])),
      )
    self.identity = config.identity or self.identity
    self.replaced = config.replaced
    resumption = run_records.Resumption(
      time=self._start_time.isoformat(timespec="seconds"),
      command_line=shlex.join(sys.orig_argv),
      before=dict(grown or {}),
    )
    records.write(
      self.path / run_records.CONFIG,
      config.replace(
        identity=self.identity, resumed=(*config.resumed, resumption)
      ),
    )

  def write_metrics(self, row: Mapping[str, Any]) -> None:
    """Appends a row to `metrics.csv`, visible to other processes on return.

    Args:
      row: Values by column. The first row names the columns, in order; columns
        without a value in later rows stay empty.

    Raises:
      ValueError: If a key is not a column.
    """
    if self._columns is None:
      self._columns = tuple(row)
      self._append(_csv_line(self._columns))
    unknown, known = sorted(row.keys() - self._columns), list(self._columns)
    if unknown:
      raise ValueError(f"{_METRICS}: no columns {unknown}; there are {known}")
    self._append(_csv_line([row.get(name) for name in self._columns]))

  def cut_metrics(self) -> None:
    """Atomically removes rows that were not written again since `resume`."""
    if self._earlier_rows:
      path = self.path / _METRICS
      whole = path.read_bytes()
      kept = whole[: len(whole) - len(self._earlier_rows)]
      files.write_atomically(path, kept.decode())
      self._earlier_rows = b""

  def _append(self, line: str) -> None:
    """Appends a line to `metrics.csv`, unless it is already in this place."""
    if self._earlier_rows.startswith(line.encode()):
      self._earlier_rows = self._earlier_rows[len(line.encode()) :]
      return
    self.cut_metrics()
    path = self.path / _METRICS
    # A single write of the line: an interrupt never leaves a partial row.
    with files.writing(path), open(path, "ab") as file:
      file.write(line.encode())

  def write_summary(self, entries: Iterable[run_records.Entry]) -> None:
    """Writes `summary.json`, replacing an earlier one atomically.

    Args:
      entries: One per algorithm and setting.

    Raises:
      TypeError: If a value cannot be written as JSON; the earlier file is kept.
    """
    records.write(
      self.path / run_records.SUMMARY, run_records.Summary(runs=tuple(entries))
    )


def short_repr(result: Any, **values: float) -> str:
  """Returns the `repr` of a result: its measurements, without its arrays."""
  shown = ", ".join(f"{name}={value:.4g}" for name, value in values.items())
  return f"{type(result).__name__}({shown})"


def _git_commit(path: pathlib.Path) -> str | None:
  """Returns the commit of a file, with `-dirty` if files have changed.

  None if git is missing or does not track the file: a package installed inside
  another project is not at that project's commit.
  """
  # Tags are excluded, so that the full commit hash is returned.
  describe = "describe --always --dirty --abbrev=40 --exclude=*"
  outputs = []
  try:
    for arguments in (f"ls-files {path.name}", describe):
      command = ["git", "-C", str(path.parent), *arguments.split()]
      output = subprocess.check_output(
        command, stderr=subprocess.DEVNULL, text=True, timeout=10
      )
      outputs.append(output.strip())
    return outputs[1] if outputs[0] else None
  except (OSError, subprocess.SubprocessError):
    return None


def _machine() -> str:
  """Describes this machine: cores, memory and GPUs."""
  gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
  gpus = []
  for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    gpus += [
      each.partition(":")[2].strip() for each in lines if "Model" in each
    ]
  return (
    f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}),"
    f" {gigabytes:.0f} GiB, {', '.join(gpus) or 'no GPU'}"
  )


def _check_folder(path: pathlib.Path, overwrite: bool) -> bool:
  """Returns whether the folder has files to replace; refuses foreign files."""
  if path.exists() and not path.is_dir():
    raise ValueError(f"--output_dir: {str(path)!r} is a file; name a folder")
  if not path.exists() or {each.name for each in path.iterdir()} <= {
    folder_lock.NAME
  }:
    return False
  if not (path / _METRICS).is_file():
    raise ValueError(
      f"--output_dir: {str(path)!r} already holds files but no earlier run (no"
      f" {_METRICS}), so --overwrite does not apply; name another folder"
    )
  if not overwrite:
    if (path / folder_lock.NAME).exists():
      # A run that started at the same time is a better reason.
      folder_lock.take(path)
    raise ValueError(
      f"--output_dir: {str(path)!r} already holds files; name another folder"
      " or pass --overwrite"
    )
  return True


def flags_to_json(flags: Mapping[str, Any]) -> dict[str, Any]:
  """Returns flags by name in the format of `config.json`; see `describe`."""
  return records.to_json(
    {name: flags[name] for name in sorted(flags)},
    f"{run_records.CONFIG}: flags",
  )


def _csv_line(cells: Sequence[Any]) -> str:
  """Returns one line of CSV; floats keep all their digits."""
  line = io.StringIO()
  csv.writer(line, lineterminator="\n").writerow(cells)
  return line.getvalue()
