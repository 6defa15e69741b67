"""Grids, random draws and the plan of successive halving."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from tff_shift.command_line.tuning import search


def test_grid_has_all_combinations_in_order():
  given = {"rate": [0.1, 0.2], "steps": [3]}
  assert list(search.settings(given, search.GRID, 1, 7)) == [
    {"rate": 0.1, "steps": 3},
    {"rate": 0.2, "steps": 3},
  ]
  assert list(search.settings({}, search.GRID, 1, 7)) == [{}]


def test_draws_are_different_and_a_function_of_the_seed():
  given = {"rate": ["1e-4..1e-1"], "steps": [1, 2]}
  found = list(search.settings(given, search.RANDOM, 5, 0))
  assert len(found) == 5
  assert all(setting not in found[:i] for i, setting in enumerate(found))
  assert found == list(search.settings(given, search.RANDOM, 5, 0))
  assert found != list(search.settings(given, search.RANDOM, 5, 1))
  # There are no more than all combinations.
  grid = {"rate": [0.1, 0.2], "steps": [1, 2]}
  assert len(list(search.settings(grid, search.RANDOM, 9, 3))) == 4
  assert list(search.settings({}, search.RANDOM, 9, 3)) == [{}]
  # An algorithm without one of them draws the same values of the other.
  alone = list(search.settings({"rate": given["rate"]}, search.HALVING, 5, 0))
  assert [each["rate"] for each in alone] == [each["rate"] for each in found]


@hypothesis.given(strategies.integers(0, 1000), strategies.integers(0, 50))
def test_numbers_of_a_range_lie_in_it(seed, number):
  rate = search.draw(["1e-4..1e-1"], "rate", seed, number)
  assert 1e-4 <= rate <= 1e-1
  assert float(f"{rate:.3g}") == rate
  steps = search.draw(["2..30"], "steps", seed, number)
  assert isinstance(steps, int)
  assert 2 <= steps <= 30


def test_range_is_uniform_on_a_logarithmic_scale():
  drawn = [search.draw(["1e-4..1"], "rate", 0, i) for i in range(2000)]
  counts, _ = np.histogram(np.log10(drawn), bins=4, range=(-4, 0))
  # Four standard deviations of a binomial with p = 1/4.
  assert np.abs(counts - 500).max() < 4 * np.sqrt(2000 * 3 / 16)


@pytest.mark.parametrize(
  "num_settings, num_rounds, rungs",
  [
    (1, 30, [(1, 10)]),
    (3, 30, [(3, 10)]),
    (9, 18, [(9, 2), (3, 6)]),
    (10, 54, [(10, 2), (4, 6), (2, 18)]),
    (27, 10, [(27, 1), (9, 1), (3, 3)]),
  ],
)
def test_rungs_have_a_third_of_the_settings_and_three_times_the_rounds(
  num_settings, num_rounds, rungs
):
  assert search.rungs(num_settings, num_rounds) == rungs
