"""Statistical tests of a table: agreement with the paper, order of methods.

- Agreement of our value with the paper's: Welch's t-test (Welch, 1947) on
  means, standard deviations and numbers of seeds, because a paper reports no
  more.
- Order of methods as in the paper: paired t-test over seeds, because runs of
  the same seed share data and clients.
- Multiple tests: Holm's correction (Holm, 1979) over all tests of a kind in the
  table. It is valid for tests that were fixed before the values were known,
  such as the pairs that a paper separates. If our own values determine the best
  method, the correction is over all pairs of methods, because each of them
  could have been tested. Then at most 5 % of tables of equal methods have a
  significant pair.

Spreads are sample standard deviations. The papers do not define theirs; they
are assumed to be sample standard deviations as well.

Choices:
  * There is no test if the number of runs is unknown. A paper separates a pair
    of methods if they differ by more than the larger of both standard
    deviations, because its seeds are not known to be paired; ours are, so our
    test is paired.
  * With three seeds and a hundred pairs Holm's correction leaves few
    significant pairs: three seeds do not show more. In a column without values
    from a paper, our best method is compared with the others. With a correction
    over the pairs of the best method only, 6 to 14 % of tables of equal methods
    had a significant pair (1,000 or 2,000 random tables each). Selecting the
    best method on other seeds would leave fewer seeds for both.
"""

import collections
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np
from scipy import special
from scipy import stats

from tff_shift.reporting.pages import contents as contents_lib

# The significance level of tests, after correction.
LEVEL = 0.05


def mean(cell: contents_lib.Cell) -> float | None:
  """Returns the mean of our values, or None if there are none.

  It is not finite if a value is not finite.
  """
  values = list(cell.by_seed.values())
  return math.fsum(values) / len(values) if values else None


def spread(cell: contents_lib.Cell) -> float | None:
  """Returns the sample standard deviation of our values, or None.

  It is None for fewer than two values, or if a value is not finite.
  """
  values = list(cell.by_seed.values())
  if len(values) < 2 or not all(map(math.isfinite, values)):
    return None
  return statistics.stdev(values)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
  """Adjusts p-values for the number of tests by Holm's step-down procedure.

  Args:
    p_values: The p-value of each test. None: no test, not counted.

  Returns:
    The adjusted p-values in the same order, with None in the same places. The
    smallest is multiplied by the number of tests, the next by one less, and so
    on. They are monotone and at most 1.
  """
  known = sorted(
    (p, index) for index, p in enumerate(p_values) if p is not None
  )
  adjusted: list[float | None] = [None] * len(p_values)
  largest = 0.0
  for rank, (p, index) in enumerate(known):
    largest = max(largest, min(1.0, p * (len(known) - rank)))
    adjusted[index] = largest
  return adjusted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
  """The comparison of our value with the paper's.

  Attributes:
    cell: The cell.
    difference: Our value minus the paper's, in the unit of the column. None if
      one of them is missing.
    p_value: The two-sided p-value of Welch's test of equal means. None without
      a test.
    adjusted: `p_value` after Holm's correction over the table.
    why_no_test: The reason for no test, or "".
  """

  cell: contents_lib.Cell
  difference: float | None
  p_value: float | None
  adjusted: float | None
  why_no_test: str


def _why_no_test(cell: contents_lib.Cell) -> str:
  """Returns why a cell cannot be tested against the paper, or ""."""
  ours = spread(cell)
  reasons = (
    (cell.paper is None, "no value in the paper"),
    (not cell.by_seed, "no value of ours"),
    (cell.paper and cell.paper.spread is None, "no spread in the paper"),
    (
      cell.paper and cell.paper.num_seeds is None,
      "the paper's number of seeds is unknown",
    ),
    (
      cell.paper and (cell.paper.num_seeds or 0) < 2,
      "the paper has one seed",
    ),
    (len(cell.by_seed) < 2, "one seed of ours"),
    (ours is None, "a value of ours is not finite"),
    (cell.paper and not (cell.paper.spread or ours), "nothing varies"),
  )
  return next((reason for applies, reason in reasons if applies), "")


def agreements(cells: Iterable[contents_lib.Cell]) -> list[Agreement]:
  """Compares our values with the paper's.

  Args:
    cells: All cells of the table, over which p-values are corrected.

  Returns:
    One comparison per cell, in the same order.
  """
  found = []
  for cell in cells:
    ours, why, p_value = mean(cell), _why_no_test(cell), None
    if not why:
      p_value = float(
        stats.ttest_ind_from_stats(
          ours,
          spread(cell),
          len(cell.by_seed),
          cell.paper.mean,
          cell.paper.spread,
          cell.paper.num_seeds,
          equal_var=False,
        ).pvalue
      )
    both = ours is not None and cell.paper is not None
    found.append(
      Agreement(
        cell=cell,
        difference=ours - cell.paper.mean if both else None,
        p_value=p_value,
        adjusted=None,
        why_no_test=why,
      )
    )
  adjusted = holm([each.p_value for each in found])
  return [
    dataclasses.replace(each, adjusted=p)
    for each, p in zip(found, adjusted, strict=True)
  ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordering:
  """The comparison of two methods in a column.

  Differences are positive if `better` is ahead, also if lower is better.

  Attributes:
    column: The heading of the column.
    better: The method that is ahead in the paper, or, in a column without paper
      values, in our means.
    worse: The other method.
    paper_difference: The difference in the paper. None without paper values.
    threshold: The larger of both spreads in the paper, which the paper's
      difference exceeds. None if the paper reports no spread; then any
      difference counts.
    difference: The difference of our means over common seeds. None without
      common seeds, or if it is not finite.
    num_seeds: The number of common seeds.
    num_held: The number of common seeds in which `better` is ahead.
    spread: The sample standard deviation of the differences over seeds. None
      without a test.
    interval: The 95 % confidence interval of the difference, for this pair
      alone. None without a test.
    p_value: The two-sided p-value of the paired t-test. None for fewer than two
      seeds, or if the difference does not vary or is not finite.
    adjusted: `p_value` after Holm's correction over the table. All pairs of a
      column without paper values count.
    num_tests: The number of tests over which p-values are corrected.
  """

  column: tuple[str, ...]
  better: str
  worse: str
  paper_difference: float | None
  threshold: float | None
  difference: float | None
  num_seeds: int
  num_held: int
  spread: float | None
  interval: tuple[float, float] | None
  p_value: float | None
  adjusted: float | None = None
  num_tests: int = 1

  @property
  def holds(self) -> bool | None:
    """Whether `better` is ahead in our means. None without means."""
    return None if self.difference is None else self.difference > 0

  @property
  def is_certain(self) -> bool:
    """Whether our difference is significant."""
    return self.adjusted is not None and self.adjusted < LEVEL


def _paired(differences: np.ndarray) -> tuple[float, tuple[float, float]]:
  """Returns the p-value for mean 0, and the confidence interval of the mean."""
  freedom = len(differences) - 1
  centre = float(np.mean(differences))
  error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
  # Equal to `scipy.stats.t`, which is slow.
  p_value = 2 * float(special.stdtr(freedom, -abs(centre) / error))
  reach = float(special.stdtrit(freedom, 0.975)) * error
  return p_value, (centre - reach, centre + reach)


def _differences(
  column: contents_lib.Column,
  better: contents_lib.Cell,
  worse: contents_lib.Cell,
) -> np.ndarray:
  """Returns how far `better` is ahead, for each common seed."""
  sign = 1 if column.higher_is_better else -1
  seeds = sorted(better.by_seed.keys() & worse.by_seed.keys())
  return sign * np.array(
    [better.by_seed[seed] - worse.by_seed[seed] for seed in seeds]
  )


def _is_testable(differences: np.ndarray) -> bool:
  """Returns whether differences are finite and vary more than by rounding."""
  return bool(
    len(differences) > 1
    and np.isfinite(differences).all()
    # Differences that only vary by rounding would always be significant.
    and np.ptp(differences) > 1e-9 * np.abs(differences).max()
  )


def paired_interval(
  column: contents_lib.Column,
  better: contents_lib.Cell,
  worse: contents_lib.Cell,
) -> tuple[float, float] | None:
  """Returns the 95 % confidence interval of how far one cell is ahead.

  None for fewer than two common seeds, or if the difference does not vary.
  """
  differences = _differences(column, better, worse)
  return _paired(differences)[1] if _is_testable(differences) else None


def _ordering(
  column: contents_lib.Column,
  better: contents_lib.Cell,
  worse: contents_lib.Cell,
  paper_difference: float | None,
  threshold: float | None,
) -> Ordering:
  differences = _differences(column, better, worse)
  is_finite = bool(len(differences)) and bool(np.isfinite(differences).all())
  p_value = interval = spread_of_differences = None
  if _is_testable(differences):
    p_value, interval = _paired(differences)
    spread_of_differences = float(np.std(differences, ddof=1))
  return Ordering(
    column=column.heading,
    better=better.row,
    worse=worse.row,
    paper_difference=paper_difference,
    threshold=threshold,
    difference=float(np.mean(differences)) if is_finite else None,
    num_seeds=len(differences),
    num_held=int((differences > 0).sum()),
    spread=spread_of_differences,
    interval=interval,
    p_value=p_value,
  )


def _separated(column, cells):
  """Yields the pairs of a column that the paper separates."""
  for pair in itertools.combinations([c for c in cells if c.paper], 2):
    better, worse = sorted(
      pair, key=lambda cell: cell.paper.mean, reverse=column.higher_is_better
    )
    difference = abs(better.paper.mean - worse.paper.mean)
    spreads = [c.paper.spread for c in pair if c.paper.spread is not None]
    threshold = max(spreads, default=None)
    if difference > (threshold or 0.0):
      yield _ordering(column, better, worse, difference, threshold)


def _all_pairs(column, cells):
  """Yields all pairs of our methods, those of the best method first."""
  ours = [c for c in cells if c.by_seed and math.isfinite(mean(c))]
  ours.sort(key=mean, reverse=column.higher_is_better)
  for better, worse in itertools.combinations(ours, 2):
    yield _ordering(column, better, worse, None, None)


def orderings(contents: contents_lib.Contents) -> list[Ordering]:
  """Compares the methods within each column.

  Returns:
    For each compared column, all pairs that the paper separates by more than
    the larger of both spreads. In a column without paper values, our best
    method against each other method, with p-values that are corrected for the
    selection of the best. Pairs with missing runs are included, because the
    paper claims them.
  """
  found, is_shown = [], []
  for column in contents.columns:
    if not column.orderings:
      continue
    cells = [cell for cell in contents.cells if cell.column == column.heading]
    by_paper = any(cell.paper for cell in cells)
    pairs = list((_separated if by_paper else _all_pairs)(column, cells))
    found += pairs
    # The other pairs of our methods only count in the correction.
    is_shown += [by_paper or each.better == pairs[0].better for each in pairs]
  adjusted = holm([each.p_value for each in found])
  num_tests = sum(p is not None for p in adjusted)
  return [
    dataclasses.replace(each, adjusted=p, num_tests=num_tests)
    for each, p, shown in zip(found, adjusted, is_shown, strict=True)
    if shown
  ]


def sentences(contents: contents_lib.Contents) -> list[str]:
  """Returns a sentence for each column with at least two methods.

  It says which leads of the best method are significant at 5 %, after the
  correction for all pairs of the page.
  """
  by_column = collections.defaultdict(list)
  for ordering in orderings(contents):
    by_column[ordering.column].append(ordering)
  return [
    f"{', '.join(heading)}: {_sentence(compared)}"
    for heading, compared in by_column.items()
  ]


def _lead(ordering: Ordering) -> str:
  if ordering.difference is None:
    return f"{ordering.worse} (no seed in common)"
  if ordering.interval is None:
    return f"{ordering.worse} by {ordering.difference:.1f} (no interval)"
  low, high = ordering.interval
  return (
    f"{ordering.worse} by {ordering.difference:.1f} ({low:.1f} to {high:.1f})"
  )


def _sentence(compared: Sequence[Ordering]) -> str:
  """Compares the best method of a column with the others."""
  certain = {True: "ahead of", False: "not shown to be ahead of"}
  leads = [f"{certain[o.is_certain]} {_lead(o)}" for o in compared]
  seeds = max(ordering.num_seeds for ordering in compared)
  return (
    f"{compared[0].better} is {'; '.join(leads)} (95 % intervals, {seeds}"
    f" seed{'s' if seeds > 1 else ''})"
  )
