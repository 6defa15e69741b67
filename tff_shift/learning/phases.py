"""The phases of a round, and what clients' work in them gives.

A client's work has diverged if a number in its update or in its new state is
infinite or not a number. Then it is as if the client had not taken part: its
state stays as it was before the phase, and its update counts with weight 0. A
mean without weights has no such thing: to `dp` and to any other unweighted
aggregator the client sends zeros and is counted. The estimates that clipping
and zeroing make of the others' norms see its norm as 0.

A client without examples has weight 0 as well, also where all others count
alike (`client_weighting` is `uniform`), and so has one that lacks those which a
round asks for; its loss, of nothing, does not count; update and what it
contributes beside it are zeros, as `dp` counts them. It cannot diverge: what is
not a number in its new state, such as the mean of no loss, leaves its state as
it was.

A round of which no client counts, for none has examples, leaves all that the
server holds as it is, bit for bit: weights, velocities, norms that adapt. Only
the number of the round goes on, as the driver's does, and its mean loss, of
nothing, is not a number. To a privacy account it is a round like any other.

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

from tff_shift.learning import frozen_weights
from tff_shift.learning.aggregators import factories


class ServerState(NamedTuple):
  """The state of the server.

  Attributes:
    weights: What all clients share, a nested structure of float32 tensors.
    aggregator: The state of the aggregator.
    round_num: The number of rounds done, an int32 scalar.
    seed: The seed of the initial weights, int32 [2], where clients start alike,
      see `algorithm.AlgorithmSpec`, else ().
  """

  weights: Any
  aggregator: Any
  round_num: Any
  seed: Any = ()


class ClientResult(NamedTuple):
  """What a client's work in a phase gives.

  Attributes:
    update: What the server averages: the change of its weights, in their
      structure. Where `algorithm.AlgorithmSpec.update_server` says what becomes
      of the mean, any nested structure of float32 tensors.
    client_state: The client's new personal state; it stays with the client.
    loss: The mean training loss, a float32 scalar.
    weight: The client's weight in the mean, a scalar of at least 0, for
      algorithms whose `factories.AggregationRequirements.weighted` says why.
      Empty: it is the template's, see `client_weighting`.
    contribution: What the server adds up over clients beside the update, a
      nested structure of tensors of fixed shapes. It leaves the client as it
      is, whatever the aggregator does to updates:
      `factories.AggregationRequirements` has to say so. A client without
      examples sends zeros.
    has_trained: Whether the client has examples of those that the round asks
      for, such as those of a domain, a bool scalar. One that has not counts as
      one without any.
  """

  update: Any
  client_state: Any
  loss: Any
  weight: Any = ()
  plaintext_sum: Any = ()
  has_trained: Any = True


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


def _report(
  loss, diverged, is_empty
) -> collections.OrderedDict[str, tf.Tensor]:
  """Returns what a client tells of its loss, see `_metrics`."""
  has_none = diverged | is_empty
  return collections.OrderedDict(
    loss=tf.where(has_none, 0.0, loss),
    counts=tf.where(has_none, 0.0, 1.0),
    # What is not a number is then a mean of nothing, and no divergence.
    diverged=tf.where(diverged & ~is_empty, 1.0, 0.0),
  )


def client_training(
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  train_client: Callable[[Any, Any, Any, Any], ClientResult],
  requirements: factories.AggregationRequirements,
  client_weight: Callable[[Any], Any],
  has_examples: Callable[[Any], Any],
) -> tff.Computation:
  """Builds a client's part of the training phase.

  Args:
    shared_type: The type of what `train_client` takes as weights.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
    requirements: What the algorithm says of its weights and sums.
    client_weight: `data -> weight` of a client whose result has none.
    has_examples: `data -> 0 or 1`; with 0 the weight is 0, whatever the result
      says.

  Returns:
    `(weights, client_state, data, round_num) -> <update, client_state, weight,
    whether it is above 0, contribution, report>`.

  Raises:
    TypeError: If a result has a weight or a contribution, or has none, and
      `needs` says otherwise.
  """

  @tff.tensorflow.computation(shared_type, client_type, examples_type, np.int32)
  def work(weights, client_state, data, round_num):
    result = train_client(weights, client_state, data, round_num)
    has_weight = bool(tf.nest.flatten(result.weight))
    if has_weight != bool(requirements.own_weights):
      raise TypeError(
        "a client's result has a weight of its own if and only if"
        " AGGREGATION_REQUIREMENTS says why (own_weights)"
      )
    if tf.nest.flatten(result.plaintext_sum) and not requirements.contributes:
      raise TypeError(
        "a client's result has a plaintext_sum, and AGGREGATION_REQUIREMENTS"
        " does not say why (plaintext_sums, or per_client_values)"
      )
    weight = result.weight if has_weight else client_weight(data)
    is_empty = tf.equal(has_examples(data), 0) | ~tf.cast(
      result.has_trained, tf.bool
    )
    weight = tf.cast(weight, tf.float32)
    diverged = _has_diverged(
      (result.update, result.client_state, result.plaintext_sum, weight)
    )
    nothing, no_contribution = tf.nest.map_structure(
      tf.zeros_like, (result.update, result.plaintext_sum)
    )
    is_left_out = diverged | is_empty
    weight = tf.where(is_left_out, 0.0, weight)
    return (
      # Not a number times a weight of 0 is not a number.
      factories.either(~is_left_out, result.update, nothing),
      factories.either(~diverged, result.client_state, client_state),
      weight,
      tf.cast(weight > 0, tf.float32),
      factories.either(~is_left_out, result.plaintext_sum, no_contribution),
      _report(result.loss, diverged, is_empty),
    )

  return work


def training_phase(
  server_type: tff.Type,
  training: tff.Computation,
  aggregate: tff.templates.AggregationProcess,
  update_server: Callable[[Any, Any, Any, Any], Any] | None,
  is_last: bool,
) -> tff.Computation:
  """Builds the phase: broadcast, train, average, apply.

  Args:
    server_type: The type of what the phase takes at SERVER, see
      `frozen_weights.server_type`.
    training: A client's part, see `client_training`.
    aggregate: Averages the updates.
    update_server: `(weights, mean_update, contribution, round_num) -> weights`;
      None adds the mean update.
    is_last: Whether the phase ends a round.

  Returns:
    The phase, see `algorithm.FederatedAlgorithm`.
  """
  _, client_type, examples_type, _ = training.type_signature.parameter
  update_type, *_, contribution_type, _ = training.type_signature.result
  weights_type = frozen_weights.state_type(server_type).weights
  has_contribution = bool(tff.structure.flatten(contribution_type))

  @tff.tensorflow.computation(
    weights_type, update_type, contribution_type, np.float32, np.int32
  )
  def apply_update(weights, mean_update, summed, num_counted, round_num):
    def updated():
      if update_server is None:
        return tf.nest.map_structure(tf.add, weights, mean_update)
      return update_server(weights, mean_update, summed, round_num)

    # The mean of nothing is not a number, and there may be no update by it.
    return factories.either(num_counted > 0, updated, lambda: weights)

  @tff.federated_computation(
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def phase(server, client_states, data):
    state = frozen_weights.state(server)
    weights, round_num = tff.federated_broadcast(
      (frozen_weights.shared(server), state.round_num)
    )
    update, new_client_states, weight, has_weight, plaintext_sum, report = (
      tff.federated_map(training, (weights, client_states, data, round_num))
    )
    num_counted = tff.federated_sum(has_weight)
    aggregated = aggregate.next(state.aggregator, update, weight)
    summed = (
      tff.federated_sum(plaintext_sum)
      if has_contribution
      else tff.federated_value((), tff.SERVER)
    )
    new_state = ServerState(
      tff.federated_map(
        apply_update,
        (
          state.weights,
          aggregated.result,
          summed,
          num_counted,
          state.round_num,
        ),
      ),
      aggregated.state,
      tff.federated_map(_next_round, state.round_num)
      if is_last
      else state.round_num,
      state.seed,
    )
    return (
      tff.federated_zip(new_state),
      new_client_states,
      _metrics(report),
    )

  return phase


def personal_phase(
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  personalize_client: Callable[[Any, Any, Any, Any], PersonalResult],
  has_examples: Callable[[Any], Any],
) -> tff.Computation:
  """Builds the phase: broadcast, work on what is personal, send a loss.

  Args:
    server_type: The type of what the phase takes at SERVER.
    shared_type: The type of what `personalize_client` takes as weights.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`.
    has_examples: See `client_training`.

  Returns:
    The phase, see `algorithm.FederatedAlgorithm`. It ends a round.
  """

  @tff.tensorflow.computation(shared_type, client_type, examples_type, np.int32)
  def work(weights, client_state, data, round_num):
    result = personalize_client(weights, client_state, data, round_num)
    diverged = _has_diverged(result.client_state)
    new_client_state = factories.either(
      ~diverged, result.client_state, client_state
    )
    is_empty = tf.equal(has_examples(data), 0)
    return new_client_state, _report(result.loss, diverged, is_empty)

  @tff.federated_computation(
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def phase(server, client_states, data):
    state = frozen_weights.state(server)
    weights, round_num = tff.federated_broadcast(
      (frozen_weights.shared(server), state.round_num)
    )
    new_client_states, report = tff.federated_map(
      work, (weights, client_states, data, round_num)
    )
    new_state = ServerState(
      state.weights,
      state.aggregator,
      tff.federated_map(_next_round, state.round_num),
      state.seed,
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
      work has diverged, or which has no examples, does not count.

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
