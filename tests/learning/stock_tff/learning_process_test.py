"""Tests of learning processes, on sequences and arrays, and in stock loops.

The program of TFF whole in `tests/end_to_end/stock_tff_test.py`.
"""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_evp
from tff_shift.data import client_dataset
from tff_shift.execution import local
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.stock_tff import learning_process
from tff_shift.learning.stock_tff import sequences
from tff_shift.models.networks import mlp

HPARAMS = {"batch_size": 4, "local_steps": 3, "learning_rate": 0.2}
SEED = 9
SIZES = (9, 0, 5)


@pytest.fixture(scope="module")
def model():
  return mlp.build((2,), num_classes=3, width=4, head_width=3)


def draw(size, client):
  generator = np.random.default_rng(client)
  return (
    generator.normal(size=(size, 2)).astype(np.float32),
    generator.integers(0, 3, size),
    np.arange(size) % 2 + 3,
  )


def joined(sizes):
  """All clients' examples and classes in one array each."""
  x, y, _ = zip(*map(draw, sizes, itertools.count()), strict=True)
  return np.concatenate(x), np.concatenate(y).astype(np.int32)


def pipelines(num_parts=2, batch_size=4):
  """One for each client: the middle one has no example."""
  datasets = [
    tf.data.Dataset.from_tensor_slices(draw(size, client)[:num_parts])
    for client, size in enumerate(SIZES)
  ]
  return (
    [each.batch(batch_size) for each in datasets] if batch_size else datasets
  )


def arrays(run_in_graph, with_domains=False):
  """The same clients as arrays, domain by domain."""
  clients = []
  for client, size in enumerate(SIZES):
    x, y, domain = draw(size, client)
    sizes = [size]
    if with_domains:
      order = np.argsort(domain, kind="stable")
      x, y = x[order], y[order]
      sizes = [np.sum(domain == 3), np.sum(domain == 4)]
    y = y.astype(np.int32)
    seed = run_in_graph(lambda x, y: sequences.seed_of(x, y, SEED), x, y)
    clients.append(client_dataset.ClientDataset.from_arrays(x, y, sizes, seed))
  return clients


@pytest.fixture(scope="module")
def algorithm(model):
  return algorithms.build(fed_avg, model, fed_avg.HParams(**HPARAMS))


@pytest.fixture(scope="module")
def with_domains(model):
  return algorithms.build(fed_evp, model, fed_evp.HParams(**HPARAMS))


@pytest.mark.slow
def test_rounds_on_sequences_are_those_on_arrays(
  context, algorithm, run_in_graph
):
  """Single examples."""
  check_rounds(algorithm, 2, (None, None), run_in_graph)


@pytest.mark.slow
@pytest.mark.cpp
def test_rounds_on_the_cpp_executor(context, with_domains, run_in_graph):
  """Batches of examples with their domains."""
  with local.local_context():
    check_rounds(with_domains, 3, (4, 7), run_in_graph)


def check_rounds(algorithm, num_parts, batch_sizes, run_in_graph):
  data = pipelines(num_parts, batch_sizes[0])
  process = learning_process.as_learning_process(
    algorithm, SEED, data[0].element_spec
  )
  on_arrays = learning_process.as_learning_process(algorithm, SEED)
  clients = arrays(run_in_graph, num_parts == 3)
  server_seed = randomness.server_seed(SEED)

  state, expected = process.initialize(), on_arrays.initialize()
  trees.assert_equal(expected, algorithm.initialize(server_seed))
  for _ in range(2):
    before = state
    output, wanted = (
      process.next(state, data),
      on_arrays.next(expected, clients),
    )
    by_phase, _, metrics = algorithm.phases[0](expected, [()] * 3, clients)
    trees.assert_equal((wanted.state, wanted.metrics), (by_phase, metrics))
    state, expected = output.state, wanted.state
    assert isinstance(state, tff.learning.templates.LearningAlgorithmState)
    trees.assert_equal(
      learning_process.server_state(algorithm, state), expected
    )
    trees.assert_equal(output.metrics["client_work"]["train"], wanted.metrics)
  moved = np.subtract(
    state.global_model_weights.trainable[0],
    before.global_model_weights.trainable[0],
  )
  assert np.abs(moved).max() > 1e-3
  assert state.client_work == 2
  assert output.metrics["client_work"]["train"]["num_clients"] == 3

  # Batches of other sizes are the same examples.
  again = process.next(before, pipelines(num_parts, batch_sizes[1]))
  trees.assert_equal(again.state, state)

  for tested, rounds_of in (
    (process, lambda state: state.client_work),
    (on_arrays, lambda state: state.round_num),
  ):
    start = tested.initialize()
    doubled = trees.scale(tested.get_model_weights(start), 2)
    changed = tested.set_model_weights(start, doubled)
    trees.assert_equal(tested.get_model_weights(changed), doubled)
    assert rounds_of(changed) == rounds_of(start)


@pytest.mark.usefixtures("context")
class TestStockLoops:
  @pytest.fixture(scope="class")
  def client_data(self):
    return tff.simulation.datasets.TestClientData(
      {
        str(client): collections.OrderedDict(
          x=draw(6, client)[0], y=draw(6, client)[1]
        )
        for client in range(3)
      }
    )

  @pytest.fixture(scope="class")
  def process(self, algorithm, client_data):
    return learning_process.as_learning_process(
      algorithm, client_data=client_data.element_type_structure
    )

  @pytest.mark.slow
  def test_types_are_those_of_stock_algorithms(self, process):
    state = process.initialize.type_signature.result.member
    weights = state.global_model_weights
    assert (
      state.python_container is tff.learning.templates.LearningAlgorithmState
    )
    assert weights.python_container is tff.learning.models.ModelWeights
    assert str(weights.trainable).startswith("<float32[2,4],float32[4],")
    assert str(process.next.type_signature.parameter[1]) == (
      "{<x=float32[2],y=int64>*}@CLIENTS"
    )
    assert str(process.next.type_signature.result.metrics) == (
      "<client_work=<train=<loss=float32,num_clients=float32,"
      "num_diverged=float32>>>@SERVER"
    )

  @pytest.mark.slow
  def test_stock_evaluation_takes_the_weights(self, model, algorithm, process):
    evaluation = tff.learning.algorithms.build_fed_eval(
      learning_process.functional_model(model, pipelines()[0].element_spec)
    )
    state = process.initialize()
    weights = process.get_model_weights(state)
    output = evaluation.next(
      evaluation.set_model_weights(evaluation.initialize(), weights),
      pipelines(),
    )
    found = output.metrics["client_work"]["eval"]["total_rounds_metrics"]
    x, y = joined(SIZES)
    expected = algorithm.evaluate_server(
      learning_process.server_state(algorithm, state),
      [],
      client_dataset.ClientDataset.from_arrays(
        x, y, seed=np.zeros(2, np.int32)
      ),
    )
    assert found["num_examples"] == 14
    np.testing.assert_allclose(
      [found["accuracy"], found["loss"]],
      [expected["pooled_accuracy"][0], expected["loss"][0]],
      rtol=1e-5,
    )


class TestRefusals:
  @pytest.mark.slow
  def test_domains_that_are_missing(self, with_domains, refusal):
    assert refusal(
      learning_process.as_learning_process, with_domains, client_data="sequence"
    ) == (
      "fed_evp steps from domain to domain: the elements must be (x, y,"
      " domain), and client_data their element_spec"
    )

  @pytest.mark.parametrize(
    "changes, client_data, message",
    [
      ({}, "sequences", "client_data must be 'arrays', 'sequence' or the"),
      ({"is_stateless": False}, "sequence", "fed_avg keeps personal state"),
      ({"phases": (None, None)}, "arrays", "fed_avg keeps personal state"),
    ],
  )
  def test_state_and_data(
    self, algorithm, changes, client_data, message, refusal
  ):
    changed = dataclasses.replace(algorithm, **changes)
    told = refusal(
      learning_process.as_learning_process, changed, client_data=client_data
    )
    assert told.startswith(message)

  def test_evaluation_of_single_examples(self, model, refusal):
    examples = sequences.examples(local_training.data_type(model))
    told = refusal(learning_process.functional_model, model, examples)
    assert "takes batches" in told

  @pytest.mark.slow
  def test_data_of_another_kind(self, model, refusal):
    # In truth it also keeps a state.
    periods = dataclasses.replace(
      algorithms.build("fed_3da", model), is_stateless=True
    )
    told = refusal(
      learning_process.as_learning_process, periods, client_data="sequence"
    )
    assert told.startswith("clients of fed_3da have more than")
