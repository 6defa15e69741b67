"""Figures of a comparison on evolving domains."""

import itertools
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap

from tff_shift.data.shifts import concepts as concepts_lib
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.data.texts import text
from tff_shift.learning import evaluation
from tff_shift.reporting import summary
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.evolving import rolling
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation.storage import results

_EXAMPLES_PER_FIGURE_ROW = 10
_POINTS_PER_DOMAIN = 60
_TITLES_PER_DOMAIN = 3


def draw_domains(
  dataset: evolving_data.EvolvingDataset, folder: results.RunFolder, note: str
) -> None:
  """Plots examples of each domain; the note ends the title."""
  title = f"Examples of each domain of {dataset.name}{note}"
  path = folder.figure_path("domains")
  if dataset.vocabulary is not None:
    figures.example_texts(
      {
        domain.name: _titles(domain, dataset.vocabulary)
        for domain in dataset.domains
      },
      path,
      title=title,
    )
  elif dataset.domains[0].x.ndim == 2:
    few = slice(_POINTS_PER_DOMAIN)
    points = _in_the_plane([domain.x[few] for domain in dataset.domains])
    figures.scatter_domains(
      {
        domain.name: own
        for domain, own in zip(dataset.domains, points, strict=True)
      },
      {domain.name: domain.y[few] for domain in dataset.domains},
      path,
      title=title,
      class_names=dataset.schema.classes,
    )
  else:
    few = slice(_EXAMPLES_PER_FIGURE_ROW)
    figures.example_images(
      {domain.name: domain.x[few] for domain in dataset.domains},
      path,
      title=title,
    )


def _titles(
  domain: evolving_data.Domain, vocabulary: Sequence[str]
) -> list[str]:
  """Returns some titles of a domain, evenly spaced among its examples."""
  chosen = np.linspace(0, len(domain.y) - 1, _TITLES_PER_DOMAIN).astype(int)
  return [
    " ".join(vocabulary[word] for word in title if word != text.PADDING)
    for title in domain.x[np.unique(chosen)]
  ]


def _in_the_plane(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Projects vectors onto their first two principal components.

  Args:
    parts: Arrays `[n, features]`. Two features are not changed.

  Returns:
    Arrays `[n, 2]`. A single feature gives points on a line.
  """
  pooled = np.concatenate(parts)
  if pooled.shape[1] != 2:
    centred = pooled - pooled.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    pooled = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
  return np.split(pooled, np.cumsum([len(each) for each in parts])[:-1])


def draw_concepts(
  concepts: concepts_lib.Concepts,
  domain_names: Sequence[str],
  folder: results.RunFolder,
  note: str,
) -> None:
  """Plots the concept of each client in each domain.

  Args:
    concepts: The concepts.
    domain_names: The names of the domains.
    folder: The run's folder.
    note: The end of the title.
  """
  num_concepts = len(concepts.labels)
  num_clients, num_domains = concepts.of_domain.shape
  figure, axes = drawing.new_figure(
    f"Concept of each client{note}", "Domain", "Client"
  )
  axes.grid(visible=False)
  colors = [
    drawing.COLORS[each % len(drawing.COLORS)] for each in range(num_concepts)
  ]
  image = axes.imshow(
    concepts.of_domain,
    cmap=ListedColormap(colors),
    vmin=-0.5,
    vmax=num_concepts - 0.5,
    aspect="auto",
    interpolation="nearest",
  )
  ticks = drawing.thinned(num_domains, num_domains - 1)
  names = [domain_names[tick] for tick in ticks]
  drawing.name_ticks(axes.xaxis, ticks, names, rotation=30, ha="right")
  clients = drawing.thinned(num_clients, None)
  drawing.name_ticks(axes.yaxis, clients, clients)
  bar = figure.colorbar(image, ax=axes, aspect=30)
  kept = drawing.thinned(num_concepts, None)
  drawing.name_ticks(bar.long_axis, kept, kept)
  bar.minorticks_off()
  bar.set_label("Concept", size=drawing.LABEL_SIZE)
  drawing.save(figure, folder.figure_path("concepts"))


def draw_targets(
  by_label: Mapping[str, Mapping[int, rolling.RollingResult]],
  names: Sequence[str],
  folder: results.RunFolder,
) -> None:
  """Plots the accuracy on each target of a rolling evaluation.

  Args:
    by_label: The results by label and seed.
    names: The names of the targets.
    folder: The run's folder.
  """
  figures.accuracy_per_domain(
    {
      label: [result.accuracies for result in by_seed.values()]
      for label, by_seed in by_label.items()
    },
    names,
    None,
    folder.figure_path("accuracy_per_target"),
    "Each target, predicted from the domains before it",
    "Client accuracy (%)",
  )


def draw_results(
  by_label: Mapping[str, Mapping[int, evolving.EvolvingResult]],
  dataset: evolving_data.EvolvingDataset,
  folder: results.RunFolder,
) -> None:
  """Plots learning curves and the accuracy on each domain.

  Args:
    by_label: The results by label and seed.
    dataset: The data set, for the names of domains.
    folder: The run's folder.
  """
  for who, metric in itertools.product(
    ("client", "server"), evaluation.compared()
  ):
    name = f"{who}_{metric}"
    curves = {}
    for label, by_seed in by_label.items():
      series = [
        [each.measured()[name] for each in result.evaluations]
        for result in by_seed.values()
      ]
      if series[0][0] is None:
        continue
      evaluations = next(iter(by_seed.values())).evaluations
      curves[label] = drawing.Curve(
        [each.round_num for each in evaluations], series
      )
    if curves:
      figures.learning_curves(
        curves,
        folder.figure_path(name),
        summary.title(name, " on the unseen domain").capitalize(),
      )
  figures.accuracy_per_domain(
    {
      label: [r.final.client_per_domain["accuracy"] for r in by_seed.values()]
      for label, by_seed in by_label.items()
    },
    [domain.name for domain in dataset.domains],
    len(dataset.domains) - 1,
    folder.figure_path("accuracy_per_domain"),
    ylabel="Client accuracy (%)",
  )
