"""The phases of a round, and what clients' work in them gives."""

import collections
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


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


@tff.tensorflow.computation(np.int32)
def _next_round(round_num):
  return round_num + 1


def training_phase(
    server_type: tff.Type,
    client_type: tff.Type,
    examples_type: tff.Type,
    train_client: Callable[[Any, Any, Any, Any], ClientResult],
    aggregation: tff.templates.AggregationProcess,
    num_examples: Callable[[Any], Any],
    is_last: bool,
) -> tff.Computation:
  """Builds the phase: broadcast, train, average, apply.

  Args:
    server_type: The type of the server's state, placed at SERVER.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
    aggregation: Averages the updates.
    num_examples: `data -> weight` of a client in the mean.
    is_last: Whether the phase ends a round.

  Returns:
    The phase, see `process.FederatedAlgorithm`.
  """
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


def personal_phase(
    server_type: tff.Type,
    client_type: tff.Type,
    examples_type: tff.Type,
    personalize_client: Callable[[Any, Any, Any, Any], PersonalResult],
) -> tff.Computation:
  """Builds the phase: broadcast, work on what is personal, send a loss.

  Args:
    server_type: The type of the server's state, placed at SERVER.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`.

  Returns:
    The phase, see `process.FederatedAlgorithm`. It ends a round.
  """
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
