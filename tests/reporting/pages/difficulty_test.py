"""The difficulty of columns against numbers by hand."""

import pytest

from tests.fixtures import page_cells
from tff_shift.reporting.pages import difficulty


def found(text, **options):
  return difficulty.difficulty(
    page_cells.column(**options),
    list(page_cells.cells(text)),
    ("local", "source"),
    ("pooled",),
  )


def test_room_and_gain():
  each = found("""
local: 50 52
source: 60 62
fed_avg: 70 72
fed_evp: 70 66
pooled: 81 81
""")
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
  each = found("local: 80 80\npooled: 82 79\na: 80.5")
  assert each.room == 0.5 and each.is_flat
  assert found("local: 80\npooled: 79").is_flat
  assert found("local: 80\npooled: 81").is_flat is False
  assert found("local: 80\npooled: 80\na: 81").share is None


def test_lower_may_be_better():
  each = found("local: 2\nsource: 3\npooled: 1\na: 1.5", higher_is_better=False)
  assert each.floor == "local"
  assert (each.room, each.gained, each.share) == (1.0, 0.5, 0.5)


def test_missing_floor_or_ceiling():
  each = found("a: 80\npooled: 90\nlocal: nan")
  assert (each.floor, each.room, each.gained, each.is_flat) == (None,) * 4
  each = found("a: 80\nlocal: 70")
  assert (each.ceiling, each.room, each.gained) == (None, None, 10.0)
  assert found("").best is None
