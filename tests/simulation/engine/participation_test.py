"""Tests of participation: samplers, and which sampled clients report."""

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from tests.fixtures import clients
from tests.fixtures.trees import bits
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import participation
from tff_shift.simulation.engine import rounds

RUN_SEED = 8
NAN = math.nan
NUM_DRAWS = 2000
SAMPLERS = (
  *(participation.uniform, participation.by_size, participation.by_loss(30)),
  *(participation.by_availability(5, 0.3), participation.in_turn),
)


def known(num_sampled, sizes, losses=(), run_seed=RUN_SEED, round_num=0):
  sizes, losses = np.array(sizes), np.array(losses, float)
  return participation.Known(
    run_seed, round_num, len(sizes), num_sampled, lambda: sizes, losses
  )


def test_cohorts_can_be_repeated():
  for sampler in SAMPLERS:
    again = participation.repeated(sampler, 3)
    for round_num in range(9):
      assert again(known(4, range(20), [NAN] * 20, round_num=round_num)) == (
        sampler(known(4, range(20), [NAN] * 20, round_num=round_num % 3))
      )
    assert again.needs_losses == getattr(sampler, "needs_losses", False)


class TestPoisson:
  def test_each_client_takes_part_independently(self):
    sampler = participation.poisson(0.3)
    took_part = np.zeros((NUM_DRAWS, 4), bool)
    for round_num in range(NUM_DRAWS):
      took_part[round_num, sampler(known(1, [1] * 4, round_num=round_num))] = 1
    assert all(is_frequency(count, 0.3) for count in took_part.sum(axis=0))
    # Pairs, and nobody at all: a fixed size would have none.
    pairs = took_part[:, :1] & took_part[:, 1:]
    assert all(is_frequency(count, 0.09) for count in pairs.sum(axis=0))
    assert is_frequency((~took_part.any(axis=1)).sum(), 0.7**4)

  def test_draw_depends_on_seed_round_and_client_alone(self):
    sampler = participation.poisson(0.5)
    of_many = sampler(known(50, [1] * 100, round_num=3))
    of_few = sampler(known(1, [9] * 10, round_num=3))
    assert of_few == [client for client in of_many if client < 10]
    present = known(2, [1] * 100, round_num=3)._replace(
      present=np.arange(0, 100, 7)
    )
    assert sampler(present) == [client for client in of_many if not client % 7]
    assert of_many != sampler(known(50, [1] * 100, round_num=4))
    assert of_many != sampler(known(50, [1] * 100, round_num=3, run_seed=9))

  def test_nobody_is_a_cohort_of_it_alone(self):
    sampler = participation.poisson(1e-9)
    assert sampler(known(1, [1] * 5)) == []
    assert (
      sampler.may_be_empty and participation.repeated(sampler, 2).may_be_empty
    )
    assert participation.checked_cohort([], 5, may_be_empty=True) == []


def is_frequency(count, fraction):
  """A binomial count is refused once in a million."""
  return scipy.stats.binomtest(int(count), NUM_DRAWS, fraction).pvalue > 1e-6


@hypothesis.given(
  st.sampled_from(SAMPLERS), st.integers(1, 30), st.integers(0, 999), st.data()
)
def test_ids_are_distinct_ascending_and_fixed_by_seed_and_round(
  sampler, num_clients, run_seed, data
):
  rng = np.random.default_rng(run_seed)
  told = known(
    data.draw(st.integers(1, num_clients)),
    rng.integers(0, 4, num_clients),
    rng.choice([NAN, math.inf, 1, 2], num_clients),
    run_seed,
    data.draw(st.integers(0, 1000)),
  )
  chosen = sampler(told)
  assert chosen == participation.checked_cohort(chosen, num_clients)
  assert chosen == sampler(told) and len(chosen) <= told.num_sampled
  reporting = participation.Reporting(0.3, 1.5, 1.2)
  reporters = reporting.reporters(told, chosen)
  assert reporters == sorted(set(reporters) & set(chosen))
  assert reporters == reporting.reporters(told, chosen)


@hypothesis.given(st.integers(1, 20), st.integers(0, 999), st.data())
def test_in_turn_has_each_client_once_in_a_cycle(num_clients, run_seed, data):
  size = data.draw(st.integers(1, num_clients))
  cohorts = [
    participation.in_turn(
      known(size, [1] * num_clients, run_seed=run_seed, round_num=each)
    )
    for each in range(2 * num_clients)
  ]
  # N rounds of m clients are m whole cycles.
  counts = np.bincount(
    np.concatenate(cohorts[:num_clients]), minlength=num_clients
  )
  assert counts.tolist() == [size] * num_clients
  cycle = num_clients // size
  for start in range(len(cohorts) - cycle + 1):
    seen = np.concatenate(cohorts[start : start + cycle])
    assert len(seen) == len({*seen})


def test_in_turn_is_in_an_order_of_the_seed():
  orders = {
    tuple(
      participation.in_turn(known(1, [1] * 6, run_seed=seed, round_num=each))[0]
      for each in range(6)
    )
    for seed in range(20)
  }
  assert len(orders) > 15


def count_by_size(num_sampled, sizes):
  chosen = []
  for round_num in range(NUM_DRAWS):
    told = known(num_sampled, sizes, round_num=round_num)
    chosen += participation.by_size(told)
  return np.bincount(chosen, minlength=len(sizes))


def test_by_size_draws_without_replacement():
  # Of two clients of sizes 1, 2, 3, one after the other, client 0 is not one
  # with probability 2/6 * 3/4 + 3/6 * 2/3 = 7/12.
  assert is_frequency(count_by_size(1, [1, 2, 3])[2], 3 / 6)
  assert is_frequency(count_by_size(2, [1, 2, 3])[0], 5 / 12)
  # Clients without examples come last.
  assert count_by_size(2, [0, 5, 1, 0]).tolist() == [0, NUM_DRAWS, NUM_DRAWS, 0]
  assert is_frequency(count_by_size(3, [0, 5, 1, 0])[0], 0.5)


def test_by_availability_over_periods_by_hand(monkeypatch):
  phases = np.array([0.0, 0.125, 0.5, 0.625])
  monkeypatch.setattr(participation, "phases", lambda *_: phases)
  # Positions in the rounds of a period of 4: 0, 1/8, 1/2, 5/8; 1/4, 3/8, 3/4,
  # 7/8; 1/2, 5/8, 0, 1/8; 3/4, 7/8, 1/4, 3/8.
  for share, expected in (
    (0.5, [[0, 1], [0, 1], [2, 3], [2, 3]]),
    # In rounds without any, the position 7/8 is the first one to reach 1.
    (0.25, [[0, 1], [3], [2, 3], [1]]),
    (0.3, [[0, 1], [0], [2, 3], [2]]),
  ):
    sampler = participation.by_availability(4, share)
    found = [sampler(known(4, [1] * 4, round_num=each)) for each in range(8)]
    assert found == expected * 2, share


def test_by_availability_samples_uniformly_among_the_available():
  phases = participation.phases(RUN_SEED, NUM_DRAWS)
  assert scipy.stats.kstest(phases, "uniform").pvalue > 1e-6
  assert (phases[:3] == participation.phases(RUN_SEED, 3)).all()
  told = known(3, [1] * 40)
  everyone = participation.by_availability(7.5, 1)
  assert everyone(told) == participation.uniform(told)
  half = participation.by_availability(7.5, 0.5)(told)
  assert (phases[half] < 0.5).tolist() == [True] * 3


def test_by_loss_takes_the_highest_losses_of_candidates_drawn_by_size():
  for losses, sizes, expected in (
    ([3, 1, 4, 2], [1, 1, 1, 1], [0, 2]),
    ([3, NAN, 4, 2], [1, 1, 1, 1], [1, 2]),
    ([math.inf, NAN, 4, NAN], [1, 1, 1, 1], [1, 3]),
    ([3, NAN, 4, NAN], [1, 0, 1, 0], [0, 2]),
  ):
    assert participation.by_loss(9)(known(2, sizes, losses)) == expected
  unknown = known(2, [1, 2, 3], [NAN] * 3)
  assert participation.by_loss(3)(unknown) == participation.by_size(unknown)
  for round_num in range(20):
    told = known(1, [1, 2, 3, 9], [4, 3, 2, 1], round_num=round_num)
    drawn = participation.by_size(told._replace(num_sampled=2))
    assert participation.by_loss(2)(told) == drawn[:1]


def test_over_selection_is_rounded_up():
  sizes = {1: 10, 1.1: 11, 1.3: 13, 1.31: 14, 5: 20, 1e308: 20}
  for factor, expected in sizes.items():
    reporting = participation.Reporting(over_selection=factor)
    assert reporting.num_selected(10, 20) == expected


def test_fractions_of_clients_that_report():
  # Half of the durations are below the median, and 84.1 % below e, since the
  # standard deviation of their logarithm is 1.
  told = known(NUM_DRAWS, [1] * NUM_DRAWS)
  fractions = {(0.3, None): 0.7, (0, 1): 0.5, (0, math.e): 0.8413447}
  for (dropout_rate, deadline), fraction in fractions.items():
    reporting = participation.Reporting(dropout_rate, deadline=deadline)
    in_time = reporting.reporters(told, range(NUM_DRAWS))
    assert is_frequency(len(in_time), fraction)
    # Those are the first ones to finish.
    first = participation.Reporting(dropout_rate).reporters(
      told._replace(num_sampled=len(in_time)), range(NUM_DRAWS)
    )
    assert first == in_time


def test_what_is_not_allowed_is_refused(refusal):
  for probability in (0, 1.1, NAN):
    told = refusal(participation.poisson, probability)
    assert told.startswith("probability=") and "at most 1" in told
  assert "period=0 " in refusal(participation.repeated, SAMPLERS[0], 0)
  assert "period=0 " in refusal(participation.by_availability, 0, 1)
  assert "share=1.5 " in refusal(participation.by_availability, 1, 1.5)
  assert "num_candidates=0 " in refusal(participation.by_loss, 0)
  assert "num_candidates=2 is not allowed: it must be at least 3" in refusal(
    participation.by_loss(2), known(3, [1] * 9, [1] * 9)
  )
  for field in ({"dropout_rate": 1}, {"over_selection": 0.9}, {"deadline": 0}):
    assert f"{next(iter(field))}=" in refusal(participation.Reporting, **field)
  cohort = participation.checked_cohort
  assert "sampler=3 is not allowed" in refusal(cohort, [0, 3], 3)
  assert "client 2 twice" in refusal(cohort, [2, 0, 2], 3)
  assert "at least one, got none" in refusal(cohort, [], 3)
  absent = refusal(cohort, [2, 3], 6, np.array([1, 2, 4]))
  assert "client 3, which has no data in this" in absent


def example(client):
  return clients.make(client, 5 + client, run_seed=RUN_SEED)


def build(**options):
  hparams = fed_avg.HParams(batch_size=4, local_steps=1, learning_rate=0.2)
  return algorithms.build(fed_avg, mlp.build((2,), width=4), hparams, **options)


@pytest.fixture(scope="module")
def algorithm(context):
  return build(num_clients=6, reports_losses=True)


def start(algorithm, num_clients=6, make=example, **options):
  data = rounds.DataOnDemand(num_clients, make)
  return rounds.Rounds(
    algorithm, data, run_seed=RUN_SEED, participation=0.5, **options
  )


@pytest.mark.slow
def test_abandoned_round_changes_only_the_round_number(algorithm, caplog):
  nobody, read = participation.Reporting(deadline=1e-9), []
  run = start(algorithm, make=read.append, reporting=nobody)
  first = run.server_state
  for round_num in (1, 2):
    metrics = run.step()
    assert math.isnan(metrics.pop("loss")) and math.isnan(run.losses[-1])
    assert metrics == {"num_clients": 0, "num_diverged": 0}
    assert run.round_num == run.server_state.round_num == round_num
  assert not read and not run.states.in_memory and len(caplog.records) == 2
  assert bits(run.server_state) == bits(first._replace(round_num=np.int32(2)))
  # A phase takes the state of an abandoned round.
  resumed = start(algorithm)
  resumed.resume(run.server_state, None, run.seconds, run.starts)
  assert resumed.step()["num_clients"] == resumed.server_state.round_num == 3


@pytest.mark.slow
def test_round_runs_with_the_reporters(algorithm):
  reporting = participation.Reporting(dropout_rate=0.5, over_selection=2)
  told = known(3, [5, 6, 7, 8, 9, 10])
  reporters = reporting.reporters(told, range(6))

  def sampler(now):
    assert now.sizes().tolist() == told.sizes().tolist()
    assert now[:4] == told[:4] and np.isnan(now.losses).all()
    return reporters[::-1]

  expected = start(algorithm, sampler=sampler)
  run = start(algorithm, reporting=reporting)
  for each in (expected, run):
    metrics = each.step()
    assert set(metrics) == {"loss", "num_clients", "num_diverged"}
    assert metrics["num_clients"] == len(reporters) == 3
  assert bits(run.server_state) == bits(expected.server_state)


@pytest.mark.slow
def test_resumed_run_knows_the_last_loss_of_each_client(algorithm, tmp_path):
  def drive(name, num_rounds):
    run = start(algorithm, sampler=participation.by_loss(6))
    saved = checkpoints.Run(tmp_path / name, "0" * 64, every=1)
    options = {"make": dict, "replay": print}
    for _ in checkpoints.steps(saved, num_rounds, run, [], **options):
      before = run.client_losses
      mean = run.step()["loss"]
      after = run.client_losses
      reported = after[(after != before) & ~np.isnan(after)]
      assert len(reported) == 3 and np.mean(reported) == pytest.approx(mean)
    return run

  whole = drive("whole", 4)
  # Those without a loss come first.
  for num_rounds, num_unknown in ((1, 3), (1, 3), (2, 0)):
    run = drive("stopped", num_rounds)
    assert np.isnan(run.client_losses).sum() == num_unknown
  resumed = drive("stopped", 4)
  assert bits(resumed.client_losses) == bits(whole.client_losses)
  assert bits(resumed.server_state) == bits(whole.server_state)


@pytest.mark.slow
def test_wrong_arguments_of_rounds_are_refused(algorithm, refusal):
  line = refusal(start, build(), sampler=participation.by_loss(3))
  assert "reports_losses=True and num_clients=6" in line
  assert "6 clients" in refusal(start, algorithm, 5)
  assert "reporting=0.5" in refusal(start, algorithm, reporting=0.5)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_present_clients_are_sampled_alone_and_all_of_them_as_before(sampler):
  sizes, losses = [3, 0, 1, 2, 5, 4], [1, NAN, 3, 4, 2, 5]
  seen = set()
  for round_num in range(60):
    told = known(2, sizes, losses, round_num=round_num)
    everyone = told._replace(present=np.arange(6))
    assert sampler(everyone) == sampler(told)
    some = told._replace(present=np.array([1, 2, 4]))
    chosen = participation.checked_cohort(sampler(some), 6, some.present)
    assert len(chosen) <= 2
    seen.update(chosen)
  # Client 1 has no examples, for samplers that use sizes.
  assert seen in ({2, 4}, {1, 2, 4})
