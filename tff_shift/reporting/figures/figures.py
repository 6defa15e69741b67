"""Figures of a run folder: plots arrays as a PNG and a PDF file.

The module `drawing` has the common parts of figures.
"""

import textwrap
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import cm
from matplotlib.colors import BoundaryNorm
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tff_shift.reporting.figures import drawing

# The fraction of a domain's width over which lines are spread.
_DODGE = 0.5

# Example texts: the maximum length of a line in characters, the height of a
# line in inches, and the fraction of the width for the names of groups.
_TEXT_WIDTH = 80
_TEXT_LINE = 0.19
_TEXT_INDENT = 0.16
# The length of a name that fits in this width.
_TEXT_NAME = 18

# The minimum width of the title of an image grid, in inches.
_NARROWEST_TITLE = 3.0


def learning_curves(
  curves: Mapping[str, drawing.Curve],
  path: drawing.Path,
  ylabel: str,
  title: str = "",
  xlabel: str = "Round",
) -> drawing.Path:
  """Plots a value over rounds, one line with a band per label.

  Args:
    curves: The curves by label, in the order of the legend.
    path: The PNG file; the PDF file is written next to it.
    ylabel: Name and unit of the value.
    title: The title.
    xlabel: Name of the horizontal axis.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure(title, xlabel, ylabel)
  drawing.draw_curves(axes, curves)
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def accuracy_per_domain(
  values: Mapping[str, drawing.BySeed],
  domain_names: Sequence[str],
  target_index: int | None,
  path: drawing.Path,
  title: str = "",
  ylabel: str = "Accuracy (%)",
) -> drawing.Path:
  """Plots a value per domain, one line per label, with error bars.

  Args:
    values: For each label, `[seeds, num_domains]` values; NaN leaves a gap.
    domain_names: The names of the domains, in order.
    target_index: The index of the held-out target, which is marked, or None.
    path: The PNG file; the PDF file is written next to it.
    title: The title.
    ylabel: Name and unit of the value.

  Returns:
    `path`.
  """
  num_domains = len(domain_names)
  figure, axes = drawing.new_figure(title, "Domain", ylabel)
  if target_index is not None:
    edges = target_index - 0.5, target_index + 0.5
    axes.axvspan(
      *edges, color=drawing.PALE, linewidth=0, label="target (held out)"
    )
  for index, (label, by_seed) in enumerate(values.items()):
    # Next to each other within a domain, so that error bars do not overlap.
    offset = 0.0
    if len(by_seed) > 1:
      offset = _DODGE * ((index + 0.5) / len(values) - 0.5)
    x, style = np.arange(num_domains) + offset, drawing.line_style(index)
    axes.plot(x, np.mean(by_seed, axis=0), label=drawing.label(label), **style)
    drawing.draw_error_bars(axes, x, by_seed, style["color"])
  axes.set_xlim(-0.5, num_domains - 0.5)
  ticks = drawing.thinned(num_domains, target_index)
  names = [domain_names[tick] for tick in ticks]
  crowded = sum(len(drawing.shown(name)) + 2 for name in names) > 70
  drawing.name_ticks(axes.xaxis, ticks, names, rotation=90 if crowded else 0)
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def example_images(
  images_by_row: Mapping[str, np.ndarray],
  path: drawing.Path,
  title: str = "",
) -> drawing.Path:
  """Plots a grid of example images, one named row per domain or client.

  Args:
    images_by_row: For each row, `[count, height, width]` or
      `[count, height, width, 1]` (grey) or `[count, height, width, 3]` (RGB)
      uint8 images. All rows have the same height and width; counts may differ.
    path: The PNG file; the PDF file is written next to it.
    title: The title.

  Returns:
    `path`.
  """
  rows = [_as_rgb(images) for images in images_by_row.values()]
  height, width = rows[0].shape[1:3]
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

  # Margins in pixels. Few characters of a label are wider than ten pixels.
  left = 20 + 10 * max(len(drawing.shown(name)) for name in images_by_row)
  inches = max(shape[1] / drawing.DPI, _NARROWEST_TITLE)
  title_lines = drawing.title_lines(title, inches).splitlines()
  line_height = round(drawing.TITLE_LINE * drawing.DPI)
  top = 12 + line_height * len(title_lines) if title else 6
  # A title may be wider than the images.
  title_width = (
    drawing.DPI
    * drawing.TITLE_CHARACTER
    * max(map(len, title_lines), default=0)
  )
  full_width = left + max(shape[1], round(title_width)) + 6
  full_height = top + shape[0] + 6
  figure = Figure(
    (full_width / drawing.DPI, full_height / drawing.DPI), dpi=drawing.DPI
  )
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
  drawing.name_ticks(
    axes.yaxis, centers, list(images_by_row), fontsize=drawing.TICK_SIZE
  )
  axes.set_xticks([])
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  drawing.set_title(axes, title, inches)
  return drawing.save(figure, path)


def example_texts(
  texts_by_row: Mapping[str, Sequence[str]],
  path: drawing.Path,
  title: str = "",
) -> drawing.Path:
  """Plots example texts as lines in named groups.

  Args:
    texts_by_row: For each domain, its texts; long texts are shortened.
    path: The PNG file; the PDF file is written next to it.
    title: The title.

  Returns:
    `path`.
  """
  groups = [
    [
      # Keeps the beginning of a longer text.
      drawing.shown(
        textwrap.shorten(each, _TEXT_WIDTH, placeholder=" …"), _TEXT_WIDTH
      )
      for each in texts
    ]
    for texts in texts_by_row.values()
  ]
  # Plus the title; each group is followed by an empty line.
  num_lines = 2 + sum(1 + len(group) for group in groups)
  figure = drawing.blank_figure(_TEXT_LINE * num_lines)
  axes = figure.add_subplot()
  axes.set_axis_off()
  drawing.set_title(axes, title)
  axes.set_xlim(0, 1)
  axes.set_ylim(num_lines - 2, 0)
  line = 0.5
  for name, group in zip(texts_by_row, groups, strict=True):
    style: dict[str, Any] = {"fontsize": drawing.TICK_SIZE, "va": "center"}
    shown = drawing.shown(name, _TEXT_NAME)
    axes.text(0, line, shown, color=drawing.GREY, **style)
    for position, each in enumerate(group):
      axes.text(_TEXT_INDENT, line + position, each, **style)
    line += len(group) + 1
  return drawing.save(figure, path)


def scatter_domains(
  points_by_domain: Mapping[str, np.ndarray],
  labels_by_domain: Mapping[str, np.ndarray],
  path: drawing.Path,
  title: str = "",
  class_names: Sequence[str] | None = None,
) -> drawing.Path:
  """Plots the points of all domains: domain as colour, class as marker.

  Args:
    points_by_domain: For each domain, in order, `[count, 2]` points.
    labels_by_domain: For each domain, `[count]` integer class labels.
    path: The PNG file; the PDF file is written next to it.
    title: The title.
    class_names: Names of the classes. Default: `class 0` and so on.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure(title, "", "")
  names = list(points_by_domain)
  # Up to 0.95: the last yellow of the map is too pale for thin markers.
  colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(names)))
  classes = sorted(
    {int(label) for labels in labels_by_domain.values() for label in labels}
  )
  for name, color in zip(names, colors, strict=True):
    for index, label in enumerate(classes):
      x, y = points_by_domain[name][labels_by_domain[name] == label].T
      axes.scatter(
        x,
        y,
        s=14,
        marker=drawing.MARKERS[index % len(drawing.MARKERS)],
        facecolors=color if index % 2 == 0 else "none",
        edgecolors=color,
        linewidths=0.8,
        alpha=0.7,
      )
  for index, label in enumerate(classes):
    axes.scatter(
      [],
      [],
      marker=drawing.MARKERS[index % len(drawing.MARKERS)],
      facecolors="black" if index % 2 == 0 else "none",
      edgecolors="black",
      label=drawing.label(
        class_names[label] if class_names else f"class {label}"
      ),
    )
  axes.set_aspect("equal", adjustable="datalim")
  ticks = drawing.thinned(len(names), None)
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
  drawing.name_ticks(
    color_bar.long_axis,
    ticks,
    [names[tick] for tick in ticks],
    size=drawing.TICK_SIZE,
    rotation=45,
    ha="right",
  )
  color_bar.minorticks_off()
  color_bar.set_label("Domain", size=drawing.LABEL_SIZE)
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def _as_rgb(images: np.ndarray) -> np.ndarray:
  """Returns `[count, height, width, 3]` uint8 images."""
  if images.ndim == 3:
    images = images[..., np.newaxis]
  return np.broadcast_to(images, (*images.shape[:3], 3))
