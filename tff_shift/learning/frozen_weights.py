"""Weights that nobody trains, and how they reach every computation.

A model may have weights that stay as they are (`SplitModel.frozen`), such as
those below adapters. They are no part of the server's state: not averaged, not
in a checkpoint, not sent back. They are no constants of a graph either, for a
large model would then be copied into each. A computation takes them beside the
server's state,

    (<S, F>@SERVER, ...) instead of (S@SERVER, ...)

and broadcasts them with the server's weights; in process that passes
references. An algorithm's functions know nothing of it: they are made anew, for
a model that has the tensors of the graph in place of its frozen weights.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.models import split_model

# The functions of a `algorithm.AlgorithmSpec` that take the server's weights
# first.
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
  """What a computation takes at SERVER: the state, and the frozen weights."""

  state: Any
  frozen: Any


class Shared(NamedTuple):
  """What clients receive: the server's weights, and the frozen ones."""

  weights: Any
  frozen: Any


@dataclasses.dataclass(frozen=True)
class WithFrozen:
  """A computation that is called without the frozen weights, and passes them.

  Attributes:
    computation: A computation whose first parameter is a `Server` at SERVER.
    frozen: The frozen weights, a nested structure of arrays or tensors.
  """

  computation: tff.Computation
  frozen: Any

  def __call__(self, state, *arguments):
    """Calls the computation with the server's state and what follows it."""
    return self.computation(Server(state, self.frozen), *arguments)

  @property
  def type_signature(self) -> tff.FunctionType:
    """The type of the computation, with the frozen weights at the server."""
    return self.computation.type_signature


def has_any(model: split_model.SplitModel) -> bool:
  """Tells whether a model has frozen weights."""
  return bool(tf.nest.flatten(model.frozen))


def num_bytes(model: split_model.SplitModel) -> int:
  """Returns how many bytes the frozen weights of a model take."""
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
  """Returns the type of what a computation takes at SERVER.

  Args:
    state_type: The type of the server's state, placed at SERVER.
    model: The model.

  Returns:
    `state_type`; for a model with frozen weights, that of a `Server`.
  """
  if not has_any(model):
    return state_type
  parts = Server(state_type.member, _type_of(model))
  return tff.FederatedType(tff.types.to_type(parts), tff.SERVER)


def state_type(type_at_server: tff.FederatedType) -> tff.Type:
  """Returns the type of the state in what a computation takes at SERVER."""
  member = type_at_server.member
  return member.state if member.python_container is Server else member


def shared_type(
  weights_type: tff.Type, model: split_model.SplitModel
) -> tff.Type:
  """Returns the type of what the functions of `bind` take as weights."""
  if not has_any(model):
    return weights_type
  return tff.types.to_type(Shared(weights_type, _type_of(model)))


def _is_server(server: tff.Value) -> bool:
  return server.type_signature.member.python_container is Server


def state(server: tff.Value) -> tff.Value:
  """Returns the state of what a computation takes at SERVER."""
  return server.state if _is_server(server) else server


def shared(server: tff.Value) -> tff.Value | Shared:
  """Returns what a computation passes to functions as weights."""
  if not _is_server(server):
    return server.weights
  return Shared(server.state.weights, server.frozen)


def bind(
  work: Callable[[split_model.SplitModel, Any], Any],
  model: split_model.SplitModel,
  hparams: Any,
) -> Any:
  """Makes the functions of an algorithm.

  Args:
    work: `(model, hparams) -> algorithm.AlgorithmSpec`.
    model: The model.
    hparams: The hyper-parameters.

  Returns:
    A `algorithm.AlgorithmSpec`. For a model with frozen weights its functions
    take a `Shared` where they take the server's weights otherwise.
  """
  functions = work(model, hparams)
  if not has_any(model):
    return functions

  def with_tensors(frozen):
    return work(model.with_frozen(frozen), hparams)

  def bound(name):
    signature = inspect.signature(getattr(functions, name))

    # TFF reads the names of the arguments, and passes them by name.
    @functools.wraps(getattr(functions, name))
    def call(*given, **named):
      received, *others = signature.bind(*given, **named).args
      function = getattr(with_tensors(received.frozen), name)
      return function(received.weights, *others)

    return call

  def initial_client_state(seed, received):
    return with_tensors(received.frozen).initial_client_state(
      seed, received.weights
    )

  return functions._replace(
    initial_client_state=initial_client_state,
    **{
      name: bound(name)
      for name in _TAKE_WEIGHTS
      if getattr(functions, name) is not None
    },
  )


def with_frozen(
  computation: tff.Computation, model: split_model.SplitModel
) -> tff.Computation | WithFrozen:
  """Lets a computation that takes the server's state pass the frozen weights.

  Args:
    computation: A computation whose first parameter is of `server_type`.
    model: The model.

  Returns:
    What is called with the server's state: the computation itself for a model
    without frozen weights.
  """
  return (
    WithFrozen(computation, model.frozen) if has_any(model) else computation
  )


def attach(algorithm: Any, model: split_model.SplitModel) -> Any:
  """Lets the computations of an algorithm pass the model's frozen weights.

  Args:
    algorithm: A `algorithm.FederatedAlgorithm`.
    model: The model.

  Returns:
    The algorithm; for a model with frozen weights, with a `WithFrozen` in place
    of each computation that takes the server's state.
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
    guidance=answering,
    **{
      name: wrap(getattr(algorithm, name))
      for name in (
        "initialize_client",
        "evaluate_clients",
        "evaluate_server",
        "summarize",
        "request",
      )
    },
  )
