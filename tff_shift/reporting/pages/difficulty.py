"""The difficulty of a column: its ceiling minus its floor.

The floor is what is reached without learning from others or without adaptation,
the ceiling what is reached with data or labels that the methods do not have.
Where both are equal, a method can win nothing.
"""

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difficulty:
  """What can be won in a column; differences are positive if better.

  Attributes:
    column: The column.
    floor: The best of the floors. None: the column has no floor.
    ceiling: The best of the ceilings. None: the column has no ceiling.
    best: The best of the other methods. None: there is no other.
    means: The means of these three, by method.
    room: Ceiling minus floor. None if one of them is missing.
    interval: The 95 % confidence interval of `room` over common seeds. None for
      fewer than two seeds, or if the differences do not vary.
    gained: The best method minus the floor. None if one of them is missing.
  """

  column: contents_lib.Column
  floor: str | None
  ceiling: str | None
  best: str | None
  means: Mapping[str, float]
  room: float | None
  interval: tuple[float, float] | None
  gained: float | None

  @property
  def share(self) -> float | None:
    """The gained fraction of the room. None if there is no room."""
    if self.gained is None or self.room is None or self.room <= 0:
      return None
    return self.gained / self.room

  @property
  def is_flat(self) -> bool | None:
    """Whether the runs show nothing to win. None if the room is not known."""
    if self.room is None:
      return None
    return self.room <= 0 or bool(self.interval and self.interval[0] <= 0)


def difficulty(
  column: contents_lib.Column,
  cells: Iterable[contents_lib.Cell],
  floors: Sequence[str],
  ceilings: Sequence[str],
) -> Difficulty:
  """Returns what can be won in a column.

  Args:
    column: The column.
    cells: Its cells.
    floors: The methods that are floors, where the column has them.
    ceilings: The methods that are ceilings, likewise.
  """
  sign = 1 if column.higher_is_better else -1
  by_row, means = {}, {}
  for cell in cells:
    mean = statistics.mean(cell)
    if mean is not None and math.isfinite(mean):
      by_row[cell.row], means[cell.row] = cell, mean

  def best(rows):
    return max(rows, key=lambda row: sign * means[row], default=None)

  floor = best([row for row in floors if row in means])
  ceiling = best([row for row in ceilings if row in means])
  other = best([row for row in means if row not in (*floors, *ceilings)])
  room = gained = interval = None
  if floor is not None and ceiling is not None:
    room = sign * (means[ceiling] - means[floor])
    interval = statistics.paired_interval(
      column, by_row[ceiling], by_row[floor]
    )
  if floor is not None and other is not None:
    gained = sign * (means[other] - means[floor])
  return Difficulty(
    column=column,
    floor=floor,
    ceiling=ceiling,
    best=other,
    means={r: means[r] for r in (floor, ceiling, other) if r is not None},
    room=room,
    interval=interval,
    gained=gained,
  )
