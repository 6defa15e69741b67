"""What the papers print: every cell of their tables, every setting they state.

One file for each paper in `reported_values`. They are read, never written.
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
  """A number of a table.

  Attributes:
    paper: The paper's name, as in `names`.
    table: The table's number, as printed.
    dataset: The data set.
    setting: What else the column, or the row, is about.
    method: The method.
    metric: What is measured: accuracies and LAT in percent, `mpv` as printed,
      `wall_seconds`, `transmission_ms`, `parameters` (a number of weights),
      `p_value`.
    mean: The number.
    spread: What stands behind its "±", or None.
    note: What is doubtful about it, or contradicts it inside the paper.
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
    name: Its short name.
    title: Its title, authors and place.
    num_seeds: Over how many runs its means are, None where it is silent.
    spread: What its "±" is, in words.
    cells: All numbers of its tables.
    missing: (table, what cannot be read there).
    settings: (what is set, to what) as stated.
    not_stated: What it is silent about.
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
  """Returns a paper.

  Args:
    name: One of `names`.

  Returns:
    The paper.
  """
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
