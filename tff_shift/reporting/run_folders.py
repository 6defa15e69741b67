"""Reads the folders that runs of the binaries leave, finished or not.

A folder has `config.json`, `metrics.csv` and `summary.json`, as
`tff_shift.simulation.storage.results` writes them. Nothing of TensorFlow is
needed.
"""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift import files
from tff_shift import records
from tff_shift.simulation.storage import run_records

_METRICS = "metrics.csv"
# What is counted in the rows of a run, and what is held out where it is judged,
# which rows of runs that only choose a setting have not.
_STEPS = ("round", "timestep", "period")
_HELD_OUT = "held_out"
_JUDGED = ("target", "test")


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """What a run folder holds.

  Attributes:
    path: The folder.
    config: What `config.json` holds.
    entries: Those of `summary.json`.
    rows: Those of `metrics.csv`.
    seeds: The seeds in the order of the values of a summary.
  """

  path: pathlib.Path
  config: run_records.RunConfig
  entries: Sequence[run_records.Entry]
  rows: Sequence[Mapping[str, str]]
  seeds: Sequence[int]

  @property
  def unfinished(self) -> list[str]:
    """The algorithms that were asked for and have no entry."""
    asked = self.config.flags.get("algorithm") or []
    found = {entry.algorithm for entry in self.entries}
    return [name for name in asked if name not in found]


def read(path: pathlib.Path) -> RunFolder:
  """Reads a run folder.

  Args:
    path: The folder.

  Returns:
    What it holds. A run that was stopped has no entry, or not all.

  Raises:
    ValueError: If it is none, or a file of it is damaged; one line that names
      the folder or file.
  """
  if not path.is_dir():
    raise ValueError(f"{path}: there is no such folder")
  config = read_config(path)
  if config is None:
    raise ValueError(
      f"{path}: not a run folder, for it has no {run_records.CONFIG}"
    )
  seeds = _seeds(path, config)
  entries = read_entries(path)
  for number, entry in enumerate(entries):
    check_seeds(path, number, entry, len(seeds))
  return RunFolder(path, config, entries, read_rows(path), seeds)


def read_config(path: pathlib.Path) -> run_records.RunConfig | None:
  """Returns `config.json` of a folder; None if there is none.

  Raises:
    ValueError: If it is damaged; one line that names file and field.
  """
  try:
    return records.read(path / run_records.CONFIG, run_records.RunConfig)
  except FileNotFoundError:
    return None


def read_entries(path: pathlib.Path) -> Sequence[run_records.Entry]:
  """Returns the entries of `summary.json`; none if there is none.

  Args:
    path: The folder.

  Raises:
    ValueError: If it is damaged; one line that names file and field.
  """
  try:
    return records.read(path / run_records.SUMMARY, run_records.Summary).runs
  except FileNotFoundError:
    return ()


def read_rows(path: pathlib.Path) -> Sequence[Mapping[str, str]]:
  """Returns the rows of `metrics.csv`; none if there is none.

  What follows the last line's end was not written whole, and is no row.

  Args:
    path: The folder.

  Raises:
    ValueError: If it is damaged; one line that names file and line.
  """
  try:
    content = files.read_text(path / _METRICS)
  except FileNotFoundError:
    return []
  reader = csv.reader(io.StringIO(content[: content.rfind("\n") + 1]))
  rows = []
  try:
    columns = next(reader, [])
    if len(set(columns)) < len(columns):
      raise ValueError("two columns have one name")
    for cells in reader:
      if len(cells) != len(columns):
        raise ValueError(
          f"it has {len(cells)} cells, and there are {len(columns)} columns"
        )
      row = dict(zip(columns, cells, strict=True))
      for name in {"seed", *_STEPS} & row.keys():
        _to_number(name, row[name])
      rows.append(row)
  except (ValueError, csv.Error) as error:
    raise ValueError(
      f"{path / _METRICS}: line {reader.line_num}: {error}"
    ) from error
  return rows


def check_seeds(
  path: pathlib.Path, number: int, entry: run_records.Entry, num_seeds: int
) -> None:
  """Refuses an entry that is not of so many seeds.

  Args:
    path: The folder.
    number: The place of the entry.
    entry: The entry.
    num_seeds: The number of seeds of the run.

  Raises:
    ValueError: In one line that names file and field.
  """
  for name, metric in entry.metrics.items():
    if len(metric.seeds) != num_seeds:
      raise ValueError(
        f"{path / run_records.SUMMARY}: runs[{number}].metrics.{name} has"
        f" {len(metric.seeds)} values for {num_seeds} seeds of"
        f" {run_records.CONFIG}"
      )


def _seeds(path: pathlib.Path, config: run_records.RunConfig) -> list[int]:
  """Returns the seeds of a run; refuses lists that are none of a binary."""
  for name in ("seeds", "algorithm"):
    value = config.flags.get(name)
    is_list = isinstance(value, list) and all(
      isinstance(each, str) for each in value
    )
    if not is_list and not (name == "algorithm" and value is None):
      raise ValueError(
        f"{path / run_records.CONFIG}: flags.{name} must be a list of texts"
      )
  try:
    return [int(seed) for seed in config.flags["seeds"]]
  except ValueError as error:
    raise ValueError(
      f"{path / run_records.CONFIG}: flags.seeds must be whole numbers"
    ) from error


def _to_number(name: str, cell: str) -> float:
  """Returns the number in a cell of `metrics.csv`."""
  try:
    return int(cell) if name == "seed" else float(cell)
  except ValueError as error:
    raise ValueError(
      f"{name} is {cell[:30]!r}, and must be a number"
    ) from error


def text(value: Any) -> str:
  """Returns a setting as rows of `metrics.csv` and tables have it."""
  return "" if value is None else str(value)


def curves(
  folder: pathlib.Path,
  rows: Sequence[Mapping[str, str]],
  entry: run_records.Entry,
  metric: str,
) -> tuple[str, dict[int, list[tuple[float, float]]]]:
  """Returns how a metric went in the runs of an entry of a summary.

  Args:
    folder: Their folder.
    rows: Those of `metrics.csv`.
    entry: The entry; rows are its if they agree with what both have.
    metric: The metric.

  Returns:
    What is counted, and by seed (step, value) in order; "" and nothing if the
    rows have no such column.

  Raises:
    ValueError: If a cell is no number; one line that names the file.
  """
  step = next((name for name in _STEPS if rows and name in rows[0]), "")
  if not step or not {"seed", metric} <= rows[0].keys():
    return "", {}
  known = entry.setting | {
    "algorithm": entry.algorithm,
    "dataset": entry.dataset,
  }
  by_seed = {}
  for row in rows:
    if row.get(_HELD_OUT, _JUDGED[0]) not in _JUDGED or not row[metric]:
      continue
    if all(row[name] == text(known[name]) for name in known if name in row):
      try:
        value = _to_number(metric, row[metric])
      except ValueError as error:
        raise ValueError(f"{folder / _METRICS}: {error}") from error
      by_seed.setdefault(int(row["seed"]), []).append((float(row[step]), value))
  return step, {seed: sorted(points) for seed, points in by_seed.items()}
