import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data.shifts import class_pools

SEEDS = st.integers(0, 2**31)


@st.composite
def pools(draw):
  """Labels, the number of classes, and a distribution with gaps."""
  counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=7))
  # Whole weights: hypothesis shrinks them, and zeros are frequent.
  weights = draw(
    st.lists(st.integers(0, 9), min_size=len(counts), max_size=len(counts))
  )
  hypothesis.assume(any(w and c for w, c in zip(weights, counts, strict=True)))
  labels = np.repeat(np.arange(len(counts)), counts)
  rng = np.random.default_rng(draw(SEEDS))
  distribution = np.array(weights) / sum(weights)
  return rng.permutation(labels), len(counts), distribution


def drawn_counts(labels, positions, num_classes):
  return np.bincount(labels[positions], minlength=num_classes)


class TestDraw:
  def test_classes_follow_the_distribution_and_examples_are_equally_likely(
    self,
  ):
    labels = np.array([1, 0, 1, 2, 1, 3, 0, 1])
    distribution = np.array([0.4, 0.2, 0.4, 0.0])
    pool = class_pools.ClassPool(labels, 4)
    positions = pool.draw(distribution, 20_000, np.random.default_rng(2))
    counts = np.bincount(positions, minlength=8)
    expected = 20_000 * (distribution / pool.counts)[labels]
    assert counts[5] == 0
    is_drawn = labels != 3
    assert (
      scipy.stats.chisquare(counts[is_drawn], expected[is_drawn]).pvalue > 1e-3
    )

  def test_counts_vary_as_a_multinomial_does(self):
    # Not the counts nearest to the distribution: var = n p (1 - p) = 12.
    labels = np.repeat([0, 1], [50, 50])
    pool = class_pools.ClassPool(labels, 2)
    rng = np.random.default_rng(1)
    ones = [
      labels[pool.draw(np.array([0.4, 0.6]), 50, rng)].sum()
      for _ in range(2000)
    ]
    # Five standard errors: sqrt(12 / 2000) and 12 sqrt(2 / 2000).
    assert np.mean(ones) == pytest.approx(30, abs=0.39)
    assert np.var(ones) == pytest.approx(12, abs=1.9)

  def test_order_does_not_tell_the_class(self):
    labels = np.repeat([0, 1], [500, 500])
    pool = class_pools.ClassPool(labels, 2)
    positions = pool.draw(np.array([0.5, 0.5]), 1000, np.random.default_rng(4))
    # Five standard errors of the mean of 500 fair coins.
    assert labels[positions[:500]].mean() == pytest.approx(0.5, abs=0.112)


def test_classes_held_are_those_with_an_example():
  labels = np.array([4, 1, 1, 2, 4])
  client = np.array([0, 0, 0, 2, 2])
  held = class_pools.held_classes(labels, 6, client, 3)
  assert [own.tolist() for own in held] == [[1, 4], [], [2, 4]]
  held = class_pools.held_classes(labels, 6, None, 2)
  assert [own.tolist() for own in held] == [[1, 2, 4], [1, 2, 4]]


class TestDrawWithoutReplacement:
  def test_equal_remainders_are_settled_by_lot(self):
    labels = np.repeat(np.arange(4), 10)
    pool = class_pools.ClassPool(labels, 4)
    rng = np.random.default_rng(6)
    extra = sum(
      drawn_counts(
        labels, pool.draw_without_replacement(np.full(4, 0.25), 5, rng), 4
      )
      - 1
      for _ in range(2000)
    )
    assert extra.sum() == 2000
    assert scipy.stats.chisquare(extra).pvalue > 1e-3

  def test_subsets_of_a_class_are_equally_likely(self):
    labels = np.array([1, 0, 0, 1, 0])
    pool = class_pools.ClassPool(labels, 2)
    rng = np.random.default_rng(7)
    counts = sum(
      np.bincount(
        pool.draw_without_replacement(np.array([1.0, 0.0]), 2, rng), minlength=5
      )
      for _ in range(2000)
    )
    assert_array_equal(counts[[0, 3]], 0)
    # 2 of 3 each time; five standard deviations sqrt(2000 2/9).
    assert_allclose(counts[[1, 2, 4]], 4000 / 3, atol=106)

  @hypothesis.given(pools(), st.floats(0, 1), SEEDS)
  @hypothesis.settings(max_examples=50)
  def test_counts_are_the_nearest_the_pool_allows(self, drawn, share, seed):
    labels, num_classes, distribution = drawn
    pool = class_pools.ClassPool(labels, num_classes)
    size = int(share * pool.counts[distribution > 0].sum())
    first = pool.draw_without_replacement(
      distribution, size, np.random.default_rng(seed)
    )
    assert (first.shape, first.dtype) == ((size,), np.int64)
    assert len(np.unique(first)) == size
    # The condition that defines the shares, solved by bisection: the sum of
    # min(counts, level * distribution) grows with the level.
    low, high = 0.0, 1e6
    for _ in range(100):
      level = (low + high) / 2
      is_low = np.minimum(pool.counts, level * distribution).sum() < size
      low, high = (level, high) if is_low else (low, level)
    shares = np.minimum(pool.counts, high * distribution)
    counts = drawn_counts(labels, first, num_classes)
    assert np.all(np.abs(counts - shares) < 1 + 1e-6)
    # Largest remainder: who was rounded up has no smaller remainder than who
    # was rounded down.
    up, down = counts > shares + 1e-6, counts < shares - 1e-6
    if up.any() and down.any():
      remainders = shares - np.floor(shares)
      assert remainders[up].min() >= remainders[down].max() - 1e-6


def draw(method, distribution, size):
  pool = class_pools.ClassPool(np.array([0, 0, 2]), 3)
  rng = np.random.default_rng(0)
  return getattr(pool, method)(np.array(distribution), size, rng)


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    *(
      (class_pools.ClassPool, (np.array(labels), num_classes), message)
      for labels, num_classes, message in (
        ([0, 3], 3, "labels must lie in 0..2, got 0..3"),
        ([-1, 0], 3, "labels must lie in 0..2, got -1..0"),
        ([0.0], 3, "labels must be a vector of integers, got float64"),
        ([[0, 1]], 3, "labels must be a vector of integers, got int6"),
        ([0], 0, "num_classes must be an integer of at least 1, got 0"),
      )
    ),
    *(
      (draw, ("draw", *arguments), message)
      for *arguments, message in (
        ([1.0], 1, "distribution must have the shape [3], "),
        ([1.5, -0.5, 0], 1, "distribution must be non-negative "),
        ([0.5, 0.4, 0], 1, "distribution must be non-negative "),
        ([math.nan, 1.0, 0], 1, "distribution must be non-negative "),
        ([0.5, 0.5, 0], -1, "size must be an integer of at least 0, got -1"),
        ([0.5, 0.5, 0], 2.0, "size must be an integer of at least 0, got 2.0"),
        (
          [0.5, 0.25, 0.25],
          3,
          "there is no example of class 1, whose probability is 0.25",
        ),
      )
    ),
    *(
      (draw, ("draw_without_replacement", *arguments), message)
      for *arguments, message in (
        ([1.0], 1, "distribution must have the shape [3], "),
        ([1, 0, 0], 3, "3 examples cannot "),
      )
    ),
    (class_pools.deal_classes, (5, 3, 0), "num_clients must be at most 2"),
  ],
)
def test_bad_arguments_are_refused(function, arguments, message, refusal):
  assert message in refusal(function, *arguments)


class TestPretrainingDistribution:
  def test_densities_by_hand(self):
    # I = 4: mean 1.5, standard deviation 1; densities at 1.5 and at 0.5.
    tail, centre = math.exp(-(1.5**2) / 2), math.exp(-(0.5**2) / 2)
    for name, densities in (
      ("gaussian", [tail, centre, centre, tail]),
      ("exponential_decay", [1, math.sqrt(0.1), 0.1]),
    ):
      assert_allclose(
        class_pools.pretraining_distribution(name, len(densities)),
        np.array(densities) / sum(densities),
        rtol=1e-12,
      )

  @pytest.mark.parametrize("name", class_pools.PRETRAINING_DISTRIBUTIONS)
  @pytest.mark.parametrize("num_classes", [1, 2, 7, 200])
  def test_distribution_sums_to_one_and_has_every_class(
    self, name, num_classes
  ):
    distribution = class_pools.pretraining_distribution(name, num_classes)
    assert distribution.shape == (num_classes,)
    assert distribution.dtype == np.float64
    assert distribution.sum() == pytest.approx(1, abs=1e-12)
    assert distribution.min() > 0


def test_deal_classes_each_class_goes_to_one_client():
  dealt = class_pools.deal_classes(41, 5, seed=0)
  assert sorted(map(len, dealt)) == [8, 8, 8, 8, 9]
  assert sorted(np.concatenate(dealt)) == list(range(41))
  assert all(np.all(np.diff(each) > 0) for each in dealt)
