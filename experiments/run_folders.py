"""Reads the folders that runs of the binaries leave, finished or not.

A folder has `config.json`, `metrics.csv` and `summary.json`, as
`tff_shift.simulation.results` writes them. Nothing of TensorFlow is needed.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

# What is counted in the rows of a run, and what is held out where it is judged,
# which rows of runs that only choose a setting have not.
_STEPS = ("round", "timestep", "period")
_HELD_OUT = "held_out"
_JUDGED = ("target", "test")

_OF_AN_ENTRY = frozenset(
  {"algorithm", "dataset", "setting", "metrics", "rounds", "seconds_per_round"}
)


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """What a run folder holds.

  Attributes:
    path: The folder.
    config: What `config.json` holds.
    entries: Those of `summary.json`.
    rows: Those of `metrics.csv`.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  entries: Sequence[Mapping[str, Any]]
  rows: Sequence[Mapping[str, str]]

  @property
  def seeds(self) -> list[int]:
    """The seeds in the order of the values of a summary."""
    return [int(seed) for seed in self.config["flags"]["seeds"]]

  @property
  def unfinished(self) -> list[str]:
    """The algorithms that were asked for and have no entry."""
    asked = self.config["flags"].get("algorithm") or []
    found = {entry["algorithm"] for entry in self.entries}
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
  config = _read_json(path / "config.json")
  summary = {"runs": []}
  if (path / "summary.json").exists():
    summary = _read_json(path / "summary.json")
  try:
    rows = []
    if (path / "metrics.csv").exists():
      with open(path / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    folder = RunFolder(path, config, summary["runs"], rows)
    _check(folder)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise ValueError(
      f"{path}: not a run folder of the binaries, or damaged"
      f" ({type(error).__name__}: {error})"
    ) from error
  return folder


def _check(folder: RunFolder) -> None:
  """Raises some error if what was read is not what runs write."""
  num_seeds = len(folder.seeds)
  for entry in folder.entries:
    lacking = _OF_AN_ENTRY - entry.keys()
    if lacking:
      raise ValueError(f"an entry of the summary has no {min(lacking)}")
    for name, metric in entry["metrics"].items():
      values = [number(value) for value in metric["seeds"]]
      if len(values) != num_seeds:
        raise ValueError(
          f"{name} has {len(values)} values for {num_seeds} seeds"
        )


def _read_json(path):
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise ValueError(
      f"{path.parent}: not a run folder, for it has no {path.name}"
    ) from None
  except (OSError, ValueError) as error:
    raise ValueError(f"{path} cannot be read: {error}") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path}: not what a run has written")
  return found


def number(value: float | str | None) -> float:
  """Returns a number of a summary, where null is NaN."""
  return float("nan") if value is None else float(value)


def text(value: Any) -> str:
  """Returns a setting as rows of `metrics.csv` and tables have it."""
  return "" if value is None else str(value)


def curves(
  rows: Sequence[Mapping[str, str]],
  entry: Mapping[str, Any],
  metric: str,
) -> tuple[str, dict[int, list[tuple[float, float]]]]:
  """Returns how a metric went in the runs of an entry of a summary.

  Args:
    rows: Those of `metrics.csv`.
    entry: The entry; rows are its if they agree with what both have.
    metric: The metric.

  Returns:
    What is counted, and by seed (step, value) in order; "" and nothing if the
    rows have no such column.
  """
  step = next((name for name in _STEPS if rows and name in rows[0]), "")
  if not step or metric not in rows[0]:
    return "", {}
  known = entry["setting"] | {
    name: entry[name] for name in ("algorithm", "dataset") if name in entry
  }
  by_seed = {}
  for row in rows:
    if row.get(_HELD_OUT, _JUDGED[0]) not in _JUDGED or not row[metric]:
      continue
    if all(row[name] == text(known[name]) for name in known if name in row):
      by_seed.setdefault(int(row["seed"]), []).append(
        (float(row[step]), float(row[metric]))
      )
  return step, {seed: sorted(points) for seed, points in by_seed.items()}
