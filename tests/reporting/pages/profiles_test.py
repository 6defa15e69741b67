"""Performance profiles against a table by hand."""

import math

import pytest

from tff_shift.reporting.pages import profiles

# The best of each column: 90, 60, 50.
_COLUMNS = [
  {"a": 90.0, "b": 88.0, "c": 70.0},
  {"a": 59.0, "b": 60.0},
  {"a": 50.0, "b": 50.0, "c": math.nan},
  # Nothing to compare.
  {"c": 99.0},
]


def test_shares_by_hand():
  a, b, c = profiles.profiles(_COLUMNS)
  assert [each.row for each in (a, b, c)] == ["a", "b", "c"]
  assert a.distances == [0.0, 0.0, 1.0]
  assert b.distances == [0.0, 0.0, 2.0]
  assert c.distances == [20.0, math.inf, math.inf]
  assert [a.share(tau) for tau in (0.0, 0.5, 1.0)] == [2 / 3, 2 / 3, 1.0]
  assert [b.share(tau) for tau in (0.0, 1.0, 2.0)] == [2 / 3, 2 / 3, 1.0]
  # A method that is missing in a column is never near the best there.
  assert [c.share(tau) for tau in (19.0, 20.0, 1e9)] == [0, 1 / 3, 1 / 3]
  assert (a.num_values, c.num_values) == (3, 1)


def test_area_is_the_mean_of_the_share():
  a, b, c = profiles.profiles(_COLUMNS)
  # From 0 to 4: a has 2/3 until 1 and then all, b until 2, c nothing.
  assert a.area(4.0) == pytest.approx((2 / 3 * 1 + 1.0 * 3) / 4)
  assert b.area(4.0) == pytest.approx((2 / 3 * 2 + 1.0 * 2) / 4)
  assert c.area(4.0) == 0.0


def test_nothing_to_compare():
  assert profiles.profiles([]) == []
  assert profiles.profiles([{"a": 1.0}, {"a": 1.0, "b": math.inf}]) == []
