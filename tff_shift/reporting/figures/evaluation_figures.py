"""Figures of an evaluation, returned as Matplotlib figures.

The last expression of a notebook's cell is displayed, with or without
`%matplotlib inline`. Pyplot is not used: nothing has to be closed.
`figure.alt_text` describes the figure in one sentence, for pages that embed it.

Examples:
  >>> figure = ts.figures.distribution_over_clients({"fed_avg": [60, 70, 80]})
  >>> _ = ts.figures.save(figure, folder / "clients.png")  # and clients.pdf
  >>> print(figure.alt_text)
  Accuracy of a client (%) by method. fed_avg: 3 clients, median 70, 10th
  percentile 62, worst 60.
"""

import io
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy import typing as npt
from scipy import stats

from tff_shift._util import arguments
from tff_shift.reporting.figures import drawing

_Style = dict[str, Any]

KINDS = ("auto", "strip", "violin")
# Up to this number of clients, `auto` draws one point per client.
_MOST_POINTS = 200
# In inches. Narrower than the figures of `figures`, with fonts of the same
# size: the text stays readable on a small screen.
_WIDTH = 6.4
_ROW_HEIGHT = 0.62
# Black, because colours are those of methods.
_WORST: _Style = {"color": "black", "marker": "X", "markersize": 9}
_PERCENTILE: _Style = {"color": "black", "marker": "|", "markersize": 22}
_MEDIAN: _Style = {"color": "black", "marker": "D", "markersize": 6}
_DENSITY_POINTS = 200
# A matrix with more classes has no counts in its cells, only percentages.
_MOST_COUNTS = 10
# The bins of the metric `ece`.
_NUM_BINS = 15
# The most methods that the text of a figure describes.
_MOST_DESCRIBED = 8

save = drawing.save


class DescribedFigure(Figure):
  """A figure with a description, which notebooks display.

  Attributes:
    alt_text: What the figure shows, in one line.
  """

  alt_text: str = ""

  def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
    """Returns the image and its description, for notebooks."""
    buffer = io.BytesIO()
    FigureCanvasAgg(self).print_png(buffer)
    return buffer.getvalue(), {"alt": self.alt_text}


def distribution_over_clients(
  values: Mapping[str, npt.ArrayLike],
  *,
  title: str = "",
  xlabel: str = "Accuracy of a client (%)",
  kind: str = "auto",
  higher_is_better: bool = True,
) -> DescribedFigure:
  """Plots the values of single clients, one row per method.

  The worst client, the tenth percentile and the median are marked. The
  percentile interpolates linearly between clients, as NumPy does.

  Args:
    values: For each method, `[num_clients]` values; NaN: the client has none.
    title: The title.
    xlabel: Name and unit of the values.
    kind: `strip`: a point per client. `violin`: the estimated density. `auto`:
      a strip for at most 200 clients.
    higher_is_better: Whether low values are bad. Otherwise the worst client has
      the highest value, and the ninetieth percentile is marked.

  Returns:
    The figure.

  Raises:
    ValueError: If a method has no value, or an argument is not allowed.
  """
  arguments.choice("kind", kind, KINDS)
  if not values:
    raise ValueError("values must have at least 1 method; got 0")
  finite = {name: _client_values(name, each) for name, each in values.items()}
  if kind == "auto":
    most = max(map(len, finite.values()))
    kind = "strip" if most <= _MOST_POINTS else "violin"
  percentile, worst_of = (10, np.min) if higher_is_better else (90, np.max)
  figure = _figure(1.1 + _ROW_HEIGHT * len(finite))
  axes = figure.add_subplot()
  drawing.style_axes(axes, title, xlabel, "")
  described = []
  for row, (name, of_clients) in enumerate(finite.items()):
    color = drawing.COLORS[row % len(drawing.COLORS)]
    if kind == "violin" and np.ptp(of_clients) > 0:
      _draw_violin(axes, of_clients, row, color)
    else:
      _draw_strip(axes, of_clients, row, color)
    worst = worst_of(of_clients)
    tenth, median = np.percentile(of_clients, (percentile, 50))
    for value, style, text in (
      (tenth, _PERCENTILE, f"{percentile}th percentile"),
      (median, _MEDIAN, "median"),
      (worst, _WORST, "worst client"),
    ):
      axes.plot(
        value,
        row,
        linestyle="none",
        # Only the first row is in the legend.
        label="_nolegend_" if row else text,
        markeredgecolor="white" if style is not _PERCENTILE else None,
        zorder=3,
        **style,
      )
    described.append(
      f"{drawing.shown(name)}: {len(of_clients)} clients, median {median:.4g},"
      f" {percentile}th percentile {tenth:.4g}, worst {worst:.4g}"
    )
  drawing.name_ticks(axes.yaxis, range(len(finite)), list(finite))
  axes.set_ylim(len(finite) - 0.5, -0.5)
  axes.grid(visible=False, axis="y")
  drawing.add_legend_below(figure)
  return _finish(figure, f"{xlabel} by method", described)


def _client_values(name: str, values: npt.ArrayLike) -> np.ndarray:
  """Returns the values of the clients that have one, `[n]`."""
  array = np.asarray(values, np.float64)
  if array.ndim != 1:
    raise ValueError(
      f"{name}: values must be [num_clients]; got {list(array.shape)}"
    )
  if np.isinf(array).any():
    raise ValueError(f"{name}: values must be finite or NaN; got infinity")
  found = array[~np.isnan(array)]
  if not len(found):
    raise ValueError(f"{name}: at least 1 client must have a value; got none")
  return found


def _draw_strip(axes: Axes, values: np.ndarray, row: int, color: str) -> None:
  """Draws a point per client; clients of nearly equal values lie apart."""
  # The golden ratio spreads neighbours of the order without chance.
  golden = (np.sqrt(5) - 1) / 2
  spread = 0.5 * (np.arange(len(values)) * golden % 1 - 0.5)
  axes.plot(
    np.sort(values),
    row + spread,
    linestyle="none",
    marker="o",
    markersize=5,
    color=color,
    alpha=0.6,
    markeredgewidth=0,
  )


def _draw_violin(axes: Axes, values: np.ndarray, row: int, color: str) -> None:
  """Draws the estimated density, scaled to the height of the row."""
  # `violinplot` names its orientation differently in each release.
  x = np.linspace(values.min(), values.max(), _DENSITY_POINTS)
  density = stats.gaussian_kde(values)(x)
  half = 0.4 * density / density.max()
  axes.fill_between(
    x, row - half, row + half, facecolor=color, edgecolor=color, alpha=0.35
  )


def confusion_matrix(
  counts: npt.ArrayLike, class_names: Sequence[str], *, title: str = ""
) -> DescribedFigure:
  """Plots how often the examples of each class are predicted as each class.

  The colour is the percentage of the row. A cell has the percentage, and the
  count below it if there are at most 10 classes.

  Args:
    counts: `[num_classes, num_classes]`, true class by predicted label; or
      `[num_classes, num_classes + 1]`, whose last column has the predictions
      that are not finite, and is only shown if there are any.
    class_names: The names of the classes.
    title: The title.

  Returns:
    The figure.

  Raises:
    ValueError: If the counts have another shape, or are negative.
  """
  counts = np.asarray(counts, np.float64)
  num_classes = len(class_names)
  shapes = [(num_classes, num_classes), (num_classes, num_classes + 1)]
  if not num_classes or counts.shape not in shapes:
    raise ValueError(
      f"counts must be [{num_classes}, {num_classes}] or"
      f" [{num_classes}, {num_classes + 1}], for {num_classes} class names; got"
      f" {list(counts.shape)}"
    )
  if not np.all(counts >= 0):  # Also refuses NaN.
    raise ValueError(f"counts must be 0 or more; got {counts.min():g}")
  columns = [*class_names, "not finite"]
  if counts.shape[1] == num_classes or not counts[:, -1].any():
    counts, columns = counts[:, :num_classes], columns[:-1]
  # Wide enough for the numbers, and never wider than a screen.
  longest = max(len(drawing.shown(name)) for name in columns)
  width = float(np.clip(2.4 + 0.55 * len(columns), _WIDTH, 8))
  figure = _figure(0.65 * width + min(0.06 * longest, 1.5), width)
  axes = figure.add_subplot()
  drawing.style_axes(axes, title, "Predicted label", "True class")
  drawing.draw_row_percentages(
    figure,
    axes,
    counts,
    "Examples of the class (%)",
    with_counts=num_classes <= _MOST_COUNTS,
  )
  for axis, names, style in (
    (axes.xaxis, columns, {"rotation": 90 if longest > 3 else 0}),
    (axes.yaxis, class_names, {}),
  ):
    ticks = drawing.thinned(len(names), None)
    drawing.name_ticks(axis, ticks, [names[tick] for tick in ticks], **style)
  totals = counts.sum(axis=1)
  described = [
    f"{drawing.shown(name)}: {100 * right / total:.0f} % of {total:.0f} right"
    for name, right, total in zip(
      class_names, np.diagonal(counts), totals, strict=True
    )
    if total > 0
  ]
  return _finish(figure, "Confusion matrix", described)


def calibration(
  confidences: npt.ArrayLike,
  is_correct: npt.ArrayLike,
  *,
  num_bins: int = _NUM_BINS,
  title: str = "",
) -> DescribedFigure:
  """Plots accuracy by confidence (a reliability diagram), with the ECE.

  On Calibration of Modern Neural Networks (Guo, Pleiss, Sun, Weinberger; ICML
  2017). Bins have equal width and include their upper edge, as in the metric
  `ece`.

  Args:
    confidences: `[n]`, the highest probability of each prediction.
    is_correct: `[n]`, whether the predicted label is right.
    num_bins: The number of bins.
    title: The title; the ECE is appended.

  Returns:
    The figure.

  Raises:
    ValueError: If there is no prediction, the numbers differ, or a confidence
      is not between 0 and 1.
  """
  num_bins = arguments.integer("num_bins", num_bins)
  confidences = np.asarray(confidences, np.float64)
  is_correct = np.asarray(is_correct, bool)
  if confidences.ndim != 1 or confidences.shape != is_correct.shape:
    raise ValueError(
      "confidences and is_correct must be [n]; got"
      f" {list(confidences.shape)} and {list(is_correct.shape)}"
    )
  if not np.all((confidences >= 0) & (confidences <= 1)):  # Also refuses NaN.
    raise ValueError("confidences must be between 0 and 1")
  place = np.ceil(confidences * num_bins).astype(int) - 1
  place = np.clip(place, 0, num_bins - 1)
  return calibration_of_bins(
    np.stack(
      [
        np.bincount(place, weights, num_bins)
        for weights in (
          np.ones(len(place)),
          confidences,
          is_correct.astype(np.float64),
        )
      ]
    ),
    title=title,
  )


def calibration_of_bins(
  bins: npt.ArrayLike, *, title: str = ""
) -> DescribedFigure:
  """Plots accuracy by confidence from sums over the predictions of each bin.

  Args:
    bins: `[3, num_bins]`: the number of predictions, the sum of their
      confidences, and the number of correct ones, in bins of equal width from 0
      to 1. Sums of clients can be added up.
    title: The title; the ECE is appended.

  Returns:
    The figure.

  Raises:
    ValueError: If the bins have another shape, a sum is negative or larger than
      the number of predictions, or there is no prediction.
  """
  bins = np.asarray(bins, np.float64)
  if bins.ndim != 2 or len(bins) != 3 or not bins.shape[1]:
    raise ValueError(f"bins must be [3, num_bins]; got {list(bins.shape)}")
  number, confidence, correct = bins
  total = number.sum()
  if not total > 0:  # Also refuses NaN.
    raise ValueError("there must be at least 1 prediction; got 0")
  # Sums of float32 have rounding errors.
  if not np.all((bins >= 0) & (bins <= number * (1 + 1e-5))):
    raise ValueError(
      "bins must be numbers of predictions, and sums of values from 0 to 1"
    )
  error = np.abs(correct - confidence).sum() / total
  used = number > 0
  mean_confidence = 100 * confidence[used] / number[used]
  accuracy = 100 * correct[used] / number[used]
  width = 100 / len(number)
  left = width * np.flatnonzero(used)

  figure = _figure(5.0)
  upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
  drawing.style_axes(
    upper, f"{title}: ECE {error:.3f}".removeprefix(": "), "", "Accuracy (%)"
  )
  drawing.style_axes(lower, "", "Confidence (%)", "Share (%)")
  upper.plot(
    [0, 100],
    [0, 100],
    color=drawing.GREY,
    linestyle="--",
    linewidth=1.4,
    label="calibrated",
  )
  upper.bar(
    left,
    accuracy,
    width,
    align="edge",
    color=drawing.COLORS[5],
    edgecolor="white",
    label="accuracy of the bin",
  )
  # The sign of the gap is seen without colours: above or below the bar.
  upper.vlines(
    mean_confidence,
    np.minimum(accuracy, mean_confidence),
    np.maximum(accuracy, mean_confidence),
    color=drawing.COLORS[1],
    linewidth=1.8,
    label="gap",
  )
  upper.plot(
    mean_confidence,
    mean_confidence,
    color=drawing.COLORS[1],
    linestyle="none",
    marker="o",
    markersize=5,
    label="mean confidence",
  )
  lower.bar(
    left,
    100 * number[used] / total,
    width,
    align="edge",
    color=drawing.GREY,
    edgecolor="white",
  )
  upper.set(xlim=(0, 100), ylim=(0, 100))
  drawing.add_legend_below(figure)
  described = [
    f"{total:.0f} predictions, accuracy {100 * correct.sum() / total:.1f} %,"
    f" mean confidence {100 * confidence.sum() / total:.1f} %"
  ]
  return _finish(figure, f"Reliability diagram, ECE {error:.3f}", described)


def drift_timeline(
  accuracy: Mapping[str, npt.ArrayLike],
  drift_times: Sequence[float] | np.ndarray,
  detections: Mapping[str, Sequence[float] | np.ndarray] | None = None,
  *,
  title: str = "",
  xlabel: str = "Time step",
  ylabel: str = "Accuracy (%)",
  first_step: int = 1,
  time_names: Sequence[str] = (),
) -> DescribedFigure:
  """Plots what each method did around drifts, and when they were detected.

  Drifts are vertical lines through both panels. The lower panel has a row per
  detector.

  Args:
    accuracy: For each method, `[steps]` values, or `[seeds, steps]`, of which
      mean and standard deviation are drawn; NaN leaves a gap.
    drift_times: The first step of each new distribution; they may be empty.
    detections: For each detector, the steps at which it detects a drift. None:
      there is no lower panel.
    title: The title.
    xlabel: Name of the steps.
    ylabel: Name and unit of the values.
    first_step: The number of the first value.
    time_names: The names of the steps from 0. Empty: their numbers.

  Returns:
    The figure.

  Raises:
    ValueError: If there is no method, numbers of steps differ, or a time is not
      a step.
  """
  if not accuracy:
    raise ValueError("accuracy must have at least 1 method; got 0")
  by_seed = {name: np.atleast_2d(each) for name, each in accuracy.items()}
  num_steps = next(iter(by_seed.values())).shape[-1]
  for name, each in by_seed.items():
    if each.ndim != 2 or each.shape[1] != num_steps:
      raise ValueError(
        f"{name}: values must be [seeds, {num_steps}]; got {list(each.shape)}"
      )
  detections = {} if detections is None else detections
  last_step = first_step + num_steps - 1
  for name, times in {"drift_times": drift_times, **detections}.items():
    times = np.asarray(times)
    if np.any((times < first_step) | (times > last_step)):
      raise ValueError(
        f"{name}: times must be steps from {first_step} to {last_step}; got"
        f" {times.min():g} to {times.max():g}"
      )
  heights = [3.0] + ([0.5 + 0.3 * len(detections)] if detections else [])
  figure = _figure(1.1 + sum(heights))
  panels = figure.subplots(
    len(heights), sharex=True, height_ratios=heights, squeeze=False
  )[:, 0]
  upper, lowest = panels[0], panels[-1]
  drawing.style_axes(upper, title, "", ylabel)
  if detections:
    drawing.style_axes(lowest, "", "", "")
  lowest.set_xlabel(xlabel, fontsize=drawing.LABEL_SIZE)
  for axes in panels:
    for index, time in enumerate(drift_times):
      is_first = axes is upper and not index
      axes.axvline(
        time,
        color=drawing.GREY,
        linestyle="--",
        linewidth=1.4,
        label="drift" if is_first else "_nolegend_",
      )
  steps = np.arange(first_step, last_step + 1)
  drawing.draw_curves(
    upper, {name: drawing.Curve(steps, each) for name, each in by_seed.items()}
  )
  for row, times in enumerate(detections.values()):
    lowest.plot(
      times,
      np.full(len(times), row),
      linestyle="none",
      marker="v",
      markersize=8,
      color=drawing.COLORS[6],
      label="detection" if not row else "_nolegend_",
    )
  if detections:
    drawing.name_ticks(lowest.yaxis, range(len(detections)), list(detections))
    lowest.set_ylim(len(detections) - 0.5, -0.5)
  drawing.name_steps(lowest.xaxis, time_names, num_steps)
  upper.set_xlim(first_step - 0.5, last_step + 0.5)
  drawing.add_legend_below(figure)
  described = [
    f"{drawing.shown(name)}: mean {np.nanmean(each):.1f}"
    for name, each in by_seed.items()
    if not np.isnan(each).all()
  ] + [
    f"{drawing.shown(name)} detects {len(times)}"
    for name, times in detections.items()
  ]
  return _finish(
    figure,
    f"{ylabel} over {num_steps} steps with {len(drift_times)} drifts",
    described,
  )


def _figure(height: float, width: float = _WIDTH) -> DescribedFigure:
  """Returns a figure without axes."""
  figure = DescribedFigure(figsize=(width, height), dpi=drawing.DPI)
  figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
  return figure


def _finish(
  figure: DescribedFigure, start: str, described: Sequence[str]
) -> DescribedFigure:
  """Sets the description, and takes all text literally."""
  more = len(described) - _MOST_DESCRIBED
  parts = list(described[:_MOST_DESCRIBED])
  if more > 0:
    parts.append(f"and {more} more")
  figure.alt_text = f"{start}. {'; '.join(parts)}." if parts else f"{start}."
  drawing.take_literally(figure)
  return figure
