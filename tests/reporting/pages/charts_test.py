"""Where figures draw what."""

import math

import numpy as np
import pytest

from tests.fixtures import page_cells
from tff_shift.reporting.pages import charts
from tff_shift.reporting.pages import profiles
from tff_shift.reporting.pages import shown


def test_scale_puts_round_limits_around_values():
  scale = charts.Scale([12.0, 57.0, math.nan], 100, 200)
  assert [tick.label for tick in scale.ticks] == [
    *("10", "20", "30", "40", "50", "60")
  ]
  assert (scale(10), scale(60), scale(35)) == (100, 200, 150)


def test_scale_of_what_is_counted_ends_with_it():
  scale = charts.Scale([1, 50], 0, 98, whole=True)
  assert (scale(1), scale(50)) == (0, 98)
  assert [tick.label for tick in scale.ticks] == ["10", "20", "30", "40", "50"]


@pytest.mark.parametrize("values", [[], [math.inf], [3.0], [3.0, 3.0]])
def test_scale_of_hardly_anything(values):
  scale = charts.Scale(values, 0, 100)
  assert len(scale.ticks) > 1
  assert 0 <= scale(next(filter(math.isfinite, values), 0.0)) <= 100


def test_dot_plot_has_ours_beside_the_papers(contents):
  table = shown.Table(contents)
  entries = [e for e in table.entries if e.column is table.columns[0]]
  plot = charts.dot_plot(table.columns[0], entries)
  rows = {row.name: row for row in plot.rows}
  assert list(rows) == list(contents.rows)
  assert rows["APFL"].ours is None
  first = rows["FedAvg"]
  assert first.ours.low < first.ours.x < first.ours.high < first.paper.low
  # Pixels are values: 60.5 and 70 lie like 71.5 and 80 on one scale.
  per_point = (first.paper.x - first.ours.x) / 9.5
  other = (rows["a_b%"].paper.x - rows['<b>&"x"'].paper.x) / 8.5
  assert per_point == pytest.approx(other, rel=0.02)
  # No spread, no bar.
  plot = charts.dot_plot(
    table.columns[1], [e for e in table.entries if e.column is table.columns[1]]
  )
  paper = plot.rows[0].paper
  assert paper.low == paper.x == paper.high
  # What has neither value has no line.
  assert "a_b%" not in {row.name for row in plot.rows}
  assert charts.dot_plot(table.columns[0], []) is None


def test_curves_are_means_over_the_seeds_that_got_there(contents):
  rounds, domains = charts.curve_plots(contents, contents.rows)
  assert (rounds.step, domains.step) == ("round", "domain")
  first, partial = rounds.lines
  assert (first.name, first.index) == ("FedAvg", 0)
  assert first.text == "60.00 ± 0.00 (2) at 2"
  assert partial.text == "50.00 (1) at 1"
  # (40 + 44) / 2 with a deviation of sqrt(8), and 60.
  y = charts.Scale([42 - 8**0.5, 60], 196, 10)
  left, right = (
    tuple(map(float, pair.split(","))) for pair in first.points.split()
  )
  assert left[0] == rounds.left and right[0] == rounds.width - 14
  assert left[1] - right[1] == pytest.approx(y(42) - y(60), abs=0.2)
  # Out along the upper edge, and back along the lower one.
  assert len(first.band.split()) == 4
  assert partial.band == ""


def test_long_curves_are_thinned_but_keep_their_ends():
  steps = np.arange(1, 1001)
  contents = page_cells.table(curves=[page_cells.curve("m", steps / 10)])
  (plot,) = charts.curve_plots(contents, ["m"])
  (line,) = plot.lines
  points = line.points.split()
  assert 100 < len(points) <= 150
  assert line.text == "100.00 (1) at 1000"
  assert float(points[0].split(",")[0]) == plot.left


def test_profile_is_drawn_as_steps():
  found = profiles.profiles([{"a": 90.0, "b": 88.0}, {"a": 60.0, "b": 60.0}])
  plot = charts.profile_plot(found, ["b", "a"])
  a, b = plot.lines
  assert (a.name, a.index, b.name, b.index) == ("a", 1, "b", 0)
  # a is the best everywhere: a level line at the top.
  heights = [point.split(",")[1] for point in a.points.split()]
  assert len(set(heights)) == 1
  # b is at half until 2 points, and then at the top.
  points = [tuple(map(float, p.split(","))) for p in b.points.split()]
  assert [y for _, y in points] == [
    *(points[0][1], points[0][1], float(heights[0]), float(heights[0])),
  ]
  middle = (plot.bottom + plot.top) / 2
  assert points[0][1] == pytest.approx(middle, abs=1)
  assert points[1][0] == points[2][0] == plot.x_ticks[-1].at
  assert b.text == "best in 50 % of the columns, within 2 points in 100 %"
