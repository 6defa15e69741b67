"""Tests of rounds: who takes part, and what a round leaves behind."""

import dataclasses
import operator
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from tests.fixtures import clients
from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tff_shift import algorithms
from tff_shift._util import errors
from tff_shift.algorithms import fed_rep
from tff_shift.algorithms import moon
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import participation
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

RUN_SEED = 8
NUM_CLIENTS = 6


def equal_bits(one, other) -> bool:
  return trees.bits(one) == trees.bits(other)


class TestSampleClients:
  @hypothesis.given(st.integers(1, 50), st.floats(0, 1, exclude_min=True))
  def test_number_is_a_fraction_of_all(self, num_clients, participation):
    chosen = rounds.sample_clients(num_clients, participation, 0, 0)
    assert all(type(client) is int for client in chosen)
    assert abs(len(chosen) - participation * num_clients) <= 0.5 or (
      len(chosen) == 1
    )

  def test_half_a_client_counts_as_one(self):
    assert len(rounds.sample_clients(10, 0.25, 0, 0)) == 3

  def test_every_client_takes_part_equally_often_over_rounds(self):
    num_rounds = 1000
    chosen = np.concatenate(
      [rounds.sample_clients(10, 0.3, RUN_SEED, r) for r in range(num_rounds)]
    )
    # A client is in 3 of 10 rounds; a binomial count leaves this interval once
    # in a million.
    low, high = scipy.stats.binom.interval(1 - 1e-6, num_rounds, 0.3)
    counts = np.bincount(chosen, minlength=10)
    assert counts.sum() == 3 * num_rounds
    assert low <= counts.min() and counts.max() <= high

  def test_runs_differ(self):
    by_run = {tuple(rounds.sample_clients(50, 0.2, s, 0)) for s in range(30)}
    assert len(by_run) == 30


DATA = [
  clients.make(i, 2, 3 + i, run_seed=RUN_SEED) for i in range(NUM_CLIENTS)
]
MODEL = mlp.build((2,), width=4, head_width=3)
HPARAMS = fed_rep.HParams(
  batch_size=4, local_steps=1, head_steps=1, learning_rate=0.2
)


@pytest.fixture(scope="module")
def algorithm():
  return algorithms.build(fed_rep, MODEL, HPARAMS)


class Snapshot(NamedTuple):
  server: object
  clients: tuple
  round_num: int


def snapshot(run):
  states = tuple(run.client_states)
  return Snapshot(run.server_state, states, run.round_num)


class TestRounds:
  def half(self, algorithm, **options):
    return self.start(algorithm, participation=0.5, **options)

  def start(self, algorithm, data=DATA, **options):
    return rounds.Rounds(algorithm, data, run_seed=RUN_SEED, **options)

  @pytest.mark.slow
  def test_round_of_no_client_changes_nothing(self, algorithm):
    run = self.start(
      algorithm, participation=0.3, sampler=participation.poisson(0.3)
    )
    sizes = []
    for _ in range(12):
      before = snapshot(run)
      sizes.append(run.step()["num_clients"])
      is_equal = equal_bits(before.server.weights, run.server_state.weights)
      assert is_equal == (sizes[-1] == 0)
      if not sizes[-1]:
        assert equal_bits(before.clients, run.client_states)
        assert np.isnan(run.losses[-1])
    assert 0 in sizes and len(set(sizes)) > 2
    assert run.round_num == run.server_state.round_num == 12

  def test_poisson_sampling_allows_no_reporting(self, algorithm):
    with refused(r"^reporting is not allowed with a"):
      self.start(
        algorithm,
        sampler=participation.poisson(0.3),
        reporting=participation.Reporting(0.1),
      )

  @pytest.mark.slow
  def test_only_data_and_states_of_participants_are_asked_for(self, algorithm):
    made, first = [], []

    def initialize_client(state, seeds):
      first.append(len(seeds))
      return algorithm.initialize_client(state, seeds)

    def make(client):
      made.append(client)
      return DATA[client]

    counting = dataclasses.replace(
      algorithm, initialize_client=initialize_client
    )
    run = self.start(
      counting, rounds.DataOnDemand(NUM_CLIENTS, make), participation=0.5
    )
    assert made == first == []
    known = set()
    for round_num in range(4):
      run.step()
      chosen = rounds.sample_clients(NUM_CLIENTS, 0.5, RUN_SEED, round_num)
      new = len(set(chosen) - known)
      assert made == chosen
      assert first == ([new] if new else [])
      known |= set(chosen)
      assert run.states.in_memory.keys() == known
      made.clear()
      first.clear()

    plain = self.half(algorithm)
    for _ in range(4):
      plain.step()
    assert equal_bits(run.server_state, plain.server_state)
    assert equal_bits(run.client_states, plain.client_states)
    assert len(run.data[1:3]) == 2 and run.data[-1] is DATA[-1]

  @pytest.mark.slow
  def test_population_without_limit_costs_nothing(self, algorithm):
    run = self.start(
      algorithm,
      rounds.DataOnDemand(
        10**9,
        lambda client: DATA[0]._replace(
          seed=randomness.client_seed(RUN_SEED, client)
        ),
      ),
      participation=2e-9,
    )
    run.step()
    assert len(run.states) == 10**9 and len(run.states.in_memory) == 2

  def test_list_of_all_states_is_a_copy(self, algorithm):
    run = self.start(algorithm)
    run.step()
    states = run.client_states
    states[0] = None
    assert run.client_states[0] is not None
    run.client_states = run.client_states[1:] + run.client_states[:1]
    assert equal_bits(run.client_states[:-1], states[1:])

  def test_phases_follow_each_other_and_the_last_tells_the_metrics(
    self, algorithm
  ):
    (phase,) = algorithm.phases
    run = self.start(dataclasses.replace(algorithm, phases=(phase,) * 2), DATA)
    before = snapshot(run)
    metrics = run.step()

    server, states, _ = phase(before.server, list(before.clients), DATA)
    server, states, expected = phase(server, states, DATA)
    assert equal_bits(run.server_state, server)
    assert equal_bits(run.client_states, states)
    assert equal_bits(metrics, expected)
    assert run.round_num == 1

  @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
  def test_phase_that_fails_leaves_the_run_as_it_was(self, algorithm, error):
    (phase,) = algorithm.phases

    def fails(*arguments):
      raise error("in the second phase")

    run = self.start(algorithm)
    run.step()
    before, seconds = snapshot(run), list(run.seconds)
    run.algorithm = dataclasses.replace(algorithm, phases=(phase, fails))
    with pytest.raises(error, match="in the second phase"):
      run.step()

    assert run.server_state is before.server
    assert all(map(operator.is_, run.client_states, before.clients))
    assert run.round_num == 1 and run.seconds == seconds

    # And it goes on as if nothing had happened.
    run.algorithm = algorithm
    run.step()
    other = self.start(algorithm)
    other.step()
    other.step()
    assert equal_bits(run.server_state, other.server_state)
    assert equal_bits(run.client_states, other.client_states)

  def test_data_are_cast_and_those_that_are_right_are_kept(self, algorithm):
    plain = self.start(algorithm)
    assert all(map(operator.is_, plain.data, DATA))
    plain.step()
    as_numpy_has_them = [
      each._replace(x=each.x.astype(np.float64), y=each.y.astype(np.int64))
      for each in DATA
    ]
    for data in (
      as_numpy_has_them,
      rounds.DataOnDemand(NUM_CLIENTS, as_numpy_has_them.__getitem__),
    ):
      cast = self.start(algorithm, data)
      cast.step()
      assert cast.data[1].y.dtype == np.int32
      assert equal_bits(cast.server_state, plain.server_state)

  def test_bad_data_are_refused_before_the_first_round(self, algorithm):
    bad = [*DATA[:3], DATA[3]._replace(y=DATA[3].y[:-1]), *DATA[4:]]
    refusal = r"^y of client 3: the shape must be \[8\], .* got \[7\]$"
    with refused(refusal):
      self.start(algorithm, bad)
    run = self.start(algorithm)
    with refused(refusal):
      run.data = bad
    assert run.data[3] is DATA[3]

  def test_bad_data_that_are_made_on_demand_leave_the_run_as_it_was(
    self, algorithm
  ):
    made = []

    def make(client):
      made.append(client)
      late = client == 2 and made.count(2) == 2
      return DATA[client]._replace(y=DATA[client].y + 2 * late)

    run = self.start(algorithm, rounds.DataOnDemand(NUM_CLIENTS, make))
    run.step()
    before = snapshot(run)
    with refused(r"^y of client 2: classes must lie"):
      run.step()
    assert run.server_state is before.server and run.round_num == 1

  def with_bad_numbers(self, data, clients):
    """Makes the work of some clients diverge, past the check of data."""
    bad = [
      each._replace(x=np.full_like(each.x, np.nan)) if i in clients else each
      for i, each in enumerate(data)
    ]
    return rounds.DataOnDemand(len(bad), bad.__getitem__, is_checked=True)

  def test_client_that_diverges_is_as_it_was_and_is_told(
    self, algorithm, caplog
  ):
    run = self.start(algorithm, self.with_bad_numbers(DATA, {2}))
    before = snapshot(run)
    assert run.step()["num_diverged"] == 1
    assert run.num_diverged == 1
    for client in range(NUM_CLIENTS):
      assert (client == 2) == equal_bits(
        run.client_states[client], before.clients[client]
      )
    (record,) = caplog.records
    assert record.getMessage() == (
      "fed_rep, round 1: the updates of 1 of 6 clients are not finite and are"
      " left out"
    )

  def test_round_counts_those_that_diverged_in_an_earlier_phase(
    self, algorithm
  ):
    (phase,) = algorithm.phases
    bad = self.with_bad_numbers(DATA, {1, 4})
    run = self.start(
      dataclasses.replace(
        algorithm,
        phases=(lambda state, states, _: phase(state, states, bad[:]), phase),
      ),
      DATA,
    )
    assert run.step()["num_diverged"] == 2
    assert run.step()["num_diverged"] == 2
    assert run.num_diverged == 4

  def test_round_of_which_all_clients_diverge_stops_the_run(self, algorithm):
    run = self.half(algorithm)
    run.step()
    before = snapshot(run)
    run.data = self.with_bad_numbers(
      DATA, rounds.sample_clients(NUM_CLIENTS, 0.5, RUN_SEED, 1)
    )
    with pytest.raises(errors.DivergedError) as error:
      run.step()
    assert str(error.value) == (
      "fed_rep diverged in round 2: the updates of all 3 clients are not"
      " finite; a smaller learning rate may help"
    )
    assert (error.value.algorithm, error.value.round_num) == ("fed_rep", 2)
    after = snapshot(run)
    assert equal_bits(
      (after.server, after.clients), (before.server, before.clients)
    )
    assert after.round_num == before.round_num == 1

  def test_algorithm_without_phases_changes_nothing(self, algorithm):
    run = self.start(dataclasses.replace(algorithm, phases=()), DATA)
    assert run.seconds_per_round == 0.0
    before = snapshot(run)
    for round_num in (1, 2):
      assert run.step() == {}
      assert equal_bits(run.server_state, before.server)
      assert equal_bits(run.client_states, list(before.clients))
      assert run.round_num == len(run.seconds) == round_num
    assert np.isfinite(run.seconds_per_round)

  def test_first_round_of_each_process_counts_for_the_speed_only_if_alone(
    self, algorithm
  ):
    run = self.start(algorithm)
    for run.seconds, mean in (([9.0, 1.0, 2.0], 1.5), ([9.0], 9.0), ([], 0.0)):
      assert run.seconds_per_round == mean
    run.resume(run.server_state, run.client_states, [9.0, 1.0], [0])
    assert run.starts == [0, 2]
    run.seconds += [8.0, 2.0]
    assert run.seconds_per_round == 1.5


@pytest.mark.slow
def test_clients_that_join_in_a_loop_have_the_states_of_the_driver():
  algorithm = algorithms.build(
    moon,
    MODEL,
    moon.HParams(batch_size=4, learning_rate=0.2),
  )
  cohorts = [[0, 1], [1, 2], [0, 2]]
  server, states, data = algorithm.start(DATA[:3], RUN_SEED)
  running = rounds.Rounds(
    algorithm,
    data,
    run_seed=RUN_SEED,
    sampler=lambda known: cohorts[known.round_num],
  )
  for round_num, cohort in enumerate(cohorts):
    before = list(states)
    # Whoever has not taken part yet starts from the weights of now.
    assert equal_bits(
      running.client_states,
      algorithm.join_clients(server, states, data, range(3)),
    )
    states = algorithm.join_clients(server, states, data, cohort)
    if not round_num:
      assert states[2] is None
    else:
      assert all(
        now is then
        for now, then in zip(states, before, strict=True)
        if then is not None
      )
    for phase in algorithm.phases:
      server, updated, _ = phase(
        server,
        [states[client] for client in cohort],
        [data[client] for client in cohort],
      )
      for client, state in zip(cohort, updated, strict=True):
        states[client] = state
    running.step()
  assert equal_bits(server, running.server_state)
  assert equal_bits(states, running.client_states)
  for known, cohort, message in (
    (states, [3], "cohort"),
    (states[:2], [0], "client_states"),
  ):
    with refused(message):
      algorithm.join_clients(server, known, data, cohort)
