"""Figures of a run folder: plain arrays in, one PNG file out.

Nothing here touches the global state of matplotlib: every figure is drawn on a
canvas of its own, without pyplot, so it works without a display, in threads,
and inside an application that has chosen another backend. Colours are those of
Okabe and Ito ("Color Universal Design", 2008), which colour-blind readers can
tell apart; markers and line styles repeat what the colour says.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import cm
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

_DPI = 120
_COLORS = (
  "#0072B2",  # blue
  "#D55E00",  # vermilion
  "#009E73",  # green
  "#CC79A7",  # purple
  "#E69F00",  # orange
  "#56B4E9",  # sky blue
  "#000000",  # black
)
_LINE_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_MAX_TICK_LABELS = 16
TITLE_SIZE = 12
# Font sizes of titles, of labels, and of tick labels and legends.
LABEL_SIZE = 11
TICK_SIZE = 9


class Curve(NamedTuple):
  """One learning curve.

  Attributes:
    rounds: `[points]`, where the values were taken.
    mean: `[points]`, mean over the seeds.
    spread: `[points]`, standard deviation over the seeds; None where there is
      one seed.
  """

  rounds: Sequence[float] | np.ndarray
  mean: Sequence[float] | np.ndarray
  spread: Sequence[float] | np.ndarray | None = None


def curve_over_seeds(
  rounds: Sequence[float] | np.ndarray,
  series: Sequence[Sequence[float]] | np.ndarray,
) -> Curve:
  """Makes the curve of the mean over seeds, with their spread.

  Args:
    rounds: `[points]`, where the values were taken.
    series: `[seeds, points]` values.

  Returns:
    The curve; the spread of a single seed is None.
  """
  spread = np.std(series, axis=0, ddof=1) if len(series) > 1 else None
  return Curve(rounds, np.mean(series, axis=0), spread)


def learning_curves(
  curves: Mapping[str, Curve],
  path: str | os.PathLike[str],
  ylabel: str,
  title: str = "",
  xlabel: str = "Round",
) -> str | os.PathLike[str]:
  """Draws a value over the rounds, one line per label, with its spread.

  Args:
    curves: The curves by label, in the order of the legend.
    path: The PNG file to write.
    ylabel: Name and unit of the value.
    title: Stands above the axes.
    xlabel: Name of the horizontal axis.

  Returns:
    `path`.

  Raises:
    ValueError: If a curve's arrays differ in length.
  """
  figure, axes = new_figure(title, xlabel, ylabel)
  add_legend(figure, draw_curves(axes, curves))
  return save(figure, path)


def accuracy_per_domain(
  values: Mapping[str, Sequence[float] | np.ndarray],
  domain_names: Sequence[str],
  target_index: int | None,
  path: str | os.PathLike[str],
  title: str = "",
  ylabel: str = "Accuracy (%)",
) -> str | os.PathLike[str]:
  """Draws a value on each domain, one line per label.

  Args:
    values: For each label, `[num_domains]` values; NaN leaves a gap.
    domain_names: The names of the domains, in their order.
    target_index: The domain to mark as the held-out target; None marks none.
    path: The PNG file to write.
    title: Stands above the axes.
    ylabel: Name and unit of the value.

  Returns:
    `path`.

  Raises:
    ValueError: If a label has not one value per domain, or if there is no
      domain with the index of the target.
  """
  num_domains = len(domain_names)
  if target_index is not None and not 0 <= target_index < num_domains:
    raise ValueError(
      f"target_index must be 0 to {num_domains - 1}; got {target_index}"
    )
  figure, axes = new_figure(title, "Domain", ylabel)
  if target_index is not None:
    edges = target_index - 0.5, target_index + 0.5
    axes.axvspan(*edges, color="0.85", linewidth=0, label="target (held out)")
  for index, (label, row) in enumerate(values.items()):
    check_length(label, "values", row, num_domains)
    axes.plot(range(num_domains), row, label=label, **line_style(index))
  axes.set_xlim(-0.5, num_domains - 0.5)
  ticks = thinned(num_domains, target_index)
  names = [str(domain_names[tick]) for tick in ticks]
  crowded = sum(len(name) + 2 for name in names) > 70
  axes.set_xticks(ticks, names, rotation=90 if crowded else 0)
  add_legend(figure)
  return save(figure, path)


def example_images(
  images_by_row: Mapping[str, np.ndarray],
  path: str | os.PathLike[str],
  title: str = "",
) -> str | os.PathLike[str]:
  """Draws a grid of example images, one named row per domain or client.

  Args:
    images_by_row: For each row, `[count, height, width]` or
      `[count, height, width, 1]` (grey) or `[count, height, width, 3]` (RGB)
      uint8 images. Height and width are the same in all rows; the count may
      differ.
    path: The PNG file to write.
    title: Stands above the grid.

  Returns:
    `path`.

  Raises:
    ValueError: If the images are not uint8 images of one size, or if there are
      none.
  """
  rows = [_as_rgb(name, images) for name, images in images_by_row.items()]
  sizes = {images.shape[1:3] for images in rows}
  if len(sizes) != 1:
    raise ValueError(f"images must have one size; got {sorted(sizes)}")
  height, width = sizes.pop()
  # Whole screen pixels per image pixel, so that no image is blurred.
  scale = max(1, round(72 / max(height, width)))
  gap = 4
  cell_height, cell_width = scale * height + gap, scale * width + gap
  num_columns = max(len(images) for images in rows)
  shape = (cell_height * len(rows) + gap, cell_width * num_columns + gap, 3)
  canvas = np.full(shape, 255, np.uint8)
  for row, images in enumerate(rows):
    for column, image in enumerate(images):
      enlarged = image.repeat(scale, axis=0).repeat(scale, axis=1)
      top, left = gap + row * cell_height, gap + column * cell_width
      canvas[top : top + len(enlarged), left : left + enlarged.shape[1]] = (
        enlarged
      )

  # Margins in pixels; few characters of a label are wider than ten of them.
  left = 20 + 10 * max(len(name) for name in images_by_row)
  top = 36 if title else 6
  full_width = left + shape[1] + 6
  full_height = top + shape[0] + 6
  figure = Figure((full_width / _DPI, full_height / _DPI), dpi=_DPI)
  axes = figure.add_axes(
    (
      left / full_width,
      6 / full_height,
      shape[1] / full_width,
      shape[0] / full_height,
    )
  )
  axes.imshow(canvas, interpolation="nearest", aspect="auto")
  centers = [gap / 2 + (row + 0.5) * cell_height for row in range(len(rows))]
  axes.set_yticks(centers, list(images_by_row), fontsize=TICK_SIZE)
  axes.set_xticks([])
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  axes.set_title(title, fontsize=TITLE_SIZE, loc="left")
  return save(figure, path)


def scatter_domains(
  points_by_domain: Mapping[str, np.ndarray],
  labels_by_domain: Mapping[str, np.ndarray],
  path: str | os.PathLike[str],
  title: str = "",
  class_names: Sequence[str] | None = None,
) -> str | os.PathLike[str]:
  """Draws the points of all domains: domain as colour, class as marker.

  Args:
    points_by_domain: For each domain, in order, `[count, 2]` points.
    labels_by_domain: For each domain, `[count]` integer class labels.
    path: The PNG file to write.
    title: Stands above the axes.
    class_names: Names of the classes; by default `class 0` and so on.

  Returns:
    `path`.

  Raises:
    ValueError: If a domain's points are not two-dimensional or lack labels.
  """
  figure, axes = new_figure(title, "", "")
  names = list(points_by_domain)
  # Up to 0.95: the last yellow of the map is too pale for thin markers.
  colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(names)))
  classes = sorted(
    {int(label) for labels in labels_by_domain.values() for label in labels}
  )
  for name, color in zip(names, colors, strict=True):
    points = np.asarray(points_by_domain[name])
    if points.ndim != 2 or points.shape[1] != 2:
      raise ValueError(
        f"points of {name} must be [count, 2]; got {list(points.shape)}"
      )
    labels = np.asarray(labels_by_domain.get(name, ()))
    check_length(name, "labels", labels, len(points))
    for index, label in enumerate(classes):
      axes.scatter(
        *points[labels == label].T,
        s=14,
        marker=_MARKERS[index % len(_MARKERS)],
        facecolors=color if index % 2 == 0 else "none",
        edgecolors=color,
        linewidths=0.8,
        alpha=0.7,
      )
  for index, label in enumerate(classes):
    axes.scatter(
      [],
      [],
      marker=_MARKERS[index % len(_MARKERS)],
      facecolors="black" if index % 2 == 0 else "none",
      edgecolors="black",
      label=class_names[label] if class_names else f"class {label}",
    )
  axes.set_aspect("equal", adjustable="datalim")
  ticks = thinned(len(names), None)
  color_bar = figure.colorbar(
    cm.ScalarMappable(
      BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names)),
      ListedColormap(colors),
    ),
    ax=axes,
    location="bottom",
    aspect=50,
    ticks=ticks,
  )
  color_bar.set_ticklabels(
    [names[tick] for tick in ticks], size=TICK_SIZE, rotation=45, ha="right"
  )
  color_bar.minorticks_off()
  color_bar.set_label("Domain", size=LABEL_SIZE)
  add_legend(figure)
  return save(figure, path)


def blank_figure(height: float = 4.5) -> Figure:
  """Returns a figure without axes, 8 inches wide and `height` inches high."""
  figure = Figure(figsize=(8, height), dpi=_DPI)
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
  axes.set_title(title, fontsize=TITLE_SIZE, loc="left")
  axes.set_xlabel(xlabel, fontsize=LABEL_SIZE)
  axes.set_ylabel(ylabel, fontsize=LABEL_SIZE)
  axes.tick_params(labelsize=TICK_SIZE)
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="0.9", linewidth=0.8)
  axes.set_axisbelow(True)


def draw_curves(axes: Axes, curves: Mapping[str, Curve]) -> str:
  """Draws curves with their spread and returns the title of their legend.

  Args:
    axes: Where to draw; its horizontal axis gets whole numbers only.
    curves: The curves by label.

  Returns:
    What lines and bands mean, or an empty text where there are no bands.

  Raises:
    ValueError: If a curve's arrays differ in length.
  """
  has_spread = False
  for index, (label, curve) in enumerate(curves.items()):
    rounds, mean, spread = Curve(*curve)
    check_length(label, "mean", mean, len(rounds))
    style = line_style(index)
    # About ten markers on a line, and never on the same rounds for all lines.
    stride = max(1, len(rounds) // 10)
    first = index * stride // max(1, len(curves))
    axes.plot(rounds, mean, label=label, markevery=(first, stride), **style)
    if spread is not None:
      check_length(label, "spread", spread, len(rounds))
      low, high = np.subtract(mean, spread), np.add(mean, spread)
      axes.fill_between(
        rounds, low, high, color=style["color"], alpha=0.15, linewidth=0
      )
      has_spread = True
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
  )
  return "mean ± std. dev." if has_spread else ""


def line_style(index: int) -> dict[str, object]:
  """Returns colour, marker and line style of the line with this index."""
  return {
    "color": _COLORS[index % len(_COLORS)],
    "marker": _MARKERS[index % len(_MARKERS)],
    "linestyle": _LINE_STYLES[index // len(_COLORS) % len(_LINE_STYLES)],
    "linewidth": 1.8,
    "markersize": 5,
  }


def add_legend(figure: Figure, title: str = "") -> None:
  """Adds the legend outside the axes, where it hides no data."""
  figure.legend(
    loc="outside right upper",
    fontsize=TICK_SIZE,
    title=title or None,
    title_fontsize=TICK_SIZE,
    frameon=False,
  )


def thinned(count: int, kept: int | None) -> list[int]:
  """Returns evenly spaced indices, few enough to label, with `kept` among."""
  stride = -(-count // _MAX_TICK_LABELS)
  indices = list(range(0, count, stride))
  if kept is not None and kept not in indices:
    # A neighbour closer than a stride would overlap with the kept label.
    indices = [index for index in indices if abs(index - kept) >= stride]
    indices = sorted([*indices, kept])
  return indices


def _as_rgb(name: str, images: np.ndarray) -> np.ndarray:
  """Returns `[count, height, width, 3]` uint8 images."""
  images = np.asarray(images)
  if images.ndim == 3:
    images = images[..., np.newaxis]
  valid = images.ndim == 4 and images.shape[-1] in (1, 3)
  if images.dtype != np.uint8 or not valid:
    raise ValueError(
      f"images of {name} must be uint8 [count, height, width] or"
      f" [count, height, width, 1 or 3]; got {images.dtype}"
      f" {list(images.shape)}"
    )
  return np.broadcast_to(images, (*images.shape[:3], 3))


def check_length(
  name: str, what: str, values: Sequence[float] | np.ndarray, expected: int
) -> None:
  """Raises a ValueError if values have not the expected number of entries."""
  if len(values) != expected:
    raise ValueError(
      f"{name}: {what} must have {expected} entries; got {len(values)}"
    )


def save(
  figure: Figure, path: str | os.PathLike[str]
) -> str | os.PathLike[str]:
  """Writes the figure as a PNG file and returns `path`."""
  FigureCanvasAgg(figure).print_png(path)
  return path
