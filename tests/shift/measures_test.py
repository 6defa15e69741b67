"""Tests of the measures beside SciPy and POT (Fed-ADE, Table 3)."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import ot
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose

from tff_shift.shift import dynamics
from tff_shift.shift import measures

SIZE = 6
VECTOR = tf.TensorSpec([SIZE], tf.float32)
SEEDS = st.integers(0, 2**32 - 1)


def distributions(seed, concentration):
  """Two random distributions; the smaller the concentration, the sparser."""
  rng = np.random.default_rng(seed)
  return rng.dirichlet(np.full(SIZE, concentration), size=2).astype(np.float32)


def line_distance(first, second):
  """W1 on a line of equal steps from 0 to 1, by POT."""
  line = np.linspace(0, 1, len(first))
  return ot.wasserstein_1d(
    line, line, first.astype(np.float64), second.astype(np.float64)
  )


@pytest.fixture(scope="module")
def compare(compile_in_graph):
  """Returns `compare(name, previous, current)`: both signals of a new state."""

  @functools.cache
  def build(name):
    measure = measures.get(name)

    def both(previous, current):
      state = measure.initial_state(SIZE)
      return (
        measure.uncertainty(state, previous, current)[0],
        measure.representation(state, previous, current)[0],
      )

    return compile_in_graph(both, VECTOR, VECTOR)

  return lambda name, previous, current: build(name)(previous, current)


@pytest.mark.parametrize("name", measures.names())
@hypothesis.settings(max_examples=20)
@hypothesis.given(SEEDS, st.sampled_from([0.05, 1, 20]))
def test_measures_signals_lie_between_zero_and_one(
  compare, name, seed, concentration
):
  for signal in compare(name, *distributions(seed, concentration)):
    assert 0 <= signal <= 1


@pytest.mark.parametrize("name", measures.names())
def test_measures_signals_grow_with_the_shift_and_zero_vectors_are_none(
  compare, name
):
  near, far = np.eye(SIZE)[0], np.eye(SIZE)[-1]
  signals = np.array(
    [
      compare(name, near, near),
      compare(name, near, 0.75 * near + 0.25 * far),
      compare(name, near, far),
    ]
  )
  assert (np.diff(signals, axis=0) > 0).all()
  zero, vector = np.zeros(SIZE), np.full(SIZE, 1 / SIZE)
  for pair in ((zero, vector), (vector, zero), (zero, zero)):
    assert compare(name, *pair) == (0, 0)
  # The same vector again; a detector of change points is never sure.
  vector, _ = distributions(1, 1)
  assert (compare(name, vector, vector) == (0, 0)) == (name != "bayesian_cpd")


def test_measures_cosine_is_equations_12_and_14(compare):
  previous, current = distributions(0, 1)
  assert compare("cosine", previous, current) == (
    dynamics.uncertainty_dynamics(previous, current).numpy(),
    dynamics.representation_dynamics(previous, current).numpy(),
  )


@pytest.mark.parametrize("name", ["kl_divergence", "wasserstein"])
def test_measures_signals_only_positive_part_and_direction_count(compare, name):
  previous, current = distributions(2, 1)
  previous[1] = current[4] = 0
  expected = compare(name, previous, current)
  previous[1] = current[4] = -3
  assert_allclose(
    compare(name, 5 * previous, 0.1 * current), expected, rtol=1e-5
  )
  assert compare(name, -np.ones(SIZE), current) == (0, 0)


def test_all_measures_run_in_a_tff_computation(context, compare):
  """A client's states keep their type and go from step to step."""
  every = [measures.get(name) for name in measures.names()]

  @tff.tensorflow.computation
  def initialize():
    return {measure.name: measure.initial_state(SIZE) for measure in every}

  state_type = initialize.type_signature.result
  vector_type = tff.TensorType(np.float32, [SIZE])

  @tff.tensorflow.computation(state_type, vector_type, vector_type)
  def step(states, previous, current):
    return {
      measure.name: measure.uncertainty(states[measure.name], previous, current)
      for measure in every
    }

  previous, current = distributions(3, 1)
  results = step(initialize(), previous, current)
  for name, (signal, _) in results.items():
    new_type = step.type_signature.result[name][1]
    assert new_type.is_equivalent_to(state_type[name])
    expected, _ = compare(name, previous, current)
    assert_allclose(signal, expected, rtol=1e-5)
  assert results["bayesian_cpd"][1].count[:3].tolist() == [1, 2, 0]


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.sampled_from([0.1, 1, 20]))
def test_kl_divergence_signal_matches_entropy_with_floor(
  compare, seed, concentration
):
  previous, current = distributions(seed, concentration).astype(np.float64)
  # SciPy divides by the sums itself.
  divergence = scipy.stats.entropy(
    current.clip(min=measures.KL_FLOOR), previous.clip(min=measures.KL_FLOOR)
  )
  for signal in compare("kl_divergence", previous, current):
    assert_allclose(signal, 1 - np.exp(-divergence), atol=2e-6)


@hypothesis.settings(max_examples=25)
@hypothesis.given(SEEDS, st.sampled_from([0.1, 1, 20]))
def test_wasserstein_signal_matches_pot(compare, seed, concentration):
  previous, current = distributions(seed, concentration)
  for signal in compare("wasserstein", previous, current):
    assert_allclose(signal, line_distance(previous, current), atol=2e-6)


def test_wasserstein_signal_single_class_is_no_shift(run_in_graph):
  one = np.ones(1, np.float32)
  assert run_in_graph(measures.wasserstein, one, one) == 0


def test_names_are_those_of_the_measures():
  assert [measures.get(name).name for name in measures.names()] == list(
    measures.names()
  )


def test_unknown_name_is_refused(refusal):
  told = refusal(measures.get, "l2")
  assert told.startswith("no measure 'l2'; there are cosine, ")
