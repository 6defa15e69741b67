"""The object in a SavedModel: its tensors, and the functions that use them.

Its signatures have named outputs, for programs that know TensorFlow's formats
alone, such as TensorFlow Serving. All of them take the examples as `x`:

    serving_default  the server's logits, classes and probabilities; without a
                     server model those of `answer`, if there is one
    client_<name>    the same of a client's own model; without names, by number
    vote             the classes that most clients predict
    guide            the routes, and the probability of each client
    answer           the classes, and the routes

With names of classes or clients, `class_names` and `client_names` are those of
`classes` and `routes`.

With names of features, `named` and `named_<signature>` take an input [n] for
each feature instead of `x`, see `field`.

Choices:
  * A named input costs 2 ms when a model is saved. The signatures without a
    client come first, and together they have at most 1,000 of them.
  * A SavedModel is a Keras model if the server has a model: Keras needs a
    function of examples alone. Others are a plain `tf.Module`. Keras makes
    saving slower (2 s instead of 0.5 s for the CNN).
"""

import keyword
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import guidance
from tff_shift.serving import description
from tff_shift.serving import tracing

# Custom gradients cannot be saved with an imported graph, and predictions need
# no gradients.
_OPTIONS = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_NAMED = "named"
# The clients with a signature. `predict_as` has all of them.
_MOST_CLIENTS = 100
# The inputs of all signatures with named inputs.
_MOST_FIELDS = 1000


class Parts(NamedTuple):
  """The parts of a served model; functions that are None are left out.

  A part that takes a client's tensors takes those of one client.

  Attributes:
    tensors: The first argument of the parts, by kind: nested structures of
      arrays or variables; a client's have a first axis of clients.
    predict: `(tensors, x) -> logits` of the server model.
    predict_as: `(tensors, x) -> logits` of a client.
    guide: `(tensors, x) -> logits` over all clients.
    predict_for: `(tensors, request, x) -> logits`.
    clients: The ids of the included clients.
    has_all_clients: Whether these are all clients of the federation.
    client_weights: Each client's weight, for `guidance.route`, [num_clients]
      float32. None without a guide.
    num_classes: The number of classes.
    x: The type of the examples.
    request: The type of a request. None without `predict_for`.
  """

  tensors: Any
  predict: tracing.Traced | None
  predict_as: tracing.Traced | None
  guide: tracing.Traced | None
  predict_for: tracing.Traced | None
  clients: Sequence[int]
  has_all_clients: bool
  client_weights: np.ndarray | None
  num_classes: int
  x: tf.TensorSpec
  request: tf.TensorSpec | None


class Tensors(NamedTuple):
  """The tensors that parts take.

  Attributes:
    shared: The server's weights, and the frozen weights.
    summary: The server's sums over the clients' data.
    personal: A client's state for predicting.
    data: The other tensors of a client.
  """

  shared: Any
  summary: Any
  personal: Any
  data: Any


def variables(parts: Parts, names: Sequence[str]) -> Tensors:
  """Makes variables of the tensors that some part needs.

  Args:
    parts: The parts, with arrays.
    names: A name for each tensor, in order.

  Returns:
    Variables in the structure of `parts.tensors`; None for unused tensors.
  """
  flat = tf.nest.flatten(parts.tensors)
  used = {
    position
    for part in (
      parts.predict,
      parts.predict_as,
      parts.guide,
      parts.predict_for,
    )
    if part is not None
    for position in part.used
  }
  return tf.nest.pack_sequence_as(
    parts.tensors,
    [
      tf.Variable(value, trainable=False, name=re.sub(r"[^\w./-]", "_", name))
      if position in used
      else None
      for position, (value, name) in enumerate(zip(flat, names, strict=True))
    ],
  )


class Names(NamedTuple):
  """Names that signatures give beside numbers.

  Attributes:
    classes: The names of the classes. None: unknown.
    clients: The names of the included clients. None: unknown.
    features: The names of the columns of x. None: unknown.
  """

  classes: Sequence[str] | None = None
  clients: Sequence[str] | None = None
  features: Sequence[str] | None = None


def field(feature: str) -> str:
  """Returns the input of a feature in a signature.

  TensorFlow allows ASCII letters, digits and `_` in the name of an input, and
  no word of Python: other characters become `_`, and `f_` makes the name valid.
  """
  name = re.sub(r"\W", "_", feature, flags=re.ASCII)
  is_valid = name[0].isalpha() and not keyword.iskeyword(name)
  return name if is_valid and name != "self" else f"f_{name}"


def functions(parts: Parts) -> dict[description.Function, Any]:
  """Makes the functions of a served model.

  Args:
    parts: The parts, with variables.

  Returns:
    Functions with one signature, by the names of the `Predictor`'s methods.
  """
  found = {}

  def add(name, function, *specs):
    found[name] = tf.function(
      function, input_signature=[*specs, parts.x], autograph=False
    )

  if parts.predict is not None:
    add("predict", lambda x: parts.predict((parts.tensors, x)))
  if parts.predict_for is not None:
    add(
      "predict_for",
      lambda request, x: parts.predict_for((parts.tensors, request, x)),
      parts.request,
    )
  if parts.guide is not None:
    add("guide", lambda x: _guide(parts, x))
  if parts.predict_as is not None:
    add("predict_as", lambda client, x: _predict_as(parts, client, x), _INDEX)
    if parts.has_all_clients:
      add("vote", lambda x: _vote(parts, x))
      if parts.guide is not None:
        add("answer", lambda x: _answer(parts, x))
  return found


_INDEX = tf.TensorSpec([], tf.int32, name="client")


def _row_logits(parts: Parts, row, x) -> tf.Tensor:
  """Predicts with the tensors of the client in a row."""
  personal, data = tf.nest.map_structure(
    lambda stacked: None if stacked is None else tf.gather(stacked, row),
    (parts.tensors.personal, parts.tensors.data),
  )
  tensors = parts.tensors._replace(personal=personal, data=data)
  logits = parts.predict_as((tensors, x))
  return tf.ensure_shape(logits, [None, parts.num_classes])


def _predict_as(parts: Parts, client, x) -> tf.Tensor:
  is_client = tf.equal(tf.constant(parts.clients, tf.int32), client)
  known = tf.debugging.Assert(
    tf.reduce_any(is_client), ["there is no client", client]
  )
  with tf.control_dependencies([known]):
    row = tf.argmax(tf.cast(is_client, tf.int32), output_type=tf.int32)
  return _row_logits(parts, row, x)


def _guide(parts: Parts, x) -> dict[str, tf.Tensor]:
  routing = guidance.route(
    parts.guide((parts.tensors, x)), tf.constant(parts.client_weights)
  )
  return {name: routing[name] for name in ("routes", "probabilities")}


def _over_clients(parts: Parts, step, initial) -> tf.Tensor:
  """Loops over the clients; `step(row, value) -> value`."""
  _, value = tf.while_loop(
    lambda row, _: row < len(parts.clients),
    lambda row, value: (row + 1, step(row, value)),
    (tf.constant(0), initial),
    parallel_iterations=1,
  )
  return value


def _answer(parts: Parts, x) -> dict[str, tf.Tensor]:
  routes = _guide(parts, x)["routes"]
  clients = tf.constant(parts.clients, tf.int32)

  def answer(row, classes):
    own = tf.where(tf.equal(routes, clients[row]))
    logits = _row_logits(parts, row, tf.gather(x, tf.squeeze(own, 1)))
    return tf.tensor_scatter_nd_update(
      classes, own, evaluation.predicted_classes(logits)
    )

  unanswered = tf.fill(tf.shape(routes), guidance.NO_CLIENT)
  return {"classes": _over_clients(parts, answer, unanswered), "routes": routes}


def _vote(parts: Parts, x) -> tf.Tensor:
  def count(row, votes):
    classes = evaluation.predicted_classes(_row_logits(parts, row, x))
    cast = tf.one_hot(classes, parts.num_classes, dtype=tf.int32)
    return tf.ensure_shape(votes + cast, [None, parts.num_classes])

  votes = tf.zeros([tf.shape(x)[0], parts.num_classes], tf.int32)
  votes = tf.ensure_shape(votes, [None, parts.num_classes])
  return guidance.winners(_over_clients(parts, count, votes))


def signatures(
  parts: Parts, made: Mapping[description.Function, Any], names: Names
) -> dict[str, Any]:
  """Makes the signatures of a SavedModel, see the module docstring.

  Args:
    parts: The parts, with variables.
    made: The result of `functions` for them.
    names: The names of classes and clients.
  """
  found = {}
  fields = list(map(field, names.features or ()))
  can_name = len(set(fields)) == len(fields) > 0 and parts.x.shape.rank == 2
  of_fields = [tf.TensorSpec([None], parts.x.dtype, each) for each in fields]

  def add(name, outputs_of):
    found[name] = tf.function(
      outputs_of, input_signature=[parts.x], autograph=False
    )
    num_named = sum(each.startswith(_NAMED) for each in found)
    if can_name and (num_named + 1) * len(fields) <= _MOST_FIELDS:
      found[_NAMED if name == _DEFAULT else f"{_NAMED}_{name}"] = tf.function(
        lambda *columns: outputs_of(tf.stack(columns, axis=1)),
        input_signature=of_fields,
        autograph=False,
      )

  def named(outputs):
    """Adds the names of classes and of clients."""
    more = {}
    if names.classes is not None and "classes" in outputs:
      more["class_names"] = _named(names.classes, outputs["classes"])
    # Routes are over all clients of the federation.
    has_routes = "routes" in outputs and parts.has_all_clients
    if names.clients is not None and has_routes:
      more["client_names"] = _named(names.clients, outputs["routes"])
    return outputs | more

  def predictions(logits):
    return named(
      {
        "logits": logits,
        "classes": evaluation.predicted_classes(logits),
        "probabilities": tf.nn.softmax(logits),
      }
    )

  if "predict" in made:
    add(_DEFAULT, lambda x: predictions(made["predict"](x)))
  if "guide" in made:
    add("guide", lambda x: named(made["guide"](x)))
  if "answer" in made:
    add("answer", lambda x: named(made["answer"](x)))
    if _DEFAULT not in found:
      add(_DEFAULT, lambda x: named(made["answer"](x)))
  if "vote" in made:
    add("vote", lambda x: named({"classes": made["vote"](x)}))
  if "predict_as" in made:
    called = parts.clients if names.clients is None else names.clients
    for client, name in list(zip(parts.clients, called, strict=True))[
      :_MOST_CLIENTS
    ]:
      # One graph of a client is called by all.
      add(
        f"client_{name}",
        lambda x, client=client: predictions(made["predict_as"](client, x)),
      )
  return found


def _named(names: Sequence[str], numbers: tf.Tensor) -> tf.Tensor:
  """Returns the names of numbers; "" for -1, which stands for none."""
  return tf.gather(tf.constant(["", *names]), numbers + 1)


class _KerasModel(tf.keras.Model):
  """A server model for Keras; its `predict` returns logits as well."""

  def call(self, x):
    """Returns the server's logits [n, num_classes] of examples [n, ...]."""
    return self.server_predict(x)


def save(
  parts: Parts,
  made: Mapping[description.Function, Any],
  path: str,
  names: Names,
) -> None:
  """Writes a SavedModel, which Keras can load if the server has a model.

  Args:
    parts: The parts, with variables.
    made: The result of `functions` for them, at least one.
    path: The folder.
    names: The names of classes and clients, for the signatures.
  """
  tensors = [
    each for each in tf.nest.flatten(parts.tensors) if each is not None
  ]
  if "predict" not in made:
    # A Keras model must be callable with examples only.
    module = tf.Module()
    _attach(module, made, tensors)
    tf.saved_model.save(
      module, path, signatures(parts, made, names), options=_OPTIONS
    )
    return
  # Called below. TensorFlow would warn of first calls that trace if many models
  # are saved.
  made["predict"].get_concrete_function()
  model = _KerasModel(name="served")
  _attach(model, made, tensors)
  model(tf.zeros([1, *parts.x.shape[1:]], parts.x.dtype))
  model.save(
    path,
    save_format="tf",
    include_optimizer=False,
    signatures=signatures(parts, made, names),
    options=_OPTIONS,
  )


def _attach(
  module: tf.Module,
  made: Mapping[description.Function, Any],
  tensors: Sequence[tf.Variable],
) -> None:
  module.tensors = tensors
  for name, function in made.items():
    setattr(module, description.attribute(name), function)
