"""Figures of client guidance, each a PNG and a PDF file.

The module `drawing` has the common parts of figures.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes

from tff_shift.data.images import color_transforms
from tff_shift.reporting.figures import drawing

# With more clients, there are more image columns.
_MAX_LARGE_IMAGES = 16
_FEW_COLUMNS, _MANY_COLUMNS = 4, 5


def client_transforms(
  sample: np.ndarray,
  transforms: Sequence[color_transforms.ColorTransform],
  path: drawing.Path,
) -> drawing.Path:
  """Plots an image as each client sees it (FedDRM, Fig. 7 and 9 to 11).

  Args:
    sample: `[height, width, 3]` uint8, the image before any transform.
    transforms: The colour transform of each client.
    path: The PNG file; the PDF file is written next to it.

  Returns:
    `path`.
  """
  images = [
    color_transforms.apply(sample[np.newaxis], transform)[0]
    for transform in transforms
  ]
  is_few = len(images) <= _MAX_LARGE_IMAGES
  num_columns = _FEW_COLUMNS if is_few else _MANY_COLUMNS
  num_rows = math.ceil(len(images) / num_columns)
  # A square cell, and 0.4 inches for the two lines of its title.
  figure = drawing.blank_figure(height=num_rows * (8 / num_columns + 0.4))
  cells = figure.subplots(num_rows, num_columns, squeeze=False).flat
  for axes in cells:
    axes.set_axis_off()
  for client, (image, transform) in enumerate(
    zip(images, transforms, strict=True)
  ):
    axes = cells[client]
    axes.imshow(image, interpolation="nearest")
    axes.set_title(_caption(client, transform), fontsize=drawing.TICK_SIZE)
  return drawing.save(figure, path)


def class_counts(
  counts: np.ndarray,
  class_names: Sequence[str],
  path: drawing.Path,
  *,
  title: str,
) -> drawing.Path:
  """Plots the number of examples per client and class (FedDRM, Fig. 8).

  The upper panel shows the clients' sizes. The lower panel shows a colour per
  client and class, on a common scale from 0.

  Args:
    counts: `[clients, classes]` numbers of examples.
    class_names: The names of the classes.
    path: The PNG file; the PDF file is written next to it.
    title: The title.

  Returns:
    `path`.
  """
  num_clients, num_classes = counts.shape
  figure = drawing.blank_figure(height=5.5)
  upper, lower = figure.subplots(2, sharex=True, height_ratios=(1, 3))
  # Above the figure: next to long class names, the axes are too narrow.
  drawing.set_figure_title(figure, title)
  drawing.style_axes(upper, "", "", "Examples")
  drawing.style_axes(lower, "", "Client", "Class")
  upper.bar(
    range(num_clients),
    counts.sum(axis=1),
    color=drawing.line_style(0)["color"],
    width=0.7,
  )
  lower.grid(visible=False)
  image = lower.imshow(counts.T, cmap="viridis", vmin=0, aspect="auto")
  _client_ticks(lower, num_clients)
  ticks = drawing.thinned(num_classes, None)
  drawing.name_ticks(lower.yaxis, ticks, [class_names[tick] for tick in ticks])
  color_bar = figure.colorbar(image, ax=lower, aspect=20)
  color_bar.set_label("Examples of the class", size=drawing.LABEL_SIZE)
  color_bar.ax.tick_params(labelsize=drawing.TICK_SIZE)
  return drawing.save(figure, path)


def routing_matrix(
  counts: np.ndarray, path: drawing.Path, *, title: str
) -> drawing.Path:
  """Plots to which client the queries of each client are routed.

  Args:
    counts: `[clients, clients]`; entry (i, j) is the number of queries from
      client i that are routed to client j. Rows are shown in percent of their
      sum, with numbers if there are few clients. Rows without queries are grey.
    path: The PNG file; the PDF file is written next to it.
    title: The title.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure(title, "Guided to client", "From client")
  drawing.draw_row_percentages(
    figure, axes, counts, "Queries of the client (%)"
  )
  _client_ticks(axes, len(counts))
  axes.set_yticks(axes.get_xticks())
  return drawing.save(figure, path)


def trade_off(
  lambdas: Sequence[float] | np.ndarray,
  curves: Mapping[str, drawing.BySeed],
  path: drawing.Path,
) -> drawing.Path:
  """Plots accuracies over the weight of the class loss (FedDRM, Fig. 4).

  Args:
    lambdas: `[points]` weights, ascending.
    curves: For each kind of accuracy, `[seeds, points]` values in percent.
    path: The PNG file; the PDF file is written next to it.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure("", "Weight λ", "Accuracy (%)")
  drawing.draw_curves(
    axes,
    {name: drawing.Curve(lambdas, by_seed) for name, by_seed in curves.items()},
  )
  # Weights are fractions; `draw_curves` labels whole numbers, for rounds.
  axes.xaxis.set_major_locator(ticker.AutoLocator())
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def _caption(client: int, transform: color_transforms.ColorTransform) -> str:
  """Returns two lines: client and gamma, then the other parameters."""
  gamma, hue, saturation, bits = transform
  first = f"client {client}: \N{GREEK SMALL LETTER GAMMA} {gamma:g}"
  second = f"Δh {hue:g}, κ {saturation:g}"
  if bits != color_transforms.ColorTransform().posterize_bits:
    second += f", {bits} bits"
  return f"{first}\n{second}"


def _client_ticks(axes: Axes, num_clients: int) -> None:
  """Labels the horizontal axis with as many clients as fit."""
  axes.set_xticks(drawing.thinned(num_clients, None))
