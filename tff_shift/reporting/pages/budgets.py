"""The lines of a page's table of budgets."""

import dataclasses
import math
from collections.abc import Sequence

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """A budget of a method, and the columns that it is of.

  Attributes:
    row: The method.
    columns: The columns in which the method spends this.
    budget: The budget.
    seconds: Seconds per round, the mean over the columns. None: not known.
  """

  row: str
  columns: Sequence[tuple[str, ...]]
  budget: contents_lib.Budget
  seconds: float | None


def lines(entries: Sequence[shown.Entry]) -> list[Line]:
  """Returns a line for each method and budget.

  Args:
    entries: The entries of a table. Those without a budget are left out.
  """
  found = {}
  for entry in entries:
    budget = entry.cell.budget
    if budget is not None:
      # Time is measured, and varies between equal budgets.
      key = entry.cell.row, dataclasses.replace(budget, seconds_per_round=None)
      found.setdefault(key, []).append(entry.cell)
  made = []
  for (row, budget), cells in found.items():
    seconds = [
      each.budget.seconds_per_round
      for each in cells
      if each.budget.seconds_per_round is not None
      and math.isfinite(each.budget.seconds_per_round)
    ]
    made.append(
      Line(
        row=row,
        columns=[each.column for each in cells],
        budget=budget,
        seconds=math.fsum(seconds) / len(seconds) if seconds else None,
      )
    )
  return made


def extremes(found: Sequence[Line], floors: Sequence[str]) -> str:
  """Says how far budgets differ, in sentences; "" if they do not.

  Args:
    found: The lines.
    floors: Rows that are not compared, because they send only reports or do not
      train. Methods that spend nothing are not compared either.
  """
  parts = []
  for what, number in (
    ("computes {} times the gradients", lambda each: each.num_gradients),
    ("sends {} times the bytes", lambda each: each.bytes_up),
    ("receives {} times the bytes", lambda each: each.bytes_down),
  ):
    known = [
      (number(each.budget), each.row)
      for each in found
      if number(each.budget) and each.row not in floors
    ]
    if known:
      (least, modest), (most, greedy) = min(known), max(known)
      if most / least >= 1.01:
        often = what.format(f"{most / least:.3g}")
        parts.append(f"A client of {greedy} {often} of {modest} in a round.")
  return " ".join(parts)
