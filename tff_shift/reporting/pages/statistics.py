"""What can be said of a table: paper against ours, and who is ahead of whom.

Three questions, each with a test of its own:

- Is our value that of the paper? Welch's t-test (Welch, 1947) on means, spreads
  and numbers of seeds, for of the paper no more is known.
- Are methods in the order in which the paper has them? A t-test of the
  differences seed by seed, for runs of the same seed share data and clients.
- Which of so many answers are chance? Holm's correction (Holm, 1979) over all
  tests of a kind in the table. It holds for tests that were chosen before the
  values were seen: the pairs that a paper separates are. Where our own values
  say which method is the best, it goes over all pairs of methods, for each of
  them could have been the one that is asked about: then at most 5 % of tables
  of equal methods have a certain pair.

Spreads are sample standard deviations. That of a paper is taken for one too,
for the papers do not say.
"""

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

# Of tests, after correction.
LEVEL = 0.05


def mean(cell: contents_lib.Cell) -> float | None:
  """Returns the mean of our values; None if there are none.

  It is not finite where one of them is not.
  """
  values = list(cell.by_seed.values())
  return math.fsum(values) / len(values) if values else None


def spread(cell: contents_lib.Cell) -> float | None:
  """Returns the sample standard deviation of our values; None below two."""
  values = list(cell.by_seed.values())
  if len(values) < 2 or not all(map(math.isfinite, values)):
    return None
  return statistics.stdev(values)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
  """Adjusts p-values for the number of tests by Holm's step-down procedure.

  Args:
    p_values: One for each test; None where none was made, which is not counted.

  Returns:
    The adjusted p-values in the same order, None at the same places: the
    smallest is multiplied by the number of tests, the next by one less, and so
    on; none is below one before it or above 1.
  """
  known = sorted(
    (p, index) for index, p in enumerate(p_values) if p is not None
  )
  adjusted, largest = [None] * len(p_values), 0.0
  for rank, (p, index) in enumerate(known):
    largest = max(largest, min(1.0, p * (len(known) - rank)))
    adjusted[index] = largest
  return adjusted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
  """A value of ours beside the paper's.

  Attributes:
    cell: The cell.
    difference: Ours minus the paper's, in the unit of the column; None if one
      of them is missing.
    p_value: Of Welch's test that both have one mean, two-sided; None if there
      is no test.
    adjusted: `p_value` after Holm's correction over the table.
    why_no_test: Why there is none, or "".
  """

  cell: contents_lib.Cell
  difference: float | None
  p_value: float | None
  adjusted: float | None
  why_no_test: str


def _why_no_test(cell: contents_lib.Cell) -> str:
  """Returns why a cell is not tested against the paper; "" if it can be."""
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
  """Holds our values against the paper's.

  Args:
    cells: All cells of the table: the correction is over them.

  Returns:
    One for each cell, in their order.
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
  """Whether a method is ahead of another in a column.

  Differences count in favour of `better`: they are positive where it is ahead,
  also where less is better.

  Attributes:
    column: The column's heading.
    better: The method that should be ahead: that of the paper, or, where the
      column has no values of a paper, that with our better mean.
    worse: The other.
    paper_difference: In the paper; None if the column has no values of one.
    threshold: The larger of both spreads in the paper, above which the
      difference had to be; None if the paper gives neither, so that any
      difference counts.
    difference: Of our means over the seeds that both have; None if there is no
      such seed or it is not finite.
    num_seeds: How many seeds both have.
    num_held: In how many of them `better` is ahead.
    interval: Of the difference, with 95 % confidence, for this pair alone; None
      without a test.
    p_value: Of the paired t-test, two-sided; None below two seeds, or where the
      difference does not vary or is not finite.
    adjusted: `p_value` after Holm's correction over the table, in which all
      pairs of a column without values of a paper count.
  """

  column: tuple[str, ...]
  better: str
  worse: str
  paper_difference: float | None
  threshold: float | None
  difference: float | None
  num_seeds: int
  num_held: int
  interval: tuple[float, float] | None
  p_value: float | None
  adjusted: float | None = None

  @property
  def holds(self) -> bool | None:
    """Whether it holds in our means; None if there are none."""
    return None if self.difference is None else self.difference > 0

  @property
  def is_certain(self) -> bool:
    """Whether chance alone does not explain our difference."""
    return self.adjusted is not None and self.adjusted < LEVEL


def _paired(differences: np.ndarray) -> tuple[float, tuple[float, float]]:
  """Returns the p-value of a mean of 0, and the interval of the mean."""
  freedom = len(differences) - 1
  centre = float(np.mean(differences))
  error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
  # Those of `scipy.stats.t`, which takes its time.
  p_value = 2 * float(special.stdtr(freedom, -abs(centre) / error))
  reach = float(special.stdtrit(freedom, 0.975)) * error
  return p_value, (centre - reach, centre + reach)


def _ordering(
  column: contents_lib.Column,
  better: contents_lib.Cell,
  worse: contents_lib.Cell,
  paper_difference: float | None,
  threshold: float | None,
) -> Ordering:
  sign = 1 if column.higher_is_better else -1
  seeds = sorted(better.by_seed.keys() & worse.by_seed.keys())
  differences = sign * np.array(
    [better.by_seed[seed] - worse.by_seed[seed] for seed in seeds]
  )
  is_finite = bool(seeds) and bool(np.isfinite(differences).all())
  p_value = interval = None
  # What differs by rounding alone does not vary, and would be certain.
  if (
    is_finite
    and len(seeds) > 1
    and np.ptp(differences) > 1e-9 * np.abs(differences).max()
  ):
    p_value, interval = _paired(differences)
  return Ordering(
    column=column.heading,
    better=better.row,
    worse=worse.row,
    paper_difference=paper_difference,
    threshold=threshold,
    difference=float(np.mean(differences)) if is_finite else None,
    num_seeds=len(seeds),
    num_held=int((differences > 0).sum()),
    interval=interval,
    p_value=p_value,
  )


def _separated(column, cells):
  """Yields the orderings of the paper in a column."""
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
  """Yields our methods against each other; the best of all comes first."""
  ours = [c for c in cells if c.by_seed and math.isfinite(mean(c))]
  ours.sort(key=mean, reverse=column.higher_is_better)
  for better, worse in itertools.combinations(ours, 2):
    yield _ordering(column, better, worse, None, None)


def orderings(contents: contents_lib.Contents) -> list[Ordering]:
  """Compares the methods of each column with each other.

  Args:
    contents: The table.

  Returns:
    For each column whose methods are compared: all pairs that the paper
    separates by more than the larger of both spreads, or, in a column without
    values of a paper, our best method against each of the others, with p-values
    that are adjusted for the choice of the best. Pairs whose runs are missing
    are there as well, for they are part of what the paper claims.
  """
  found, is_shown = [], []
  for column in contents.columns:
    if not column.orderings:
      continue
    cells = [cell for cell in contents.cells if cell.column == column.heading]
    by_paper = any(cell.paper for cell in cells)
    pairs = list((_separated if by_paper else _all_pairs)(column, cells))
    found += pairs
    # The other pairs of our own methods count in the correction alone.
    is_shown += [by_paper or each.better == pairs[0].better for each in pairs]
  adjusted = holm([each.p_value for each in found])
  return [
    dataclasses.replace(each, adjusted=p)
    for each, p, shown in zip(found, adjusted, is_shown, strict=True)
    if shown
  ]
