"""Harmed clients against numbers by hand."""

import math

import numpy as np
import pytest

from tff_shift.reporting.pages import harm

_LOCAL = {0: [50.0, 60.0, 70.0, 80.0], 1: [50.0, 50.0, 50.0, 50.0]}


def test_harmed_clients_by_hand():
  method = {0: [90.0, 90.0, 66.0, 80.0], 1: [60.0, 48.0, 60.0, 60.0]}
  local, found = harm.clients(
    {"local": _LOCAL, "fed_avg": method}, ["local", "nobody"]
  )
  assert (local.row, local.harms, local.num_seeds) == ("local", [], 2)
  assert (found.num_clients, found.num_seeds) == (4, 2)
  # 81.5 and 57.
  assert found.mean == 69.25
  # 66 + 0.3 * (80 - 66) and 48 + 0.3 * (60 - 48).
  assert found.low == pytest.approx((70.2 + 51.6) / 2)
  assert found.worst == (66.0 + 48.0) / 2
  (harmed,) = found.harms
  # One of four clients loses 4 points with seed 0, and 2 points with seed 1.
  assert (harmed.reference, harmed.share, harmed.loss) == ("local", 0.25, 3.0)
  # Differences 40, 30, -4, 0 and 10, -2, 10, 10.
  assert harmed.difference == (16.5 + 7.0) / 2
  assert harmed.is_hidden


def test_nobody_is_harmed_by_equal_values():
  _, found = harm.clients({"local": _LOCAL, "a": _LOCAL}, ["local"])
  (harmed,) = found.harms
  assert (harmed.difference, harmed.share, harmed.loss) == (0.0, 0.0, 0.0)
  assert not harmed.is_hidden


def test_lower_may_be_better():
  _, found = harm.clients(
    {"local": {0: [1.0, 2.0]}, "a": {0: [0.5, 2.5]}},
    ["local"],
    higher_is_better=False,
  )
  # A tenth of the way from the worst to the best.
  assert (found.worst, found.low) == (2.5, pytest.approx(2.3))
  (harmed,) = found.harms
  assert (harmed.difference, harmed.share, harmed.loss) == (0.0, 0.5, 0.5)


def test_clients_and_seeds_without_values():
  local = {0: [50.0, math.nan, 60.0], 2: [0.0, 0.0, 0.0]}
  found = harm.clients(
    {
      "local": local,
      "a": {0: [40.0, 10.0, math.nan], 1: [90.0, 90.0, 90.0]},
      "b": {0: [math.nan] * 3},
      "c": {7: np.array([1.0])},
    },
    ["local"],
  )
  assert [each.row for each in found] == ["local", "a", "c"]
  (harmed,) = found[1].harms
  # Only client 0 with seed 0 has both values.
  assert (harmed.difference, harmed.share, harmed.loss) == (-10.0, 1.0, 10.0)
  assert found[1].num_clients == 2
  assert not found[2].harms
