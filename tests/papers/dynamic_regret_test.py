"""Tests of the convex problem and of dynamic regret on it (Fed-ADE, 5.2)."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from experiments import dynamic_regret as regret
from tff_shift.shift import bbse
from tff_shift.shift import dynamics

SEEDS = st.integers(0, 2**31)
UNIFORM = np.full(5, 0.2)
SKEWED = np.array([0.5, 0.2, 0.1, 0.1, 0.1])
CHEAP = hypothesis.settings(deadline=None, max_examples=25)


PROBLEM = regret.Problem()


@pytest.fixture(scope="module")
def adapt():
  """Fed-ADE with eta_max 20 times eta_min."""
  return regret.build(PROBLEM, 0.05)


@pytest.fixture(scope="module")
def adapt_constantly():
  return regret.build(PROBLEM, 1.0)


def stream_of(omega, num_examples=50, seed=0):
  return regret.draw_stream(
    PROBLEM, np.asarray(omega, float), SKEWED, num_examples, seed
  )


def regrets_of(stream, *thetas):
  """The regrets of each adaptation to one stream, by step."""
  distributions = stream.distributions[1:]
  optimal_risks = PROBLEM.optimal_risks(distributions)
  return [
    regret.regrets(PROBLEM, theta, distributions, optimal_risks)
    for theta in thetas
  ]


def random_theta(seed, scale=1.0):
  return scale * np.random.default_rng(seed).normal(size=PROBLEM.shape)


def keras_risk(theta, sample_weight):
  """The mean weighted cross-entropy and the quadratic term, by Keras."""
  losses = tf.keras.losses.sparse_categorical_crossentropy(
    PROBLEM.y, PROBLEM.inputs @ theta, from_logits=True
  )
  decay = PROBLEM.weight_decay / 2 * np.linalg.norm(theta) ** 2
  return np.mean(sample_weight * losses.numpy()) + decay


class TestRisk:
  @CHEAP
  @hypothesis.given(SEEDS)
  def test_class_risks_weighted_sum_is_the_risk(self, seed):
    theta = random_theta(seed)
    distribution = np.random.default_rng(seed).dirichlet(np.ones(5))
    # All classes have the same share of the examples, 1 / 5.
    expected = keras_risk(theta, 5 * distribution[PROBLEM.y])
    assert distribution @ PROBLEM.class_risks(theta) == pytest.approx(
      expected, rel=1e-12
    )

  @CHEAP
  @hypothesis.given(SEEDS)
  def test_gradient_matches_finite_differences(self, seed):
    theta = random_theta(seed)
    distribution = np.random.default_rng(seed).dirichlet(np.ones(5))
    error = optimize.check_grad(
      lambda x: distribution @ PROBLEM.class_risks(x.reshape(PROBLEM.shape)),
      lambda x: PROBLEM.gradient(
        x.reshape(PROBLEM.shape), distribution
      ).ravel(),
      theta.ravel(),
    )
    assert error < 1e-6


class TestOptimum:
  @CHEAP
  @hypothesis.given(SEEDS)
  @pytest.mark.slow
  def test_optimum_is_a_minimum_inside_the_ball(self, seed):
    rng = np.random.default_rng(seed)
    # Some of these have nearly all their weight in one class.
    distribution = rng.dirichlet(np.full(5, 0.1))
    theta = PROBLEM.optimum(distribution)
    assert np.abs(PROBLEM.gradient(theta, distribution)).max() <= 1e-7
    assert np.linalg.norm(theta) < PROBLEM.radius
    smallest = distribution @ PROBLEM.class_risks(theta)
    moved = theta + random_theta(seed, scale=0.01)
    # What the quadratic term alone makes it worse by.
    gap = PROBLEM.weight_decay / 2 * np.linalg.norm(moved - theta) ** 2
    assert distribution @ PROBLEM.class_risks(moved) >= smallest + 0.99 * gap

  def test_optimum_matches_another_solver_and_start(self):
    shape = PROBLEM.shape
    expected = optimize.minimize(
      lambda x: SKEWED @ PROBLEM.class_risks(x.reshape(shape)),
      random_theta(3).ravel(),
      jac=lambda x: PROBLEM.gradient(x.reshape(shape), SKEWED).ravel(),
      method="BFGS",
      options={"gtol": 1e-6},
    )
    [found] = PROBLEM.optimal_risks(SKEWED[None])
    assert found == pytest.approx(expected.fun, abs=1e-9)

  def test_optimal_risks_do_not_depend_on_order_or_repetition(self):
    distributions = np.array([SKEWED, UNIFORM, SKEWED, SKEWED[::-1]])
    risks = PROBLEM.optimal_risks(distributions)
    assert risks[0] == risks[2]
    alone = [PROBLEM.optimal_risks(each[None])[0] for each in distributions]
    np.testing.assert_allclose(risks, alone, atol=1e-10)


class TestDrawStream:
  def test_distributions_and_shift_match_a_hand_count(self):
    stream = stream_of([0, 1, 0.5])
    np.testing.assert_allclose(
      stream.distributions, [UNIFORM, SKEWED, (UNIFORM + SKEWED) / 2]
    )
    # |SKEWED - UNIFORM|_1 is 0.6, and half of it leads back.
    assert stream.cumulative_shift == pytest.approx(0.9)

  def test_examples_have_the_classes_of_their_step(self):
    num_examples = 20000
    stream = stream_of([0, 0, 1], num_examples)
    for step, expected in enumerate([UNIFORM, SKEWED]):
      counts = np.bincount(PROBLEM.y[stream.examples[step]], minlength=5)
      # Four standard deviations, at most 0.014.
      np.testing.assert_allclose(counts / num_examples, expected, atol=0.0142)
    # All 200 examples occur, as each is expected 50 times or more.
    assert len(np.unique(stream.examples)) == 200


@pytest.mark.parametrize(
  "shift, num_timesteps, expected",
  # 8^(1/3) 1000^(2/3) = 200; sqrt(10000) where nothing shifts.
  [(8, 1000, 200), (0, 10000, 100)],
)
def test_bound_matches_a_hand_count(shift, num_timesteps, expected):
  assert regret.bound(shift, num_timesteps) == pytest.approx(expected)


@pytest.mark.slow
class TestAdaptation:
  def test_steps_match_numpy(self, adapt):
    stream = stream_of([0, 0.3, 1, 0])
    found = adapt([stream], [2.0])
    inputs = tf.constant(PROBLEM.inputs, tf.float32)
    confusion = bbse.confusion_matrix(
      inputs @ PROBLEM.pretrained, tf.constant(PROBLEM.y)
    )
    theta = np.asarray(PROBLEM.pretrained, np.float64)
    q = dynamics.mean_probabilities(inputs @ PROBLEM.pretrained)
    z = dynamics.mean_direction(tf.constant(PROBLEM.embeddings, tf.float32))
    for step, batch in enumerate(stream.examples):
      np.testing.assert_allclose(found.theta[0, step], theta, atol=1e-5)
      x = tf.gather(inputs, batch)
      previous_q, previous_z = q, z
      q = dynamics.mean_probabilities(x @ tf.constant(theta, tf.float32))
      z = dynamics.mean_direction(x[:, :-1])
      signal = dynamics.combine(
        dynamics.uncertainty_dynamics(previous_q, q),
        dynamics.representation_dynamics(previous_z, z),
      )
      rate = dynamics.learning_rate(signal, 0.1, 2.0)
      assert found.signals[0, step] == pytest.approx(float(signal), abs=1e-5)
      assert found.learning_rates[0, step] == pytest.approx(
        float(rate), abs=1e-5
      )
      estimate = bbse.estimate(
        bbse.prediction_distribution(x @ PROBLEM.pretrained), confusion
      )
      theta = theta - float(rate) * PROBLEM.gradient(theta, estimate.numpy())

  def test_streams_do_not_see_each_other(self, adapt):
    streams = [
      stream_of(omega, seed=seed)
      for seed, omega in enumerate([[0, 0, 1, 1], [0, 1, 0, 1]])
    ]
    together = adapt(streams, [2.0, 4.0])
    for index, rate in enumerate([2.0, 4.0]):
      alone = adapt([streams[index]], [rate]).theta[0]
      np.testing.assert_allclose(together.theta[index], alone, atol=1e-5)

  def test_huge_steps_stay_in_the_ball(self, adapt_constantly):
    found = adapt_constantly([stream_of([0, 1, 0, 1])], [1e4])
    norms = np.linalg.norm(found.theta[0], axis=(1, 2))
    np.testing.assert_allclose(norms[1:], PROBLEM.radius, rtol=1e-5)


@pytest.mark.slow
class TestRegret:
  def test_regret_is_not_negative_and_adaptation_beats_staying(self, adapt):
    stream = stream_of(np.linspace(0, 1, 101))
    found = adapt([stream, stream], [4.0, 0.0])
    adapted, stayed = regrets_of(stream, *found.theta)
    # The optima are right within 45 * 1e-14 / 0.02 = 3e-11.
    assert min(adapted.min(), stayed.min()) >= -3e-11
    assert adapted.max() > 1e-3
    assert adapted.sum() < 0.3 * stayed.sum()

  def test_regret_of_the_optimum_is_zero_without_shift(self, adapt):
    stream = stream_of(np.zeros(20))
    by_step = regrets_of(stream, *adapt([stream], [0.0]).theta)
    np.testing.assert_allclose(by_step, 0, atol=1e-9)

  def test_rate_that_falls_with_the_length_gives_sublinear_regret(
    self, adapt_constantly
  ):
    falling, constant = [], []
    for num_timesteps in (100, 900):
      # Stationary, for which eta = Theta(T^(-1/2)), E.2.
      streams = [
        stream_of([0, *np.ones(num_timesteps)], seed=seed) for seed in range(4)
      ]
      for totals, rate in (falling, 3 / num_timesteps**0.5), (constant, 3.0):
        found = adapt_constantly(streams, [rate] * len(streams))
        totals.append(np.sum(list(map(regrets_of, streams, found.theta))))
    # T grows by 9. What grows like T^(2/3) grows by 4.3.
    assert 1 < falling[1] / falling[0] < 9 ** (2 / 3)
    assert constant[1] / constant[0] > 7
