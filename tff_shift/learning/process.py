"""The one template for every algorithm.

An algorithm is a frozen dataclass of TFF computations. A round is one phase or
more; a phase is a federated computation

    (S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> <S@SERVER, {C}@CLIENTS, M@SERVER>

with S the server's state, C a client's personal state, D a client's data and M
metrics. What is personal is placed at CLIENTS, so the type of a computation
shows that it does not leave the client. In a phase no aggregate depends on
another: the same computation then runs on one executor and, in TFF's mergeable
form, spread over several.

What an algorithm's file writes are pure TensorFlow functions of one client's or
the server's tensors; `build_algorithm` turns them into federated computations.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model


class ServerState(NamedTuple):
  """The state of the server.

  Attributes:
    weights: What all clients share, a nested structure of float32 tensors.
    aggregator: The state of the aggregator.
    round_num: The number of rounds done, an int32 scalar.
  """

  weights: Any
  aggregator: Any
  round_num: Any


class ClientResult(NamedTuple):
  """What a client's work in a phase gives.

  Attributes:
    update: What the server averages, in the structure of the server's weights:
      the change of the weights.
    client_state: The client's new personal state; it stays with the client.
    loss: The mean training loss, a float32 scalar.
  """

  update: Any
  client_state: Any
  loss: Any


class PersonalResult(NamedTuple):
  """What a client's work on what is personal gives.

  Attributes:
    client_state: The client's new personal state; it stays with the client.
    loss: The mean training loss, a float32 scalar.
  """

  client_state: Any
  loss: Any


@dataclasses.dataclass(frozen=True)
class FederatedAlgorithm:
  """An algorithm as TFF computations.

  S is the server's state, C a client's personal state, D the data that a client
  trains on or adapts to and E data to predict, a `local_training.ClientData`.

  Attributes:
    name: The name of the algorithm, its file's name.
    initialize: `(seed@SERVER) -> S@SERVER`; seed is int32 [2].
    initialize_client: `({seed}@CLIENTS) -> {C}@CLIENTS`.
    phases: The phases of a round, `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) ->
      <S@SERVER, {C}@CLIENTS, metrics@SERVER>`.
    evaluate_clients: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS, {E}@CLIENTS) ->
      metrics@SERVER`: each client predicts its own E with its own model. The
      metrics are those of `evaluation.finalize`.
    evaluate_server: `(S@SERVER, {D}@CLIENTS, E@SERVER) -> metrics@SERVER`: the
      server predicts E with the shared model. None where the server has none.
    is_stateless: Whether C is empty.
    is_local: Whether the server's weights are empty: clients share nothing.
  """

  name: str
  initialize: tff.Computation
  initialize_client: tff.Computation
  phases: tuple[tff.Computation, ...]
  evaluate_clients: tff.Computation
  evaluate_server: tff.Computation | None
  is_stateless: bool
  is_local: bool

  def as_learning_process(
      self, seed: int = 0
  ) -> tff.learning.templates.LearningProcess:
    """Makes a process that TFF's own training loops run.

    Args:
      seed: The run's seed, from which the initial weights are drawn.

    Returns:
      A `LearningProcess` whose `next` takes `(S@SERVER, {D}@CLIENTS)`.

    Raises:
      ValueError: If clients keep a personal state between rounds, which a
        learning process has no place for, or a round has not one phase.
    """
    if not self.is_stateless or len(self.phases) != 1:
      raise ValueError(
          f"{self.name} keeps a personal state at clients or has not one phase"
          " a round; a LearningProcess has no place for either"
      )
    phase = self.phases[0]
    server_type, _, data_type = phase.type_signature.parameter

    @tff.tensorflow.computation
    def seed_value():
      return tf.constant(randomness.server_seed(seed))

    @tff.federated_computation
    def initialize():
      return self.initialize(tff.federated_eval(seed_value, tff.SERVER))

    @tff.federated_computation(server_type, data_type)
    def run_round(state, data):
      nothing = tff.federated_value((), tff.CLIENTS)
      state, _, metrics = phase(state, nothing, data)
      return tff.learning.templates.LearningProcessOutput(state, metrics)

    @tff.tensorflow.computation(server_type.member)
    def get_model_weights(state):
      return state.weights

    @tff.tensorflow.computation(server_type.member, server_type.member.weights)
    def set_model_weights(state, weights):
      return state._replace(weights=weights)

    return tff.learning.templates.LearningProcess(
        initialize, run_round, get_model_weights, set_model_weights
    )


def build_algorithm(
    name: str,
    model: split_model.SplitModel,
    hparams: hyperparameters.LocalWorkHParams,
    *,
    initial_weights: Callable[[Any], Any],
    train_client: Callable[[Any, Any, Any, Any], ClientResult] | None,
    personalize_client: (
        Callable[[Any, Any, Any, Any], PersonalResult] | None
    ) = None,
    predict_as_client: Callable[[Any, Any, Any, Any], tf.Tensor],
    predict_as_server: Callable[[Any, Any, Any], tf.Tensor] | None,
    initial_client_state: Callable[[Any], Any] = lambda seed: (),
    summarize_client: Callable[[Any, Any], Any] = lambda weights, data: (),
    examples_type: tff.Type | None = None,
    num_examples: Callable[[Any], tf.Tensor] = lambda data: tf.shape(data.y)[0],
    num_evaluation_domains: int = 1,
    aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
) -> FederatedAlgorithm:
  """Builds an algorithm from pure TensorFlow functions.

  A round has up to two phases: clients train and the server averages; then,
  with the new average, clients work on what is personal.

  Args:
    name: The algorithm's name.
    model: The model; its inputs fix the type of the clients' data.
    hparams: Hyper-parameters; they are checked.
    initial_weights: `(seed) -> weights`, what the server holds at round 0.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
      None where nothing is ever trained: a round has no phase.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`, with the weights that the server has just averaged. None:
      a round has one phase.
    predict_as_client: `(weights, client_state, data, evaluation_data) ->
      logits` of a client's own model.
    predict_as_server: `(weights, summary, evaluation_data) -> logits` of the
      server's model. None where the server has no model.
    initial_client_state: `(seed) -> client_state`.
    summarize_client: `(weights, data) -> summary`, summed over clients for
      `predict_as_server`; empty for most algorithms.
    examples_type: The type of a client's data. None:
      `local_training.data_type(model)`.
    num_examples: `data -> number`, the client's weight in the mean where
      `hparams.client_weighting` is `num_examples`.
    num_evaluation_domains: The number of domains of the data to predict.
    aggregator: A weighted factory that averages updates. None:
      `tff.aggregators.MeanFactory()`. One without weights is made into one by
      `tff.aggregators.as_weighted_aggregator`.

  Returns:
    A `FederatedAlgorithm`.

  Raises:
    ValueError: If a hyper-parameter has a value that is not allowed.
  """
  hyperparameters.validate(hparams)
  examples_type = examples_type or local_training.data_type(model)
  evaluation_type = local_training.data_type(model, num_evaluation_domains)
  seed_type = randomness.SEED_TYPE
  initial_weights_fn = tff.tensorflow.computation(initial_weights, seed_type)
  weights_type = initial_weights_fn.type_signature.result
  initial_client_fn = tff.tensorflow.computation(
      initial_client_state, seed_type
  )
  client_type = initial_client_fn.type_signature.result
  aggregation = (aggregator or tff.aggregators.MeanFactory()).create(
      weights_type, tff.TensorType(np.float32)
  )

  @tff.federated_computation(tff.FederatedType(seed_type, tff.SERVER))
  def initialize(seed):
    return tff.federated_zip(
        ServerState(
            tff.federated_map(initial_weights_fn, seed),
            aggregation.initialize(),
            tff.federated_value(0, tff.SERVER),
        )
    )

  @tff.federated_computation(tff.FederatedType(seed_type, tff.CLIENTS))
  def initialize_client(seeds):
    return tff.federated_map(initial_client_fn, seeds)

  server_type = initialize.type_signature.result
  types = server_type, client_type, examples_type
  is_local = not tff.structure.flatten(weights_type)
  phases = []
  if train_client is not None:
    phases.append(
        _training_phase(
            *types,
            train_client,
            aggregation,
            lambda data: 1
            if is_local or hparams.client_weighting == "uniform"
            else num_examples(data),
            is_last=personalize_client is None,
        )
    )
  if personalize_client is not None:
    phases.append(_personal_phase(*types, personalize_client))
  evaluate_server = None
  if predict_as_server is not None:
    evaluate_server = evaluation.server_evaluation(
        server_type,
        examples_type,
        evaluation_type,
        predict_as_server,
        summarize_client,
    )
  return FederatedAlgorithm(
      name=name,
      initialize=initialize,
      initialize_client=initialize_client,
      phases=tuple(phases),
      evaluate_clients=evaluation.client_evaluation(
          *types, evaluation_type, predict_as_client
      ),
      evaluate_server=evaluate_server,
      is_stateless=not tff.structure.flatten(client_type),
      is_local=is_local,
  )


@tff.tensorflow.computation(np.int32)
def _next_round(round_num):
  return round_num + 1


def _training_phase(
    server_type,
    client_type,
    examples_type,
    train_client,
    aggregation,
    num_examples,
    is_last,
) -> tff.Computation:
  """Builds the phase: broadcast, train, average, apply."""
  weights_type = server_type.member.weights

  @tff.tensorflow.computation(
      weights_type, client_type, examples_type, np.int32
  )
  def work(weights, client_state, data, round_num):
    result = train_client(weights, client_state, data, round_num)
    return (
        result.update,
        result.client_state,
        result.loss,
        tf.cast(num_examples(data), tf.float32),
    )

  @tff.tensorflow.computation(weights_type, weights_type)
  def apply_update(weights, mean_update):
    return tf.nest.map_structure(tf.add, weights, mean_update)

  @tff.federated_computation(
      server_type,
      tff.FederatedType(client_type, tff.CLIENTS),
      tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def phase(state, client_states, data):
    weights, round_num = tff.federated_broadcast(
        (state.weights, state.round_num)
    )
    update, new_client_states, loss, weight = tff.federated_map(
        work, (weights, client_states, data, round_num)
    )
    aggregated = aggregation.next(state.aggregator, update, weight)
    new_state = ServerState(
        tff.federated_map(apply_update, (state.weights, aggregated.result)),
        aggregated.state,
        tff.federated_map(_next_round, state.round_num)
        if is_last
        else state.round_num,
    )
    return tff.federated_zip(new_state), new_client_states, _metrics(loss)

  return phase


def _personal_phase(
    server_type, client_type, examples_type, personalize_client
) -> tff.Computation:
  """Builds the phase: broadcast, work on what is personal, send a loss."""
  work = tff.tensorflow.computation(
      personalize_client,
      server_type.member.weights,
      client_type,
      examples_type,
      np.int32,
  )

  @tff.federated_computation(
      server_type,
      tff.FederatedType(client_type, tff.CLIENTS),
      tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def phase(state, client_states, data):
    weights, round_num = tff.federated_broadcast(
        (state.weights, state.round_num)
    )
    result = tff.federated_map(work, (weights, client_states, data, round_num))
    new_state = ServerState(
        state.weights,
        state.aggregator,
        tff.federated_map(_next_round, state.round_num),
    )
    return (
        tff.federated_zip(new_state),
        result.client_state,
        _metrics(result.loss),
    )

  return phase


def _metrics(loss) -> tff.Value:
  """What every phase tells the server of its clients' losses."""
  return tff.federated_zip(
      collections.OrderedDict(
          loss=tff.federated_mean(loss),
          num_clients=tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS)),
      )
  )
