"""Performance profiles of methods over the columns of a table.

The profile of a method is the fraction of the columns in which its mean is
within tau of the best mean of the column, as a function of tau (Dolan, More:
Benchmarking optimization software with performance profiles, Mathematical
Programming 91, 2002). The paper divides by the best; accuracies are subtracted
here, so that tau is in percentage points.

Choices:
  * A missing value is no failure, unlike in profiles of solvers: test-time
    adaptation does not exist where clients train.
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence

# The values of tau in the table, in points.
TAUS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
  """The profile of a method.

  Attributes:
    row: The method.
    distances: For each column, how far the method is from the best one,
      ascending. Infinite if it has no value there.
  """

  row: str
  distances: Sequence[float]

  @property
  def num_values(self) -> int:
    """The number of columns in which the method has a value."""
    return sum(map(math.isfinite, self.distances))

  def share(self, tau: float) -> float:
    """Returns the fraction of the columns within tau of the best."""
    return sum(each <= tau for each in self.distances) / len(self.distances)

  def area(self, tau: float) -> float:
    """Returns the mean of the share over 0 to tau, which orders methods."""
    within = [max(0.0, tau - each) for each in self.distances]
    return math.fsum(within) / (tau * len(within))


def profiles(columns: Sequence[Mapping[str, float]]) -> list[Profile]:
  """Returns the profile of each method.

  Args:
    columns: For each column, the mean by method; higher is better. Methods
      without a value are missing. A column with fewer than two values is left
      out: there is nothing to compare in it.

  Returns:
    The profiles, in the order in which the methods occur. As in the paper, a
    method without a value in a column is never within tau of the best there.
  """
  used = []
  for column in columns:
    finite = {row: v for row, v in column.items() if math.isfinite(v)}
    if len(finite) > 1:
      used.append(finite)
  rows = dict.fromkeys(row for column in used for row in column)
  return [
    Profile(
      row=row,
      distances=sorted(
        max(column.values()) - column[row] if row in column else math.inf
        for column in used
      ),
    )
    for row in rows
  ]
