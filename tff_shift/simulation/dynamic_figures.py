"""Figures of data that drift from period to period, one PNG file each.

They look like those of `figures` and, like them, leave the global state of
matplotlib alone. Periods count from 1: period 0 only starts a stream.
"""

import math
import os
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift.simulation import figures

_GREY, _PALE = "0.35", "0.85"


def accuracy_over_periods(
  curves: Mapping[str, figures.Curve],
  validation: Mapping[str, float],
  drifted: Sequence[float] | np.ndarray,
  detected: Sequence[float] | np.ndarray,
  path: str | os.PathLike[str],
) -> str | os.PathLike[str]:
  """Draws accuracies over the periods (Fed-3DA, Fig. 4), and drifts below them.

  A short line at the left marks the validation accuracy of the curve of its
  colour. Below, bars tell how many clients drift in a period, and points how
  many of them see a drift.

  Args:
    curves: The curves by label, in the order of the legend; the arrays of each
      have an entry for each period, from 1 on, in percent.
    validation: For each label, the validation accuracy in percent.
    drifted: `[periods]` percent of the clients, whose data drift.
    detected: `[periods]` percent of the clients, which see a drift.
    path: The PNG file to write.

  Returns:
    `path`.

  Raises:
    ValueError: If there is not one value per period, or not one validation
      accuracy per curve.
  """
  num_periods = len(drifted)
  figures.check_length("detected", "values", detected, num_periods)
  if validation.keys() != curves.keys():
    raise ValueError(
      f"validation must have the curves {list(curves)}; got {list(validation)}"
    )
  for label, curve in curves.items():
    figures.check_length(
      label, "periods", figures.Curve(*curve).rounds, num_periods
    )
  figure = figures.blank_figure(height=5.5)
  upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
  figures.style_axes(upper, "", "", "Accuracy (%)")
  figures.style_axes(lower, "", "Period", "Clients (%)")
  legend_title = figures.draw_curves(upper, curves)
  # As wide as three hundredths of the periods, and left of the first.
  left = 1 - 0.05 * num_periods
  right = 1 - 0.02 * num_periods
  for index, label in enumerate(curves):
    upper.hlines(
      validation[label],
      left,
      right,
      color=figures.line_style(index)["color"],
      linewidth=2.5,
    )
  steps = np.arange(1, num_periods + 1)
  lower.bar(steps, drifted, width=0.8, color=_PALE, label="drifts")
  lower.plot(
    steps,
    detected,
    label="drift detected",
    color=_GREY,
    linestyle="none",
    marker="o",
    markersize=3.5,
  )
  lower.set_ylim(-5, 105)
  figures.add_legend(figure, legend_title)
  return figures.save(figure, path)


def distance_over_periods(
  distances: Sequence[float] | np.ndarray,
  drifted: Sequence[bool] | np.ndarray,
  threshold: float,
  path: str | os.PathLike[str],
  *,
  title: str,
) -> str | os.PathLike[str]:
  """Draws how far a client's data are from those of the period before.

  Bands mark the periods that truly drift, and the points are those that the
  client takes for a drift.

  Args:
    distances: `[periods]`, from period 1 on.
    drifted: `[periods]`, whether the distribution is another.
    threshold: DT; infinity is not drawn.
    path: The PNG file to write.
    title: Stands above the axes.

  Returns:
    `path`.

  Raises:
    ValueError: If there is not one value per period.
  """
  distances = np.asarray(distances)
  figures.check_length("drifted", "values", drifted, len(distances))
  figure, axes = figures.new_figure(title, "Period", "Distance")
  label = "drift"
  for index in np.flatnonzero(drifted):
    # A period stands at its number.
    axes.axvspan(
      index + 0.5, index + 1.5, color=_PALE, linewidth=0, label=label
    )
    # One band is enough for the legend.
    label = "_nolegend_"
  steps = np.arange(1, len(distances) + 1)
  style = figures.line_style(0)
  axes.plot(
    steps, distances, color=style["color"], linewidth=1.2, label="distance"
  )
  is_above = distances > threshold
  axes.plot(
    steps[is_above],
    distances[is_above],
    label="drift detected",
    color=style["color"],
    linestyle="none",
    marker="o",
    markersize=5,
  )
  if math.isfinite(threshold):
    axes.axhline(
      threshold, color=_GREY, linestyle="--", linewidth=1.4, label="DT"
    )
  axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
  figures.add_legend(figure)
  return figures.save(figure, path)
