"""The rates of Fed-ADE's controls."""

import dataclasses

import numpy as np
import pytest

from tff_shift.algorithms import fed_ade
from tff_shift.scenarios.online_adaptation import rate_controls
from tff_shift.simulation.engine import rounds

RATES = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
# The second client takes part twice in the first step, the third never.
COUNTS = np.array([[1, 2, 0], [1, 1, 1]])


def shuffled(rates, counts, seed):
  return rate_controls.prescribe("fed_ade_shuffled", rates, counts, seed)


class TestPrescribe:
  def test_mean_counts_each_round_of_a_client(self):
    found = rate_controls.prescribe("fix_lr_mean", RATES, COUNTS, 0)
    # (1 + 2 + 2 + 4 + 5 + 6) / 6.
    np.testing.assert_allclose(found, np.full([2, 3], 20 / 6), rtol=1e-6)
    assert found.dtype == np.float32

  def test_shuffled_rates_are_the_same_at_other_places(self):
    rates = np.arange(60, dtype=np.float32).reshape(12, 5)
    counts = np.ones([12, 5], int)
    found, again, other = (shuffled(rates, counts, seed) for seed in (3, 3, 4))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.sort(found, axis=None), rates.ravel())
    # Over clients and over steps: few stay in their row or in their column.
    assert np.mean(found // 5 == rates // 5) < 0.5
    assert np.mean(found % 5 == rates % 5) < 0.5
    np.testing.assert_array_equal(found, again)
    assert np.any(found != other)

  def test_rates_are_dealt_out_among_those_who_take_part_equally_often(self):
    moved = set()
    for seed in range(20):
      found = shuffled(RATES, COUNTS, seed)
      assert found[0, 1] == 2 and found[0, 2] == 3
      np.testing.assert_array_equal(
        np.sort(found[COUNTS == 1]), RATES[COUNTS == 1]
      )
      moved.add(found[0, 0])
    assert len(moved) > 2


@pytest.mark.parametrize("repeats_cohorts", [False, True])
def test_rounds_are_counted_as_they_are_drawn(repeats_cohorts):
  found = rate_controls.num_rounds(
    np.ones([3, 7], bool),
    run_seed=5,
    rounds_per_step=2,
    participation=0.4,
    repeats_cohorts=repeats_cohorts,
  )
  for step in range(3):
    # Repeated cohorts are those of the first step.
    first = 0 if repeats_cohorts else 2 * step
    drawn = [
      *rounds.sample_clients(7, 0.4, 5, first),
      *rounds.sample_clients(7, 0.4, 5, first + 1),
    ]
    np.testing.assert_array_equal(found[step], np.bincount(drawn, minlength=7))


@pytest.mark.parametrize("variant", ["published", "program"])
def test_updates_are_those_of_the_algorithm(variant):
  hparams = fed_ade.HParams(
    batch_size=7, momentum=0.5, head_epochs=2, variant=variant
  )
  fixed = dataclasses.asdict(rate_controls.fixed_rate(hparams))
  del fixed["learning_rate"]
  adaptive = dataclasses.asdict(hparams)
  assert fixed == {name: adaptive[name] for name in fixed}
  assert (fixed["batch_size"], fixed["momentum"]) == (7, 0.5)
