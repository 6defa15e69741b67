"""The output folder of a run, in one form for every binary.

    config.json    flags, versions, commit, start time, command line, cores
    metrics.csv    one row per evaluation, on disk as soon as it is written
    summary.json   mean, spread and every seed's value of each final metric
    figures/       PNG files
    tensorboard/   event files, one folder per run name

Spread is the sample standard deviation (divided by the number of seeds minus
one) because the seeds are a sample of all runs; the papers do not say which
form they print. With one seed it is 0.0.

Values are written as they are handed in. Accuracies are in percent throughout.
"""

import asyncio
import concurrent.futures
import contextlib
import csv
import dataclasses
import datetime
import importlib.metadata
import io
import json
import math
import os
import pathlib
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

_METRICS = "metrics.csv"
_OTHERS = ("config.json", "summary.json", "figures", "tensorboard")


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """The final metrics of one algorithm in one setting, for every seed.

  Attributes:
    algorithm: Name of the algorithm, as in its file name.
    dataset: Name of the data set.
    setting: What else distinguishes the run, for example the learning rate.
    metrics_by_seed: For each seed, in the order to be kept, its final metrics
      by name; all seeds have the same metrics, accuracies in percent.
    rounds: Number of rounds of each seed.
    seconds_per_round: Wall-clock seconds per round, mean over the seeds.
  """

  algorithm: str
  dataset: str
  setting: Mapping[str, Any]
  metrics_by_seed: Mapping[int, Mapping[str, float]]
  rounds: int
  seconds_per_round: float

  def __post_init__(self):
    if not self.metrics_by_seed:
      raise ValueError(f"summary of {self.algorithm}: needs at least one seed")
    for seed, metrics in self.metrics_by_seed.items():
      if sorted(metrics) != self.metric_names:
        raise ValueError(
            f"summary of {self.algorithm}: seed {seed} has the metrics"
            f" {sorted(metrics)}, the first seed has {self.metric_names}"
        )

  @property
  def metric_names(self) -> list[str]:
    """The names of the metrics, sorted."""
    return sorted(next(iter(self.metrics_by_seed.values())))

  def values(self, metric: str) -> list[float]:
    """Returns the values of a metric, one per seed."""
    return [float(row[metric]) for row in self.metrics_by_seed.values()]

  def mean(self, metric: str) -> float:
    """Returns the mean of a metric over the seeds."""
    values = self.values(metric)
    finite = all(map(math.isfinite, values))
    return statistics.mean(values) if finite else sum(values)

  def standard_deviation(self, metric: str) -> float:
    """Returns the spread over the seeds; NaN where a value is not finite."""
    values = self.values(metric)
    if not all(map(math.isfinite, values)):
      return math.nan
    # Like `mean` exact until its last rounding: equal values give 0.0.
    return statistics.stdev(values) if len(values) > 1 else 0.0

  def to_record(self) -> dict[str, Any]:
    """Returns the entry of `summary.json`, with its keys in their order."""
    return {
        "algorithm": self.algorithm,
        "dataset": self.dataset,
        "setting": dict(sorted(self.setting.items())),
        "metrics": {
            name: {
                "mean": self.mean(name),
                "std": self.standard_deviation(name),
                "seeds": self.values(name),
            }
            for name in self.metric_names
        },
        "rounds": self.rounds,
        "seconds_per_round": self.seconds_per_round,
    }


class RunFolder:
  """The output folder `path` of one run; made by `RunFolder.create`."""

  def __init__(self, path: pathlib.Path, columns: Sequence[str]):
    self.path = path
    self._columns = tuple(columns)
    self._start_time = datetime.datetime.now(datetime.UTC)
    self._release_managers = {}

  @classmethod
  def create(
      cls,
      path: str | os.PathLike[str],
      *,
      columns: Sequence[str],
      overwrite: bool = False,
  ) -> "RunFolder":
    """Makes the folder and an empty `metrics.csv` in it.

    Args:
      path: The folder. Parents are made where they are missing.
      columns: The columns of `metrics.csv`, in order.
      overwrite: Whether an earlier run's files may be replaced; other files in
        the folder stay. Files without an earlier run are refused all the same.

    Raises:
      ValueError: If the folder holds files that may not be replaced, or if it
        cannot be written. Then nothing has been made or changed.
    """
    path = pathlib.Path(path)
    header = _csv_line(columns)
    made = []
    try:
      has_files = _check_folder(path, overwrite)
      for folder in reversed([path, *path.parents]):
        if not folder.exists():
          folder.mkdir()
          made.append(folder)
      if has_files:
        # Replaced first: where this fails, the earlier run is still whole.
        _write_atomically(path / _METRICS, header)
        for name in _OTHERS:
          _remove(path / name)
      else:
        # Exclusive: of two runs that start at once, only one gets the folder.
        with open(path / _METRICS, "x", encoding="utf-8") as file:
          file.write(header)
    except OSError as error:
      for folder in reversed(made):
        with contextlib.suppress(OSError):
          folder.rmdir()
      raise ValueError(
          f"--output_dir: {str(path)!r} cannot be written ({error.strerror});"
          " name a folder that you may write to"
      ) from error
    return cls(path, columns)

  def figure_path(self, name: str) -> pathlib.Path:
    """Returns `figures/<name>.png`; makes the folder of figures if needed."""
    folder = self.path / "figures"
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.png"

  def write_config(self, flags: Mapping[str, Any]) -> None:
    """Writes `config.json`: the flags and what else the result depends on.

    Args:
      flags: Every flag of the binary with its value.

    Raises:
      TypeError: If a value has no JSON form.
    """
    config = {
        "flags": {name: flags[name] for name in sorted(flags)},
        "versions": {
            "python": platform.python_version(),
            "tensorflow": _version("tensorflow"),
            "tensorflow_federated": _version("tensorflow_federated"),
            "numpy": np.__version__,
            "tff_shift": _version("tff_shift"),
        },
        "git_commit": _git_commit(pathlib.Path(__file__)),
        "start_time": self._start_time.isoformat(timespec="seconds"),
        "command_line": shlex.join(sys.orig_argv),
        "cores": len(os.sched_getaffinity(0)),
    }
    _write_json(self.path / "config.json", config)

  def write_metrics(self, row: Mapping[str, Any]) -> None:
    """Appends a row to `metrics.csv`, readable for others at return.

    Args:
      row: Values by column. A column without a value stays empty.

    Raises:
      ValueError: If a key is not a column.
    """
    unknown, known = sorted(row.keys() - self._columns), list(self._columns)
    if unknown:
      raise ValueError(f"{_METRICS}: no columns {unknown}; there are {known}")
    # One write of a whole line: an interrupt never leaves half a row behind.
    with open(self.path / _METRICS, "a", encoding="utf-8") as file:
      file.write(_csv_line([row.get(name) for name in self._columns]))

  def release_to_tensorboard(
      self, run_name: str, value: Mapping[str, float], key: int
  ) -> None:
    """Releases values through TFF to `tensorboard/<run_name>`.

    Args:
      run_name: One name per curve in TensorBoard, for example
        `fed_avg/seed_0`; slashes make sub-folders.
      value: Scalars by name.
      key: The step, for example the round.
    """
    if run_name not in self._release_managers:
      # Imported here because importing TFF takes seconds.
      import tensorflow_federated as tff

      self._release_managers[run_name] = tff.program.TensorBoardReleaseManager(
          self.path / "tensorboard" / run_name
      )
    manager = self._release_managers[run_name]
    # In a thread of its own: `asyncio.run` refuses to run where an event loop
    # runs already, as it does in notebooks.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
      pool.submit(asyncio.run, manager.release(dict(value), key)).result()

  def write_summary(self, runs: Sequence[RunSummary]) -> None:
    """Writes `summary.json`, replacing an earlier one in one step.

    Args:
      runs: One summary per algorithm and setting.

    Raises:
      TypeError: If a value has no JSON form; the earlier file is kept.
    """
    summary = {"runs": [run.to_record() for run in runs]}
    _write_json(self.path / "summary.json", summary)


def comparison_table(
    runs: Sequence[RunSummary], metrics: Sequence[str] | None = None
) -> str:
  """Formats runs as an aligned table of plain text.

  Args:
    runs: One row each, in this order.
    metrics: The metrics to show, in order; by default all that occur. Those
      named `...accuracy` are in percent.

  Returns:
    The table: algorithm, data set if there are several, the settings in which
    the runs differ, `mean ± standard deviation` of each metric (the mean alone
    for one seed, `-` where a run lacks the metric), and seconds per round.
  """
  labels = {"algorithm": [run.algorithm for run in runs]}
  labels["dataset"] = [run.dataset for run in runs]
  for name in dict.fromkeys(name for run in runs for name in run.setting):
    labels[name] = [str(run.setting.get(name, "-")) for run in runs]
  if metrics is None:
    metrics = sorted({name for run in runs for name in run.metric_names})
  columns = []
  for name, cells in labels.items():
    if name == "algorithm" or len(set(cells)) > 1:
      width = max(map(len, [name, *cells]))
      columns.append([cell.ljust(width) for cell in [name, *cells]])
  numbers = {}
  for name in metrics:
    unit = " (%)" if name.endswith("accuracy") else ""
    title = name.replace("_", " ") + unit
    numbers[title] = [_metric_cell(run, name) for run in runs]
  numbers["s/round"] = [f"{run.seconds_per_round:.3g}" for run in runs]
  for title, cells in numbers.items():
    width = max(map(len, [title, *cells]))
    columns.append([cell.rjust(width) for cell in [title, *cells]])
  for column in columns:
    column.insert(1, "-" * len(column[0]))
  return "\n".join("  ".join(row) for row in zip(*columns, strict=True))


def _metric_cell(run: RunSummary, metric: str) -> str:
  """Returns the mean, and the spread if the run has several seeds."""
  if metric not in run.metric_names:
    return "-"
  # Percentages have fixed widths, so that decimal points align in a column.
  percent = metric.endswith("accuracy")
  mean = format(run.mean(metric), ".2f" if percent else ".4g")
  if len(run.metrics_by_seed) == 1:
    return mean
  spread = format(run.standard_deviation(metric), "5.2f" if percent else ".4g")
  return f"{mean} ± {spread}"


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
  if not path.exists() or not any(path.iterdir()):
    return False
  if not overwrite:
    raise ValueError(
        f"--output_dir: {str(path)!r} already holds files; name another folder"
        " or pass --overwrite"
    )
  if not (path / _METRICS).is_file():
    raise ValueError(
        f"--output_dir: {str(path)!r} holds files but no earlier run (no"
        f" {_METRICS}), so --overwrite does not apply; name another folder"
    )
  return True


def _remove(path: pathlib.Path) -> None:
  """Removes a file or a folder; one that is missing is no error."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def _write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file so that a reader sees the old or the new one, never half."""
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes strict JSON; a value without a JSON form leaves the old file."""
  text = json.dumps(_to_json(value, path.name), indent=2, allow_nan=False)
  _write_atomically(path, text + "\n")


def _to_json(value: Any, name: str) -> Any:
  """Returns `value` made of JSON types: NaN as null, infinity as "inf"."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.tolist()
  if isinstance(value, float) and not math.isfinite(value):
    return None if math.isnan(value) else str(value)
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, Mapping):
    return {str(k): _to_json(v, f"{name}: {k}") for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_to_json(item, name) for item in value]
  raise TypeError(f"{name}: a {type(value).__name__} has no JSON form")


def _csv_line(cells: Sequence[Any]) -> str:
  """Returns one line of CSV; floats keep all their digits."""
  line = io.StringIO()
  csv.writer(line, lineterminator="\n").writerow(cells)
  return line.getvalue()
