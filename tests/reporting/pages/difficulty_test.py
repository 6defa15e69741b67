"""The difficulty of columns against numbers by hand."""

import math

import pytest

from tests.fixtures import page_cells
from tff_shift.reporting.pages import difficulty


def found(by_row, **options):
  cells = [page_cells.cell(row, values) for row, values in by_row.items()]
  return difficulty.difficulty(
    page_cells.column(**options), cells, ("local", "source"), ("pooled",)
  )


def test_room_and_gain():
  each = found(
    {
      "local": [50.0, 52.0],
      "source": [60.0, 62.0],
      "fed_avg": [70.0, 72.0],
      "fed_evp": [70.0, 66.0],
      "pooled": [81.0, 81.0],
    }
  )
  # The best floor, ceiling and other method: 61, 81 and 71.
  assert (each.floor, each.ceiling, each.best) == (
    "source",
    "pooled",
    "fed_avg",
  )
  assert each.means == {"source": 61.0, "pooled": 81.0, "fed_avg": 71.0}
  assert (each.room, each.gained, each.share) == (20.0, 10.0, 0.5)
  # Differences 21 and 19: 20 +- 12.7062 * sqrt(2) / sqrt(2).
  assert each.interval == pytest.approx((20 - 12.7062, 20 + 12.7062), abs=1e-4)
  assert each.is_flat is False


def test_column_in_which_nothing_can_be_won():
  # Differences 2 and -1: the interval contains 0.
  each = found({"local": [80.0, 80.0], "pooled": [82.0, 79.0], "a": [80.5]})
  assert each.room == 0.5 and each.is_flat
  assert found({"local": [80.0], "pooled": [79.0]}).is_flat
  assert found({"local": [80.0], "pooled": [81.0]}).is_flat is False
  assert found({"local": [80.0], "pooled": [80.0], "a": [81.0]}).share is None


def test_lower_may_be_better():
  each = found(
    {"local": [2.0], "source": [3.0], "pooled": [1.0], "a": [1.5]},
    higher_is_better=False,
  )
  assert each.floor == "local"
  assert (each.room, each.gained, each.share) == (1.0, 0.5, 0.5)


def test_missing_floor_or_ceiling():
  each = found({"a": [80.0], "pooled": [90.0], "local": [math.nan]})
  assert (each.floor, each.room, each.gained, each.is_flat) == (None,) * 4
  each = found({"a": [80.0], "local": [70.0]})
  assert (each.ceiling, each.room, each.gained) == (None, None, 10.0)
  assert found({}).best is None
