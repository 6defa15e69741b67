import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data.shifts import schedules

NAMES = st.sampled_from(schedules.names())
# Few ones too.
TIMESTEPS = st.integers(1, 4) | st.integers(1, 300)
SEEDS = st.integers(0, 2**31)
FLIPS = schedules.BERNOULLI_FLIPS


def flip_rate(num_timesteps, num_seeds, **kwargs):
  """The share of steps on which the Bernoulli schedule changes its value."""
  weights = np.stack(
    [
      schedules.omega("bernoulli", num_timesteps, seed=(7, client), **kwargs)
      for client in range(num_seeds)
    ]
  )
  assert set(np.unique(weights)) == {0.0, 1.0}
  return np.mean(weights[:, 1:] != weights[:, :-1])


class TestOmega:
  @hypothesis.given(
    NAMES, TIMESTEPS, SEEDS, st.sampled_from([*FLIPS, "program"])
  )
  @hypothesis.settings(max_examples=150)
  def test_values_are_weights_that_start_at_0(self, name, steps, seed, flip):
    options = {"bernoulli_flip": flip} if flip in FLIPS else {"source": flip}
    weights = schedules.omega(name, steps, seed=seed, **options)
    assert weights.shape == (steps + 1,)
    assert weights.dtype == np.float64
    assert weights[0] == 0
    assert weights.min() >= 0
    assert weights.max() <= 1

  @pytest.mark.parametrize(
    "name, num_timesteps, expected",
    [
      ("linear", 4, [0, 0.25, 0.5, 0.75, 1]),
      # sqrt(16) = 4: the angle grows by 45 degrees a step; without the absolute
      # value the steps 5 to 7 would be negative.
      ("sine", 16, [0, np.sqrt(0.5), 1, np.sqrt(0.5)] * 4 + [0]),
      # sqrt(16) / 2 = 2 steps of each value.
      ("square", 16, [0, 0, 1, 1] * 4 + [0]),
      # sqrt(9) / 2 = 1.5: the value changes at 1.5, 3, 4.5, 6, 7.5 and 9.
      ("square", 9, [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]),
    ],
  )
  def test_weights_by_hand(self, name, num_timesteps, expected):
    weights = schedules.omega(name, num_timesteps, seed=3)
    assert_allclose(weights, expected, atol=1e-15)

  def test_bernoulli_flips_or_stays_once_in_sqrt_of_timesteps(self):
    # 100,000 steps: the standard error of the rate is 0.3 / 316 = 0.00095.
    assert flip_rate(100, 1000) == pytest.approx(0.1, abs=0.004)
    rate = flip_rate(100, 1000, bernoulli_flip="as_printed")
    assert rate == pytest.approx(0.9, abs=0.004)

  def test_online_label_shift_has_longer_phases_of_square_alone(self):
    def drawn(name, **options):
      return schedules.omega(name, 16, seed=3, **options)

    assert_array_equal(
      drawn("square", source="online_label_shift"),
      [0, 0, 0, 0, 1, 1, 1, 1] * 2 + [0],
    )
    for name in "linear", "sine", "bernoulli":
      assert_array_equal(drawn(name, source="online_label_shift"), drawn(name))

  @pytest.mark.parametrize(
    "arguments, options, message",
    [
      (("sinus", 9), {}, "schedule must be one of linear, sine, square, "),
      (("linear", 0), {}, "num_timesteps must be an integer of at least 1, "),
      (
        ("sine", 9),
        {"bernoulli_flip": "half"},
        "bernoulli_flip must be one of inverse_sqrt, as_printed, got 'half'",
      ),
      (("sine", 9), {"source": "other"}, "source must be one of paper, "),
      (
        ("bernoulli", 9),
        {"source": "program", "bernoulli_flip": "as_printed"},
        "bernoulli_flip=as_printed is not allowed with source=program, ",
      ),
    ],
  )
  def test_bad_argument_is_refused(self, arguments, options, message, refusal):
    told = refusal(schedules.omega, *arguments, **options)
    assert told.startswith(message)


class TestProgram:
  """The schedules of the authors' program: T = 100, N = 99, L = 9."""

  def drawn(self, name, **options):
    found = schedules.omega(name, 100, source="program", **options)
    assert found.shape == (101,) and found[0] == 0
    return found[1:]

  def test_linear_starts_at_0_and_ends_at_1(self):
    assert_allclose(self.drawn("linear"), np.arange(100) / 99)

  def test_square_has_phases_of_4_steps(self):
    assert_array_equal(
      self.drawn("square")[:20], [*[0] * 4, *[1] * 4] * 2 + [0] * 4
    )

  def test_sine_has_a_period_of_9_steps_around_a_half(self):
    found = self.drawn("sine")
    assert_allclose(
      found[:5], (1 + np.sin(np.deg2rad([0, 40, 80, 120, 160]))) / 2
    )
    assert_allclose(found[:-9], found[9:])

  @pytest.mark.slow
  def test_bernoulli_has_no_memory(self):
    """Against the probabilities, 4 standard errors of 10,000 draws."""
    clients = np.stack(
      [self.drawn("bernoulli", seed=(5, i)) for i in range(10_000)]
    )
    assert set(np.unique(clients)) == {0.0, 1.0}
    for step, probability in (0, 0.0), (1, 0.1), (2, 0.18), (10, 0.4463):
      assert clients[:, step].mean() == pytest.approx(probability, abs=0.02)
    # A flip of 0.1 would change 9.9 times.
    changes = np.sum(clients[:, 1:] != clients[:, :-1], axis=1)
    assert changes.mean() == pytest.approx(48.4, abs=0.2)

  def test_each_client_has_its_own_bernoulli_alone(self):
    assert schedules.is_per_client("bernoulli", "program")
    assert not schedules.is_per_client("sine", "program")
    assert not schedules.is_per_client("bernoulli", "paper")
