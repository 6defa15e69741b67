"""Data that several computations of a run take are packed once."""

import collections

import numpy as np
import pytest

from tff_shift import algorithms
from tff_shift import execution
from tff_shift.algorithms import fed_ade
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.execution.in_process import packing
from tff_shift.models.networks import mlp
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)

NUM_CLIENTS = 4
# All clients together have 312 KiB or more; less is packed each time.
FEATURES = 1000
NUM_EXAMPLES = 20


@pytest.fixture
def packed(monkeypatch):
  """Counts, by the first client's first example, how often x is packed."""
  count = collections.Counter()
  join = packing._join

  def counted(sizes, column, new_array):
    if column[0].ndim == 2:
      assert len(column) == NUM_CLIENTS
      count[column[0][0].tobytes()] += 1
    return join(sizes, column, new_array)

  monkeypatch.setattr(packing, "_join", counted)
  with execution.use("in_process"):
    yield count


def make_examples(num_examples, seed) -> examples_lib.Examples:
  generator = np.random.default_rng(seed)
  x = generator.normal(size=(num_examples, FEATURES)).astype(np.float32)
  y = np.arange(num_examples, dtype=np.int32) % 2
  return examples_lib.Examples(examples_lib.read_only(x), y)


def first(x):
  return x[0].tobytes()


@pytest.mark.long
def test_streams_are_packed_once_in_a_time_step(packed):
  streams = online_adaptation_data.Streams(
    make_examples(200, 0),
    2,
    np.array([0, 0.3, 0.9, 0.2]),
    num_clients=NUM_CLIENTS,
    samples_per_step=NUM_EXAMPLES,
    seed=1,
  )
  initial = [make_examples(NUM_EXAMPLES, [1, c]) for c in range(NUM_CLIENTS)]
  model = mlp.build((FEATURES,), num_classes=2, width=2, head_width=2)
  online_adaptation.run(
    algorithms.build("fed_ade", model, fed_ade.HParams(batch_size=4)),
    streams,
    online_adaptation.Deployment(initial, np.eye(2, dtype=np.float32)),
    run_seed=0,
    rounds_per_step=2,
  )
  # Each time step evaluates twice, and has two rounds of two phases.
  by_step = [packed[first(streams.batch(0, step).x)] for step in (1, 2, 3)]
  assert by_step == [1, 1, 1]
  assert packed[first(initial[0].x)] == 1
  assert packed.total() == 4


@pytest.mark.slow
def test_examples_are_packed_once_in_a_run_of_evolving_domains(packed):
  clients = []
  for client in range(NUM_CLIENTS):
    train, test = (
      client_dataset.ClientDataset.from_arrays(
        *make_examples(3 * NUM_EXAMPLES, [part, client]), [NUM_EXAMPLES] * 3
      )
      for part in (0, 1)
    )
    clients.append(evolving_data.Client(client, train, test))
  model = mlp.build((FEATURES,), num_classes=2, width=2, head_width=2)
  algorithm = algorithms.build(
    "fed_avg",
    model,
    fed_avg.HParams(batch_size=4, local_steps=1),
    num_evaluation_domains=3,
  )
  evolving.run(algorithm, clients, num_rounds=6, run_seed=0)
  test = clients[0].test.x
  # In six rounds, six evaluations of clients and server.
  assert packed[first(clients[0].train.x)] == 1
  # Of the target, five times, and of all domains, once.
  assert packed[first(test[2 * NUM_EXAMPLES :])] <= 2
  assert packed[first(test)] == 1
