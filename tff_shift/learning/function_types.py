"""The types of an algorithm's functions, and the results of clients.

`algorithm.AlgorithmSpec` documents the functions and their arguments.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# The arguments of the functions; the names denote nested structures.
Seed = Any
Weights = Any
ClientState = Any
Prepared = Any
Data = Any
EvaluationData = Any
Summary = Any
RoundNum = Any


class ClientResult(NamedTuple):
  """The result of a client's training phase.

  Attributes:
    update: The model update that the server averages, in the structure of the
      server weights. With an `algorithm.AlgorithmSpec.update_server`: any
      nested structure of float32 tensors.
    client_state: The client's new personal state; it stays on the client.
    loss: The mean training loss, a float32 scalar.
    weight: The client's weight in the mean, a scalar of at least 0, for
      algorithms that set `factories.AggregationRequirements.own_weights`.
      Empty: the template's weight, see `client_weighting`.
    plaintext_sum: Values that the server sums over clients beside the updates,
      a nested structure of tensors of fixed shapes. They leave the client in
      plaintext, whatever the aggregator does to updates, so
      `factories.AggregationRequirements` must declare them. A client without
      examples sends zeros. The server gets a table, `client_slots.Slots`, in
      the place of a `client_slots.Row`.
    has_trained: Whether the client has the examples that the round requires,
      for example of one domain, a bool scalar. If False, it counts as a client
      without examples.
  """

  update: Any
  client_state: Any
  loss: Any
  weight: Any = ()
  plaintext_sum: Any = ()
  has_trained: Any = True


class PersonalResult(NamedTuple):
  """The result of a client's personal phase.

  Attributes:
    client_state: The client's new personal state; it stays on the client.
    loss: The mean training loss, a float32 scalar.
  """

  client_state: Any
  loss: Any


def add(weights: Any, mean_update: Any) -> Any:
  """Adds the mean update, the step of a server without an optimizer."""
  return tf.nest.map_structure(tf.add, weights, mean_update)


class UpdateInfo(NamedTuple):
  """What the server knows of a round beside the sums over clients.

  Attributes:
    round_num: The round from 0, an int32 scalar.
    num_counted: The number of participants with a weight above 0, a float32
      scalar; with `dp` the expected number, for any participants.
    num_clients: The number of all clients, an int. None: `algorithms.build` was
      not given it.
    memory: The state of `algorithm.AlgorithmSpec.initial_memory`.
    step: `(weights, mean_update) -> weights`, the step of the server optimizer;
      without one, it adds. A server that does not call it has no optimizer.
  """

  round_num: Any
  num_counted: Any = np.float32(1)
  num_clients: int | None = None
  memory: Any = ()
  step: Callable[[Any, Any], Any] = add


class Survey(NamedTuple):
  """A phase before the training phase of a round.

  Its aggregate changes the server weights, which the training phase broadcasts:
  clients train on what the same clients have reported in the same round.

  Attributes:
    survey_client: `(weights, client_state, data, round_num) -> ClientResult`,
      whose update is any nested structure of float32 tensors.
    update_server: See `algorithm.AlgorithmSpec`. `info.step` adds, whatever the
      server optimizer.
  """

  survey_client: "TrainClientFn"
  update_server: "UpdateServerFn"


InitialWeightsFn = Callable[[Seed], Weights]
InitialClientStateFn = Callable[[Seed, Weights], ClientState]
TrainClientFn = Callable[[Weights, ClientState, Data, RoundNum], ClientResult]
PersonalizeClientFn = Callable[
  [Weights, ClientState, Data, RoundNum], PersonalResult
]
UpdateServerFn = Callable[[Weights, Any, Any, UpdateInfo], Any]
InitialMemoryFn = Callable[[Seed], Any]
PrepareClientFn = Callable[[Weights, ClientState, Data, RoundNum], Prepared]
PredictAsClientFn = Callable[
  [Weights, ClientState | Prepared, Data, EvaluationData], tf.Tensor
]
PredictAsServerFn = Callable[[Weights, Summary, EvaluationData], tf.Tensor]
SummarizeClientFn = Callable[[Weights, Data], Summary]
AnswerRequestFn = Callable[[Weights, Any], ClientState]
CanPredictFn = Callable[[Data], tf.Tensor]
GuideQueriesFn = Callable[[Weights, tf.Tensor], tf.Tensor]
ClientWeightFn = Callable[[Data], Any]
