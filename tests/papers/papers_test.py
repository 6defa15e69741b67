"""What the papers print, as it is in the package."""

import collections

import pytest

from experiments.papers import papers


def cell(paper, table, dataset, method, metric="accuracy", **setting):
  (found,) = (
    each
    for each in papers.get(paper).table(table)
    if (each.dataset, each.method, each.metric) == (dataset, method, metric)
    and dict(each.setting) == setting
  )
  return found


def test_all_cells_are_there_once():
  cells = [each for name in papers.names() for each in papers.get(name).cells]
  keys = collections.Counter(
    (
      each.paper,
      each.table,
      each.dataset,
      *each.setting.items(),
      each.method,
      each.metric,
    )
    for each in cells
  )
  assert len(cells) == 1833
  assert set(keys.values()) == {1}
  assert collections.Counter(each.paper for each in cells) == {
    "fed_3da": 192,
    "fed_ade": 626,
    "fed_drm": 156,
    "fed_evolve": 859,
  }


@pytest.mark.parametrize(
  "names, setting, mean, spread",
  # Of Fed-3DA, heavy labels 0.1 and 0.8.
  [
    (
      "fed_evolve 1 rotated_mnist fed_avg",
      {"dirichlet": "inf", "evaluated": "client"},
      65.92,
      1.01,
    ),
    (
      "fed_evolve 3 circle fed_evolve",
      {"dirichlet": "inf", "evaluated": "client"},
      84.25,
      2.45,
    ),
    (
      "fed_drm 1 cifar10 fed_drm",
      {"metric": "system_accuracy", "partition": "dirichlet_0.3"},
      63.85,
      None,
    ),
    ("fed_ade 1 tiny_imagenet fth", {"shift": "linear"}, 78.2, None),
    (
      "fed_3da 1 cifar10 fed_3da",
      {"metric": "lat", "distribution": "0.1,0.8"},
      25,
      1,
    ),
  ],
)
def test_cells_are_those_of_the_papers(names, setting, mean, spread):
  printed = cell(*names.split(), **setting)
  assert printed.mean == mean and spread in (None, printed.spread)


def test_what_contradicts_a_cell_stands_beside_it():
  setting = {"pretraining": "gaussian", "shift": "linear"}
  each, twin = (
    cell("fed_ade", table, "cifar10", "fed_ccfa", **setting)
    for table in ("2", "9")
  )
  assert each.note == "for the same setting Table 9 has 53.6 ± 2.1"
  assert (twin.mean, twin.spread) == (53.6, 2.1)


def test_papers_say_what_they_leave_open():
  for name in papers.names():
    paper = papers.get(name)
    assert paper.settings and paper.not_stated and paper.title
  assert dict(papers.get("fed_drm").settings)["common / rounds"] == "800"
