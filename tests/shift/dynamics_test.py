"""Tests of the shift signal beside NumPy and SciPy (Fed-ADE, eq. 9 to 14)."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.shift import dynamics

SIZE = 5
ROWS = tf.TensorSpec([None, SIZE], tf.float32)
VECTOR = tf.TensorSpec([SIZE], tf.float32)

# Subnormal numbers are zero to TensorFlow.
ENTRIES = st.floats(-10, 10, width=32, allow_subnormal=False)
VECTORS = hnp.arrays(np.float32, SIZE, elements=ENTRIES)
BATCHES = hnp.arrays(
  np.float32, st.tuples(st.integers(0, 6), st.just(SIZE)), elements=ENTRIES
)
SIGNALS = st.floats(0, 1, width=32)


def unit(vector):
  """The vector as float64 of length 1; zero if it is zero."""
  vector = vector.astype(np.float64)
  length = np.linalg.norm(vector)
  return vector / length if length else vector


@pytest.fixture(scope="module")
def summaries(compile_in_graph):
  """q and z of the same rows."""
  return compile_in_graph(
    lambda rows: (
      dynamics.mean_probabilities(rows),
      dynamics.mean_direction(rows),
    ),
    ROWS,
  )


@hypothesis.settings(max_examples=25)
@hypothesis.given(BATCHES.filter(len))
def test_summaries_match_equations_11_and_13(summaries, rows):
  q, z = summaries(rows)
  probabilities = scipy.special.softmax(rows.astype(np.float64), axis=1)
  assert_allclose(q, probabilities.mean(axis=0), rtol=1e-5)
  directions = [unit(row) for row in rows]
  assert_allclose(z, np.mean(directions, axis=0), atol=1e-6)


def test_summaries_tiny_and_huge_embeddings_have_a_direction(summaries):
  row = np.float32([3, 4, 0, 0, 0])
  rows = np.stack([row * 1e-30, row * 1e30, row * 0]).astype(np.float32)
  _, z = summaries(rows)
  # Of three, one has none.
  assert_allclose(z, [0.4, 1.6 / 3, 0, 0, 0], rtol=1e-6)


def test_summaries_empty_batch_is_zero(summaries):
  q, z = summaries(np.zeros([0, SIZE], np.float32))
  assert_array_equal(q, np.zeros(SIZE))
  assert_array_equal(z, np.zeros(SIZE))


@pytest.fixture(scope="module")
def signals(compile_in_graph):
  """S_unc and S_rep of the same two vectors."""
  return compile_in_graph(
    lambda previous, current: (
      dynamics.uncertainty_dynamics(previous, current),
      dynamics.representation_dynamics(previous, current),
    ),
    VECTOR,
    VECTOR,
  )


@hypothesis.settings(max_examples=50)
@hypothesis.given(VECTORS.filter(np.any), VECTORS.filter(np.any))
def test_signals_match_equations_12_and_14(signals, previous, current):
  uncertainty, representation = signals(previous, current)
  assert 0 <= uncertainty <= 1
  assert 0 <= representation <= 1
  # Of unit vectors: SciPy's cosine loses the squares of tiny entries.
  distance = scipy.spatial.distance.cosine(unit(previous), unit(current))
  assert_allclose(representation, distance / 2, atol=1e-6)
  # Probabilities are not negative, and eq. 12 is 1 at most.
  assert_allclose(uncertainty, min(distance, 1), atol=1e-6)


@hypothesis.settings(max_examples=50)
@hypothesis.given(VECTORS)
def test_signals_identical_vectors_are_exactly_zero(signals, vector):
  assert signals(vector, vector) == (0, 0)


@hypothesis.settings(max_examples=25)
@hypothesis.given(SIGNALS, SIGNALS)
def test_combine_matches_equation_10_and_its_ablations(
  uncertainty, representation
):
  first, second = tf.constant(uncertainty), tf.constant(representation)
  combined = dynamics.combine(first, second).numpy()
  assert_allclose(
    combined, (uncertainty + representation) / 2, rtol=1e-6, atol=1e-37
  )
  assert dynamics.combine(first, second, True, False).numpy() == uncertainty
  assert dynamics.combine(first, second, False, True).numpy() == representation


def test_combine_nothing_is_refused(refusal):
  signals = tf.constant(0.1), tf.constant(0.2)
  told = refusal(dynamics.combine, *signals, False, False)
  assert told.startswith("there is no signal: ")


# TensorFlow takes numbers below the smallest normal float32 for 0.
RATES = st.just(0.0) | st.floats(1e-37, 1)


@hypothesis.settings(max_examples=50)
@hypothesis.given(SIGNALS, RATES, RATES)
def test_learning_rate_matches_equation_9_within_its_bounds(signal, one, other):
  minimum, maximum = sorted((one, other))
  rate = dynamics.learning_rate(tf.constant(signal), minimum, maximum)
  assert np.float32(minimum) <= rate.numpy() <= np.float32(maximum)
  assert_allclose(
    rate, minimum + (maximum - minimum) * signal, rtol=1e-6, atol=1e-37
  )


@pytest.mark.parametrize(
  "minimum, maximum", [(5e-6, 1e-4), (1e-3, 1e-2), (0, 0.1), (0.3, 0.3)]
)
def test_learning_rate_at_the_ends_and_beyond_is_the_bound(
  run_in_graph, minimum, maximum
):
  signals = np.float32([-0.5, 0, 1, 1.0000001, 7])
  rates = run_in_graph(
    lambda signal: dynamics.learning_rate(signal, minimum, maximum), signals
  )
  assert_array_equal(rates, np.array([minimum] * 2 + [maximum] * 3, np.float32))


@pytest.mark.parametrize(
  "minimum, maximum", [(0.2, 0.1), (-0.1, 0.1), (float("nan"), 0.1)]
)
def test_learning_rate_bad_bounds_are_refused(minimum, maximum, refusal):
  told = refusal(dynamics.learning_rate, tf.constant(0.5), minimum, maximum)
  assert told.startswith("learning rates must be 0 <= minimum <= maximum, ")
