"""What all figures have in common: their look, spread over seeds, files.

Nothing here touches the global state of matplotlib: every figure is drawn on a
canvas of its own, without pyplot, so it works without a display, in threads,
and inside an application that has chosen another backend. Colours are those of
Okabe and Ito ("Color Universal Design", 2008) and one of Tol's, which
colour-blind readers can tell apart; markers and line styles repeat what the
colour says, for print.

Names of the user's are shown as they are written, whatever signs are in them:
no text is a formula, and what the fonts lack is escaped. Long ones are cut.

What several seeds have measured has them as its first axis. Lines and points
are means over them, bands and error bars one sample standard deviation up and
down, and the legend says so.
"""

import functools
import os
import pathlib
import textwrap
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

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

from tff_shift import files
from tff_shift import shown_names

DPI = 120
# The last of them is Tol's wine: Okabe and Ito's yellow is too pale for lines.
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
_BAND = {"alpha": 0.15, "linewidth": 0}
_MAX_TICK_LABELS = 16
# Font sizes of titles, of labels, and of tick labels and legends.
TITLE_SIZE = 12
LABEL_SIZE = 11
TICK_SIZE = 9
# In the label of what shows spread.
_SPREAD = "deviation over"
# Characters of a line of the legend, and inches of its height.
_LEGEND_WIDTH = 30
_LEGEND_LINE = 0.17
# The same of its characters, and of those of a title.
_LEGEND_CHARACTER, TITLE_CHARACTER = 0.08, 0.1
# Inches of the height of a line of a title.
TITLE_LINE = 0.2
# Characters that names, and whole titles, have at most.
_LONGEST_NAME, _LONGEST_TITLE = 30, 140
# Entries of a legend, of which a thousand would be no picture any more.
_MOST_ENTRIES = 100
# Inches beside the axes: the labels of the vertical one, and margins.
_BESIDE_AXES = 1.0
# Matplotlib leaves out of legends what begins with an underscore, or is empty.
_SHOWN = "\N{WORD JOINER}"
# Begins the id of a title, which goes on with the title as it was given.
_TITLE = "title: "


class Curve(NamedTuple):
  """One learning curve.

  Attributes:
    rounds: `[points]`, where the values were taken.
    by_seed: `[seeds, points]` values.
  """

  rounds: Sequence[float] | np.ndarray
  by_seed: Sequence[Sequence[float]] | np.ndarray


def mean_and_spread(
  by_seed: Sequence[Sequence[float]] | np.ndarray,
) -> tuple[np.ndarray, np.ndarray | None]:
  """Computes what stands for several seeds.

  Args:
    by_seed: `[seeds, ...]` values.

  Returns:
    The mean over the seeds and their sample standard deviation, both `[...]`;
    the spread of a single seed is None.
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
  """Gives axes their title, their labels, and the look of all figures."""
  set_title(axes, title)
  axes.set_xlabel(xlabel, fontsize=LABEL_SIZE)
  axes.set_ylabel(ylabel, fontsize=LABEL_SIZE)
  axes.tick_params(labelsize=TICK_SIZE)
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="0.9", linewidth=0.8)
  axes.set_axisbelow(True)


def shown(name: object, length: int = _LONGEST_NAME) -> str:
  """Returns a name as figures show it, in one line of at most `length`."""
  drawable = "".join(
    each if ord(each) in _glyphs() else ascii(each)[1:-1] for each in str(name)
  )
  return shown_names.shortened(shown_names.printable(drawable), length)


@functools.cache
def _glyphs() -> frozenset[int]:
  """Returns the characters that the fonts of figures have."""
  glyphs = set()
  for family in font_manager.FontProperties().get_family():
    properties = font_manager.FontProperties(family=[family])
    font = font_manager.get_font(font_manager.findfont(properties))
    glyphs.update(font.get_charmap())
  return frozenset(glyphs)


def label(name: object) -> str:
  """Returns the label of an artist that the legend is to show, whatever it is.

  Args:
    name: The name.

  Returns:
    The name as figures show it; `add_legend` takes off what is put before it.
  """
  text = shown(name, 2 * _LEGEND_WIDTH)
  return text if text.strip() and text[0] != "_" else _SHOWN + text


def title_lines(title: str, inches: float) -> str:
  """Returns a title broken into lines that fit into a width."""
  width = max(int(inches / TITLE_CHARACTER), 1)
  return textwrap.fill(shown(title, _LONGEST_TITLE), width)


def set_title(axes: Axes, title: str, inches: float | None = None) -> None:
  """Puts a title above axes.

  Args:
    axes: The axes.
    title: The title, in one line.
    inches: The width that there is. None: that of the figure.
  """
  if inches is None:
    inches = axes.figure.get_figwidth() - _BESIDE_AXES
  axes.set_title(
    title_lines(title, inches),
    fontsize=TITLE_SIZE,
    loc="left",
    gid=_TITLE + title,
  )


def set_figure_title(figure: Figure, title: str) -> None:
  """Puts a title above all axes, at the left edge of the figure."""
  figure.suptitle(
    title_lines(title, figure.get_figwidth()),
    fontsize=TITLE_SIZE,
    x=0.01,
    ha="left",
  )


def name_ticks(
  axis: Axis, ticks: Sequence[float], names: Sequence[object], **style: object
) -> None:
  """Names places on an axis.

  Args:
    axis: The axis.
    ticks: The places.
    names: A name for each.
    **style: Of the texts.
  """
  axis.set_ticks(ticks, [shown(name) for name in names], **style)


def draw_curves(
  axes: Axes, curves: Mapping[str, Curve], *, in_legend: bool = True
) -> None:
  """Draws curves, with bands where there are several seeds.

  Args:
    axes: Where to draw; its horizontal axis gets whole numbers only.
    curves: The curves by label.
    in_legend: Whether the legend names them.

  Raises:
    ValueError: If a curve has not one value per round, or no seed.
  """
  for index, (name, curve) in enumerate(curves.items()):
    rounds, by_seed = Curve(*curve)
    check_seeds(name, by_seed, len(rounds))
    mean, _ = mean_and_spread(by_seed)
    style = line_style(index)
    # About ten markers on a line, and never on the same rounds for all lines.
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
  by_seed: Sequence[Sequence[float]] | np.ndarray,
  color: str,
  step: str | None = None,
) -> None:
  """Draws a band around the mean; nothing for a single seed.

  Args:
    axes: Where to draw.
    x: `[points]`, where the values were taken.
    by_seed: `[seeds, points]` values.
    color: The colour of the mean.
    step: Where the band steps, as `fill_between` takes it.
  """
  mean, spread = mean_and_spread(by_seed)
  if spread is None:
    return
  axes.fill_between(
    x, mean - spread, mean + spread, color=color, step=step, **_BAND
  )
  text = _spread_label("band", len(by_seed))
  if text not in axes.get_legend_handles_labels()[1]:
    # Of no curve's colour, because it stands for the bands of all.
    axes.add_collection(
      PolyCollection([], facecolors=GREY, label=text, **_BAND), autolim=False
    )


def draw_error_bars(
  axes: Axes,
  x: Sequence[float] | np.ndarray,
  by_seed: Sequence[Sequence[float]] | np.ndarray,
  color: str,
) -> None:
  """Draws error bars around means; nothing where there is no spread.

  Args:
    axes: Where to draw.
    x: `[points]`, where the values were taken.
    by_seed: `[seeds, points]` values.
    color: The colour of the means.
  """
  mean, spread = mean_and_spread(by_seed)
  if spread is None:
    return
  # Without a length, a bar would be a dash.
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


def line_style(index: int) -> dict[str, object]:
  """Returns colour, marker and line style of the line with this index."""
  return {
    "color": COLORS[index % len(COLORS)],
    "marker": MARKERS[index % len(MARKERS)],
    "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
    "linewidth": 1.8,
    "markersize": 5,
  }


def add_legend(figure: Figure) -> None:
  """Adds the legend outside the axes, where it hides no data.

  Long labels are broken into lines, and the figure becomes as high as all of
  them need. What explains spread comes last, and once.

  Args:
    figure: The figure, whose axes have been drawn.
  """
  found = {}
  for axes in figure.axes:
    for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
      found.setdefault(text, handle)
  names = sorted(found, key=lambda text: _SPREAD in text)
  left_out = len(names) - _MOST_ENTRIES
  if left_out > 0:
    # The last one may tell of spread.
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
  legend = figure.legend(
    [found[name] for name in names],
    # What begins with an underscore is refused here too.
    [_SHOWN + text for text in labels],
    loc="outside right upper",
    fontsize=TICK_SIZE,
    frameon=False,
  )
  for each, text in zip(legend.get_texts(), labels, strict=True):
    each.set_text(text)
  # The legend is beside the title, which goes on above the axes.
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


def thinned(count: int, kept: int | None) -> list[int]:
  """Returns evenly spaced indices, few enough to label, with `kept` among."""
  stride = -(-count // _MAX_TICK_LABELS)
  indices = list(range(0, count, stride))
  if kept is not None and kept not in indices:
    # A neighbour closer than a stride would overlap with the kept label.
    indices = [index for index in indices if abs(index - kept) >= stride]
    indices = sorted([*indices, kept])
  return indices


def check_length(
  name: str, what: str, values: Sequence[float] | np.ndarray, expected: int
) -> None:
  """Raises a ValueError if values have not the expected number of entries."""
  if len(values) != expected:
    raise ValueError(
      f"{name}: {what} must have {expected} entries; got {len(values)}"
    )


def check_seeds(
  name: str,
  by_seed: Sequence[Sequence[float]] | np.ndarray,
  num_points: int,
) -> None:
  """Raises a ValueError unless values are `[seeds, num_points]`."""
  shape = np.shape(by_seed)
  if len(shape) != 2 or not shape[0] or shape[1] != num_points:
    raise ValueError(
      f"{name}: values must be [seeds, {num_points}]; got {list(shape)}"
    )


def save(
  figure: Figure, path: str | os.PathLike[str]
) -> str | os.PathLike[str]:
  """Writes the figure as a PNG file, and beside it as a PDF file.

  Equal figures give equal files: no date is in them.

  Args:
    figure: The figure, which is of no use afterwards.
    path: The PNG file.

  Returns:
    `path`.

  Raises:
    files.WriteError: If one cannot be written.
  """
  for axes in figure.axes:
    for axis in (axes.xaxis, axes.yaxis):
      # Makes the texts, which are else made when they are drawn.
      axis.get_ticklabels()
  for each in figure.findobj(Text):
    # What stands between two dollar signs is no formula.
    each.set_parse_math(False)
  with files.replacing(path) as file:
    FigureCanvasAgg(figure).print_png(file)
  # Both have one layout, which takes most of the time.
  figure.set_layout_engine("none")
  # The canvas of PDF files changes the resolution of the figure: it is last.
  with files.replacing(pathlib.Path(path).with_suffix(".pdf")) as file:
    FigureCanvasPdf(figure).print_pdf(file, metadata={"CreationDate": None})
  return path
