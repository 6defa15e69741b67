"""Frozen weights, and how they reach every computation.

A model can have weights that are never trained (`SplitModel.frozen`), such as
the weights below adapters. They are not part of the server state: they are not
averaged, checkpointed or sent back. They are not constants of a graph either,
since each graph would then contain a copy of a large model. A computation takes
them beside the server state,

    (<S, F>@SERVER, ...) instead of (S@SERVER, ...)

and broadcasts them with the server weights; in process this passes references.
Algorithms are unaware of frozen weights: their functions are rebuilt with a
model whose frozen weights are graph inputs.

Choices:
  * TFF's C++ executors send them with every call.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.models import split_model

# The functions of an `algorithm.AlgorithmSpec` whose first argument is the
# server weights.
_TAKE_WEIGHTS = (
  "train_client",
  "personalize_client",
  "prepare_client",
  "predict_as_client",
  "predict_as_server",
  "summarize_client",
  "answer_request",
  "guide_queries",
)


class Server(NamedTuple):
  """A computation's argument at SERVER: the state and the frozen weights."""

  state: Any
  frozen: Any


class Shared(NamedTuple):
  """The weights that clients receive: the server's and the frozen ones."""

  weights: Any
  frozen: Any


@dataclasses.dataclass(frozen=True)
class WithFrozen:
  """A computation that is called without the frozen weights and adds them.

  Attributes:
    computation: A computation whose first parameter is a `Server` at SERVER.
    frozen: The frozen weights, a nested structure of arrays or tensors.
  """

  computation: tff.Computation
  frozen: Any

  def __call__(self, state, *arguments):
    """Calls the computation with the server state and the other arguments."""
    return self.computation(Server(state, self.frozen), *arguments)

  @property
  def type_signature(self) -> tff.FunctionType:
    """The type of the computation, with the frozen weights at the server."""
    return self.computation.type_signature


def has_any(model: split_model.SplitModel) -> bool:
  """Returns whether a model has frozen weights."""
  return bool(tf.nest.flatten(model.frozen))


def num_bytes(model: split_model.SplitModel) -> int:
  """Returns the size of a model's frozen weights in bytes."""
  return sum(
    tf.TensorShape(each.shape).num_elements() * tf.as_dtype(each.dtype).size
    for each in tf.nest.flatten(model.frozen)
  )


def _type_of(model: split_model.SplitModel) -> tff.Type:
  return tff.types.to_type(
    tf.nest.map_structure(
      lambda w: tff.TensorType(tf.as_dtype(w.dtype).as_numpy_dtype, w.shape),
      model.frozen,
    )
  )


def server_type(
  state_type: tff.FederatedType, model: split_model.SplitModel
) -> tff.FederatedType:
  """Returns the type of a computation's argument at SERVER.

  Args:
    state_type: The type of the server state, placed at SERVER.
    model: The model.

  Returns:
    `state_type`; for a model with frozen weights, the type of a `Server`.
  """
  if not has_any(model):
    return state_type
  parts = Server(state_type.member, _type_of(model))
  return tff.FederatedType(tff.types.to_type(parts), tff.SERVER)


def state_type(type_at_server: tff.FederatedType) -> tff.Type:
  """Returns the type of the server state in an argument at SERVER."""
  member = type_at_server.member
  return member.state if member.python_container is Server else member


def with_state_type(
  type_at_server: tff.FederatedType, state_type: tff.Type
) -> tff.FederatedType:
  """Returns the type of an argument at SERVER with another type of state."""
  member = type_at_server.member
  if member.python_container is Server:
    state_type = tff.types.to_type(Server(state_type, member.frozen))
  return tff.FederatedType(state_type, tff.SERVER)


def shared_type(
  weights_type: tff.Type, model: split_model.SplitModel
) -> tff.Type:
  """Returns the type of the weights that the functions of `bind` take."""
  if not has_any(model):
    return weights_type
  return tff.types.to_type(Shared(weights_type, _type_of(model)))


def _is_server(server: tff.Value) -> bool:
  return server.type_signature.member.python_container is Server


def state(server: tff.Value) -> tff.Value:
  """Returns the server state in an argument at SERVER."""
  return server.state if _is_server(server) else server


def shared(server: tff.Value) -> tff.Value | Shared:
  """Returns the weights that a computation passes to functions."""
  if not _is_server(server):
    return server.weights
  return Shared(server.state.weights, server.frozen)


def bind(
  build_spec: Callable[[split_model.SplitModel, Any], Any],
  model: split_model.SplitModel,
  hparams: Any,
) -> Any:
  """Builds the functions of an algorithm.

  Args:
    build_spec: `(model, hparams) -> algorithm.AlgorithmSpec`.
    model: The model.
    hparams: The hyper-parameters.

  Returns:
    An `algorithm.AlgorithmSpec`. For a model with frozen weights its functions
    take a `Shared` instead of the server weights.
  """
  functions = build_spec(model, hparams)
  if not has_any(model):
    return functions

  def with_tensors(frozen):
    return build_spec(model.with_frozen(frozen), hparams)

  def bound(take):
    function = take(functions)
    signature = inspect.signature(function)

    # TFF reads the names of the arguments, and passes them by name.
    @functools.wraps(function)
    def call(*given, **named):
      received, *others = signature.bind(*given, **named).args
      return take(with_tensors(received.frozen))(received.weights, *others)

    return call

  def bound_survey(place):
    return functions.surveys[place]._replace(
      survey_client=bound(lambda spec: spec.surveys[place].survey_client)
    )

  def initial_client_state(seed, received):
    return with_tensors(received.frozen).initial_client_state(
      seed, received.weights
    )

  return functions._replace(
    initial_client_state=initial_client_state,
    surveys=tuple(map(bound_survey, range(len(functions.surveys)))),
    **{
      name: bound(operator.attrgetter(name))
      for name in _TAKE_WEIGHTS
      if getattr(functions, name) is not None
    },
  )


def with_frozen(
  computation: tff.Computation, model: split_model.SplitModel
) -> tff.Computation | WithFrozen:
  """Makes a computation pass the model's frozen weights.

  Args:
    computation: A computation whose first parameter is of `server_type`.
    model: The model.

  Returns:
    A callable that takes the server state: the computation itself for a model
    without frozen weights.
  """
  return (
    WithFrozen(computation, model.frozen) if has_any(model) else computation
  )


def attach(algorithm: Any, model: split_model.SplitModel) -> Any:
  """Makes the computations of an algorithm pass the model's frozen weights.

  Args:
    algorithm: An `algorithm.FederatedAlgorithm`.
    model: The model.

  Returns:
    The algorithm. For a model with frozen weights, each computation that takes
    the server state is a `WithFrozen`.
  """
  if not has_any(model):
    return algorithm
  # Tensors are passed by reference, arrays would be copied at each call.
  with tf.init_scope():
    model = model.with_frozen(
      tf.nest.map_structure(tf.convert_to_tensor, model.frozen)
    )

  def wrap(computation):
    return computation and with_frozen(computation, model)

  answering = algorithm.guidance and algorithm.guidance._replace(
    prepare=wrap(algorithm.guidance.prepare),
    guide=wrap(algorithm.guidance.guide),
    answer=wrap(algorithm.guidance.answer),
    vote=wrap(algorithm.guidance.vote),
  )
  return dataclasses.replace(
    algorithm,
    phases=tuple(map(wrap, algorithm.phases)),
    client_halves=tuple(map(wrap, algorithm.client_halves)),
    guidance=answering,
    **{
      name: wrap(getattr(algorithm, name))
      for name in (
        "initialize_client",
        "join",
        "evaluate_clients",
        "evaluate_each_client",
        "evaluate_server",
        "summarize",
        "request",
      )
    },
  )
