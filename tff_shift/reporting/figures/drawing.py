"""Common parts of all figures: style, standard deviations, and files.

Does not use the global state of matplotlib: every figure has its own canvas,
without pyplot. Figures therefore work without a display, in threads, and in
applications with another backend. Colours are those of Okabe and Ito ("Color
Universal Design", 2008) and one of Tol's, which colour-blind readers can
distinguish. Markers and line styles repeat the colour code, for print.

User-defined names are shown literally: no text is a formula, and characters
that the fonts lack are escaped. Long names are shortened.

The first axis of values is the seed. Lines and points are means over seeds.
Bands and error bars are one sample standard deviation up and down, as stated in
the legend.

Choices:
  * No text in a figure is parsed as a formula, so that no name of the user's
    is; the few formulas use plain characters. Control characters in names are
    escaped. So are characters that the figures' fonts lack: boxes would be
    indistinguishable, and matplotlib would warn of each. With `font.family` set
    in a matplotlibrc, figures have the characters.
"""

import functools
import os
import pathlib
import textwrap
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from tff_shift._util import files
from tff_shift._util import shown_names

DPI = 120
# The last one is Tol's wine: Okabe and Ito's yellow is too pale for lines.
COLORS = (
  "#0072B2",  # blue
  "#D55E00",  # vermilion
  "#009E73",  # green
  "#CC79A7",  # purple
  "#E69F00",  # orange
  "#56B4E9",  # sky blue
  "#000000",  # black
  "#882255",  # wine
)
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
GREY, PALE = "0.35", "0.85"
_BAND: dict[str, Any] = {"alpha": 0.15, "linewidth": 0}
_MAX_TICK_LABELS = 16
# A matrix with more rows has no numbers in its cells.
_MAX_ROWS_WITH_NUMBERS = 16
# Font sizes of titles, of labels, and of tick labels and legends.
TITLE_SIZE = 12
LABEL_SIZE = 11
TICK_SIZE = 9
# Part of the labels that explain bands and error bars.
_SPREAD = "deviation over"
# The width of a legend line in characters, and its height in inches.
_LEGEND_WIDTH = 30
# The longest label of a legend below the axes, whose labels have one line.
_LEGEND_COLUMN = 45
_LEGEND_LINE = 0.175
# The width in inches of a character of the legend, and of a title.
_LEGEND_CHARACTER, TITLE_CHARACTER = 0.08, 0.1
# The height of a title line in inches.
TITLE_LINE = 0.2
# The maximum length of names, and of whole titles.
_LONGEST_NAME, _LONGEST_TITLE = 30, 140
# The maximum number of legend entries; more make the figure too high.
_MOST_ENTRIES = 100
# Inches next to the axes: the labels of the vertical axis, and margins.
_BESIDE_AXES = 1.0
# Legends of matplotlib omit labels that are empty or start with an underscore.
_SHOWN = "\N{WORD JOINER}"
# The prefix of the id of a title, followed by the unbroken title.
_TITLE = "title: "


Path = str | os.PathLike[str]
# Values, [seeds, ...].
BySeed = Sequence[Sequence[float]] | Sequence[np.ndarray] | np.ndarray


class Curve(NamedTuple):
  """One learning curve.

  Attributes:
    rounds: `[points]`, the rounds of the values.
    by_seed: `[seeds, points]` values.
  """

  rounds: Sequence[float] | np.ndarray
  by_seed: BySeed


def mean_and_spread(
  by_seed: BySeed,
) -> tuple[np.ndarray, np.ndarray | None]:
  """Computes mean and sample standard deviation over seeds.

  Args:
    by_seed: `[seeds, ...]` values.

  Returns:
    The mean and the sample standard deviation, both `[...]`. The latter is None
    for a single seed.
  """
  spread = np.std(by_seed, axis=0, ddof=1) if len(by_seed) > 1 else None
  return np.mean(by_seed, axis=0), spread


def blank_figure(height: float = 4.5) -> Figure:
  """Returns a figure without axes, 8 inches wide and `height` inches high."""
  figure = Figure(figsize=(8, height), dpi=DPI)
  figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
  return figure


def new_figure(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
  """Returns a figure and its only axes, titled and labelled."""
  figure = blank_figure()
  axes = figure.add_subplot()
  style_axes(axes, title, xlabel, ylabel)
  return figure, axes


def style_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
  """Sets title, labels and common style of axes."""
  set_title(axes, title)
  axes.set_xlabel(xlabel, fontsize=LABEL_SIZE)
  axes.set_ylabel(ylabel, fontsize=LABEL_SIZE)
  axes.tick_params(labelsize=TICK_SIZE)
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="0.9", linewidth=0.8)
  axes.set_axisbelow(True)


def shown(name: object, length: int = _LONGEST_NAME) -> str:
  """Formats a name for figures, in one line of at most `length` characters."""
  drawable = "".join(
    each if ord(each) in _glyphs() else ascii(each)[1:-1] for each in str(name)
  )
  return shown_names.shortened(shown_names.printable(drawable), length)


@functools.cache
def _glyphs() -> frozenset[int]:
  """Returns the characters in the fonts of figures."""
  glyphs = set()
  for family in font_manager.FontProperties().get_family():
    properties = font_manager.FontProperties(family=[family])
    font = font_manager.get_font(font_manager.findfont(properties))
    glyphs.update(font.get_charmap())
  return frozenset(glyphs)


def label(name: object) -> str:
  """Returns the label of an artist in a form that legends always show.

  Returns:
    The formatted name, possibly with a prefix that `add_legend` removes.
  """
  text = shown(name, 2 * _LEGEND_WIDTH)
  return text if text.strip() and text[0] != "_" else _SHOWN + text


def title_lines(title: str, inches: float) -> str:
  """Breaks a title into lines of a width."""
  width = max(int(inches / TITLE_CHARACTER), 1)
  return textwrap.fill(shown(title, _LONGEST_TITLE), width)


def set_title(axes: Axes, title: str, inches: float | None = None) -> None:
  """Sets the title of axes.

  Args:
    axes: The axes.
    title: The title, in one line.
    inches: The available width. None: the width of the figure.
  """
  if inches is None:
    inches = axes.figure.figure.get_figwidth() - _BESIDE_AXES
  axes.set_title(
    title_lines(title, inches),
    fontsize=TITLE_SIZE,
    loc="left",
    gid=_TITLE + title,
  )


def set_figure_title(figure: Figure, title: str) -> None:
  """Sets the title of a figure, at its left edge."""
  figure.suptitle(
    title_lines(title, figure.get_figwidth()),
    fontsize=TITLE_SIZE,
    x=0.01,
    ha="left",
  )


def name_ticks(
  axis: Axis, ticks: Sequence[float], names: Sequence[object], **style: Any
) -> None:
  """Labels positions on an axis.

  Args:
    axis: The axis.
    ticks: The positions.
    names: The label of each position.
    **style: The style of the labels.
  """
  axis.set_ticks(ticks, [shown(name) for name in names], **style)


def draw_curves(
  axes: Axes, curves: Mapping[str, Curve], *, in_legend: bool = True
) -> None:
  """Draws curves, with bands for several seeds.

  Args:
    axes: The axes. The horizontal axis only gets whole numbers.
    curves: The curves by label.
    in_legend: Whether the curves are in the legend.
  """
  for index, (name, curve) in enumerate(curves.items()):
    rounds, by_seed = Curve(*curve)
    mean, _ = mean_and_spread(by_seed)
    style = line_style(index)
    # About ten markers per line, on different rounds for different lines.
    stride = max(1, len(rounds) // 10)
    first = index * stride // max(1, len(curves))
    axes.plot(
      rounds,
      mean,
      label=label(name) if in_legend else "_nolegend_",
      markevery=(first, stride),
      **style,
    )
    draw_band(axes, rounds, by_seed, style["color"])
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
  )


def draw_band(
  axes: Axes,
  x: Sequence[float] | np.ndarray,
  by_seed: BySeed,
  color: str,
  step: Literal["pre", "mid", "post"] | None = None,
) -> None:
  """Draws a band around the mean; nothing for a single seed.

  Args:
    axes: The axes.
    x: `[points]`, the positions of the values.
    by_seed: `[seeds, points]` values.
    color: The colour of the mean.
    step: The argument `step` of `fill_between`.
  """
  mean, spread = mean_and_spread(by_seed)
  if spread is None:
    return
  axes.fill_between(
    x, mean - spread, mean + spread, color=color, step=step, **_BAND
  )
  text = _spread_label("band", len(by_seed))
  if text not in axes.get_legend_handles_labels()[1]:
    # Grey, because it represents the bands of all curves.
    axes.add_collection(
      PolyCollection([], facecolors=GREY, label=text, **_BAND), autolim=False
    )


def draw_error_bars(
  axes: Axes,
  x: Sequence[float] | np.ndarray,
  by_seed: BySeed,
  color: str,
) -> None:
  """Draws error bars around means; nothing for a standard deviation of 0.

  Args:
    axes: The axes.
    x: `[points]`, the positions of the values.
    by_seed: `[seeds, points]` values.
    color: The colour of the means.
  """
  mean, spread = mean_and_spread(by_seed)
  if spread is None:
    return
  # A bar without length would look like a dash.
  shown = spread > 0
  if not shown.any():
    return
  axes.errorbar(
    np.asarray(x)[shown],
    mean[shown],
    spread[shown],
    fmt="none",
    ecolor=color,
    elinewidth=1.0,
    capsize=2.0,
  )
  text = _spread_label("bar", len(by_seed))
  if text not in axes.get_legend_handles_labels()[1]:
    axes.add_artist(
      Line2D(
        [],
        [],
        color=GREY,
        linestyle="none",
        marker="|",
        markersize=9,
        label=text,
      )
    )


def _spread_label(kind: str, num_seeds: int) -> str:
  return f"{kind}: one standard\n{_SPREAD} {num_seeds} seeds"


def draw_row_percentages(
  figure: Figure,
  axes: Axes,
  counts: np.ndarray,
  label: str,
  *,
  with_counts: bool = False,
) -> None:
  """Draws a matrix of counts, in percent of the sums of its rows.

  Args:
    figure: The figure, which gets a colour bar.
    axes: The axes.
    counts: `[rows, columns]`. Cells have numbers if there are few rows. Rows of
      zeros are grey.
    label: Name and unit of the percentages.
    with_counts: Whether cells also have the counts, below the percentages.
  """
  totals = counts.sum(axis=1, keepdims=True)
  percentages = 100 * np.divide(
    counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0
  )
  axes.grid(visible=False)
  image = axes.imshow(
    percentages,
    cmap=matplotlib.colormaps["viridis"].with_extremes(bad="0.85"),
    vmin=0,
    vmax=100,
    aspect="auto",
  )
  if len(counts) <= _MAX_ROWS_WITH_NUMBERS:
    for (row, column), percentage in np.ndenumerate(percentages):
      if not np.isnan(percentage):
        axes.text(
          column,
          row,
          f"{percentage:.0f} %\n{counts[row, column]:.0f}"
          if with_counts
          else f"{percentage:.0f}",
          ha="center",
          va="center",
          size=TICK_SIZE - 1 if with_counts else TICK_SIZE,
          # High values have bright colours.
          color="black" if percentage > 60 else "white",
        )
  color_bar = figure.colorbar(image, ax=axes, aspect=30)
  color_bar.set_label(label, size=LABEL_SIZE)
  color_bar.ax.tick_params(labelsize=TICK_SIZE)


def line_style(index: int) -> dict[str, Any]:
  """Returns colour, marker and line style of the line with an index."""
  return {
    "color": COLORS[index % len(COLORS)],
    "marker": MARKERS[index % len(MARKERS)],
    "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
    "linewidth": 1.8,
    "markersize": 5,
  }


def add_legend(figure: Figure) -> None:
  """Adds the legend outside the axes, where it hides no data.

  Breaks long labels into lines and increases the height of the figure if
  needed. The explanation of bands or error bars comes last, and only once.

  Args:
    figure: The figure with all its artists.
  """
  found = _legend_entries(figure)
  names = list(found)
  left_out = len(names) - _MOST_ENTRIES
  if left_out > 0:
    # The last entry may explain bands or error bars.
    others = f"and {left_out} more"
    found[others] = Line2D([], [], linestyle="none")
    names[_MOST_ENTRIES - 1 : -1] = [others]
  labels = [
    "\n".join(
      textwrap.fill(line, _LEGEND_WIDTH)
      for line in name.removeprefix(_SHOWN).split("\n")
    )
    for name in names
  ]
  num_lines = sum(1 + text.count("\n") for text in labels)
  figure.set_figheight(
    max(figure.get_figheight(), _LEGEND_LINE * num_lines + 0.5)
  )
  _draw_legend(
    figure, [found[name] for name in names], labels, loc="outside right upper"
  )
  # The legend is next to the title, which must fit above the axes.
  longest = max(
    (len(line) for t in labels for line in t.split("\n")), default=0
  )
  inches = figure.get_figwidth() - _BESIDE_AXES - 0.5
  inches -= _LEGEND_CHARACTER * longest
  for axes in figure.axes:
    for each in axes.findobj(Text):
      if (each.get_gid() or "").startswith(_TITLE):
        title = each.get_gid().removeprefix(_TITLE)
        each.set_text(title_lines(title, inches))


def add_legend_below(figure: Figure) -> None:
  """Adds the legend below the axes, in columns, and makes room for it.

  The explanation of bands comes last, and only once.

  Args:
    figure: The figure with all its artists.
  """
  handles = _legend_entries(figure)
  shown = {
    text: "\n".join(
      shown_names.shortened(line, _LEGEND_COLUMN)
      for line in text.removeprefix(_SHOWN).split("\n")
    )
    for text in handles
  }
  lines = [line for text in shown.values() for line in text.split("\n")]
  # The handle of an entry is about as wide as six characters.
  width = _LEGEND_CHARACTER * (max(map(len, lines)) + 6)
  num_columns = max(1, min(4, int(figure.get_figwidth() / width)))
  num_rows = -(-len(lines) // num_columns)
  figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * num_rows)
  _draw_legend(
    figure,
    handles.values(),
    shown.values(),
    loc="outside lower center",
    ncols=num_columns,
  )


def _legend_entries(figure: Figure) -> dict[str, Any]:
  """Returns each label's first artist; explanations of spread come last."""
  found = {}
  for axes in figure.axes:
    for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
      found.setdefault(text, handle)
  return dict(sorted(found.items(), key=lambda item: _SPREAD in item[0]))


def _draw_legend(
  figure: Figure, handles: Iterable[Any], labels: Iterable[str], **style: Any
) -> None:
  """Draws a legend outside the axes."""
  legend = figure.legend(
    list(handles),
    # Labels that start with an underscore are refused.
    [_SHOWN + text for text in labels],
    fontsize=TICK_SIZE,
    frameon=False,
    **style,
  )
  for each, text in zip(legend.get_texts(), labels, strict=True):
    each.set_text(text)


def name_steps(axis: Axis, names: Sequence[object], num_steps: int) -> None:
  """Labels time steps or periods from 1 by their names.

  Args:
    axis: The axis.
    names: The names from step 0 on. Empty: the axis keeps its numbers.
    num_steps: The number of steps after step 0.
  """
  if names:
    ticks = [1 + each for each in thinned(num_steps, None)]
    name_ticks(
      axis, ticks, [names[each] for each in ticks], rotation=30, ha="right"
    )


def thinned(count: int, kept: int | None) -> list[int]:
  """Returns evenly spaced indices, few enough to label, including `kept`."""
  stride = -(-count // _MAX_TICK_LABELS)
  indices = list(range(0, count, stride))
  if kept is not None and kept not in indices:
    # A neighbour closer than a stride would overlap with the kept label.
    indices = [index for index in indices if abs(index - kept) >= stride]
    indices = sorted([*indices, kept])
  return indices


def take_literally(figure: Figure) -> None:
  """Makes all text literal: text between dollar signs is not a formula."""
  for axes in figure.axes:
    for axis in (axes.xaxis, axes.yaxis):
      # Creates the tick labels, which are otherwise created when drawing.
      axis.get_ticklabels()
  for each in figure.findobj(Text):
    each.set_parse_math(False)


def save(figure: Figure, path: Path) -> Path:
  """Writes a figure as a PNG file and as a PDF file of the same name.

  Equal figures give equal files, because they have no date.

  Args:
    figure: The figure. It is not changed.
    path: The PNG file.

  Returns:
    `path`.

  Raises:
    files.WriteError: If a file cannot be written.
  """
  take_literally(figure)
  layout, dpi, canvas = figure.get_layout_engine(), figure.dpi, figure.canvas
  try:
    with files.replacing(path) as file:
      FigureCanvasAgg(figure).print_png(file)
    # The PDF file reuses the layout, which takes most of the time.
    figure.set_layout_engine("none")
    # PDF last, because its canvas changes the resolution of the figure.
    with files.replacing(pathlib.Path(path).with_suffix(".pdf")) as file:
      FigureCanvasPdf(figure).print_pdf(file, metadata={"CreationDate": None})
  finally:
    figure.set_layout_engine(layout)
    figure.dpi = dpi
    figure.set_canvas(canvas)
  return path
