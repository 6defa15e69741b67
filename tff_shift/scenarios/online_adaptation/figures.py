"""Figures of online adaptation: plots arrays as a PNG and a PDF file.

The module `drawing` has the common parts of figures. Time steps run from 1 to
T. Step 0 is the state before adaptation; it has omega(0) but no accuracy.
"""

from collections.abc import Mapping
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from tff_shift.reporting.figures import drawing


def accuracy_over_time(
  curves: Mapping[str, drawing.Curve],
  omega: np.ndarray | None,
  path: drawing.Path,
  *,
  ylabel: str,
  time_names: Sequence[str] = (),
) -> drawing.Path:
  """Plots the accuracy of each algorithm over time, with omega(t) below it.

  Args:
    curves: The curves by label, in the order of the legend, with T points each.
    omega: `[seeds, T + 1]`, the weight of the final distribution at steps 0 to
      T, in [0, 1]. None: not known, and not drawn.
    path: The PNG file; the PDF file is written next to it.
    ylabel: Name and unit of the accuracy.
    time_names: The names of the steps from 0. Empty: their numbers.

  Returns:
    `path`.
  """
  if omega is None:
    figure, axes = drawing.new_figure("", "Time step", ylabel)
    drawing.draw_curves(axes, curves)
    steps = next(iter(curves.values())).rounds
    drawing.name_steps(axes.xaxis, time_names, len(steps))
    drawing.add_legend(figure)
    return drawing.save(figure, path)
  num_steps = np.shape(omega)[-1] - 1
  figure, upper, lower = _two_panels(ylabel, "Weight ω(t)", (3, 1))
  drawing.draw_curves(upper, curves)
  # Steps are centred at their time, because omega is only defined there.
  steps = np.arange(num_steps + 1)
  lower.step(
    steps,
    np.mean(omega, axis=0),
    where="mid",
    label="ω(t)",
    color=drawing.GREY,
    linewidth=1.8,
  )
  drawing.draw_band(lower, steps, omega, drawing.GREY, step="mid")
  # Slightly wider than [0, 1], so that lines are not cut at the edge.
  lower.set_ylim(-0.08, 1.08)
  lower.set_yticks([0, 0.5, 1])
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def rates_over_time(
  rates: Mapping[str, np.ndarray],
  shifts: Mapping[str, np.ndarray],
  path: drawing.Path,
  *,
  title: str,
  time_names: Sequence[str] = (),
) -> drawing.Path:
  """Plots clients' learning rates over time, and their true shift below.

  Args:
    rates: For each client, `[T]` learning rates of steps 1 to T.
    shifts: For each client of `rates`, `[T]` true shifts |Q_t - Q_{t-1}|_1.
    path: The PNG file; the PDF file is written next to it.
    title: The title.
    time_names: The names of the steps from 0. Empty: their numbers.

  Returns:
    `path`.
  """
  num_steps = len(next(iter(rates.values())))
  figure, upper, lower = _two_panels(
    "Learning rate η", "True shift |Q(t) - Q(t-1)|₁", (1, 1)
  )
  drawing.set_title(upper, title)
  steps = np.arange(1, num_steps + 1)
  drawing.draw_curves(
    upper, {name: drawing.Curve(steps, [rates[name]]) for name in rates}
  )
  # The legend already has the clients of the upper panel.
  drawing.draw_curves(
    lower,
    {name: drawing.Curve(steps, [shifts[name]]) for name in rates},
    in_legend=False,
  )
  for axes in (upper, lower):
    # Clients have peaks at the same steps: thin lines hide no peak, and markers
    # show its height.
    for line in axes.lines:
      line.set(linewidth=0.8, markersize=3.5, markevery=1)
    axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 4))
  drawing.name_steps(lower.xaxis, time_names, num_steps)
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def class_distributions(
  estimated: np.ndarray,
  true: np.ndarray,
  class_names: Sequence[str],
  path: drawing.Path,
  *,
  title: str,
  time_names: Sequence[str] = (),
) -> drawing.Path:
  """Plots the estimated and the true label distribution over time.

  The colour is the square root of the probability, on a common scale, because
  most probabilities are close to 0 with many classes.

  Args:
    estimated: `[T, I]` probabilities of steps 1 to T; NaN is grey.
    true: `[T, I]` probabilities.
    class_names: The I names of the classes.
    path: The PNG file; the PDF file is written next to it.
    title: The title.
    time_names: The names of the steps from 0. Empty: their numbers.

  Returns:
    `path`.
  """
  num_steps, num_classes = estimated.shape
  figure = drawing.blank_figure()
  panels = figure.subplots(1, 2, sharex=True, sharey=True)
  drawing.set_figure_title(figure, title)
  scale = PowerNorm(0.5, vmin=0, vmax=1)
  color_map = matplotlib.colormaps["viridis"].with_extremes(bad="0.85")
  sides = [("Estimated", "Class", estimated), ("True", "", true)]
  for axes, (name, ylabel, values) in zip(panels, sides, strict=True):
    drawing.style_axes(axes, name, "Time step", ylabel)
    axes.grid(visible=False)
    image = axes.imshow(
      values.T,
      cmap=color_map,
      norm=scale,
      aspect="auto",
      extent=(0.5, num_steps + 0.5, num_classes - 0.5, -0.5),
    )
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
  for axes in panels:
    drawing.name_steps(axes.xaxis, time_names, num_steps)
  ticks = drawing.thinned(num_classes, None)
  drawing.name_ticks(
    panels[0].yaxis, ticks, [class_names[tick] for tick in ticks]
  )
  color_bar = figure.colorbar(
    image, ax=panels, aspect=30, ticks=(0, 0.01, 0.05, 0.1, 0.2, 0.5, 1)
  )
  color_bar.set_label("Probability", size=drawing.LABEL_SIZE)
  color_bar.ax.tick_params(labelsize=drawing.TICK_SIZE)
  return drawing.save(figure, path)


def shift_scatter(
  true: Mapping[str, np.ndarray],
  estimated: Mapping[str, np.ndarray],
  path: drawing.Path,
  *,
  xlabel: str,
  ylabel: str,
  title: str,
) -> drawing.Path:
  """Plots measured against true cumulative shift, one point per client.

  Args:
    true: For each schedule, `[C]` true cumulative shifts of the clients.
    estimated: For each schedule of `true`, `[C]` measured cumulative shifts.
    path: The PNG file; the PDF file is written next to it.
    xlabel: Name of the true shift.
    ylabel: Name of the measured shift.
    title: The title.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure(title, xlabel, ylabel)
  for index, name in enumerate(true):
    style = drawing.line_style(index) | {"linestyle": "none"}
    # Translucent, because clients overlap.
    axes.plot(
      true[name],
      estimated[name],
      label=drawing.label(name),
      alpha=0.75,
      **style,
    )
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def _two_panels(
  upper_label: str, lower_label: str, height_ratios: tuple[int, int]
) -> tuple[Figure, Axes, Axes]:
  """Returns a figure with two panels over time steps."""
  figure = drawing.blank_figure(height=5.5)
  upper, lower = figure.subplots(2, sharex=True, height_ratios=height_ratios)
  drawing.style_axes(upper, "", "", upper_label)
  drawing.style_axes(lower, "", "Time step", lower_label)
  return figure, upper, lower
