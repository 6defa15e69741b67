"""The memories of the correction by hand, and its limits."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.algorithms import fth
from tff_shift.algorithms import prior_correction
from tff_shift.learning import hyperparameters

HParams = prior_correction.HParams
STREAM = 6, 8


@pytest.fixture(scope="module")
def adapt(build, client, make_adapting_client, make_client):
  """Returns `adapt(hparams, time steps)`, logits after each of them.

  Each time step has another stream. The first logits are those of before.
  """
  examples = make_client(5, [7])

  def adapt(hparams, timesteps=(1, 2, 3)):
    functions = build(hparams)
    state = functions.initial_client_state(client.seed, ())
    found = [functions.predict_as_client((), state, client, examples)]
    for timestep in timesteps:
      data = make_adapting_client(timestep, *STREAM)._replace(
        seed=client.seed, timestep=np.int32(timestep)
      )
      state = functions.train_client((), state, data, 0).client_state
      found.append(functions.predict_as_client((), state, client, examples))
    return found, state

  return adapt


def experts_of(estimates, rate=0.5, number=8):
  """The predictions after each estimate of the first of two classes."""
  zeros = tf.zeros([number])
  experts = prior_correction.Experts(tf.zeros([number, 2]), zeros, zeros)
  found = []
  for each in estimates:
    experts = experts.add(tf.constant([each, 1 - each]), rate)
    assert_allclose(tf.reduce_sum(experts.weights), 1, atol=1e-6)
    found.append(float(experts.mean()[0]))
  return found


def test_experts_predictions_by_hand():
  """a = 1/2; the second weights are exp(-0.1225) and exp(-0.09)."""
  assert_allclose(
    experts_of([0.5, 0.6, 0.9, 0.9]),
    [0.5, 0.575, 0.77267357, 0.83272450],
    atol=1e-6,
  )


def test_experts_without_a_rate_the_mix_is_fixed():
  """All experts have the same weight, 1/3: means of 1, 2 and 3 estimates."""
  assert_allclose(
    experts_of([0.5, 0.6, 0.9], rate=0.0)[-1],
    (2.0 / 3 + 1.5 / 2 + 0.9) / 3,
    atol=1e-6,
  )


def test_experts_a_large_rate_leaves_numbers_finite():
  assert np.all(np.isfinite(experts_of([0.0, 1.0] * 4, rate=1e30)))


def test_expert_of_smallest_weight_is_replaced():
  """Two places: 1/2 each, then the errors 0.245 and 0.18, and a third."""
  weights = np.exp([-0.1225, -0.09])
  weights *= 2 / 3 / weights.sum()
  kept = weights[1] / (weights[1] + 1 / 3)
  assert_allclose(
    experts_of([0.5, 0.6, 0.9], number=2)[-1],
    kept * 0.75 + (1 - kept) * 0.9,
    atol=1e-6,
  )


@pytest.mark.slow
class TestLimits:
  def test_history_is_fth_bit_for_bit(self, adapt):
    # A repeated time step counts once.
    steps = (1, 1, 2, 3)
    expected, _ = adapt(fth.HParams(), steps)
    result, _ = adapt(HParams(memory="history"), steps)
    assert_array_equal(result, expected)

  def test_all_memories_agree_after_one_time_step(self, adapt):
    first, *others = (
      adapt(HParams(memory=memory), (1,))[0][-1]
      for memory in ("none", "history", "window", "flh_ftl")
    )
    assert_array_equal(others, [first] * 3)

  def test_windows_of_one_and_of_all_time_steps(self, adapt):
    def last(**options):
      return adapt(HParams(**options))[0][-1]

    assert_array_equal(last(memory="window", window=1), last(memory="none"))
    assert_allclose(
      last(memory="window", window=3), last(memory="history"), atol=1e-6
    )
    assert np.any(last(memory="window", window=2) != last(memory="history"))

  def test_much_smoothing_is_the_source(self, adapt):
    result, _ = adapt(HParams(smoothing=1e9), (1,))
    assert_allclose(result[1], result[0], atol=1e-6)


@pytest.mark.slow
def test_correction_by_hand(adapt):
  """The estimate is the mean softmax of two passes of EM over the stream."""
  found, state = adapt(
    HParams(estimator="em", memory="none", prior="labelled"), (1,)
  )
  # Six labelled examples, two of each class, so pi is uniform.
  assert_allclose(state.prior, np.full(3, 1 / 3), rtol=1e-6)
  assert_allclose(
    found[1] - found[0],
    np.tile(np.log(3 * state.memory.estimates[0]), (7, 1)),
    atol=1e-5,
  )


def test_prior_of_labelled_examples():
  found = prior_correction.labelled_prior(np.int32([0, 0, 0, 1]), 3)
  assert_allclose(found, np.array([4, 2, 1]) / 7, rtol=1e-6)


@pytest.mark.slow
def test_fit_scale_it_minimises_the_cross_entropy():
  generator = np.random.default_rng(2)
  logits = generator.normal(size=(40, 3)).astype(np.float32)
  y = np.argmax(logits + 2 * generator.gumbel(size=(40, 3)), 1)
  scales = np.exp(np.linspace(-3, 3, 60001))
  exact = np.float64(logits)
  chosen = exact[np.arange(40), y]
  losses = [
    np.mean(scipy.special.logsumexp(s * exact, axis=1) - s * chosen)
    for s in scales
  ]
  assert_allclose(
    prior_correction.fit_scale(logits, np.int32(y)),
    scales[np.argmin(losses)],
    rtol=1e-3,
  )


@pytest.mark.parametrize("y, expected", [(0, 16.0), (1, 1 / 16)])
def test_fit_scale_it_has_limits(y, expected):
  logits = np.float32([[2.0, 0.0]] * 3)
  found = prior_correction.fit_scale(logits, np.int32([y] * 3))
  assert_allclose(found, expected, rtol=1e-4)
  # Without examples it is one.
  assert prior_correction.fit_scale(logits[:0], np.int32([])) == 1.0


@pytest.mark.slow
def test_fit_scale_predictions_are_scaled(adapt):
  hparams = HParams(calibration="temperature", memory="none")
  plain = dataclasses.replace(hparams, calibration="none")
  result, state = adapt(hparams, (1,))
  expected, _ = adapt(plain, (1,))
  shift = expected[1] - expected[0]
  assert_allclose(result[1], state.scale * expected[0] + shift, atol=1e-5)


@pytest.mark.parametrize(
  "memory, scored, expected",
  [
    ("none", "published", False),
    ("flh_ftl", "published", True),
    ("none", "before", True),
    ("history", "after", False),
  ],
)
def test_published_reading_is_that_of_the_memory(memory, scored, expected):
  hparams = HParams(memory=memory, scored=scored)
  hyperparameters.validate(hparams)
  assert hparams.is_scored_before == expected
