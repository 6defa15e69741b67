"""Final metrics and figures of dynamic personalization."""

from collections.abc import Mapping

import numpy as np

from tff_shift.reporting import metrics
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import dynamic_personalization_figures
from tff_shift.simulation.scenarios import dynamic_personalization
from tff_shift.simulation.storage import results


def final_metrics(
  inference: dynamic_personalization.Inference, validation_accuracy: float
) -> dict[str, float]:
  """Returns the final metrics of a stream, by name.

  Args:
    inference: The predictions and drifts on the stream.
    validation_accuracy: VACC, in percent.

  Returns:
    `validation_accuracy`, in percent; the mean over clients and periods of each
    metric in `evaluation.METRICS`; `multi_period_variance`, MPV over all
    periods, in squared percentage points; `multi_period_variance_below`, its
    part from accuracies below VACC; `low_accuracy_share`, LAT, and
    `request_share`, the frequency of model updates, in percent of all pairs of
    client and period; `true_positive_rate` and `false_positive_rate` of drift
    detection, in percent of the pairs with and without a drift (NaN without
    such pairs).
  """
  (variance,) = metrics.multi_period_variance(
    inference.accuracy, validation_accuracy
  )
  (below,) = metrics.multi_period_variance_below(
    inference.accuracy, validation_accuracy
  )
  (low_share,) = metrics.low_accuracy_share(
    inference.accuracy, validation_accuracy
  )
  return {
    "validation_accuracy": validation_accuracy,
    **{
      name: float(np.mean(values))
      for name, values in inference.measured.items()
    },
    "multi_period_variance": float(variance),
    "multi_period_variance_below": float(below),
    "low_accuracy_share": float(low_share),
    "request_share": _percent(inference.requested),
    "true_positive_rate": _percent(inference.detected[inference.drifted]),
    "false_positive_rate": _percent(inference.detected[~inference.drifted]),
  }


def _percent(happened: np.ndarray) -> float:
  return 100.0 * float(np.mean(happened)) if happened.size else float("nan")


def draw_distances(
  stream: dynamic_personalization.Stream,
  threshold: float,
  distribution: str,
  seed: int,
  folder: results.RunFolder,
) -> None:
  """Plots the distances of client 0 and its detected drifts."""
  dynamic_personalization_figures.distance_over_periods(
    stream.distances[:, 0],
    stream.drifted[:, 0],
    threshold,
    folder.figure_path("distance", distribution),
    title=f"Client 0, distribution {distribution}, seed {seed}",
  )


def draw_accuracy(
  by_label: Mapping[str, Mapping[int, dynamic_personalization.DynamicResult]],
  distribution: str,
  folder: results.RunFolder,
) -> None:
  """Plots the accuracy of all trials on the streams of a distribution.

  Args:
    by_label: The results by label and seed, all on the same streams.
    distribution: The distribution.
    folder: The run's folder.
  """
  curves, validation = {}, {}
  for label, by_seed in by_label.items():
    streams = [result.inferences[distribution] for result in by_seed.values()]
    curves[label] = drawing.Curve(
      np.arange(1, len(streams[0].accuracy) + 1),
      [stream.accuracy.mean(axis=1) for stream in streams],
    )
    validation[label] = [
      result.validation_accuracy for result in by_seed.values()
    ]

  def share(happened):
    # Percent of clients, [seeds, periods].
    return 100 * np.mean(happened, axis=2)

  dynamic_personalization_figures.accuracy_over_periods(
    curves,
    validation,
    share([stream.drifted for stream in streams]),
    share([stream.detected for stream in streams]),
    folder.figure_path("accuracy", distribution),
  )
