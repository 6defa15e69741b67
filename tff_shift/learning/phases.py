"""The phases of a round, and what clients' work in them gives.

A client's work has diverged if a number in its update or in its new state is
infinite or not a number. Then it is as if the client had not taken part: its
state stays as it was before the phase, and its update counts with weight 0. A
mean without weights has no such thing: to `dp` and to any other unweighted
aggregator the client sends zeros and is counted. The estimates that clipping
and zeroing make of the others' norms see its norm as 0.

A loss is no part of that: where the update is finite and the loss is not, the
client counts, and the mean loss of the round is what it is, not a number.
"""

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


def _has_diverged(values) -> tf.Tensor:
  """Tells whether any number in a nested structure is not finite."""
  tensors = map(tf.convert_to_tensor, tf.nest.flatten(values))
  are_finite = [
    tf.reduce_all(tf.math.is_finite(tensor))
    for tensor in tensors
    if tensor.dtype.is_floating
  ]
  return ~tf.reduce_all(tf.stack([tf.constant(True), *are_finite]))


def _unless(diverged, values, otherwise) -> Any:
  """Returns one nested structure or, if diverged, another of its form."""
  chosen = [
    tf.where(diverged, old, new)
    for new, old in zip(
      tf.nest.flatten(values), tf.nest.flatten(otherwise), strict=True
    )
  ]
  return tf.nest.pack_sequence_as(values, chosen)


def _report(loss, diverged) -> collections.OrderedDict[str, tf.Tensor]:
  """Returns what a client tells of its loss, see `_metrics`."""
  return collections.OrderedDict(
    loss=tf.where(diverged, 0.0, loss),
    counts=tf.where(diverged, 0.0, 1.0),
    diverged=tf.where(diverged, 1.0, 0.0),
  )


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
    diverged = _has_diverged((result.update, result.client_state))
    nothing = tf.nest.map_structure(tf.zeros_like, result.update)
    weight = tf.cast(num_examples(data), tf.float32)
    weight = tf.where(diverged, 0.0, weight)
    return (
      # Not a number times a weight of 0 is not a number.
      _unless(diverged, result.update, nothing),
      _unless(diverged, result.client_state, client_state),
      weight,
      tf.cast(weight > 0, tf.float32),
      _report(result.loss, diverged),
    )

  @tff.tensorflow.computation(weights_type, weights_type, np.float32)
  def apply_update(weights, mean_update, num_counted):
    # The mean of nothing is not a number.
    return tf.nest.map_structure(
      lambda w, u: tf.where(num_counted > 0, w + u, w), weights, mean_update
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
    update, new_client_states, weight, has_weight, report = tff.federated_map(
      work, (weights, client_states, data, round_num)
    )
    num_counted = tff.federated_sum(has_weight)
    aggregated = aggregation.next(state.aggregator, update, weight)
    new_state = ServerState(
      tff.federated_map(
        apply_update,
        (state.weights, aggregated.result, num_counted),
      ),
      aggregated.state,
      tff.federated_map(_next_round, state.round_num)
      if is_last
      else state.round_num,
    )
    return (
      tff.federated_zip(new_state),
      new_client_states,
      _metrics(report),
    )

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

  @tff.tensorflow.computation(
    server_type.member.weights, client_type, examples_type, np.int32
  )
  def work(weights, client_state, data, round_num):
    result = personalize_client(weights, client_state, data, round_num)
    diverged = _has_diverged(result.client_state)
    new_client_state = _unless(diverged, result.client_state, client_state)
    return new_client_state, _report(result.loss, diverged)

  @tff.federated_computation(
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def phase(state, client_states, data):
    weights, round_num = tff.federated_broadcast(
      (state.weights, state.round_num)
    )
    new_client_states, report = tff.federated_map(
      work, (weights, client_states, data, round_num)
    )
    new_state = ServerState(
      state.weights,
      state.aggregator,
      tff.federated_map(_next_round, state.round_num),
    )
    return (
      tff.federated_zip(new_state),
      new_client_states,
      _metrics(report),
    )

  return phase


def _metrics(report) -> tff.Value:
  """What every phase tells the server of its clients' losses.

  Args:
    report: What `_report` gives, placed at CLIENTS. The loss of a client whose
      work has diverged does not count.

  Returns:
    `loss`, the mean of those that count; `num_clients`, all of them;
    `num_diverged`, those left out.
  """
  return tff.federated_zip(
    collections.OrderedDict(
      loss=tff.federated_mean(report["loss"], report["counts"]),
      num_clients=tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS)),
      num_diverged=tff.federated_sum(report["diverged"]),
    )
  )
