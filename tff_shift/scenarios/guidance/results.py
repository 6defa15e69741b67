"""Figures of a comparison of client guidance."""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift.data.images import color_transforms
from tff_shift.data.shifts import guidance as guidance_data
from tff_shift.reporting import summary
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.guidance import figures as guidance_figures
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.simulation.storage import results


def draw_clients(
  dataset: guidance_data.GuidanceDataset, seed: int, folder: results.RunFolder
) -> None:
  """Plots the heterogeneity of clients: class counts and colour shifts."""
  if set(dataset.transforms) != {color_transforms.ColorTransform()}:
    guidance_figures.client_transforms(
      dataset.sample, dataset.transforms, folder.figure_path("transforms")
    )
  num_classes = len(dataset.schema.classes)
  guidance_figures.class_counts(
    np.array(
      [np.bincount(each.y, minlength=num_classes) for each in dataset.train]
    ),
    dataset.schema.classes,
    folder.figure_path("class_counts"),
    title=f"Training examples with seed {seed}",
  )


def draw_routing(
  label: str,
  seed: int,
  result: guidance.GuidanceResult,
  folder: results.RunFolder,
) -> None:
  """Plots the routes of each client's queries; nothing without a guide."""
  if result.routing is not None:
    guidance_figures.routing_matrix(
      result.routing,
      folder.figure_path("routing", label),
      title=f"{label}, seed {seed}",
    )


def draw_accuracy(
  by_label: Mapping[str, Mapping[int, guidance.GuidanceResult]],
  folder: results.RunFolder,
) -> None:
  """Plots each accuracy over rounds, one line per trial."""
  for metric in ("system_accuracy", "average_accuracy", "client_accuracy"):
    curves = {}
    for label, by_seed in by_label.items():
      evaluations = next(iter(by_seed.values())).evaluations
      series = [
        [getattr(each, metric) for each in result.evaluations.values()]
        for result in by_seed.values()
      ]
      if None not in series[0]:
        curves[label] = drawing.Curve(list(evaluations), series)
    if curves:
      figures.learning_curves(
        curves,
        folder.figure_path(metric),
        metric.replace("_", " ").capitalize() + " (%)",
      )


def draw_trade_off(
  summaries: Sequence[summary.RunSummary], folder: results.RunFolder
) -> None:
  """Plots accuracies over lambda (Fig. 4), if several lambdas are compared."""
  runs = sorted(
    (run for run in summaries if "lambda_" in run.setting),
    key=lambda run: run.setting["lambda_"],
  )
  lambdas = [run.setting["lambda_"] for run in runs]
  # Several learning rates give several runs per lambda, which are no curve.
  if len(lambdas) < 2 or len(set(lambdas)) < len(lambdas):
    return
  guidance_figures.trade_off(
    lambdas,
    {
      # Seeds first, lambdas second.
      metric.replace("_", " "): np.transpose(
        [run.values(metric) for run in runs]
      )
      for metric in ("client_accuracy", "average_accuracy", "system_accuracy")
    },
    folder.figure_path("trade_off"),
  )
