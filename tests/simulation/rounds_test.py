"""Tests of rounds: who takes part, and what a round leaves behind."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_shift.algorithms import fed_rep
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import mlp
from tff_shift.simulation import rounds

pytestmark = pytest.mark.usefixtures("context")

RUN_SEED = 8
NUM_CLIENTS = 6


def equal_bits(one, other) -> bool:
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return all(
      np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
  )


class TestSampleClients:

  @hypothesis.settings(deadline=None)
  @hypothesis.given(
      st.integers(1, 50),
      st.floats(0, 1, exclude_min=True),
      st.integers(0, 2**32 - 1),
      st.integers(0, 1000),
  )
  def test_ids_are_distinct_sorted_and_fixed_by_seed_and_round(
      self, num_clients, participation, run_seed, round_num
  ):
    chosen = rounds.sample_clients(
        num_clients, participation, run_seed, round_num
    )
    assert chosen == sorted(set(chosen))
    assert all(type(client) is int for client in chosen)
    assert chosen and set(chosen) <= set(range(num_clients))
    assert abs(len(chosen) - participation * num_clients) <= 0.5 or (
        len(chosen) == 1
    )
    assert chosen == rounds.sample_clients(
        num_clients, participation, run_seed, round_num
    )

  @pytest.mark.parametrize(
      "num_clients, participation, size",
      [
          (20, 1.0, 20),
          (20, 0.3, 6),
          (10, 0.25, 3),  # Half a client counts as one.
          (10, 0.24, 2),
          (10, 0.01, 1),
          (1, 0.5, 1),
          (3, 1e-9, 1),
      ],
  )
  def test_number_of_clients(self, num_clients, participation, size):
    assert size == len(
        rounds.sample_clients(num_clients, participation, 0, 0)
    )

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

  def test_rounds_and_runs_differ(self):
    by_round = {tuple(rounds.sample_clients(50, 0.2, 0, r)) for r in range(30)}
    by_run = {tuple(rounds.sample_clients(50, 0.2, s, 0)) for s in range(30)}
    assert len(by_round) == len(by_run) == 30

  @pytest.mark.parametrize("share", [0.0, -0.1, 1.001, np.nan, np.inf])
  def test_shares_that_are_none_are_refused(self, share):
    with pytest.raises(ValueError) as error:
      rounds.sample_clients(10, share, 0, 0)
    assert str(error.value) == (
        f"participation={share!r} is not allowed: it must be a number above 0"
        " and at most 1"
    )


@pytest.fixture(scope="module")
def data():
  generator = np.random.default_rng(1)
  return [
      local_training.ClientData(
          generator.normal(size=(5 + i, 2)).astype(np.float32),
          generator.integers(0, 2, 5 + i).astype(np.int32),
          np.array([2, 3 + i], np.int32),
          randomness.client_seed(RUN_SEED, i),
      )
      for i in range(NUM_CLIENTS)
  ]


@pytest.fixture(scope="module")
def algorithm():
  return fed_rep.build(
      mlp.build((2,), width=4, head_width=3),
      fed_rep.HParams(
          batch_size=4, local_steps=1, head_steps=1, learning_rate=0.2
      ),
  )


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """The state of a run."""

  server: object
  clients: tuple
  round_num: int

  @classmethod
  def of(cls, run):
    return cls(run.server_state, tuple(run.client_states), run.round_num)


class TestRounds:

  def start(self, algorithm, data, **options):
    return rounds.Rounds(algorithm, data, run_seed=RUN_SEED, **options)

  def test_states_at_round_zero_are_those_of_all_clients(self, algorithm, data):
    run = self.start(algorithm, data, participation=0.5)
    assert run.round_num == 0 and run.seconds == []
    assert equal_bits(
        run.server_state,
        algorithm.initialize(randomness.server_seed(RUN_SEED)),
    )
    assert equal_bits(
        run.client_states,
        algorithm.initialize_client([client.seed for client in data]),
    )
    assert len(run.client_states) == NUM_CLIENTS

  def test_step_runs_the_phase_on_the_sampled_clients_alone(
      self, algorithm, data
  ):
    run = self.start(algorithm, data, participation=0.5)
    taken_part = set()
    for round_num in range(3):
      before = Snapshot.of(run)
      metrics = run.step()

      chosen = rounds.sample_clients(NUM_CLIENTS, 0.5, RUN_SEED, round_num)
      server, states, expected = algorithm.phases[0](
          before.server,
          [before.clients[client] for client in chosen],
          [data[client] for client in chosen],
      )
      assert equal_bits(run.server_state, server)
      assert equal_bits([run.client_states[c] for c in chosen], states)
      assert equal_bits(metrics, expected)
      for client in range(NUM_CLIENTS):
        assert (client not in chosen) == equal_bits(
            run.client_states[client], before.clients[client]
        )
      assert run.round_num == round_num + 1 == run.server_state.round_num
      assert len(run.seconds) == round_num + 1
      taken_part |= set(chosen)
    assert len(taken_part) > 3

  def test_phases_follow_each_other_and_the_last_tells_the_metrics(
      self, algorithm, data
  ):
    (phase,) = algorithm.phases
    run = self.start(dataclasses.replace(algorithm, phases=(phase,) * 2), data)
    before = Snapshot.of(run)
    metrics = run.step()

    server, states, _ = phase(before.server, list(before.clients), data)
    server, states, expected = phase(server, states, data)
    assert equal_bits(run.server_state, server)
    assert equal_bits(run.client_states, states)
    assert equal_bits(metrics, expected)
    assert run.round_num == 1

  @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
  def test_phase_that_fails_leaves_the_run_as_it_was(
      self, algorithm, data, error
  ):
    (phase,) = algorithm.phases

    def fails(*arguments):
      raise error("in the second phase")

    run = self.start(algorithm, data)
    run.step()
    before, seconds = Snapshot.of(run), list(run.seconds)
    run.algorithm = dataclasses.replace(algorithm, phases=(phase, fails))
    with pytest.raises(error, match="in the second phase"):
      run.step()

    assert run.server_state is before.server
    assert all(
        one is other
        for one, other in zip(run.client_states, before.clients, strict=True)
    )
    assert run.round_num == 1 and run.seconds == seconds

    # And it goes on as if nothing had happened.
    run.algorithm = algorithm
    run.step()
    other = self.start(algorithm, data)
    other.step()
    other.step()
    assert equal_bits(run.server_state, other.server_state)
    assert equal_bits(run.client_states, other.client_states)

  def test_bad_share_is_refused_and_no_round_runs(self, algorithm, data):
    run = self.start(algorithm, data, participation=0.0)
    with pytest.raises(ValueError, match="participation"):
      run.step()
    assert run.round_num == 0

  def test_data_may_be_replaced_between_rounds(self, algorithm, data):
    run = self.start(algorithm, data, participation=0.5)
    run.step()
    before = Snapshot.of(run)
    # Each client goes on with the examples of its neighbour.
    run.data = [
        neighbour._replace(seed=own.seed)
        for own, neighbour in zip(data, data[1:] + data[:1], strict=True)
    ]
    run.step()
    chosen = rounds.sample_clients(NUM_CLIENTS, 0.5, RUN_SEED, 1)
    expected, by_old_data = (
        algorithm.phases[0](
            before.server,
            [before.clients[client] for client in chosen],
            [clients[client] for client in chosen],
        )
        for clients in (run.data, data)
    )
    assert equal_bits((run.server_state, *[
        run.client_states[client] for client in chosen
    ]), (expected[0], *expected[1]))
    assert not equal_bits(expected[0], by_old_data[0])

  def test_algorithm_without_phases_changes_nothing(self, algorithm, data):
    run = self.start(dataclasses.replace(algorithm, phases=()), data)
    assert run.seconds_per_round == 0.0
    before = Snapshot.of(run)
    for round_num in (1, 2):
      assert run.step() == {}
      assert equal_bits(run.server_state, before.server)
      assert equal_bits(run.client_states, list(before.clients))
      assert run.round_num == len(run.seconds) == round_num
    assert np.isfinite(run.seconds_per_round)

  @pytest.mark.parametrize(
      "seconds, mean", [([9.0, 1.0, 2.0], 1.5), ([9.0], 9.0), ([], 0.0)]
  )
  def test_first_round_does_not_count_for_the_speed_unless_alone(
      self, algorithm, data, seconds, mean
  ):
    run = self.start(algorithm, data)
    run.seconds = seconds
    assert run.seconds_per_round == mean
