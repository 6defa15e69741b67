"""An algorithm has the form of the template."""

import collections
import inspect

import numpy as np
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import local_training
from tff_shift.learning import periods
from tff_shift.testing import applicability
from tff_shift.testing import forms
from tff_shift.testing import running

# The data types of the clients in each scenario.
KINDS: dict[str, set[type]] = {
  "evolving": {client_dataset.ClientDataset},
  "guidance": {client_dataset.ClientDataset},
  "online_adaptation": {adaptation.AdaptationData},
  "dynamic_personalization": {
    client_dataset.ClientDataset,
    periods.PeriodData,
  },
}


class TestForm:
  def test_file_ends_in_a_record_of_functions(self, built):
    build = algorithms.spec_builder(built.name, forms.NUM_CLIENTS)
    signature = inspect.signature(build)
    assert list(signature.parameters)[:2] == ["model", "hparams"]
    assert isinstance(built.functions, algorithm_lib.AlgorithmSpec)
    assert built.algorithm.name == built.name

  def test_clients_take_what_they_have_in_every_scenario(
    self, built, client_data
  ):
    for scenario in algorithms.get(built.name).SCENARIOS:
      assert client_data.kind(built.algorithm) in KINDS[scenario]

  def test_phases_have_the_form_of_the_template(
    self, built, model, client_data
  ):
    algorithm = built.algorithm
    server_type = algorithm.initialize.type_signature.result
    clients_type = algorithm.initialize_client.type_signature.result
    assert server_type.placement is tff.SERVER
    assert clients_type.placement is tff.CLIENTS
    assert algorithm.is_stateless == (
      not tff.structure.flatten(clients_type.member)
    )
    examples = client_data.expected_type(algorithm, model)
    for phase in algorithm.phases:
      state, client_states, data = phase.type_signature.parameter
      new_state, new_client_states, metrics = phase.type_signature.result
      assert state == new_state == server_type
      assert client_states == new_client_states == clients_type
      assert data == tff.FederatedType(examples, tff.CLIENTS)
      assert metrics.placement is tff.SERVER
      assert metrics.member["loss"] == tff.TensorType(np.float32)

  @applicability.applies_if(applicability.answers_requests)
  def test_request_is_answered_with_a_state_of_a_client(self, built):
    algorithm = built.algorithm
    signature = algorithm.request.type_signature
    state, content = signature.parameter
    assert state == algorithm.initialize.type_signature.result
    assert content.placement is tff.SERVER
    assert signature.result == tff.FederatedType(
      algorithm.initialize_client.type_signature.result.member, tff.SERVER
    )

  def test_evaluations_have_the_form_of_the_template(
    self, built, model, client_data
  ):
    algorithm = built.algorithm
    state = algorithm.initialize.type_signature.result
    client_states = algorithm.initialize_client.type_signature.result
    examples = client_data.expected_type(algorithm, model)
    to_predict = local_training.data_type(
      model,
      built.num_domains,
      allows_padding=client_data.allows_padding(algorithm),
    )
    sums = tff.TensorType(np.float32, [built.num_domains])
    at_server = tff.FederatedType(
      tff.StructWithPythonType(
        [(name, sums) for name in running.METRICS], collections.OrderedDict
      ),
      tff.SERVER,
    )
    at_clients = [
      tff.FederatedType(each, tff.CLIENTS) for each in (examples, to_predict)
    ]
    signature = algorithm.evaluate_clients.type_signature
    assert list(signature.parameter) == [state, client_states, *at_clients]
    assert signature.result == at_server
    if algorithm.evaluate_server is not None:
      signature = algorithm.evaluate_server.type_signature
      assert list(signature.parameter) == [
        state,
        at_clients[0],
        tff.FederatedType(to_predict, tff.SERVER),
      ]
      assert signature.result == at_server
