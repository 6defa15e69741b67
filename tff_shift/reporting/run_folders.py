"""Reads run folders of the binaries, finished or not.

A folder has `config.json`, `metrics.csv` and `summary.json`, as written by
`tff_shift.simulation.storage.results`. Does not import TensorFlow.
"""

import csv
import io
import pathlib
import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift._util import files
from tff_shift._util import records
from tff_shift.simulation.storage import run_records

METRICS = "metrics.csv"
# The step columns of metrics.csv, and the values of the column `held_out` in
# final runs. Runs for hyper-parameter selection have other values.
STEPS = ("round", "timestep", "period")
HELD_OUT = "held_out"
JUDGED = ("target", "test")


def read_config(path: pathlib.Path) -> run_records.RunConfig | None:
  """Returns `config.json` of a folder, or None if it does not exist.

  Raises:
    ValueError: If it is damaged; one line that names file and field.
  """
  try:
    return records.read(path / run_records.CONFIG, run_records.RunConfig)
  except FileNotFoundError:
    return None


def read_entries(path: pathlib.Path) -> Sequence[run_records.Entry]:
  """Returns the entries of `summary.json`; empty if it does not exist.

  Raises:
    ValueError: If it is damaged; one line that names file and field.
  """
  try:
    return records.read(path / run_records.SUMMARY, run_records.Summary).runs
  except FileNotFoundError:
    return ()


def read_rows(path: pathlib.Path) -> Sequence[Mapping[str, str]]:
  """Returns the rows of `metrics.csv`; empty if it does not exist.

  An incomplete last line is ignored.

  Raises:
    ValueError: If it is damaged; one line that names the file.
  """
  try:
    content = files.read_text(path / METRICS)
  except FileNotFoundError:
    return []
  whole = io.StringIO(content[: content.rfind("\n") + 1])
  try:
    return list(csv.DictReader(whole))
  except csv.Error as error:
    raise ValueError(f"{path / METRICS}: {error}") from error


def check_seeds(
  path: pathlib.Path, number: int, entry: run_records.Entry, num_seeds: int
) -> None:
  """Checks the number of seeds of an entry.

  Args:
    path: The folder.
    number: The index of the entry.
    entry: The entry.
    num_seeds: The number of seeds of the run.

  Raises:
    ValueError: If the numbers differ; one line that names file and field.
  """
  for name, metric in entry.metrics.items():
    if len(metric.seeds) != num_seeds:
      raise ValueError(
        f"{path / run_records.SUMMARY}: runs[{number}].metrics.{name} has"
        f" {len(metric.seeds)} values for {num_seeds} seeds of"
        f" {run_records.CONFIG}"
      )


def seeds(path: pathlib.Path, config: run_records.RunConfig) -> list[int]:
  """Returns the seeds of a run, in the order of the values of a summary."""
  try:
    return [int(seed) for seed in config.flags["seeds"]]
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f"{path / run_records.CONFIG}: flags.seeds: {error}"
    ) from error


def text(value: Any) -> str:
  """Formats a setting as in `metrics.csv` and tables."""
  return "" if value is None else str(value)


def settings(entry: run_records.Entry) -> dict[str, Any]:
  """Returns the columns of `metrics.csv` by which an entry has rows."""
  return entry.setting | {
    "algorithm": entry.algorithm,
    "dataset": entry.dataset,
  }


def curves(
  folder: pathlib.Path,
  rows: Sequence[Mapping[str, str]],
  entry: run_records.Entry,
  metric: str,
) -> tuple[str, dict[int, list[tuple[float, float]]]]:
  """Returns the curves of a metric in the runs of a summary entry.

  Args:
    folder: The run folder.
    rows: The rows of `metrics.csv`.
    entry: The entry. A row belongs to it if all common settings are equal.
    metric: The metric.

  Returns:
    The name of the step, and sorted (step, value) pairs by seed; values are
    means over the targets of a rolling evaluation. Empty if the rows have no
    such column.

  Raises:
    ValueError: If a cell is not a number; one line that names the file.
  """
  step = next((name for name in STEPS if rows and name in rows[0]), "")
  if not step or not {"seed", metric} <= rows[0].keys():
    return "", {}
  known = settings(entry)
  by_seed = {}
  for row in rows:
    if row.get(HELD_OUT, JUDGED[0]) not in JUDGED or not row[metric]:
      continue
    if all(row[name] == text(known[name]) for name in known if name in row):
      try:
        seed, place, value = (
          int(row["seed"]),
          float(row[step]),
          float(row[metric]),
        )
      except ValueError as error:
        raise ValueError(f"{folder / METRICS}: {error}") from error
      by_seed.setdefault(seed, {}).setdefault(place, []).append(value)
  return step, {
    seed: sorted(
      (place, statistics.fmean(values)) for place, values in points.items()
    )
    for seed, points in by_seed.items()
  }
