"""The values and settings that the papers report.

Read from one file per paper in `reported_values`.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

_FOLDER = pathlib.Path(__file__).with_name("reported_values")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """A value of a table.

  Attributes:
    paper: The name of the paper, as in `names`.
    table: The number of the table, as printed.
    dataset: The data set.
    setting: Further settings of the column or row.
    method: The method.
    metric: The metric: accuracies and LAT in percent, `mpv` as printed,
      `wall_seconds`, `transmission_ms`, `parameters` (a number of weights),
      `p_value`.
    mean: The value.
    spread: The number after "±", or None.
    note: Doubts about the value, or contradictions within the paper.
  """

  paper: str
  table: str
  dataset: str
  setting: Mapping[str, Any]
  method: str
  metric: str
  mean: float
  spread: float | None
  note: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
  """A paper's tables and settings.

  Attributes:
    name: The short name.
    title: The title, authors and venue.
    num_seeds: The number of runs in a mean. None if the paper does not state
      it.
    spread: Describes what "±" means.
    cells: All values of the tables.
    missing: Pairs of a table and a value that is unreadable there.
    settings: Pairs of a setting and its value, as stated.
    not_stated: Settings that the paper does not state.
  """

  name: str
  title: str
  num_seeds: int | None
  spread: str
  cells: Sequence[Cell]
  missing: Sequence[tuple[str, str]]
  settings: Sequence[tuple[str, str]]
  not_stated: Sequence[str]

  def table(self, number: str) -> list[Cell]:
    """Returns the cells of a table, in the order of the paper."""
    return [cell for cell in self.cells if cell.table == number]


def names() -> list[str]:
  """Returns the short names of the papers, in alphabetical order."""
  return sorted(file.stem for file in _FOLDER.glob("*.json"))


@functools.cache
def get(name: str) -> Paper:
  """Returns a paper by its short name, one of `names`."""
  read = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
  columns = read["columns"]
  return Paper(
    name=read["paper"],
    title=read["title"],
    num_seeds=read["num_seeds"],
    spread=read["spread"],
    cells=[
      Cell(paper=name, **dict(zip(columns, row, strict=True)))
      for row in read["cells"]
    ],
    missing=[tuple(row) for row in read["missing"]],
    settings=[tuple(row) for row in read["settings"]],
    not_stated=read["not_stated"],
  )
