"""Computes tables from the cells of another table."""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence

from scipy import stats

from experiments.papers import collect
from experiments.papers import job as job_lib
from experiments.papers import specification
from tff_shift.reporting.pages import contents

_ABSENT = "not run: a value of one of the two methods is missing in that table"


def paired_t(
  spec: specification.Specification,
  planned: Sequence[job_lib.PlannedCell],
  of_planned: Sequence[job_lib.PlannedCell],
  made: contents.Contents,
) -> list[contents.Cell]:
  """Computes two-sided p-values of paired t-tests over the columns.

  The test compares the means of a method and of the method in the setting
  `versus` over the columns of the other table. (Table 11 of the FedEvolve paper
  tests the columns of its Table 1: three Dirichlet concentrations, client and
  server.)

  Args:
    spec: The table.
    planned: Its cells.
    of_planned: The cells of the other table.
    made: The page contents of the other table.

  Returns:
    The cells. A cell has a value if both methods have all columns: one value
    for all seeds, stored under the first seed.
  """
  rows = {each.wanted.method: each.row for each in of_planned}
  means = {}
  for cell in made.cells:
    values = means.setdefault(cell.row, {})
    if cell.by_seed:
      values[cell.column] = statistics.mean(cell.by_seed.values())
  columns = [column.heading for column in made.columns]
  cells = []
  for each in planned:
    versus = rows[str(dict(each.wanted.setting)["versus"])]
    p_value = _p_value(means[rows[each.wanted.method]], means[versus], columns)
    cells.append(
      contents.Cell(
        row=each.row,
        column=each.column,
        paper=collect.paper_value(spec, each.wanted.printed),
        by_seed={} if p_value is None else {spec.seeds[0]: p_value},
        absent="" if p_value is not None else _ABSENT,
      )
    )
  return cells


def _p_value(
  left: Mapping[tuple[str, ...], float],
  right: Mapping[tuple[str, ...], float],
  columns: Sequence[tuple[str, ...]],
) -> float | None:
  """Returns the p-value, or None if a mean is missing."""
  if not all(column in left and column in right for column in columns):
    return None
  return float(
    stats.ttest_rel(
      [left[column] for column in columns],
      [right[column] for column in columns],
    ).pvalue
  )
