"""Sentences about the paper's, the authors' program's and our values."""

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics


def sentence(cell: contents_lib.Cell, column: contents_lib.Column) -> str:
  """Says how the value of the authors' program differs, and why.

  Args:
    cell: A cell with a value of a program.
    column: Its column.
  """
  program, ours = cell.program, statistics.mean(cell)
  parts = []
  if cell.paper is not None:
    parts.append(
      "the program is"
      f" {_difference(program.mean - cell.paper.mean, column)} the paper"
    )
  if ours is not None:
    parts.append(
      f"ours is {_difference(ours - program.mean, column)} the program"
    )
  text = " and ".join(parts)
  text = f"{text[0].upper()}{text[1:]}." if text else ""
  return " ".join(filter(None, [text, program.note]))


def _difference(difference: float, column: contents_lib.Column) -> str:
  """Formats a difference: "1.50 points above", "equal to"."""
  text = shown.number(abs(difference), column.unit)
  if text == shown.number(0.0, column.unit):
    return "equal to"
  unit = " points" if column.unit == "%" else ""
  return f"{text}{unit} {'above' if difference > 0 else 'below'}"
