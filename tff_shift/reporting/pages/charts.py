"""The geometry of a page's figures, in pixels.

The template draws them as SVG in the colours of the page, so that they support
its dark mode. Each method has one colour and one dash pattern on a page.
"""

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib import ticker

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import profiles as profiles_lib
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics

# As in the style sheet. Dash patterns change after all colours are used.
NUM_COLORS, NUM_DASHES = 8, 4
_WIDTH, _ROW_HEIGHT, _CURVE_HEIGHT = 420, 20, 230
_TOP, _BOTTOM, _RIGHT = 10, 34, 14
# The width of a character of a label, and the maximum width of labels.
_CHARACTER, _MOST_LABEL = 6.2, 150
# The largest tau of a profile, in points.
_MOST_TAU = 20.0
# More points would be closer than a pixel.
_MOST_POINTS = 150


@dataclasses.dataclass(frozen=True)
class Tick:
  """A labelled position on an axis."""

  at: float
  label: str


class Scale:
  """Maps values to pixels.

  Attributes:
    ticks: The labels of the axis.
  """

  def __init__(
    self, values: Iterable[float], start: float, end: float, *, whole=False
  ):
    """Computes limits around all values.

    Args:
      values: The values to show; those that are not finite are ignored.
      start: The pixel of the lower limit.
      end: The pixel of the upper limit.
      whole: Whether values are counts. Then ticks are whole numbers, and limits
        are the smallest and largest value. Otherwise limits are round numbers.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if low == high:
      low, high = low - 0.5, high + 0.5
    locator = ticker.MaxNLocator(5, steps=[1, 2, 5, 10], integer=whole)
    found = locator.tick_values(low, high)
    # Counts end at their last value, measurements at a round number.
    if not whole:
      low, high = min(low, found[0]), max(high, found[-1])
    self._low, self._high = low, high
    self._start, self._end = start, end
    self.ticks = [
      Tick(self(each), f"{each:.6g}") for each in found if low <= each <= high
    ]

  def __call__(self, value: float) -> float:
    """Returns the pixel of a value."""
    share = (value - self._low) / (self._high - self._low)
    return round(self._start + share * (self._end - self._start), 1)


@dataclasses.dataclass(frozen=True)
class Mark:
  """A mean with its error bar.

  Attributes:
    x: The position of the mean.
    low: The position of the bar's lower end, or of the mean without spread.
    high: The position of the bar's upper end.
    text: The formatted values.
  """

  x: float
  low: float
  high: float
  text: str


@dataclasses.dataclass(frozen=True)
class DotRow:
  """A method in a dot plot; marks that do not exist are None."""

  y: float
  label: str
  name: str
  ours: Mark | None
  paper: Mark | None


@dataclasses.dataclass(frozen=True)
class DotPlot:
  """The dot plot of a column: one line per method, ours and the paper's."""

  title: str
  caption: str
  width: float
  height: float
  left: float
  bottom: float
  ticks: Sequence[Tick]
  rows: Sequence[DotRow]


def _mark(scale, mean, spread, text):
  if mean is None or not math.isfinite(mean):
    return None
  reach = spread or 0.0
  return Mark(scale(mean), scale(mean - reach), scale(mean + reach), text)


def _ends(mean, spread):
  return [] if mean is None else [mean - (spread or 0), mean + (spread or 0)]


def dot_plot(
  column: contents_lib.Column, entries: Sequence[shown.Entry]
) -> DotPlot | None:
  """Lays out the dot plot of a column.

  Args:
    column: The column.
    entries: Its cells, in the order of the methods.

  Returns:
    The plot of all cells with a value, or None if there is none.
  """
  values = []
  for entry in entries:
    paper = entry.cell.paper
    values += _ends(statistics.mean(entry.cell), statistics.spread(entry.cell))
    values += _ends(paper.mean, paper.spread) if paper else []
  entries = [each for each in entries if each.cell.by_seed or each.cell.paper]
  if not any(map(math.isfinite, values)):
    return None
  longest = max(len(entry.cell.row) for entry in entries)
  left = min(_CHARACTER * longest, _MOST_LABEL) + 12
  room = int(_MOST_LABEL / _CHARACTER)
  scale = Scale(values, left, _WIDTH - _RIGHT)
  rows = []
  for index, entry in enumerate(entries):
    cell, paper = entry.cell, entry.cell.paper
    name = cell.row
    rows.append(
      DotRow(
        y=_TOP + (index + 0.5) * _ROW_HEIGHT,
        label=name if len(name) <= room else name[: room - 1] + "…",
        name=name,
        ours=_mark(
          scale, statistics.mean(cell), statistics.spread(cell), entry.ours
        ),
        paper=(
          None
          if paper is None
          else _mark(scale, paper.mean, paper.spread, entry.paper)
        ),
      )
    )
  bottom = _TOP + len(entries) * _ROW_HEIGHT
  return DotPlot(
    title=shown.heading(column.heading),
    caption=shown.caption(column),
    width=_WIDTH,
    height=bottom + _BOTTOM,
    left=left,
    bottom=bottom,
    ticks=scale.ticks,
    rows=rows,
  )


@dataclasses.dataclass(frozen=True)
class Line:
  """A method in a curve plot.

  Attributes:
    index: The index of the method on the page, for colour and dash pattern.
    name: The method.
    points: The points of the mean over seeds, in SVG format.
    band: The outline of mean ± spread; "" for a single seed.
    end: The last point.
    text: Describes the last value.
  """

  index: int
  name: str
  points: str
  band: str
  end: tuple[float, float]
  text: str


@dataclasses.dataclass(frozen=True)
class CurvePlot:
  """The curves of a column, one line per method over rounds or time steps."""

  title: str
  caption: str
  step: str
  left: float
  x_ticks: Sequence[Tick]
  y_ticks: Sequence[Tick]
  lines: Sequence[Line]
  width: float = _WIDTH
  height: float = _CURVE_HEIGHT
  top: float = _TOP
  bottom: float = _CURVE_HEIGHT - _BOTTOM


def _averaged(curves: Sequence[contents_lib.Curve]) -> np.ndarray:
  """Returns [points, 4]: step, mean, spread (0 for one seed), seeds."""
  by_step = {}
  for curve in curves:
    for step, value in curve.points:
      if math.isfinite(value):
        by_step.setdefault(step, []).append(value)
  rows = [
    (step, np.mean(v), np.std(v, ddof=1) if len(v) > 1 else 0.0, len(v))
    for step, v in sorted(by_step.items())
  ]
  kept = np.unique(np.linspace(0, len(rows) - 1, _MOST_POINTS).astype(int))
  return np.array([rows[index] for index in kept]) if rows else np.empty((0, 4))


def _path(points: Iterable[tuple[float, float]]) -> str:
  return " ".join(f"{x:g},{y:g}" for x, y in points)


def _line(index, name, averaged, x, y, unit) -> Line:
  points = [(x(step), y(mean)) for step, mean, _, _ in averaged]
  band = ""
  if averaged[:, 2].any():
    upper = [(x(step), y(mean + s)) for step, mean, s, _ in averaged]
    lower = [(x(step), y(mean - s)) for step, mean, s, _ in averaged]
    band = _path([*upper, *reversed(lower)])
  step, mean, spread, num_seeds = averaged[-1]
  value = shown.with_spread(
    mean, spread if num_seeds > 1 else None, unit, int(num_seeds)
  )
  return Line(
    index, name, _path(points), band, points[-1], f"{value} at {step:g}"
  )


def _curve_plot(
  column: contents_lib.Column,
  step: str,
  by_row: Mapping[str, np.ndarray],
  rows: Sequence[str],
) -> CurvePlot:
  values = [
    value
    for averaged in by_row.values()
    for _, mean, spread, _ in averaged
    for value in (mean - spread, mean + spread)
  ]
  steps = [point[0] for averaged in by_row.values() for point in averaged]
  y = Scale(values, _CURVE_HEIGHT - _BOTTOM, _TOP)
  left = 14 + _CHARACTER * max(len(tick.label) for tick in y.ticks)
  x = Scale(steps, left, _WIDTH - _RIGHT, whole=True)
  return CurvePlot(
    title=shown.heading(column.heading),
    caption=shown.caption(column),
    step=step,
    left=left,
    x_ticks=x.ticks,
    y_ticks=y.ticks,
    lines=[
      _line(rows.index(row), row, averaged, x, y, column.unit)
      for row, averaged in by_row.items()
    ],
  )


def curve_plots(
  contents: contents_lib.Contents, rows: Sequence[str]
) -> list[CurvePlot]:
  """Lays out the curves, one plot per column and step name.

  Args:
    contents: The table.
    rows: The methods in order, which determines their colours.

  Returns:
    The plots, in the order of the columns. A line is the mean over all seeds
    that have reached the step, thinned to the resolution of the plot.
  """
  plots = []
  for column in contents.columns:
    curves = [c for c in contents.curves if c.column == column.heading]
    for step in dict.fromkeys(curve.step for curve in curves):
      by_row = {
        row: _averaged([c for c in curves if (c.row, c.step) == (row, step)])
        for row in rows
      }
      by_row = {row: points for row, points in by_row.items() if len(points)}
      if by_row:
        plots.append(_curve_plot(column, step, by_row, rows))
  return plots


def profile_plot(
  profiles: Sequence[profiles_lib.Profile], rows: Sequence[str]
) -> CurvePlot:
  """Lays out the performance profiles, as steps.

  Args:
    profiles: The profiles, at least one.
    rows: The methods in order, which determines their colours.
  """
  distances = [
    each
    for profile in profiles
    for each in profile.distances
    if math.isfinite(each)
  ]
  last = min(max(1.0, *distances), _MOST_TAU)
  y = Scale([0.0, 100.0], _CURVE_HEIGHT - _BOTTOM, _TOP)
  left = 14 + _CHARACTER * max(len(tick.label) for tick in y.ticks)
  x = Scale([0.0, last], left, _WIDTH - _RIGHT)
  return CurvePlot(
    title="Share of the columns within tau of the best (%)",
    caption="",
    step="tau (points)",
    left=left,
    x_ticks=x.ticks,
    y_ticks=y.ticks,
    lines=[_profile_line(each, rows, last, x, y) for each in profiles],
  )


def _profile_line(profile, rows, last, x, y) -> Line:
  points = [(0.0, profile.share(0.0))]
  for distance in sorted(set(profile.distances)):
    if 0 < distance <= last:
      points += [(distance, points[-1][1]), (distance, profile.share(distance))]
  points.append((last, points[-1][1]))
  pixels = [(x(tau), y(100 * share)) for tau, share in points]
  return Line(
    index=rows.index(profile.row),
    name=profile.row,
    points=_path(pixels),
    band="",
    end=pixels[-1],
    text=f"best in {100 * profile.share(0.0):.0f} % of the columns, within"
    f" {last:.3g} points in {100 * points[-1][1]:.0f} %",
  )
