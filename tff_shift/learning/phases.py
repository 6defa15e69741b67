"""The phases of a round, and the results of the clients' work.

A client has diverged if its update or its new state contains an infinity or
NaN. It then counts as absent: its state stays as before the phase, and its
update has weight 0. Unweighted aggregators (such as `dp`) cannot down-weight a
diverged client: it contributes a zero update and counts as a participant.
Adaptive clipping and zeroing see the norm of its update as 0.

Clients without examples, or without the examples that the round requires, get
weight 0, even if `client_weighting` is `uniform`. Their loss is ignored. Their
update and plaintext sum are zeros, which `dp` counts. They cannot diverge: if
their new state is not finite, such as the mean of no losses, the old state is
kept.

If no client of a round has examples, the server state stays bit-identical:
weights, momentum, adaptive clipping norms. Only the round number increases, as
the driver's does. The mean loss of the round is NaN. Privacy accounting counts
the round. With `dp` it is a round of noise alone, also if no client takes part:
whether there is noise must not tell who takes part.

The loss does not decide divergence: a client with a finite update and a loss
that is not finite counts, and the mean loss of the round is then not finite.

Choices:
  * Exit code 3 is for a round in which all clients have diverged; the state of
    the round before is kept. `num_diverged` counts diverged clients.
"""

import collections
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import frozen_weights
from tff_shift.learning import function_types
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories


class ServerState(NamedTuple):
  """The state of the server.

  Attributes:
    weights: The server weights, a nested structure of float32 tensors.
    aggregator: The state of the aggregator; with surveys, a tuple of the states
      of each survey's aggregator and of that of the training phase.
    round_num: The number of completed rounds, an int32 scalar.
    seed: The seed of the initial weights, int32 [2], if
      `algorithm.AlgorithmSpec.starts_alike`; otherwise ().
    optimizer: The state of the server optimizer; () without one. It is not
      broadcast.
    memory: The state of `algorithm.AlgorithmSpec.initial_memory`; () without
      it. It is not broadcast.
  """

  weights: Any
  aggregator: Any
  round_num: Any
  seed: Any = ()
  optimizer: Any = ()
  memory: Any = ()


class Broadcast(NamedTuple):
  """The part of the server's state that it sends to clients.

  Attributes:
    weights: See `ServerState`.
    round_num: See `ServerState`.
    seed: See `ServerState`.
  """

  weights: Any
  round_num: Any
  seed: Any


class Message(NamedTuple):
  """What a client sends in an aggregating phase, before it is aggregated.

  Attributes:
    update: The model update.
    weight: Its weight in the mean, a float32 scalar.
    has_weight: Whether this is above 0, 1 or 0, a float32 scalar.
    plaintext_sum: See `algorithm.ClientResult`.
    report: The report on the loss, a dictionary of float32 tensors.
  """

  update: Any
  weight: Any
  has_weight: Any
  plaintext_sum: Any
  report: Any


class Phase(NamedTuple):
  """A phase, and its halves for clients in processes of their own.

  Attributes:
    whole: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> <S@SERVER, {C}@CLIENTS,
      metrics@SERVER>`, see `algorithm.FederatedAlgorithm`.
    client_half: `(Broadcast@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> <{C}@CLIENTS,
      {message}@CLIENTS>`. The message is a `Message`; in a personal phase, the
      report alone.
    server_half: `(S@SERVER, {message}@CLIENTS) -> <S@SERVER, metrics@SERVER>`.
  """

  whole: tff.Computation
  client_half: tff.Computation
  server_half: tff.Computation


# The metrics by client, each [num_clients] float32: the loss of a client, and
# whether it has one, 1 or 0.
CLIENT_LOSSES = "client_losses", "client_loss_counts"
# Both in a client's report, in its row.
_BY_CLIENT = "by_client"


# A tensor of more numbers is tested by a product with `_SMALL`.
_LARGE = 2**14
_SMALL = 2.0**-32


@tff.tensorflow.computation(np.int32)
def _next_round(round_num):
  return round_num + 1


def _is_finite(tensor) -> tf.Tensor:
  """Returns whether all numbers of a tensor are finite."""
  if tensor.dtype == tf.float32 and (tensor.shape.num_elements() or 0) > _LARGE:
    # A product reads the tensor once. Asking each number writes as many answers
    # and reads them again, in six times the time. The sums are too small to
    # overflow, and an infinity or NaN stays one.
    size = tensor.shape[-1]
    tensor = tf.linalg.matvec(
      tf.reshape(tensor, [-1, size]), tf.fill([size], _SMALL)
    )
  return tf.reduce_all(tf.math.is_finite(tensor))


def has_diverged(values) -> tf.Tensor:
  """Returns whether any number in a nested structure is not finite."""
  tensors = map(tf.convert_to_tensor, tf.nest.flatten(values))
  are_finite = [
    _is_finite(tensor) for tensor in tensors if tensor.dtype.is_floating
  ]
  return ~tf.reduce_all(tf.stack([tf.constant(True), *are_finite]))


def _report(
  loss, diverged, is_empty, data, reports_loss: bool
) -> collections.OrderedDict[str, Any]:
  """Returns a client's report on its loss, see `_metrics`.

  Args:
    loss: Its loss.
    diverged: Whether it has diverged.
    is_empty: Whether it has no examples.
    data: Its data.
    reports_loss: Whether the server sees the loss of each client.
  """
  has_none = diverged | is_empty
  report = collections.OrderedDict(
    loss=tf.where(has_none, 0.0, loss),
    counts=tf.where(has_none, 0.0, 1.0),
    # Without examples, NaN is the mean of nothing, not a divergence.
    diverged=tf.where(diverged & ~is_empty, 1.0, 0.0),
  )
  if reports_loss:
    values = report["loss"], report["counts"]
    report[_BY_CLIENT] = client_slots.place(values, data.client_id)
  return report


def client_training(
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  train_client: function_types.TrainClientFn,
  requirements: factories.AggregationRequirements,
  client_weight: function_types.ClientWeightFn,
  has_examples: function_types.ClientWeightFn,
  reports_loss: bool = False,
) -> tff.Computation:
  """Builds the client's part of the training phase.

  Args:
    shared_type: The type of the weights that `train_client` takes.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
    requirements: Declares whether results have own weights or plaintext sums.
    client_weight: `data -> weight` of a client whose result has no weight.
    has_examples: `data -> 0 or 1`; 0 sets the weight to 0, whatever the result
      contains.
    reports_loss: Whether the server sees the loss of each client.

  Returns:
    `(weights, client_state, data, round_num) -> <Message, client_state>`.

  Raises:
    TypeError: If a result has a weight or a plaintext sum, or lacks it, in
      contradiction to `requirements`.
  """

  @tff.tensorflow.computation(shared_type, client_type, examples_type, np.int32)
  def work(weights, client_state, data, round_num):
    result = train_client(weights, client_state, data, round_num)
    has_weight = bool(tf.nest.flatten(result.weight))
    if has_weight != bool(requirements.own_weights):
      raise TypeError(
        "a client's result must have a weight if and only if"
        " AGGREGATION_REQUIREMENTS gives the reason (own_weights)"
      )
    if tf.nest.flatten(result.plaintext_sum) and not requirements.contributes:
      raise TypeError(
        "a client's result has a plaintext_sum: AGGREGATION_REQUIREMENTS must"
        " give the reason (plaintext_sums, or per_client_values)"
      )
    if (
      client_slots.has_rows(result.plaintext_sum)
      and not requirements.per_client_values
    ):
      raise TypeError(
        "a client's plaintext_sum has a row of its own:"
        " AGGREGATION_REQUIREMENTS must give the reason (per_client_values)"
      )
    weight = result.weight if has_weight else client_weight(data)
    is_empty = tf.equal(has_examples(data), 0) | ~tf.cast(
      result.has_trained, tf.bool
    )
    weight = tf.cast(weight, tf.float32)
    diverged = has_diverged(
      (result.update, result.client_state, result.plaintext_sum, weight)
    )
    nothing, no_contribution = tf.nest.map_structure(
      tf.zeros_like, (result.update, result.plaintext_sum)
    )
    is_left_out = diverged | is_empty
    weight = tf.where(is_left_out, 0.0, weight)
    message = Message(
      # NaN * 0 is NaN: a weight of 0 alone would not remove it.
      update=factories.either(~is_left_out, result.update, nothing),
      weight=weight,
      has_weight=tf.cast(weight > 0, tf.float32),
      plaintext_sum=factories.either(
        ~is_left_out, result.plaintext_sum, no_contribution
      ),
      report=_report(result.loss, diverged, is_empty, data, reports_loss),
    )
    return message, factories.either(
      ~diverged, result.client_state, client_state
    )

  return work


def broadcast_type(server_type: tff.FederatedType) -> tff.FederatedType:
  """Returns the type of the server's argument of a `Phase.client_half`.

  Args:
    server_type: The type of a phase's argument at SERVER, see
      `frozen_weights.server_type`.
  """
  state_type = frozen_weights.state_type(server_type)
  return frozen_weights.with_state_type(
    server_type,
    tff.types.to_type(
      Broadcast(state_type.weights, state_type.round_num, state_type.seed)
    ),
  )


def _phase(
  server_type: tff.FederatedType,
  work: tff.Computation,
  finish: Callable[[tff.Value, tff.Value], tuple[ServerState, tff.Value]],
) -> Phase:
  """Builds a phase: broadcast, the clients' work, the server's work.

  Args:
    server_type: The type of the phase's argument at SERVER.
    work: `(weights, client_state, data, round_num) -> <message, client_state>`.
    finish: `(S@SERVER, {message}@CLIENTS) -> (new S, metrics@SERVER)`.
  """
  _, client_type, examples_type, _ = work.type_signature.parameter
  message_type, _ = work.type_signature.result
  at_clients = [
    tff.FederatedType(each, tff.CLIENTS)
    for each in (client_type, examples_type)
  ]

  def work_of_clients(server, client_states, data):
    state = frozen_weights.state(server)
    weights, round_num = tff.federated_broadcast(
      (frozen_weights.shared(server), state.round_num)
    )
    return tff.federated_map(work, (weights, client_states, data, round_num))

  @tff.federated_computation(server_type, *at_clients)
  def phase(server, client_states, data):
    message, new_client_states = work_of_clients(server, client_states, data)
    new_state, metrics = finish(frozen_weights.state(server), message)
    return tff.federated_zip(new_state), new_client_states, metrics

  @tff.federated_computation(broadcast_type(server_type), *at_clients)
  def client_half(server, client_states, data):
    message, new_client_states = work_of_clients(server, client_states, data)
    return new_client_states, message

  @tff.federated_computation(
    tff.FederatedType(frozen_weights.state_type(server_type), tff.SERVER),
    tff.FederatedType(message_type, tff.CLIENTS),
  )
  def server_half(state, message):
    new_state, metrics = finish(state, message)
    return tff.federated_zip(new_state), metrics

  return Phase(phase, client_half, server_half)


class NoStepError(ValueError):
  """The server of an algorithm does not call `UpdateInfo.step`."""


def _optimizer_step(
  optimizer: tff.learning.optimizers.Optimizer, states: list[Any]
) -> Callable[[Any, Any], Any]:
  """Returns `info.step` of an optimizer, which appends its new state."""

  def step(weights, mean_update):
    if len(states) > 1:
      raise ValueError("update_server must call info.step at most once")
    # A server descends: the mean update is minus the gradient.
    state, stepped = optimizer.next(
      states[0],
      tuple(tf.nest.flatten(weights)),
      tuple(map(tf.negative, tf.nest.flatten(mean_update))),
    )
    states.append(state)
    return tf.nest.pack_sequence_as(weights, stepped)

  return step


def aggregating_phase(
  server_type: tff.Type,
  training: tff.Computation,
  aggregate: tff.templates.AggregationProcess,
  update_server: function_types.UpdateServerFn | None,
  is_last: bool,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  num_clients: int | None = None,
  place: int | None = None,
  num_expected: int | None = None,
) -> Phase:
  """Builds an aggregating phase: broadcast, train, average, apply.

  Args:
    server_type: The type of the phase's argument at SERVER, see
      `frozen_weights.server_type`.
    training: The client's part, from `client_training`.
    aggregate: Averages the updates.
    update_server: See `algorithm.AlgorithmSpec`; None: `info.step`.
    is_last: Whether the phase is the last one of a round.
    server_optimizer: Makes `info.step`. None: it adds.
    num_clients: The number of all clients, for `info`.
    place: Its place among the states of `ServerState.aggregator`. None: there
      is only one state.
    num_expected: See `factories.Traits`.

  Returns:
    The phase.
  """
  message_type, _ = training.type_signature.result
  contribution_type = client_slots.sum_type(
    message_type.plaintext_sum, num_clients
  )
  state_type = frozen_weights.state_type(server_type)
  has_contribution = bool(tff.structure.flatten(contribution_type))
  has_memory = bool(tff.structure.flatten(state_type.memory))

  @tff.tensorflow.computation(
    state_type.weights,
    state_type.optimizer,
    state_type.memory,
    message_type.update,
    contribution_type,
    np.float32,
    np.int32,
  )
  def apply_update(
    weights, optimizer_state, memory, mean_update, summed, counted, round_num
  ):
    if num_expected is not None:
      counted = tf.constant(num_expected, tf.float32)

    def updated():
      states = [optimizer_state]
      step: Callable[[Any, Any], Any] = function_types.add
      if server_optimizer is not None:
        step = _optimizer_step(server_optimizer, states)
      info = function_types.UpdateInfo(
        round_num, counted, num_clients, memory, step
      )
      if update_server is None:
        found = step(weights, mean_update)
      else:
        found = update_server(weights, mean_update, summed, info)
      if server_optimizer is not None and len(states) == 1:
        raise NoStepError(
          "its server does not add the mean of the clients' updates"
        )
      return (*(found if has_memory else (found, memory)), states[-1])

    # Without participants the mean update is NaN and must not be applied.
    return factories.either(
      counted > 0, updated, lambda: (weights, memory, optimizer_state)
    )

  def finish(state, message):
    num_counted = tff.federated_sum(message.has_weight)
    aggregated = aggregate.next(
      state.aggregator if place is None else state.aggregator[place],
      message.update,
      message.weight,
    )
    summed = (
      client_slots.federated_sum(message.plaintext_sum, num_clients)
      if has_contribution
      else tff.federated_value((), tff.SERVER)
    )
    applied = tff.federated_map(
      apply_update,
      (
        state.weights,
        state.optimizer,
        state.memory,
        aggregated.result,
        summed,
        num_counted,
        state.round_num,
      ),
    )
    new_state = ServerState(
      weights=applied[0],
      aggregator=aggregated.state
      if place is None
      else tuple(
        aggregated.state if each == place else state.aggregator[each]
        for each in range(len(state_type.aggregator))
      ),
      round_num=tff.federated_map(_next_round, state.round_num)
      if is_last
      else state.round_num,
      seed=state.seed,
      optimizer=applied[2],
      memory=applied[1],
    )
    return new_state, _metrics(message.report, num_clients)

  return _phase(server_type, training, finish)


def personal_phase(
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  personalize_client: function_types.PersonalizeClientFn,
  has_examples: function_types.ClientWeightFn,
  reporting_clients: int | None = None,
) -> Phase:
  """Builds the personal phase: broadcast, personalize, report a loss.

  Args:
    server_type: The type of the phase's argument at SERVER.
    shared_type: The type of the weights that `personalize_client` takes.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`.
    has_examples: `data -> 0 or 1`; with 0 the client's loss is ignored.
    reporting_clients: The number of all clients, if the server sees the loss of
      each. None: it sees the mean only.

  Returns:
    The phase. It is the last of a round.
  """

  @tff.tensorflow.computation(shared_type, client_type, examples_type, np.int32)
  def work(weights, client_state, data, round_num):
    result = personalize_client(weights, client_state, data, round_num)
    diverged = has_diverged(result.client_state)
    new_client_state = factories.either(
      ~diverged, result.client_state, client_state
    )
    is_empty = tf.equal(has_examples(data), 0)
    report = _report(
      result.loss, diverged, is_empty, data, reporting_clients is not None
    )
    return report, new_client_state

  def finish(state, report):
    new_state = ServerState(
      state.weights,
      state.aggregator,
      tff.federated_map(_next_round, state.round_num),
      state.seed,
      state.optimizer,
      state.memory,
    )
    return new_state, _metrics(report, reporting_clients)

  return _phase(server_type, work, finish)


def _metrics(report, num_clients: int | None) -> tff.Value:
  """Aggregates the clients' reports into the metrics of a phase.

  Args:
    report: The result of `_report`, placed at CLIENTS. The loss of a client
      that has diverged or has no examples is ignored.
    num_clients: The number of all clients, for reports with a row.

  Returns:
    `loss`, the mean over the other clients; `num_clients`, the number of all
    clients; `num_diverged`, the number of diverged clients; and, if clients
    report them, `CLIENT_LOSSES`.
  """
  found = collections.OrderedDict(
    loss=tff.federated_mean(report["loss"], report["counts"]),
    num_clients=tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS)),
    num_diverged=tff.federated_sum(report["diverged"]),
  )
  if _BY_CLIENT in tff.structure.name_list(report.type_signature.member):
    table = client_slots.federated_sum(report[_BY_CLIENT], num_clients)
    found.update(zip(CLIENT_LOSSES, table.values, strict=True))
  return tff.federated_zip(found)
