"""Checks that a Keras model can be a pure function of its weights.

Each check raises a ValueError of one line that names the layer.
"""

import itertools
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import tensorflow as tf

from tff_shift.models import modes
from tff_shift.models import split_model

_PROBABILITIES = ("softmax", "sigmoid")
# Operations with random numbers that a run's seed does not determine; below,
# operations that write to variables.
_RANDOM = re.compile(r"(?!Stateless).*(Random|TruncatedNormal|Multinomial|Rng)")
_WRITING = re.compile(r"Assign|ResourceScatter")
_TABLE = re.compile(r"LookupTable|.*HashTable")


def check_form(
  model: tf.keras.Model, inputs: Mapping[str, slice] | None = None
) -> None:
  """Refuses models that are not functional or Sequential ones to logits.

  A model has one input, or those of `inputs`.
  """
  if not isinstance(model, tf.keras.Model):
    raise ValueError(
      f"a Keras model is wanted, got {type(model).__name__} (of keras in"
      " TensorFlow 2.14, tf.keras)"
    )
  if not getattr(model, "_is_graph_network", False):
    raise ValueError(
      "it must be a functional model, or a Sequential one that begins with an"
      " InputLayer of the shape of an example"
    )
  for layer in _all_layers(model):
    if isinstance(layer, tf.keras.Model) and not layer._is_graph_network:
      raise ValueError(
        f"layer {layer.name!r} is a model that is neither functional nor a"
        " Sequential one that begins with an InputLayer, so it cannot be copied"
      )
  if inputs is None and len(model.inputs) != 1:
    raise ValueError(
      f"it has {len(model.inputs)} inputs; give the features of each of them by"
      f" inputs=: {', '.join(model.input_names)}"
    )
  if len(model.outputs) != 1:
    raise ValueError(
      f"it must have one output, and it has {len(model.outputs)}"
    )
  for tensor in model.inputs:
    shape = tuple(tensor.shape)
    if shape[0] is not None or None in shape[1:]:
      raise ValueError(
        f"its input is of shape {shape}; an example must have a fixed shape,"
        " and a batch none"
      )
  shape = tuple(model.outputs[0].shape)
  if len(shape) != 2 or (shape[1] or 0) < 2:
    raise ValueError(
      f"its output is of shape {shape}; logits of two classes or more are"
      " wanted, (None, num_classes)"
    )
  if model.outputs[0].dtype != tf.float32:
    raise ValueError(
      f"its output is {model.outputs[0].dtype.name}; float32 is wanted"
    )


def check_scaling(model: tf.keras.Model, dtype: tf.DType) -> None:
  """Refuses models that scale images again."""
  for layer in _all_layers(model):
    if dtype == tf.uint8 and isinstance(layer, tf.keras.layers.Rescaling):
      raise ValueError(
        f"layer {layer.name!r} scales images that are already scaled; leave it"
        " out, and choose the scaling by input_scaling"
      )


def check_layers(model: tf.keras.Model) -> None:
  """Refuses layers that behave differently here than in Keras."""
  last = model.outputs[0]._keras_history.layer
  activation = getattr(getattr(last, "activation", None), "__name__", None)
  if isinstance(last, tf.keras.layers.Softmax):
    activation = "softmax"
  if activation in _PROBABILITIES:
    raise ValueError(
      f"layer {last.name!r} ends in {activation}; logits are wanted, so leave"
      " this activation out"
    )
  for layer in _all_layers(model):
    if getattr(layer, "renorm", False) or getattr(
      layer, "virtual_batch_size", None
    ):
      raise ValueError(
        f"layer {layer.name!r} has renorm or a virtual_batch_size; plain batch"
        " normalisation is wanted"
      )
    if isinstance(layer, tf.keras.layers.SpectralNormalization):
      raise ValueError(
        f"layer {layer.name!r} changes its weights where it uses them; a"
        " function of weights cannot"
      )
    if getattr(layer, "stateful", False):
      raise ValueError(
        f"layer {layer.name!r} is stateful: it would remember other clients'"
        " batches"
      )
    if layer.dtype not in (None, "float32", "int32", "int64"):
      raise ValueError(
        f"layer {layer.name!r} has {layer.dtype} weights; float32 is wanted"
      )
    if any(
      value is not None
      for key, value in vars(layer).items()
      if key.endswith("_constraint")
    ):
      raise ValueError(
        f"layer {layer.name!r} has a constraint, which optimizers here ignore"
      )
    if layer._losses or getattr(layer, "activity_regularizer", None):
      raise ValueError(
        f"layer {layer.name!r} has a loss of its activations, which no"
        " algorithm adds to its own; leave it out, or penalize its weights by a"
        " kernel_regularizer"
      )


def _all_layers(model) -> Iterator[tf.keras.layers.Layer]:
  """Yields all layers, including layers inside of layers."""
  for layer in model.layers:
    yield layer
    yield from layer._flatten_layers(include_self=False)


def check_writes(model: tf.keras.Model) -> None:
  """Refuses layers that write to variables, or look values up in a table."""
  # Running statistics of batch normalisation are handled separately.
  model = tf.keras.models.clone_model(model)
  for layer in _all_layers(model):
    if isinstance(layer, tf.keras.layers.BatchNormalization):
      layer.trainable = False
  specs = [tf.TensorSpec(each.shape, each.dtype) for each in model.inputs]
  traced = tf.function(
    lambda x: model(x if len(x) > 1 else x[0], training=True)
  ).get_concrete_function(specs)
  names = [layer.name for layer in model.layers]
  for pattern, message in (
    (_WRITING, "writes to a variable; a function of weights cannot"),
    (
      _TABLE,
      "looks values up in a table; do it before, and let the model take"
      " numbers",
    ),
  ):
    _refuse(_nodes_of(traced.graph, pattern), names, message)


def check_draws(model: split_model.SplitModel) -> None:
  """Refuses layers with random numbers that the seed does not determine."""
  names = [
    layer.name
    for part in (model.backbone, model.head)
    for layer in part.source.keras_model.layers
  ]

  def predict():
    weights = split_model.SplitWeights(
      *(
        tuple(map(tf.zeros, part.shapes))
        for part in (model.backbone, model.head)
      )
    )
    x = tf.zeros([1, *model.input_shape], model.input_dtype)
    model.predict(weights, x)
    with modes.training(lambda: tf.zeros([2], tf.int32)):
      model.predict(weights, x)

  _refuse(
    _nodes_of(_traced(predict), _RANDOM),
    names,
    "draws random numbers, which the seed of a run does not determine; use"
    " Keras's own layers for dropout, noise and augmentation",
  )


def _refuse(nodes: list[str], names: list[str], message: str) -> None:
  """Raises an error that names the layer of the operations, if any."""
  if nodes:
    owners = [
      name for name in names if any(name in each.split("/") for each in nodes)
    ]
    which = f"layer {owners[0]!r}" if owners else "a layer"
    raise ValueError(f"{which} {message}")


def check_initializers(model: split_model.SplitModel) -> None:
  """Refuses initializers whose numbers the seed does not determine."""
  for part in (model.backbone, model.head):
    for name, shape, initializer in zip(
      part.names, part.shapes, part.initializers, strict=True
    ):

      def draw(shape=shape, initializer=initializer):
        initializer(shape, tf.zeros([2], tf.int32))

      if _nodes_of(_traced(draw), _RANDOM):
        raise ValueError(
          f"the initializer of {name!r} draws numbers that no seed determines;"
          " it needs an argument `seed` that its get_config returns"
        )


def _traced(function: Callable[[], None]) -> tf.Graph:
  """Returns the graph of a function."""
  return tf.function(function, autograph=False).get_concrete_function().graph


def _nodes_of(graph: tf.Graph, pattern: re.Pattern[str]) -> list[str]:
  """Returns the names of operations, including those of functions."""
  graph_def = graph.as_graph_def()
  nodes = itertools.chain(
    graph_def.node,
    *(function.node_def for function in graph_def.library.function),
  )
  return [node.name for node in nodes if pattern.match(node.op)]
