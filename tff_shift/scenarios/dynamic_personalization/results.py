"""Final metrics and figures of dynamic personalization.

Choices:
  * MPV is in squared percentage points; divided by 10 it is in Table 1's
    apparent unit (1e-3 of squared fractions), the only one in which its MPV and
    LAT agree.
  * LAT counts periods below 90 % of VACC, as the text says; eq. 5 as printed
    counts the opposite.
"""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift.reporting import metrics
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import evaluation_figures
from tff_shift.scenarios.dynamic_personalization import (
  figures as dynamic_personalization_figures,
)
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.shift import detection as detection_lib
from tff_shift.simulation.storage import results


def final_metrics(
  inference: dynamic_personalization.Inference, validation_accuracy: float
) -> dict[str, float]:
  """Returns the final metrics of a stream, by name.

  Args:
    inference: The predictions and drifts on the stream.
    validation_accuracy: VACC, in percent.

  Returns:
    `validation_accuracy`, in percent; the mean over pairs of client and period
    of each metric of the predictions, without absent clients, as all that
    follow; `multi_period_variance`, MPV over all
    periods, in squared percentage points; `multi_period_variance_below`, its
    part from accuracies below VACC; `low_accuracy_share`, LAT, and
    `request_share`, the frequency of model updates, in percent of all pairs of
    client and period; `true_positive_rate` and `false_positive_rate` of drift
    detection, in percent of the pairs with and without a drift (NaN without
    such pairs), and `detection_delay` in
    periods, and `missed_drifts` and `false_alarms`, sums over clients (see
    `detection.evaluate_clients`; a drift may be detected up to the next one).
  """
  is_present = inference.is_present

  def of_present(values):
    # Pairs as clients of one period, [1, pairs].
    return values if is_present.all() else values[is_present][np.newaxis]

  accuracies = of_present(inference.accuracy), validation_accuracy
  detection = {}
  if inference.drifted is not None:
    has_distance = ~np.isnan(inference.distances)
    for name, counts in (
      ("true_positive_rate", inference.drifted),
      ("false_positive_rate", ~inference.drifted),
    ):
      detection[name] = _percent(inference.detected[counts & has_distance])
    # A client cannot detect a drift in a period without a distance.
    found = detection_lib.evaluate_clients(
      inference.detected & has_distance, inference.drifted & has_distance
    )
    detection["detection_delay"] = found.delay
    detection["missed_drifts"] = float(found.missed)
    detection["false_alarms"] = float(found.false_alarms)
  return {
    "validation_accuracy": validation_accuracy,
    **{
      name: dynamic_personalization.mean_over_present(name, of_present(values))
      for name, values in inference.measured.items()
    },
    "multi_period_variance": metrics.multi_period_variance(*accuracies),
    "multi_period_variance_below": metrics.multi_period_variance_below(
      *accuracies
    ),
    "low_accuracy_share": metrics.low_accuracy_share(*accuracies),
    "request_share": _percent(of_present(inference.requested)),
    **detection,
  }


def _percent(happened: np.ndarray) -> float:
  return 100.0 * float(np.mean(happened)) if happened.size else float("nan")


def draw_distances(
  stream: dynamic_personalization.Stream,
  threshold: float,
  distribution: str,
  seed: int,
  folder: results.RunFolder,
  time_names: Sequence[str] = (),
) -> None:
  """Plots the distances of a client and its detected drifts.

  It is the first client with a distance; without any, there is no figure.
  """
  with_distance = np.flatnonzero(~np.isnan(stream.distances).all(axis=0))
  if not len(with_distance):
    return
  client = with_distance[0]
  dynamic_personalization_figures.distance_over_periods(
    stream.distances[:, client],
    None if stream.drifted is None else stream.drifted[:, client],
    threshold,
    folder.figure_path("distance", distribution),
    title=f"Client {client}, distribution {distribution}, seed {seed}",
    time_names=time_names,
  )


def draw_accuracy(
  by_label: Mapping[str, Mapping[int, dynamic_personalization.DynamicResult]],
  distribution: str,
  folder: results.RunFolder,
  time_names: Sequence[str] = (),
) -> None:
  """Plots the accuracy of all trials on the streams of a distribution.

  Args:
    by_label: The results by label and seed, all on the same streams.
    distribution: The distribution.
    folder: The run's folder.
    time_names: The names of the periods from 0. Empty: their numbers.
  """
  curves, validation = {}, {}
  for label, by_seed in by_label.items():
    streams = [result.inferences[distribution] for result in by_seed.values()]
    curves[label] = drawing.Curve(
      np.arange(1, len(streams[0].accuracy) + 1),
      [np.nanmean(stream.accuracy, axis=1) for stream in streams],
    )
    validation[label] = [
      result.validation_accuracy for result in by_seed.values()
    ]

  def share(name):
    # Percent of clients, [seeds, periods].
    periods = range(1, len(streams[0].accuracy) + 1)
    return np.array(
      [
        [stream.of_period(each)[name] for each in periods] for stream in streams
      ],
      float,
    )

  is_known = streams[0].drifted is not None
  dynamic_personalization_figures.accuracy_over_periods(
    curves,
    validation,
    share("drifted_share") if is_known else None,
    share("detected_share"),
    folder.figure_path("accuracy", distribution),
    time_names=time_names,
  )


def draw_timeline(
  by_label: Mapping[str, Mapping[int, dynamic_personalization.DynamicResult]],
  distribution: str,
  folder: results.RunFolder,
  time_names: Sequence[str] = (),
) -> None:
  """Plots one client's periods in a row.

  The client is the first one whose data drift, or one that detects a drift if
  drifts are not known. The seed is the first one.

  Args:
    by_label: The results by label and seed, all on the same streams.
    distribution: The distribution.
    folder: The run's folder.
    time_names: The names of the periods from 0. Empty: their numbers.
  """
  first = {
    label: next(iter(by_seed.values())).inferences[distribution]
    for label, by_seed in by_label.items()
  }
  is_present = next(iter(first.values())).is_present
  stream = next(iter(first.values()))
  is_shown = stream.detected if stream.drifted is None else stream.drifted
  candidates = np.flatnonzero((is_shown & is_present).any(axis=0))
  if not len(candidates):
    return
  client = candidates[0]
  drifted = np.zeros(0)
  if stream.drifted is not None:
    drifted = stream.drifted[:, client]
  drawing.save(
    evaluation_figures.drift_timeline(
      {label: each.accuracy[:, client] for label, each in first.items()},
      1 + np.flatnonzero(drifted),
      {"detected": 1 + np.flatnonzero(stream.detected[:, client])},
      title=f"Client {client}, distribution {distribution}",
      xlabel="Period",
      time_names=time_names,
    ),
    folder.figure_path("timeline", distribution),
  )
