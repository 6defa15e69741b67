"""Tests of seeds: they are fixed by what they are for, and they differ."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.learning import randomness
from tff_shift.learning.randomness import Purpose


class TestDerive:
  # A change of these values changes the numbers of every run ever recorded.
  @pytest.mark.parametrize(
    "seed, expected",
    [
      (randomness.derive(0), [821328062, 1529665511]),
      (randomness.derive(1), [1835504127, 1731038949]),
      (randomness.derive(7, 1, 3), [1916955614, 1561492349]),
      (randomness.server_seed(7), [2083679832, 1792079617]),
      (randomness.client_seed(7, 3), [1916955614, 1561492349]),
      (
        randomness.derive(7, Purpose.SAMPLE_CLIENTS, 2),
        [1523371816, 2108777493],
      ),
    ],
  )
  def test_seeds_are_stable(self, seed, expected):
    assert_array_equal(seed, expected)

  def test_seed_has_the_form_that_tensorflow_takes(self):
    seed = randomness.derive(3, 4, 5)
    assert seed.shape == randomness.SEED_SHAPE == (2,)
    assert seed.dtype == np.int32 and np.min(seed) >= 0

  def test_runs_purposes_clients_and_rounds_have_seeds_of_their_own(self):
    seeds = {
      tuple(randomness.derive(run_seed, purpose, place).tolist())
      for run_seed, purpose, place in itertools.product(
        range(5), Purpose, range(200)
      )
    }
    assert len(seeds) == 5 * len(Purpose) * 200

  @pytest.mark.parametrize("path", [(-1,), (0, -1), (0, 1, -5)])
  def test_negative_integers_are_refused(self, path, refusal):
    assert "non-negative" in refusal(randomness.derive, *path)


class TestFold:
  SEED = np.int32([1, 2])

  # The first is the example in TensorFlow's documentation of the operation.
  @pytest.mark.parametrize(
    "values, expected",
    [((3,), [1105988140, 3]), ((Purpose.TRAIN, 5), [1424596020, 5])],
  )
  def test_values_are_stable(self, run_in_graph, values, expected):
    folded = run_in_graph(
      lambda seed: randomness.fold(seed, *values), self.SEED
    )
    assert folded.dtype == np.int32
    assert_array_equal(folded, expected)

  def test_numbers_and_tensors_fold_alike(self, run_in_graph):
    as_numbers, as_tensors, one_by_one = run_in_graph(
      lambda seed, purpose, round_num: (
        randomness.fold(seed, Purpose.STRAGGLE, 9),
        randomness.fold(seed, purpose, round_num),
        randomness.fold(randomness.fold(seed, purpose), round_num),
      ),
      self.SEED,
      np.int32(Purpose.STRAGGLE),
      np.int64(9),
    )
    assert_array_equal(as_tensors, as_numbers)
    assert_array_equal(one_by_one, as_numbers)

  def test_nothing_folded_leaves_the_seed(self, run_in_graph):
    assert_array_equal(run_in_graph(randomness.fold, self.SEED), self.SEED)
