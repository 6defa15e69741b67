"""Privacy by type: values that reach the server cannot contain personal data.

The types are those of a computation that TFF has compiled for an executor.
"""

import collections
import itertools
import math
import types

import pytest
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.data import client_dataset
from tff_shift.testing import applicability


def count_shapes(tensor_types):
  return collections.Counter(tuple(each.shape) for each in tensor_types)


@pytest.fixture(scope="module")
def algorithm(built):
  return built.algorithm


@pytest.fixture(scope="module")
def aggregated(algorithm, type_walk):
  """The results of `aggregations` in the phases and in the evaluations."""
  found = types.SimpleNamespace(
    phases=[type_walk.aggregations(phase) for phase in algorithm.phases],
    evaluate_clients=type_walk.aggregations(algorithm.evaluate_clients),
    evaluate_server=(
      type_walk.aggregations(algorithm.evaluate_server)
      if algorithm.evaluate_server
      else []
    ),
  )
  # Losses and metrics are aggregated; if they are not found, nothing is.
  assert len(found.phases) == len(algorithm.phases)
  assert all(found.phases)
  assert found.evaluate_clients
  return found


@pytest.mark.slow
class TestPrivacyByType:
  def test_no_example_reaches_the_server(
    self, algorithm, aggregated, model, type_walk
  ):
    computations = [
      algorithm.initialize,
      *algorithm.phases,
      algorithm.evaluate_clients,
      *([algorithm.evaluate_server] if algorithm.evaluate_server else []),
    ]
    results = [
      at_server
      for computation in computations
      for at_server in type_walk.placed(
        computation.type_signature.result, tff.SERVER
      )
    ]
    signatures = itertools.chain(
      *aggregated.phases,
      aggregated.evaluate_clients,
      aggregated.evaluate_server,
    )
    if algorithm.request is not None:
      results.append(algorithm.request.type_signature.parameter[1])
    # Beside the sent values there are an aggregation's zero and totals.
    steps = [
      part for each in signatures for part in (each.parameter, each.result)
    ]
    for tensor in itertools.chain(*map(type_walk.tensors, results + steps)):
      # The number of examples differs between clients: a tensor with all
      # examples has an unknown size.
      assert None not in tensor.shape, f"{tensor} grows with a client's data"
      tail = tuple(tensor.shape[-len(model.input_shape) :])
      assert tail != model.input_shape, f"{tensor} has room for an example"

  def test_personal_state_does_not_reach_the_server(
    self, algorithm, aggregated, type_walk
  ):
    state = algorithm.initialize.type_signature.result
    weights = state.member.weights
    # Weights that no round changes reveal nothing about clients.
    fixed = count_shapes(
      tensor
      for name in algorithm.spec.fixed_weights
      for tensor in type_walk.tensors(weights[name])
    )
    # The server's memory is made of what is sent, which is counted too.
    memory = count_shapes(type_walk.tensors(state.member.memory))
    held = count_shapes(type_walk.tensors(state)) - fixed - memory
    shared = count_shapes(type_walk.tensors(weights)) - fixed
    sent = [
      count_shapes(type_walk.sent_tensors(signatures))
      for signatures in aggregated.phases
    ]
    if algorithms.requirements(algorithm.name).per_client_values:
      # What the server must see client by client is declared, with the reason.
      sent = [
        each - count_shapes(tensor for row in rows for tensor in row)
        for each, rows in zip(
          sent,
          (
            map(type_walk.tensors, type_walk.rows(half.type_signature.result))
            for half in algorithm.client_halves
          ),
          strict=True,
        )
      ]
    metrics = count_shapes(
      tensor
      for phase in algorithm.phases
      for tensor in type_walk.tensors(phase.type_signature.result[2])
    ) + count_shapes(type_walk.sent_tensors(aggregated.evaluate_clients))
    personal = type_walk.tensors(
      algorithm.initialize_client.type_signature.result
    )
    for shape in count_shapes(personal):
      if math.prod(shape) == 1:
        continue  # A number may be a loss or a count.
      # A personal tensor may have the shape of a shared one; but then there are
      # no more of this shape than the server averages.
      assert held[shape] <= shared[shape]
      assert max([each[shape] for each in sent], default=0) <= shared[shape]
      assert shape not in metrics

  @applicability.applies_if(applicability.is_of("online_adaptation"))
  def test_classes_of_a_stream_do_not_reach_what_adapts(self, algorithm, model):
    for phase in algorithm.phases:
      client_data = phase.type_signature.parameter[2].member
      # There are unlabelled examples, and one vector of classes: those of the
      # labelled examples from before deployment.
      assert list(tff.structure.name_list(client_data)) == [
        "x",
        "y",
        "stream_x",
        "timestep",
        "confusion",
        "seed",
        "client_id",
      ]

  @applicability.applies_if(applicability.has_server_predictions)
  def test_server_evaluation_takes_no_personal_state(
    self, algorithm, type_walk
  ):
    (client_data,) = type_walk.placed(
      algorithm.evaluate_server.type_signature.parameter, tff.CLIENTS
    )
    names = list(tff.structure.name_list(client_data.member))
    assert names == list(client_dataset.ClientDataset._fields)
