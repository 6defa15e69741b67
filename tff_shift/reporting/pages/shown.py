"""Formats the numbers, states and headings of a page, for all writers."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence

from tff_shift._util import shown_names
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import statistics

# The states of a cell.
DONE = "done"
PARTIAL = "partial"
PAPER_ONLY = "paper only"
FAILED = "failed"
NOT_RUN = "not run"
STATES = (DONE, PARTIAL, PAPER_ONLY, FAILED, NOT_RUN)

BETTER, WORSE = "better", "worse"
SIGNS = {BETTER: "▲", WORSE: "▼", "": ""}
NOTHING = "\N{EN DASH}"
# Marks the best value of a column, in addition to bold type.
BEST = "★"


def number(value: float | None, unit: str, *, signed: bool = False) -> str:
  """Formats a number for tables.

  Args:
    value: The number. None and numbers that are not finite become texts.
    unit: The unit of the column: two decimals for "%", otherwise four digits.
    signed: Whether numbers that are not negative get a plus sign.
  """
  if value is None:
    return NOTHING
  if not math.isfinite(value):
    return "not finite"
  form = ".2f" if unit == "%" else ".4g"
  text = format(value, f"{'+' if signed else ''}{form}")
  return text.replace("-", "\N{MINUS SIGN}")


def with_spread(
  mean: float | None, spread: float | None, unit: str, num_seeds: int | None
) -> str:
  """Formats "mean ± spread (n)", without unknown parts."""
  parts = [number(mean, unit)]
  if spread is not None:
    parts.append(f"± {number(spread, unit)}")
  if mean is not None and num_seeds is not None:
    parts.append(f"({num_seeds})")
  return " ".join(parts)


def p_value(p: float | None) -> str:
  """Formats a p-value with two digits, or as "< 0.0001"."""
  if p is None:
    return NOTHING
  return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def duration(seconds: float | None) -> str:
  """Formats seconds, for example as "2 h 05 min"."""
  if seconds is None:
    return "not known"
  if seconds < 60:
    return f"{seconds:.3g} s"
  minutes = round(seconds / 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def detectable(value: float | None, column: contents_lib.Column) -> str:
  """Formats a smallest difference; percentages cannot differ by more than 100.

  Args:
    value: The difference. None: there is no test.
    column: Its column.
  """
  if value is not None and column.unit == "%" and value > 100:
    return "none"
  return number(value, column.unit)


def known(value: float | None) -> str:
  """Formats a count or a mean of counts, or as "not known"."""
  return "not known" if value is None else f"{value:,.6g}"


def num_bytes(value: int | None) -> str:
  """Formats a number of bytes, for example as "1.4 MB"."""
  if value is None:
    return "not known"
  for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
    if value >= 1000**power:
      return f"{value / 1000**power:.3g} {unit}"
  return f"{value} B"


def heading(parts: Sequence[str]) -> str:
  """Formats the heading of a column in one line."""
  return shown_names.printable(", ".join(parts))


def measured(column: contents_lib.Column) -> str:
  """Returns the metric of a column, with unit and direction."""
  return column.metric + _unit_and_direction(column)


def _unit_and_direction(column: contents_lib.Column) -> str:
  """Returns the unit and direction of a column, to append to a name."""
  direction = "higher" if column.higher_is_better else "lower"
  shown_unit = f" ({column.unit})" if column.unit else ""
  return f"{shown_unit}, {direction} is better"


def caption(column: contents_lib.Column) -> str:
  """Returns the caption of a figure, to append to the column's heading."""
  if column.heading[-1] == column.metric:
    return _unit_and_direction(column)
  return f": {measured(column)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """A cell with its formatted values.

  Attributes:
    cell: The cell.
    column: Its column.
    agreement: The comparison with the paper.
    state: One of `STATES`.
    ours: Our value, as text.
    paper: The value of the paper, as text.
    difference: Our value minus the paper's, as text.
    verdict: `BETTER` or `WORSE` than the paper; "" if they are equal or not
      compared.
    is_certain: Whether the difference is significant.
    program: The value of the authors' program, as text; "" without one.
    is_best: Whether our value is the best of its column, over several seeds.
      Rows that are ceilings are not compared.
  """

  cell: contents_lib.Cell
  column: contents_lib.Column
  agreement: statistics.Agreement
  state: str
  ours: str
  paper: str
  difference: str
  verdict: str
  is_certain: bool
  program: str = ""
  is_best: bool = False

  @property
  def sign(self) -> str:
    """The sign of the verdict, in addition to its colour."""
    return SIGNS[self.verdict]


def _state(cell):
  if cell.by_seed:
    return DONE if cell.run is None or cell.run.is_finished else PARTIAL
  for state in (PAPER_ONLY, FAILED):
    if cell.absent.startswith(state):
      return state
  return NOT_RUN


def _verdict(difference, column):
  if difference is None or not difference or not math.isfinite(difference):
    return ""
  return BETTER if (difference > 0) == column.higher_is_better else WORSE


def _entry(agreement, column):
  cell, unit = agreement.cell, column.unit
  paper = cell.paper
  return Entry(
    cell=cell,
    column=column,
    agreement=agreement,
    state=_state(cell),
    ours=with_spread(
      statistics.mean(cell), statistics.spread(cell), unit, len(cell.by_seed)
    ),
    paper=with_spread(paper.mean, paper.spread, unit, paper.num_seeds)
    if paper
    else NOTHING,
    difference=number(agreement.difference, unit, signed=True),
    verdict=_verdict(agreement.difference, column),
    is_certain=agreement.adjusted is not None
    and agreement.adjusted < statistics.LEVEL,
    program=with_spread(
      cell.program.mean, cell.program.spread, unit, cell.program.num_seeds
    )
    if cell.program
    else "",
  )


def _best(column, entries, ceilings) -> list[Entry]:
  """Returns the entries with the best value of a column; none without two.

  The best value of a single seed is not marked: it may be chance.
  """
  known = [
    entry
    for entry in entries
    if entry.column is column
    and entry.cell.row not in ceilings
    and entry.cell.by_seed
    and math.isfinite(statistics.mean(entry.cell))
  ]
  if len(known) < 2:
    return []
  choose = max if column.higher_is_better else min
  best = choose(statistics.mean(entry.cell) for entry in known)
  return [
    each
    for each in known
    if statistics.mean(each.cell) == best and len(each.cell.by_seed) > 1
  ]


class Table:
  """A table in display order.

  Attributes:
    rows: The methods: the rows of the contents, then further ones of cells.
    columns: The columns.
    entries: The existing entries, by row, then column.
    orderings: The comparisons of methods, see `statistics.orderings`.
    has_paper: Whether a cell has a paper value.
    has_program: Whether a cell has a value of the authors' program.
  """

  def __init__(self, contents: contents_lib.Contents):
    """Arranges the contents.

    Raises:
      ValueError: If a cell has no column, or two cells have the same place.
    """
    self.columns = list(contents.columns)
    self.rows = list(
      dict.fromkeys([*contents.rows, *(cell.row for cell in contents.cells)])
    )
    by_heading = {column.heading: column for column in self.columns}
    self._entries = {}
    for agreement in statistics.agreements(contents.cells):
      cell = agreement.cell
      place = (cell.row, cell.column)
      if cell.column not in by_heading:
        raise ValueError(f"{place}: there is no such column")
      if place in self._entries:
        raise ValueError(f"{place}: two cells are in this place")
      self._entries[place] = _entry(agreement, by_heading[cell.column])
    for column in self.columns:
      for entry in _best(
        column, list(self._entries.values()), contents.ceilings
      ):
        place = entry.cell.row, entry.cell.column
        self._entries[place] = dataclasses.replace(entry, is_best=True)
    self.entries = [
      self._entries[row, column.heading]
      for row in self.rows
      for column in self.columns
      if (row, column.heading) in self._entries
    ]
    self._anchors = {
      (entry.cell.row, entry.cell.column): f"cell-{index}"
      for index, entry in enumerate(self.entries)
    }
    self.orderings = statistics.orderings(contents)
    self.has_paper = any(entry.cell.paper for entry in self.entries)
    self.has_program = any(entry.cell.program for entry in self.entries)

  def at(self, row: str, column: contents_lib.Column) -> Entry | None:
    """Returns the entry of a row and column, or None."""
    return self._entries.get((row, column.heading))

  def anchor(self, entry: Entry) -> str:
    """Returns the anchor of the detailed row of a cell."""
    return self._anchors[entry.cell.row, entry.cell.column]

  def count(self, state: str) -> int:
    """Returns the number of cells in a state."""
    return sum(entry.state == state for entry in self.entries)

  def runs(self) -> list[contents_lib.Run]:
    """Returns the run folders without duplicates, in table order."""
    found = {}
    for entry in self.entries:
      if entry.cell.run is not None:
        found.setdefault(entry.cell.run.folder, entry.cell.run)
    return list(found.values())

  def heading_rows(self) -> list[list[tuple[str, int]]]:
    """Returns the heading rows from the outermost level to the innermost.

    Returns:
      For each level, pairs of a heading and the number of columns that it
      spans. The innermost level has one pair per column. Short headings are
      padded with "" on the outer levels.
    """
    depth = max((len(column.heading) for column in self.columns), default=1)
    padded = [
      ("",) * (depth - len(column.heading)) + tuple(column.heading)
      for column in self.columns
    ]
    levels = [
      [
        (prefix[-1], len(list(same)))
        for prefix, same in itertools.groupby(
          padded, key=operator.itemgetter(slice(level + 1))
        )
      ]
      for level in range(depth - 1)
    ]
    return [*levels, [(parts[-1], 1) for parts in padded]]


def tally(orderings: Sequence[statistics.Ordering]) -> str:
  """Summarizes how many orderings hold, in a sentence without full stop.

  Args:
    orderings: Orderings with or without a paper.
  """
  level = f"adjusted p below {statistics.LEVEL:g}"
  of_paper = [o for o in orderings if o.paper_difference is not None]
  others = [o for o in orderings if o.paper_difference is None]
  parts = []
  if of_paper:
    known = [each for each in of_paper if each.holds is not None]
    held = [each for each in known if each.holds]
    certain = sum(each.is_certain for each in held)
    reversed_ = sum(each.is_certain for each in known) - certain
    missing = len(of_paper) - len(known)
    if known:
      parts.append(
        f"{len(held)} of {len(known)} pairs have the paper's order in our"
        f" means, {certain} of them with {level}; {reversed_} have the reverse"
        f" order with {level}"
      )
    if missing:
      parts.append(f"{missing} pairs are unknown because runs are missing")
  if others:
    certain = sum(each.holds and each.is_certain for each in others)
    parts.append(
      f"the best method of a column is ahead of {certain} of {len(others)}"
      f" others with {level}"
    )
  return "; ".join(parts)
