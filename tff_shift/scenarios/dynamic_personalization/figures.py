"""Figures of dynamic personalization, each a PNG and a PDF file.

The module `drawing` has the common parts of figures. Evaluated periods start at
1; period 0 only initializes a stream.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift.reporting.figures import drawing


def accuracy_over_periods(
  curves: Mapping[str, drawing.Curve],
  validation: Mapping[str, Sequence[float] | np.ndarray],
  drifted: drawing.BySeed | None,
  detected: drawing.BySeed,
  path: drawing.Path,
  *,
  time_names: Sequence[str] = (),
) -> drawing.Path:
  """Plots accuracies over periods (Fed-3DA, Fig. 4), and drifts below them.

  In the upper panel, a short line on the left marks the validation accuracy of
  the curve of the same colour. In the lower panel, bars show the percentage of
  clients with a drift, and points the percentage that detects one.

  Args:
    curves: The curves by label, in the order of the legend, with one point per
      period, starting at 1, in percent.
    validation: For each label, `[seeds]` validation accuracies in percent.
    drifted: `[seeds, periods]` percent of clients whose data drift. None: not
      known, and not drawn.
    detected: `[seeds, periods]` percent of clients that detect a drift; NaN
      leaves a gap.
    path: The PNG file; the PDF file is written next to it.
    time_names: The names of the periods from 0. Empty: their numbers.

  Returns:
    `path`.
  """
  num_periods = np.shape(detected)[-1]
  figure = drawing.blank_figure(height=5.5)
  upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
  drawing.style_axes(upper, "", "", "Accuracy (%)")
  drawing.style_axes(lower, "", "Period", "Clients (%)")
  drawing.draw_curves(upper, curves)
  # To the left of the first period, 3 % of all periods wide.
  left = 1 - 0.05 * num_periods
  right = 1 - 0.02 * num_periods
  of_validation = {"marker": "none", "linewidth": 2.5}
  for index, label in enumerate(curves):
    color = drawing.line_style(index)["color"]
    # Both ends of the line have the same value.
    by_seed = np.repeat(np.reshape(validation[label], (-1, 1)), 2, axis=1)
    upper.plot(
      [left, right], by_seed.mean(axis=0), color=color, **of_validation
    )
    drawing.draw_band(upper, [left, right], by_seed, color)
  upper.plot(
    [], [], label="validation accuracy", color=drawing.GREY, **of_validation
  )
  steps = np.arange(1, num_periods + 1)
  if drifted is not None:
    lower.bar(
      steps,
      np.mean(drifted, axis=0),
      width=0.8,
      color=drawing.PALE,
      label="drifts",
    )
    # Next to the error bars of detection, which are in the middle of a bar.
    drawing.draw_error_bars(lower, steps - 0.25, drifted, drawing.GREY)
  drawing.draw_error_bars(lower, steps, detected, drawing.GREY)
  lower.plot(
    steps,
    np.mean(detected, axis=0),
    label="drift detected",
    color=drawing.GREY,
    linestyle="none",
    marker="o",
    markersize=3.5,
  )
  lower.set_ylim(-5, 105)
  drawing.name_steps(lower.xaxis, time_names, num_periods)
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def distance_over_periods(
  distances: Sequence[float] | np.ndarray,
  drifted: Sequence[bool] | np.ndarray | None,
  threshold: float,
  path: drawing.Path,
  *,
  title: str,
  time_names: Sequence[str] = (),
) -> drawing.Path:
  """Plots the distance of a client's data to the previous period.

  Bands mark true drifts, points mark detected drifts.

  Args:
    distances: `[periods]`, starting at period 1; NaN leaves a gap.
    drifted: `[periods]`, whether the distribution has changed. None: not known,
      and not drawn.
    threshold: The drift threshold DT; infinity is not drawn.
    path: The PNG file; the PDF file is written next to it.
    title: The title.
    time_names: The names of the periods from 0. Empty: their numbers.

  Returns:
    `path`.
  """
  distances = np.asarray(distances)
  if drifted is None:
    drifted = np.zeros(len(distances), bool)
  figure, axes = drawing.new_figure(title, "Period", "Distance")
  label = "drift"
  for index in np.flatnonzero(drifted):
    # A period is centred at its number.
    axes.axvspan(
      index + 0.5, index + 1.5, color=drawing.PALE, linewidth=0, label=label
    )
    # Only one band is in the legend.
    label = "_nolegend_"
  steps = np.arange(1, len(distances) + 1)
  style = drawing.line_style(0)
  axes.plot(
    steps,
    distances,
    color=style["color"],
    linewidth=1.2,
    # A distance between two gaps has no line.
    marker="." if np.isnan(distances).any() else None,
    label="distance",
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
      threshold, color=drawing.GREY, linestyle="--", linewidth=1.4, label="DT"
    )
  locator: Any = axes.xaxis.get_major_locator()
  locator.set_params(integer=True, min_n_ticks=1)
  drawing.name_steps(axes.xaxis, time_names, len(distances))
  drawing.add_legend(figure)
  return drawing.save(figure, path)
