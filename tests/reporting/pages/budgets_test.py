"""The table of budgets against numbers by hand."""

import pytest

from tests.fixtures import page_cells
from tests.fixtures import tables
from tff_shift.reporting.pages import budgets
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import shown

_COLUMNS = [page_cells.column(name) for name in "ab"]


def lines(*cells):
  contents = page_cells.table(*cells, columns=_COLUMNS)
  return budgets.lines(shown.Table(contents).entries)


def cell(row, column, **budget):
  budget = contents_lib.Budget(**budget) if budget else None
  return page_cells.cell(row, column=(column,), budget=budget)


def test_equal_budgets_are_one_line_and_unknown_ones_none():
  first, second, third = lines(
    cell("x", "a", bytes_up=10, seconds_per_round=1.0),
    cell("x", "b", bytes_up=10, seconds_per_round=3.0),
    cell("y", "a", bytes_up=10),
    cell("y", "b", bytes_up=20, seconds_per_round=float("nan")),
    cell("z", "a"),
  )
  assert (first.row, first.columns) == ("x", [("a",), ("b",)])
  assert first.seconds == 2.0
  assert (second.columns, third.columns) == ([("a",)], [("b",)])
  assert second.seconds is third.seconds is None


@pytest.mark.parametrize(
  "more, floors, text",
  # The same numbers, and numbers of a floor, are not worth a sentence.
  tables.cases("""
{}, []
    A client of x computes 1.5 times the gradients of y in a round.
{"num_gradients": 20.1}, ["x"]
{"num_gradients": 0}, []
{"num_gradients": None}, []
{"num_gradients": 30.0, "bytes_up": 40}, []
    A client of y sends 2 times the bytes of x in a round.
"""),
)
def test_extremes(more, floors, text):
  given = {"num_gradients": 20.0, "bytes_up": 20, "bytes_down": 8} | more
  found = lines(
    cell("x", "a", num_gradients=30.0, bytes_up=20, bytes_down=8),
    cell("y", "a", **given),
  )
  assert budgets.extremes(found, floors) == text
