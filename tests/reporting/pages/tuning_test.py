"""Tuning optimism against numbers by hand."""

import math

from tests.fixtures import page_cells
from tests.fixtures.page_cells import trial
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import tuning


def cell(*trials, scores=()):
  run = contents_lib.Run(folder="a", command="b", scores=dict(scores))
  return page_cells.cell("fed_avg", [80.0], trials=trials, run=run)


def test_oracle_has_the_best_mean_on_the_test_data():
  found = tuning.optimism(
    cell(
      trial("rate 0.1", 80.0, 82.0, is_selected=True),
      trial("rate 0.2", 79.0, 86.0),
      trial("rate 0.3", 84.0, 70.0),
    ),
    higher_is_better=True,
  )
  assert (found.selected, found.selected_mean) == ("rate 0.1", 81.0)
  assert (found.oracle, found.oracle_mean) == ("rate 0.2", 82.5)
  assert (found.difference, found.num_settings) == (1.5, 3)


def test_lower_may_be_better_and_ties_are_the_selections():
  found = tuning.optimism(
    cell(
      trial("a", 0.5),
      trial("b", 0.25, is_selected=True),
      trial("c", 0.25),
    ),
    higher_is_better=False,
  )
  assert (found.oracle, found.difference) == ("b", 0.0)


def test_diverged_setting_is_nobodys_choice():
  trials = trial("a", 70.0, is_selected=True), trial("b", math.nan)
  found = tuning.optimism(cell(*trials), higher_is_better=True)
  assert (found.oracle, found.num_settings) == ("a", 1)


def test_unknown_without_the_other_settings():
  scores = [("a", 1.0), ("b", 2.0)]
  alone = cell(trial("a", 70.0, is_selected=True), scores=scores)
  assert tuning.optimism(alone, higher_is_better=True) is None
  assert tuning.is_unknown(alone)
  # Nothing was selected.
  assert not tuning.is_unknown(cell())
  unselected = cell(trial("a", 70.0), trial("b", 60.0))
  assert tuning.optimism(unselected, higher_is_better=True) is None


def test_largest():
  pairs = [
    tuning.optimism(
      cell(trial("a", 70.0, is_selected=True), trial("b", 70.0 + more)),
      higher_is_better=True,
    )
    for more in (1.0, 3.0, 2.0)
  ]
  assert tuning.largest(pairs).difference == 3.0
  assert tuning.largest([]) is None
