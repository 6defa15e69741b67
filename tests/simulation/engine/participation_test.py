"""Tests of participation: samplers, and which sampled clients report."""

import collections
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import participation
from tff_shift.simulation.engine import rounds

RUN_SEED = 8
# A binomial count leaves its interval once in a million.
RARE = 1e-6


def known(num_sampled, sizes, losses=None, *, run_seed=RUN_SEED, round_num=0):
  sizes = np.array(sizes)
  return participation.Known(
    run_seed,
    round_num,
    len(sizes),
    num_sampled,
    lambda: sizes,
    None if losses is None else np.array(losses, float),
  )


class TestEverySampler:
  @hypothesis.given(
    st.sampled_from(
      [
        participation.uniform,
        participation.by_size,
        participation.by_availability(5, 0.3),
        participation.by_loss(30),
      ]
    ),
    st.lists(
      st.tuples(st.integers(0, 9), st.sampled_from([math.nan, math.inf, 1, 2])),
      min_size=1,
      max_size=30,
    ),
    st.integers(0, 2**32 - 1),
    st.integers(0, 1000),
    st.data(),
  )
  def test_ids_are_distinct_ascending_and_fixed_by_seed_and_round(
    self, sampler, clients, run_seed, round_num, data
  ):
    num_sampled = data.draw(st.integers(1, len(clients)))
    told = known(
      num_sampled,
      *zip(*clients, strict=True),
      run_seed=run_seed,
      round_num=round_num,
    )
    chosen = sampler(told)
    assert chosen == sorted(set(chosen)) == sampler(told)
    assert chosen == participation.checked_cohort(chosen, len(clients))
    assert 1 <= len(chosen) <= num_sampled
    reporting = participation.Reporting(0.3, 1.5, 1.2)
    reporters = reporting.reporters(told, chosen)
    assert reporters == sorted(set(reporters) & set(chosen))
    assert reporters == reporting.reporters(told, chosen)


class TestBySize:
  def count(self, num_sampled, sizes, num_rounds=2000):
    chosen = [
      participation.by_size(known(num_sampled, sizes, round_num=round_num))
      for round_num in range(num_rounds)
    ]
    return np.bincount(np.concatenate(chosen), minlength=len(sizes))

  def test_draws_follow_the_numbers_of_examples(self):
    # Of two clients of sizes 1, 2, 3, one after the other without replacement,
    # client 0 is the one left out with 2/6 * 3/4 + 3/6 * 2/3 = 7/12.
    for num_sampled, client, fraction in ((1, 2, 3 / 6), (2, 0, 5 / 12)):
      low, high = scipy.stats.binom.interval(1 - RARE, 2000, fraction)
      assert low <= self.count(num_sampled, [1, 2, 3])[client] <= high

  def test_clients_without_examples_come_last(self):
    assert self.count(2, [0, 5, 1, 0], 50).tolist() == [0, 50, 50, 0]
    counts = self.count(3, [0, 5, 1, 0])
    assert counts[1] == counts[2] == 2000
    low, high = scipy.stats.binom.interval(1 - RARE, 2000, 0.5)
    assert low <= counts[0] <= high


class TestByAvailability:
  def available(self, num_clients, period, share, round_num):
    sampler = participation.by_availability(period, share)
    return sampler(known(num_clients, [1] * num_clients, round_num=round_num))

  def test_one_period_by_hand(self, monkeypatch):
    monkeypatch.setattr(
      participation, "phases", lambda *_: np.array([0.0, 0.125, 0.5, 0.625])
    )
    # Positions in the rounds of a period of 4: 0, 1/8, 1/2, 5/8; 1/4, 3/8, 3/4,
    # 7/8; 1/2, 5/8, 0, 1/8; 3/4, 7/8, 1/4, 3/8.
    for share, expected in (
      (0.5, [[0, 1], [0, 1], [2, 3], [2, 3]]),
      # In rounds without any, the position 7/8 is the first one to reach 1.
      (0.25, [[0, 1], [3], [2, 3], [1]]),
      (0.3, [[0, 1], [0], [2, 3], [2]]),
      (1, [[0, 1, 2, 3]] * 4),
    ):
      found = [self.available(4, 4, share, each) for each in range(8)]
      assert found == expected * 2, share

  def test_phases_are_those_of_clients_and_uniform(self):
    phases = participation.phases(RUN_SEED, 1000)
    assert phases[:10].tolist() == participation.phases(RUN_SEED, 10).tolist()
    assert phases[0] != participation.phases(RUN_SEED + 1, 1)[0]
    assert scipy.stats.kstest(phases, "uniform").pvalue > RARE

  def test_samples_uniformly_among_the_available(self):
    # With all of them available, it is the uniform sampler.
    sampler = participation.by_availability(7.5, 1)
    for round_num in range(5):
      told = known(3, [1] * 10, round_num=round_num)
      assert sampler(told) == participation.uniform(told)
    half = participation.by_availability(10, 0.5)(known(2, [1] * 40))
    assert len(half) == 2 and set(half) < set(self.available(40, 10, 0.5, 0))


class TestByLoss:
  def test_highest_losses_of_all_candidates(self):
    nan = math.nan
    for losses, sizes, expected in (
      ([3, 1, 4, 2], [1, 1, 1, 1], [0, 2]),
      ([3, nan, 4, 2], [1, 1, 1, 1], [1, 2]),
      ([math.inf, nan, 4, nan], [1, 1, 1, 1], [1, 3]),
      ([3, nan, 4, nan], [1, 0, 1, 0], [0, 2]),
    ):
      assert participation.by_loss(9)(known(2, sizes, losses)) == expected

  def test_unknown_losses_come_in_the_order_of_the_draw(self):
    told = known(2, [1, 2, 3], [math.nan] * 3)
    assert participation.by_loss(3)(told) == participation.by_size(told)

  def test_candidates_are_drawn_by_size(self):
    for round_num in range(20):
      told = known(1, [1, 2, 3, 9], [4, 3, 2, 1], round_num=round_num)
      drawn = participation.by_size(told._replace(num_sampled=2))
      assert participation.by_loss(2)(told) == drawn[:1]


class TestReporting:
  def test_numbers_of_sampled_clients(self):
    for factor, num_sampled, expected in (
      *((1, 10, 10), (1.1, 10, 11), (1.3, 10, 13), (1.31, 10, 14)),
      *((1.5, 1, 2), (5, 10, 20), (1e308, 10, 20)),
    ):
      reporting = participation.Reporting(over_selection=factor)
      assert reporting.num_selected(num_sampled, 20) == expected

  def test_fractions_that_fail_and_that_are_late(self):
    # Half of the durations are below the median, and 84.1 % below e, since the
    # standard deviation of their logarithm is 1.
    for reporting, fraction in (
      (participation.Reporting(dropout_rate=0.3), 0.7),
      (participation.Reporting(deadline=1.0), 0.5),
      (participation.Reporting(deadline=math.e), 0.8413447),
      (participation.Reporting(dropout_rate=0.3, deadline=1.0), 0.35),
    ):
      found = reporting.reporters(known(2000, [1] * 2000), range(2000))
      low, high = scipy.stats.binom.interval(1 - RARE, 2000, fraction)
      assert low <= len(found) <= high

  def test_first_to_finish_report(self):
    told = known(20, [1] * 20)
    everyone = range(20)
    # The later the deadline, the more clients: that is their order.
    for deadline in np.linspace(0.1, 4, 30):
      in_time = participation.Reporting(deadline=deadline).reporters(
        told, everyone
      )
      first = participation.Reporting(over_selection=2).reporters(
        told._replace(num_sampled=len(in_time)), everyone
      )
      assert first == in_time


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: participation.by_availability(0, 1), "period=0 "),
    (lambda: participation.by_availability(1, 1.5), "share=1.5 "),
    (lambda: participation.by_loss(0), "num_candidates=0 "),
    (
      lambda: participation.by_loss(2)(known(3, [1] * 9, [1] * 9)),
      "num_candidates=2 is not allowed: it must be at least 3",
    ),
    (lambda: participation.Reporting(dropout_rate=1), "dropout_rate=1 "),
    (lambda: participation.Reporting(over_selection=0.9), "over_selection=0.9"),
    (lambda: participation.Reporting(deadline=0), "deadline=0 "),
    (lambda: participation.checked_cohort([0, 3], 3), "=3 is not allowed"),
    (lambda: participation.checked_cohort([2, 0, 2], 3), "client 2 twice"),
    (lambda: participation.checked_cohort([], 3), "at least one, got none"),
    (lambda: participation.checked_cohort(None, 3), "sampler's result must be"),
  ],
)
def test_what_is_not_allowed_is_refused(make, message, refusal):
  assert message in refusal(make)


class TestRounds:
  @pytest.fixture(scope="class")
  def data(self):
    generator = np.random.default_rng(1)
    return [
      client_dataset.ClientDataset.from_arrays(
        generator.normal(size=(5 + i, 2)).astype(np.float32),
        generator.integers(0, 2, 5 + i).astype(np.int32),
        seed=randomness.client_seed(RUN_SEED, i),
        client_id=i,
      )
      for i in range(6)
    ]

  @pytest.fixture(scope="class", params=[False, True])
  def algorithm(self, context, request):
    return self.build(request.param)

  @pytest.fixture(scope="class")
  def with_losses(self, context):
    return self.build(True)

  def build(self, reports_losses):
    return algorithms.build(
      fed_avg,
      mlp.build((2,), width=4, head_width=3),
      fed_avg.HParams(batch_size=4, local_steps=1, learning_rate=0.2),
      num_clients=6,
      reports_losses=reports_losses,
    )

  def start(self, algorithm, data, **options):
    return rounds.Rounds(
      algorithm, data, run_seed=RUN_SEED, participation=0.5, **options
    )

  def bits(self, run):
    return [
      np.asarray(each).tobytes() for each in tf.nest.flatten(run.server_state)
    ]

  def test_abandoned_round_changes_only_the_round_number(
    self, algorithm, data, caplog
  ):
    read = []

    def make(client):
      read.append(client)
      return data[client]

    run = self.start(
      algorithm,
      rounds.DataOnDemand(6, make),
      reporting=participation.Reporting(deadline=1e-9),
    )
    first = self.bits(run)
    for round_num in (1, 2):
      metrics = run.step()
      assert math.isnan(metrics.pop("loss"))
      assert metrics == {"num_clients": 0, "num_diverged": 0}
      assert run.round_num == run.server_state.round_num == round_num
    assert not read and not run.states.in_memory
    assert np.isnan(run.losses).all() and len(run.losses) == 2
    run.server_state = run.server_state._replace(round_num=np.int32(0))
    assert self.bits(run) == first
    assert len(caplog.records) == 2
    # The state that it leaves is one that a phase takes.
    run.server_state = run.server_state._replace(round_num=np.int32(2))
    run._reporting = None
    assert run.step()["num_clients"] == 3 and run.server_state.round_num == 3

  def test_round_is_one_of_those_that_report(self, algorithm, data):
    reporting = participation.Reporting(dropout_rate=0.5, over_selection=2)
    told = participation.Known(RUN_SEED, 0, 6, 6, lambda: None, None)
    reporters = reporting.reporters(
      told._replace(num_sampled=3), participation.uniform(told)
    )
    assert len(reporters) == 3
    expected = self.start(algorithm, data, sampler=lambda _: reporters[::-1])
    run = self.start(algorithm, data, reporting=reporting)
    metrics = run.step()
    assert set(metrics) == {"loss", "num_clients", "num_diverged"}
    assert metrics["num_clients"] == expected.step()["num_clients"] == 3
    assert self.bits(run) == self.bits(expected)

  def test_losses_are_the_last_ones_of_each_client(self, with_losses, data):
    run = self.start(with_losses, data, sampler=participation.by_loss(6))
    seen = collections.Counter()
    for _ in range(4):
      before = run.client_losses
      mean = run.step()["loss"]
      (changed,) = np.nonzero(~(run.client_losses == before))
      changed = [c for c in changed if not np.isnan(run.client_losses[c])]
      assert np.mean(run.client_losses[changed]) == pytest.approx(mean)
      seen.update(changed)
      if len(seen) < 6:
        # Those without a loss come first.
        assert set(seen.values()) == {1}
    assert len(seen) == 6 and not np.isnan(run.client_losses).any()

  def test_resumed_run_knows_the_losses(self, with_losses, data, tmp_path):
    def drive(name, num_rounds):
      run = self.start(with_losses, data, sampler=participation.by_loss(4))
      saved = checkpoints.Run(tmp_path / name, "0" * 64, every=1)
      for _ in checkpoints.steps(
        saved, num_rounds, run, [], make=dict, replay=print
      ):
        run.step()
      return run

    whole = drive("whole", 5)
    drive("stopped", 1)
    assert np.isnan(drive("stopped", 1).client_losses).sum() == 3
    resumed = drive("stopped", 5)
    assert resumed.client_losses.tolist() == whole.client_losses.tolist()
    assert self.bits(resumed) == self.bits(whole)

  def test_sizes_are_those_of_the_data(self, with_losses, data):
    found = []

    def sampler(told):
      found.append(told)
      return participation.uniform(told)

    run = self.start(with_losses, data, sampler=sampler)
    run.step()
    assert found[0].sizes().tolist() == [5, 6, 7, 8, 9, 10]
    assert found[0].num_sampled == 3 and found[0].num_clients == 6
    with pytest.raises(ValueError, match="read-only"):
      found[0].losses[0] = 1.0

  def test_losses_of_no_algorithm_are_refused(self, data, refusal, with_losses):
    algorithm = self.build(False)
    line = refusal(
      self.start, algorithm, data, sampler=participation.by_loss(3)
    )
    assert "reports_losses=True and num_clients=6" in line
    assert "6 clients" in refusal(self.start, with_losses, data[:5])
    assert "sampler=3" in refusal(self.start, algorithm, data, sampler=3)
    assert "reporting=0.5" in refusal(
      self.start, algorithm, data, reporting=0.5
    )
