"""The output folder of a run, in one form for every binary.

    config.json    flags, versions, commit, start time, command line, cores
    metrics.csv    one row per evaluation, on disk as soon as it is written;
                   the first row names the columns
    summary.json   mean, spread and every seed's value of each final metric, as
                   `run_records.Entry` has them
    figures/       PNG and PDF files
    tensorboard/   event files, one folder per run name, see `trackers`
    mlruns/        MLflow's runs, see `mlflow_tracker`; those of a run that was
                   overwritten stay
    checkpoints/   from which a stopped run goes on, see `checkpoints`
    model/         what was learned, a folder per run name, see `serving`
    done.json      only of a run that came to its end: for which flags, and what
                   the files above then were, see `Done`

Nothing is written through a link in the folder, which may be one itself. Values
are written as they are handed in. Accuracies are in percent throughout.
"""

import contextlib
import csv
import datetime
import hashlib
import importlib.metadata
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
from typing import ClassVar

import numpy as np

from tff_shift import files
from tff_shift import records
from tff_shift import renamed_flags
from tff_shift import shown_names
from tff_shift.simulation.storage import folder_lock
from tff_shift.simulation.storage import run_records

_METRICS = "metrics.csv"
_CHECKPOINTS = "checkpoints"
_DONE = "done.json"
_FIGURES = "figures"
_MODEL = "model"
_FOLDERS = (_FIGURES, "tensorboard", _CHECKPOINTS, _MODEL)
# What a run that goes on writes anew, from its first step.
_DERIVED = (run_records.SUMMARY, _FIGURES, "tensorboard", _MODEL)
_OTHERS = (_DONE, run_records.CONFIG, run_records.SUMMARY, *_FOLDERS)
# It stays where a run is overwritten.
_MLFLOW = "mlruns"


class Done(records.Record):
  """What a run that came to its end leaves: it need not go on.

  Attributes:
    flags: The flags that it was asked for by, of JSON types.
    files: The SHA-256 of config.json, metrics.csv and summary.json by name.
  """

  FORMAT = 2
  UPGRADES: ClassVar = {1: renamed_flags.rewrite_config}

  flags: dict[str, Any]
  files: dict[str, str]


class RunFolder:
  """The output folder `path` of one run.

  It is made by `RunFolder.create`, or by `RunFolder.resume` for a run that was
  stopped. In the latter, rows that are written again have no effect: what is in
  `metrics.csv` stays there until a row differs or the rest is cut off.

  Attributes:
    path: The folder.
    identity: Tells the run from all others, also from one that it overwrites;
      in `config.json`, so that it stays when the run goes on.
    replaced: The identities that the run had before it took more rounds, time
      steps or seeds.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    self.identity = uuid.uuid4().hex
    self.replaced = ()
    # Of `metrics.csv`; known from the first row on.
    self._columns = None
    self._start_time = datetime.datetime.now(datetime.UTC)
    # The folders that `create` has made, outermost first.
    self._made = []
    self._is_new = False
    # What the run wrote to `metrics.csv` before, and has not yet again.
    self._earlier_rows = b""

  @classmethod
  def create(
    cls,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
  ) -> "RunFolder":
    """Makes the folder and an empty `metrics.csv` in it.

    Args:
      path: The folder. Parents are made where they are missing.
      overwrite: Whether an earlier run's files may be replaced; other files in
        the folder stay. Files without an earlier run are refused all the same.

    Raises:
      ValueError: If the folder holds files that may not be replaced, if a run
        is going on in it, or if it cannot be written. Then nothing has been
        made or changed.
    """
    made_by = cls(pathlib.Path(path))
    path, made = made_by.path, made_by._made
    try:
      has_files = _check_folder(path, overwrite)
      for folder in reversed([path, *path.parents]):
        if not folder.exists():
          # Another run that starts at once may make it, too.
          with contextlib.suppress(FileExistsError):
            folder.mkdir()
            made.append(folder)
      # Before anything of an earlier run is lost: it may be going on.
      folder_lock.take(path)
      if has_files:
        files.refuse_links_below(path / _MLFLOW)
        # Replaced first: where this fails, the earlier run is still whole.
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
    """Removes what `create` has made where a run cannot begin.

    Where it overwrote another run, that one is lost, and the folder stays.
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
    """Opens the folder of a run that was stopped; changes nothing yet.

    `write_resumption` must follow before anything else is written.

    Args:
      path: The folder.

    Raises:
      ValueError: If there is no run in the folder, or one that is going on.
      files.WriteError: If something in it is a link through which the run would
        write.
    """
    folder = cls(pathlib.Path(path))
    if not folder.has_run():
      raise ValueError(
        f"--output_dir: {str(path)!r} holds no run to resume (no {_METRICS});"
        " start it without --resume"
      )
    files.refuse_links(folder.path / _METRICS)
    for name in (*_FOLDERS, _MLFLOW):
      files.refuse_links_below(folder.path / name)
    folder_lock.take(folder.path)
    return folder

  def has_run(self) -> bool:
    """Whether there is a run in the folder, however far it came."""
    return (self.path / _METRICS).is_file()

  def is_done(self, flags: Mapping[str, Any]) -> bool:
    """Whether the run came to its end with these flags; changes nothing.

    Args:
      flags: As for `write_done`.

    Raises:
      ValueError: If it did, and a process is still there.
    """
    try:
      done = records.read(self.path / _DONE, Done)
      is_done = done.flags == flags and done.files == self._digests()
    except (FileNotFoundError, ValueError):
      # The run goes on to its end, and writes it anew.
      return False
    if is_done and (self.path / folder_lock.NAME).exists():
      # Nothing will be written: it may be a folder that cannot be.
      with contextlib.suppress(files.WriteError):
        folder_lock.take(self.path)
    return is_done

  def write_done(self, flags: Mapping[str, Any]) -> None:
    """Notes that the run came to its end; nothing may be written after it.

    Args:
      flags: The flags that say what was to be done, of JSON types.
    """
    records.write(
      self.path / _DONE, Done(flags=dict(flags), files=self._digests())
    )

  def _digests(self) -> dict[str, str]:
    digests = {}
    for name in (run_records.CONFIG, _METRICS, run_records.SUMMARY):
      with contextlib.suppress(FileNotFoundError):
        content = files.read_bytes(self.path / name)
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests

  @property
  def checkpoints(self) -> pathlib.Path:
    """The folder of checkpoints; made by whoever writes there."""
    return self.path / _CHECKPOINTS

  def figure_path(self, *parts: str) -> pathlib.Path:
    """Returns the path of a figure; makes the folder of figures if needed.

    Args:
      *parts: Make its name, joined by `_`. What does not suit a file's name,
        as in a label such as `fed_drm, lambda 0.6`, becomes `_` as well.
    """
    folder = files.make_folder(self.path / _FIGURES)
    name = re.sub(r"[^\w.]+", "_", "_".join(parts))
    return folder / f"{shown_names.file_name(name)}.png"

  def products(self) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields what has been written for readers.

    Yields:
      The name of the folder within this one, or nothing, and the file.
    """
    for name in (run_records.CONFIG, _METRICS, run_records.SUMMARY):
      yield "", self.path / name
    for path in sorted((self.path / _FIGURES).glob("*")):
      yield _FIGURES, path

  def describe(self, flags: Mapping[str, Any]) -> run_records.RunConfig:
    """Returns the flags and what else the result depends on.

    Args:
      flags: Every flag of the binary with its value.

    Raises:
      TypeError: If a value has no JSON form.
    """
    return run_records.RunConfig(
      flags=flags_to_json(flags),
      versions={
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow"),
        "tensorflow_federated": _version("tensorflow_federated"),
        "numpy": np.__version__,
        "tff_shift": _version("tff_shift"),
      },
      git_commit=_git_commit(pathlib.Path(__file__)),
      start_time=self._start_time.isoformat(timespec="seconds"),
      command_line=shlex.join(sys.orig_argv),
      cores=len(os.sched_getaffinity(0)),
      identity=self.identity,
    )

  def write_config(self, flags: Mapping[str, Any]) -> None:
    """Writes `config.json`: what `describe` returns for the flags."""
    records.write(self.path / run_records.CONFIG, self.describe(flags))

  def read_config(self) -> run_records.RunConfig | None:
    """Returns what `config.json` holds; None if the run never wrote it.

    Raises:
      ValueError: If it is not what `write_config` has written.
    """
    try:
      return records.read(
        self.path / run_records.CONFIG,
        run_records.RunConfig,
        "without it nobody knows with which flags the run was started: put it"
        " back, or start anew with --overwrite in place of --resume",
      )
    except FileNotFoundError:
      return None

  def write_resumption(
    self, flags: Mapping[str, Any], grown: Mapping[str, Any] | None = None
  ) -> None:
    """Takes the folder over, and notes in `config.json` when and how.

    Args:
      flags: As for `write_config`, for a run that was stopped before that.
      grown: The flags that are other than those of before, for the run is to
        take more rounds, time steps or seeds, with their values of before. What
        was derived of the shorter run then leaves the folder, and the run gets
        an identity of its own.
    """
    files.remove(self.path / _DONE)
    for folder, pattern in (
      (self.path, ".*.tmp"),
      (self.path / _FIGURES, ".*.tmp"),
      (self.path / _MODEL, "**/.*.tmp"),
    ):
      for leftover in list(folder.glob(pattern)):
        files.remove(leftover)
    metrics = self.path / _METRICS
    self._earlier_rows = metrics.read_bytes()
    if metrics.stat().st_nlink > 1:
      # Rows would be appended to what has another name elsewhere, too.
      with files.replacing(metrics) as file:
        file.write(self._earlier_rows)
    config = self.read_config() or self.describe(flags)
    if grown:
      for name in _DERIVED:
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
    """Appends a row to `metrics.csv`, readable for others at return.

    Args:
      row: Values by column. The first row names the columns, in order; where a
        later one has no value, the column stays empty.

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
    """Cuts off in one step what has not been written again since `resume`."""
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
    # One write of a whole line: an interrupt never leaves half a row behind.
    with files.writing(path), open(files.open_to_append(path), "ab") as file:
      file.write(line.encode())

  def write_summary(self, entries: Iterable[run_records.Entry]) -> None:
    """Writes `summary.json`, replacing an earlier one in one step.

    Args:
      entries: One per algorithm and setting.

    Raises:
      TypeError: If a value has no JSON form; the earlier file is kept.
    """
    records.write(
      self.path / run_records.SUMMARY, run_records.Summary(runs=tuple(entries))
    )


def short_repr(result: Any, **values: float) -> str:
  """Returns the `repr` of a result: its measurements, without its arrays."""
  shown = ", ".join(f"{name}={value:.4g}" for name, value in values.items())
  return f"{type(result).__name__}({shown})"


def _git_commit(path: pathlib.Path) -> str | None:
  """Returns the commit of a file, `-dirty` behind it if files have changed.

  None if git is missing or does not track the file: a package installed inside
  another project is not at that project's commit.
  """
  # No tag is considered, so that the full commit name is left.
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


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _check_folder(path: pathlib.Path, overwrite: bool) -> bool:
  """Returns whether the folder has files to replace; refuses it if not ours."""
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
    raise ValueError(
      f"--output_dir: {str(path)!r} already holds files; name another folder"
      " or pass --overwrite"
    )
  return True


def flags_to_json(flags: Mapping[str, Any]) -> dict[str, Any]:
  """Returns flags by name as `config.json` holds them; see `describe`."""
  return records.to_json(
    {name: flags[name] for name in sorted(flags)},
    f"{run_records.CONFIG}: flags",
  )


def _csv_line(cells: Sequence[Any]) -> str:
  """Returns one line of CSV; floats keep all their digits."""
  line = io.StringIO()
  csv.writer(line, lineterminator="\n").writerow(cells)
  return line.getvalue()
