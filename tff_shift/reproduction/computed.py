"""Tables whose cells are computed from those of another table."""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence

from scipy import stats

from tff_shift.reporting.pages import contents
from tff_shift.reproduction import collect
from tff_shift.reproduction import specification
from tff_shift.reproduction.jobs import jobs as jobs_lib

_ABSENT = "not run: one of the two has no value in some column of that table"


def paired_t(
  spec: specification.Specification,
  planned: Sequence[jobs_lib.PlannedCell],
  of_planned: Sequence[jobs_lib.PlannedCell],
  made: contents.Contents,
) -> list[contents.Cell]:
  """Computes two-sided p-values of paired t-tests over the columns.

  The test compares a method with that of the setting `versus`, over their means
  in the columns of the other table (three Dirichlet concentrations, client and
  server, in Table 1 of the FedEvolve paper, whose Table 11 it is).

  Args:
    spec: The table.
    planned: Its cells.
    of_planned: Those of the table that it is computed from.
    made: What a page of that table shows.

  Returns:
    The cells. There is a value where both methods have all columns: one for all
    seeds together, which stands under the first of them.
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
  """Returns the p-value; None where a mean is missing."""
  if not all(column in left and column in right for column in columns):
    return None
  return float(
    stats.ttest_rel(
      [left[column] for column in columns],
      [right[column] for column in columns],
    ).pvalue
  )
