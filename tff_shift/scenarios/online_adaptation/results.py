"""Measured shift and figures of online adaptation."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from scipy import stats

from tff_shift.data.images import corruptions
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.online_adaptation import (
  figures as online_adaptation_figures,
)
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.simulation.storage import results

_NUM_SHOWN_CLIENTS = 4


def true_shift(client_streams: online_adaptation_data.Streams) -> np.ndarray:
  """Returns the true shift at each step, [timesteps, num_clients].

  NaN for an absent client, and at its first examples.
  """
  return np.array(
    [
      [
        client_streams.shift(client, timestep)
        for client in range(client_streams.num_clients)
      ]
      for timestep in range(1, client_streams.num_timesteps + 1)
    ]
  )


def learning_rates(result: online_adaptation.OnlineResult) -> np.ndarray:
  """Returns the learning rates, [timesteps, num_clients]."""
  return np.array([step.learning_rates for step in result.timesteps])


def measured_shift(
  result: online_adaptation.OnlineResult, eta_min: float, eta_max: float
) -> np.ndarray:
  """Computes S from the learning rates of Fed-ADE (eq. 9 solved for S).

  Args:
    result: A run with full participation.
    eta_min: The learning rate without shift.
    eta_max: The learning rate at the largest shift, above `eta_min`.

  Returns:
    [timesteps, num_clients], between 0 and 1; NaN for an absent client.
  """
  shift = (learning_rates(result) - eta_min) / (eta_max - eta_min)
  # Clips rounding errors: rates are float32.
  return np.clip(shift, 0.0, 1.0)


def both_known(
  measured: np.ndarray, true: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns measured and true shift where both are known, and where they are.

  Args:
    measured: The measured shift, [timesteps, num_clients]; may have NaN.
    true: The true shift, of the same shape; may have NaN.

  Returns:
    Both, with 0 where one of them is NaN, and `[timesteps, num_clients]` bool.
  """
  are_known = ~(np.isnan(measured) | np.isnan(true))
  return (
    np.where(are_known, measured, 0),
    np.where(are_known, true, 0),
    are_known,
  )


def rank_correlation(measured: np.ndarray, true: np.ndarray) -> float:
  """Computes Spearman's rank correlation of measured and true shift.

  Args:
    measured: The measured shift of each client, per step or summed over steps.
    true: The true shift, of the same shape.

  Returns:
    A number from -1 to 1. NaN if one of them is constant or empty.
  """
  if not measured.size or np.ptp(measured) == 0 or np.ptp(true) == 0:
    return float("nan")
  return float(stats.spearmanr(measured.ravel(), true.ravel()).correlation)


def draw_accuracy(
  by_label: Mapping[str, Mapping[int, online_adaptation.OnlineResult]],
  omega: np.ndarray | None,
  folder: results.RunFolder,
  shift: str,
  *,
  time_names: Sequence[str] = (),
) -> None:
  """Plots the metrics of all algorithms over time, with omega below.

  Args:
    by_label: The results by label and seed.
    omega: The weight of eq. 1 at steps 0 to T, [seeds, T + 1]. None: not known.
    folder: The run's folder.
    shift: The schedule, for the name of the file.
    time_names: The names of the steps from 0. Empty: they have no names.
  """
  for metric in evaluation.compared():
    curves = {}
    for label, by_seed in by_label.items():
      series = [
        [step.after[metric] for step in result.timesteps]
        for result in by_seed.values()
      ]
      curves[label] = drawing.Curve(np.arange(1, len(series[0]) + 1), series)
    online_adaptation_figures.accuracy_over_time(
      curves,
      omega,
      folder.figure_path(metric, shift),
      ylabel=summary.title(metric, " after adaptation").capitalize(),
      time_names=time_names,
    )


def draw_adaptation(
  result: online_adaptation.OnlineResult,
  client_streams: online_adaptation_data.Streams,
  class_names: tuple[str, ...],
  folder: results.RunFolder,
  shift: str,
  seed: int,
  *names: str,
  time_names: Sequence[str] = (),
) -> None:
  """Plots learning rates and true shift, and estimated and true labels.

  Without estimates, there is no second figure.

  Args:
    result: A run of an algorithm whose clients set their learning rates.
    client_streams: The streams of the run.
    class_names: The names of the classes.
    folder: The run's folder.
    shift: The schedule, for the names of the files.
    seed: The seed of the run.
    *names: Further parts of the file names.
    time_names: The names of the steps from 0. Empty: they have no names.
  """
  rates, shifts = learning_rates(result), true_shift(client_streams)
  num_clients = client_streams.num_clients
  clients = result.client_names or [f"client {i}" for i in range(num_clients)]
  shown = clients[:_NUM_SHOWN_CLIENTS]
  online_adaptation_figures.rates_over_time(
    dict(zip(shown, rates.T, strict=False)),
    dict(zip(shown, shifts.T, strict=False)),
    folder.figure_path("learning_rates", shift, *names),
    title=f"Learning rates, {shift} shift, seed {seed}",
    time_names=time_names,
  )
  if result.timesteps[0].estimates is None:
    return
  online_adaptation_figures.class_distributions(
    np.array([step.estimates[0] for step in result.timesteps]),
    np.array(
      [
        client_streams.class_distribution(0, step.timestep)
        for step in result.timesteps
      ]
    ),
    class_names,
    folder.figure_path("class_estimates", shift, *names),
    title=f"Classes of {clients[0]}, {shift} shift, seed {seed}",
    time_names=time_names,
  )


def draw_corruptions(image: np.ndarray, folder: results.RunFolder) -> None:
  """Plots an image under every corruption at every severity.

  Args:
    image: [height, width, channels] uint8.
    folder: The run's folder.
  """
  # The uncorrupted image, then each severity.
  severities = range(corruptions.MAX_SEVERITY + 1)
  figures.example_images(
    {
      name: np.concatenate(
        [
          corruptions.corrupt(image[np.newaxis], name, severity, np.array([0]))
          for severity in severities
        ]
      )
      for name in corruptions.names()
    },
    folder.figure_path("corruptions"),
    title="Every corruption at severities 0 (none) to 5",
  )
