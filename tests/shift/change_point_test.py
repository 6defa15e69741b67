"""Tests of change-point detection beside all segmentations of a sequence."""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.shift import change_point

SIZE = 3
# Nothing is merged while a sequence is shorter than this.
NUM_LENGTHS = 8


def log_marginal(segment):
  """log p of a segment [length, size], its mean integrated out.

  The dimensions are independent; in each of them the observations are jointly
  normal with covariance (1 + [i = j] / n) / d.
  """
  length, size = segment.shape
  covariance = (1 + np.eye(length) / change_point.BATCH_SIZE) / size
  return scipy.stats.multivariate_normal.logpdf(
    segment.T, np.zeros(length), covariance
  ).sum()


def change_probability(sequence):
  """P(a segment begins with the last observation), by enumeration."""
  length = len(sequence)
  joint = {True: [], False: []}
  for changes in itertools.product([False, True], repeat=length - 1):
    starts = [0, *(1 + np.flatnonzero(changes)), length]
    log_probability = sum(
      log_marginal(sequence[start:end])
      for start, end in itertools.pairwise(starts)
    )
    for change in changes:
      log_probability += np.log(
        change_point.HAZARD if change else 1 - change_point.HAZARD
      )
    joint[changes[-1]].append(log_probability)
  changed, unchanged = (
    scipy.special.logsumexp(joint[each]) for each in (True, False)
  )
  return scipy.special.expit(changed - unchanged)


@pytest.fixture(scope="module")
def detect(compile_in_graph):
  """Returns `detect(sequence, num_lengths)`: the signal of each step.

  The first row of the sequence is `previous` of the first step.
  """

  @functools.cache
  def start(num_lengths):
    state = change_point.initial_state(SIZE, num_lengths)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, state)
    vector = tf.TensorSpec([SIZE], tf.float32)
    step = compile_in_graph(change_point.observe, specs, vector, vector)
    return step, tf.nest.map_structure(np.asarray, state)

  def run(sequence, num_lengths=NUM_LENGTHS):
    step, state = start(num_lengths)
    signals = []
    for previous, current in itertools.pairwise(sequence):
      signal, state = step(state, previous, current)
      signals.append(signal)
    return np.array(signals), state

  return run


@st.composite
def sequences(draw):
  """Up to seven summaries with jumps and noise of every size."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  noise, jump = draw(st.floats(0, 0.5)), draw(st.floats(0, 1))
  rows = [rng.dirichlet(np.ones(SIZE))]
  for _ in range(draw(st.integers(1, 6))):
    moved = rng.random() < 0.3
    rows.append(rows[-1] + moved * jump * rng.normal(size=SIZE))
  return np.array(rows) + noise * rng.normal(size=(len(rows), SIZE))


@pytest.mark.slow
@hypothesis.settings(max_examples=15)
@hypothesis.given(sequences())
def test_observe_signals_match_the_enumeration_of_segmentations(
  detect, sequence
):
  signals, _ = detect(sequence)
  expected = [
    change_probability(sequence[: end + 1]) for end in range(1, len(sequence))
  ]
  assert_allclose(signals, expected, rtol=1e-3, atol=1e-5)


def test_observe_belief_names_the_length_of_the_segment(detect):
  first, second = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
  _, state = detect([first] * 4 + [second] * 3)
  probabilities = np.exp(state.log_probability)
  assert_allclose(probabilities.sum(), 1, rtol=1e-5)
  assert probabilities.argmax() == 2  # It began two steps before the last.
  assert probabilities[2] > 0.9
  assert state.count[2] == 3
  assert_array_equal(state.total[2], 3 * second)


def test_observe_full_state_goes_on_as_if_it_were_longer(detect):
  """Three lengths in place of eight: segments merge, little is lost."""
  first, second = np.array([0.8, 0.1, 0.1]), np.array([0.1, 0.1, 0.8])
  noise = 0.02 * np.random.default_rng(1).normal(size=(8, SIZE))
  sequence = np.array([first] * 6 + [second] * 2) + noise
  signals, _ = detect(sequence)
  merged, state = detect(sequence, num_lengths=3)
  assert_allclose(merged, signals, rtol=0.1)
  assert state.count.shape == (3,)


def test_observe_merged_statistics_are_means_by_probability(detect):
  """Two observations and room for one length, all by hand."""
  first, second = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
  (signal,), state = detect([first, second], num_lengths=1)
  assert_allclose(
    signal, change_probability(np.array([first, second])), rtol=1e-4
  )
  assert_allclose(state.log_probability, [0], atol=1e-6)
  assert_allclose(state.count, [2 - signal], rtol=1e-5)
  assert_allclose(state.total, [second + (1 - signal) * first], rtol=1e-5)


def test_observe_zero_vectors_are_not_observed(detect):
  zero, vector = np.zeros(SIZE), np.array([0.5, 0.3, 0.2])
  signals, untouched = detect([zero, zero])
  assert_array_equal(signals, [0])
  assert_array_equal(untouched.count, np.zeros(NUM_LENGTHS))
  # The first that is not zero begins the first segment.
  signals, begun = detect([zero, vector])
  assert_array_equal(signals, [0])
  assert_array_equal(begun.count, np.eye(NUM_LENGTHS)[0])
  assert_array_equal(begun.total[0], vector.astype(np.float32))
  # A pause in between changes nothing.
  later = np.array([0.4, 0.4, 0.2])
  signals, state = detect([vector, later, later])
  paused, same = detect([vector, later, zero, later])
  assert_array_equal(paused, [signals[0], 0, signals[1]])
  tf.nest.map_structure(assert_array_equal, state, same)


def test_observe_signal_far_vectors_stay_finite(detect):
  """Log likelihoods of minus hundreds of thousands, step after step."""
  rows = 30 * np.random.default_rng(2).normal(size=(20, SIZE))
  signals, state = detect(rows)
  assert ((signals >= 0) & (signals <= 1)).all()
  for each in state:
    assert np.isfinite(each).all()
  assert_allclose(np.exp(state.log_probability).sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("size", [10, 512])
@pytest.mark.parametrize("steps, even", [(1, 0.15), (10, 0.1)])
def test_observe_signal_even_odds_are_at_the_documented_distance(
  size, steps, even
):
  first = np.zeros(size, np.float32)
  first[0] = np.sqrt(0.7)
  state = change_point.initial_state(size)
  for _ in range(steps - 1):
    _, state = change_point.observe(state, first, first)
  signals = []
  for squared_distance in (0.8 * even, 1.2 * even):
    second = first.copy()
    second[:2] += np.array([-1, 1]) * np.sqrt(squared_distance / 2)
    signals.append(change_point.observe(state, first, second)[0])
  assert signals[0] < 0.5 < signals[1]
