"""Tests of draws: distributions, and the same bits wherever they are drawn."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift._util import draws

SEED = np.array([17, 2**31 - 1], np.int32)
NUM_DRAWS = 100_000
# The probability that a test of frequencies fails by chance.
CHANCE = 1e-6
words = st.integers(0, 2**31 - 1)


def in_graph(function, *, is_compiled=False):
  return tf.function(function, jit_compile=is_compiled)


EXACT = {
  "fold_in": lambda seed: draws.fold_in(seed, 7),
  "integer": draws.integer,
  "integers": lambda seed: draws.integers([1000], seed, 3, 10),
  "uniform": lambda seed: draws.uniform([1000], seed),
  "orders": lambda seed: draws.orders(200, 50, seed),
  "categories": lambda seed: draws.categories(
    50, tf.constant([0.5, 0.0, 0.25, 0.25]), seed
  ),
}


class TestCompiled:
  @pytest.mark.parametrize("name", EXACT)
  def test_bits_are_those_of_a_graph_that_is_not_compiled(self, name):
    plain, compiled = (
      in_graph(EXACT[name], is_compiled=is_compiled)
      for is_compiled in (False, True)
    )
    seed = tf.constant(SEED)
    for number in range(5):
      # Seeds of seeds, as in a run.
      seed = draws.fold_in(seed, number)
      assert plain(seed).numpy().tobytes() == compiled(seed).numpy().tobytes()

  def test_normal_numbers_agree_up_to_rounding(self):
    plain, compiled = (
      in_graph(functools.partial(draws.normal, [1000]), is_compiled=each)(SEED)
      for each in (False, True)
    )
    assert_allclose(plain, compiled, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@hypothesis.given(words, words)
def test_bits_are_those_of_tensorflow_s_philox(first, second):
  seed = np.array([first, second], np.int32)

  def expected(shape, dtype):
    return tf.random.stateless_uniform(
      shape, seed, None, None, dtype, alg="philox"
    )

  assert_array_equal(
    draws.integers([3, 5], seed, 0, 2**31 - 1),
    (expected([3, 5], tf.int32) & draws.POSITIVE) % (2**31 - 1),
  )
  assert_array_equal(
    draws.orders(14, 7, seed),
    np.argsort(expected([2, 7], tf.int64), axis=1).ravel(),
  )


@hypothesis.given(words, words, st.integers(-(2**31), 2**31 - 1))
def test_fold_in_seeds_are_not_negative(first, second, value):
  found = draws.fold_in(np.array([first, second], np.int32), value)
  assert found.dtype == tf.int32 and found.shape == [2]
  assert np.min(found) >= 0
  assert found[1] == value % 2**31


class TestUniform:
  def test_is_uniform_below_one(self):
    drawn = draws.uniform([NUM_DRAWS], SEED).numpy()
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0 and drawn.max() < 1
    assert scipy.stats.kstest(drawn, "uniform").pvalue > CHANCE
    # All 24 bits vary.
    bits = (drawn.astype(np.float64) * 2**24).astype(np.int64)
    assert_allclose(
      [np.mean(bits >> each & 1) for each in range(24)], 0.5, atol=0.01
    )

  def test_range(self):
    drawn = draws.uniform([NUM_DRAWS], SEED, -3.0, 5.0).numpy()
    unit = draws.uniform([NUM_DRAWS], SEED).numpy()
    assert_array_equal(drawn, np.float32(-3) + 8 * unit)


def test_normal_numbers_are_normal():
  drawn = draws.normal([NUM_DRAWS // 100, 100], SEED).numpy()
  assert drawn.dtype == np.float32 and drawn.shape == (1000, 100)
  assert scipy.stats.kstest(drawn.ravel(), "norm").pvalue > CHANCE
  assert np.all(np.isfinite(drawn))


def test_integers_are_uniform_in_their_range():
  drawn = draws.integers([NUM_DRAWS], SEED, 3, tf.constant(10)).numpy()
  counts = np.bincount(drawn, minlength=10)
  assert counts[:3].tolist() == [0, 0, 0] and len(counts) == 10
  assert scipy.stats.chisquare(counts[3:]).pvalue > CHANCE


class TestOrders:
  def test_number_of_draws_does_not_change_the_first(self):
    drawn = draws.orders(20, 5, SEED)
    assert_array_equal(draws.orders(13, 5, SEED)[:10], drawn[:10])
    assert draws.orders(0, 0, SEED).shape == [0]

  def test_all_orders_are_equally_likely(self):
    drawn = draws.orders(NUM_DRAWS * 3, 3, SEED).numpy().reshape(-1, 3)
    assert np.all(np.sort(drawn, axis=1) == [0, 1, 2])
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6
    assert scipy.stats.chisquare(counts).pvalue > CHANCE


def test_frequencies_of_categories_are_the_probabilities():
  probabilities = np.float32([0.0, 2.0, 1.0, 0.0, 5.0, 0.0])
  drawn = draws.categories(NUM_DRAWS, tf.constant(probabilities), SEED)
  counts = np.bincount(drawn, minlength=6)
  assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
  expected = NUM_DRAWS * probabilities[[1, 2, 4]] / 8
  assert scipy.stats.chisquare(counts[[1, 2, 4]], expected).pvalue > CHANCE
