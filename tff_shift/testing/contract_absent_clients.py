"""Clients that lack domains, or all examples, do not affect results."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation.engine import rounds
from tff_shift.testing import applicability
from tff_shift.testing import running
from tff_shift.testing.applicability import applies_if

# The sizes of each source domain for clients with all domains, with a late
# start, with an absence, and with one domain only.
_SIZES = [4, 3, 5], [0, 4, 3], [3, 0, 4], [5, 0, 0]
_NUM_ROUNDS = 3


@pytest.fixture(scope="module")
def incomplete_data(make_client):
  """Training data of clients, most of which lack a domain."""
  return [make_client(i, sizes) for i, sizes in enumerate(_SIZES)]


def run_rounds(algorithm, data):
  """Returns the states of server and clients, and the losses."""
  run = running.start(
    algorithm,
    rounds.DataOnDemand(len(data), data.__getitem__, is_checked=True),
  )
  losses = [run.step()["loss"] for _ in range(_NUM_ROUNDS)]
  return types.SimpleNamespace(states=running.snapshot(run), losses=losses)


def is_finite(values):
  return all(
    np.all(np.isfinite(each))
    for each in tf.nest.flatten(values)
    if np.asarray(each).dtype.kind == "f"
  )


@applies_if(applicability.has_domains, applicability.has_phases)
class TestRoundsWithAbsentClients:
  def test_clients_without_examples_change_nothing(
    self, built, incomplete_data, compare, make_client
  ):
    others = incomplete_data[:3]
    without = run_rounds(built.algorithm, others)
    everyone = run_rounds(built.algorithm, [*others, make_client(3, [0] * 3)])
    assert is_finite(everyone.states) and is_finite(everyone.losses)
    compare.assert_close(
      (everyone.states[0], everyone.states[1][:3], everyone.losses),
      (without.states[0], without.states[1], without.losses),
      1e-6,
    )

  @applies_if(applicability.has_no_tasks)
  def test_round_without_what_is_lacking_is_the_same(
    self, built, incomplete_data, compare
  ):
    lacking = incomplete_data[2]
    dense = lacking._replace(domain_sizes=np.array([3, 4], np.int32))
    found = [run_rounds(built.algorithm, [each]) for each in (lacking, dense)]
    assert compare.equal_bits(found[0].states, found[1].states)
    assert is_finite(found[0].states)


@applies_if(applicability.is_of("evolving"))
class TestEvolvingWithAbsentClients:
  @pytest.fixture(scope="class")
  def clients(self, make_client):
    """One that leaves, one that joins in the target, and an empty one."""
    made = []
    for position, (train, test) in enumerate(
      [
        ([4, 3, 5], [1, 0, 2, 3]),
        ([0, 4, 3], [0, 1, 1, 2]),
        ([3, 0, 4], [1, 0, 1, 4]),
        ([5, 0, 0], [2, 0, 0, 2]),
        ([3, 2, 2], [1, 1, 1, 0]),
        ([0, 0, 0], [0, 0, 0, 3]),
        ([0, 0, 0], [0, 0, 0, 0]),
      ]
    ):
      made.append(
        evolving_data.Client(
          position,
          make_client(10 * position, [*train, 0]),
          make_client(10 * position + 1, test),
          f"hospital_{position}",
        )
      )
    return made

  @pytest.fixture(scope="class")
  def algorithm(self, built, clients, model, contract_hparams):
    """The algorithm; built anew if it distinguishes fewer clients."""
    most = built.algorithm.max_clients
    if most is None or most >= len(clients):
      return built.algorithm
    return algorithms.build(
      built.name,
      model,
      contract_hparams(built.name),
      num_clients=len(clients),
      num_evaluation_domains=built.num_domains,
    )

  def run(self, algorithm, clients):
    return evolving.run(
      algorithm,
      clients,
      num_rounds=_NUM_ROUNDS,
      run_seed=running.RUN_SEED,
    )

  @pytest.mark.slow
  def test_they_are_told_and_leave_numbers_finite(
    self, built, algorithm, clients
  ):
    result = self.run(algorithm, clients)
    untrained = ["hospital_5", "hospital_6"]
    if algorithms.min_source_domains(built.name) > 1:
      untrained.insert(0, "hospital_3")
    assert list(result.left_out.training) == untrained
    absent = {"hospital_4", "hospital_6"}
    assert absent <= set(result.left_out.evaluation)
    # Beside those, at most one that lacks the data to predict.
    assert set(result.left_out.evaluation) <= absent | {"hospital_5"}
    for found in result.evaluations:
      measured = [
        each for each in found.measured().values() if each is not None
      ]
      assert is_finite([measured, found.train_loss])
    assert is_finite(result.final.client_per_domain)
    assert is_finite((result.server_state, list(result.client_states)))

  def test_who_has_nothing_changes_nothing(self, algorithm, clients, compare):
    found = [self.run(algorithm, each) for each in (clients, clients[:-1])]
    compare.assert_close(
      *(
        (each.final.client, each.final.server or (), each.server_state)
        for each in found
      ),
      1e-5,
    )
