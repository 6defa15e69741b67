"""The types of an algorithm's functions, and the results of clients.

`algorithm.AlgorithmSpec` documents the functions and their arguments.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

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
      examples sends zeros.
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


InitialWeightsFn = Callable[[Seed], Weights]
InitialClientStateFn = Callable[[Seed, Weights], ClientState]
TrainClientFn = Callable[[Weights, ClientState, Data, RoundNum], ClientResult]
PersonalizeClientFn = Callable[
  [Weights, ClientState, Data, RoundNum], PersonalResult
]
UpdateServerFn = Callable[[Weights, Any, Any, RoundNum], Weights]
PrepareClientFn = Callable[[Weights, ClientState, Data, RoundNum], Prepared]
PredictAsClientFn = Callable[
  [Weights, ClientState | Prepared, Data, EvaluationData], tf.Tensor
]
PredictAsServerFn = Callable[[Weights, Summary, EvaluationData], tf.Tensor]
SummarizeClientFn = Callable[[Weights, Data], Summary]
AnswerRequestFn = Callable[[Weights, Any], ClientState]
CanPredictFn = Callable[[Data], tf.Tensor]
GuideQueriesFn = Callable[[Weights, tf.Tensor], tf.Tensor]
NumExamplesFn = Callable[[Data], Any]
