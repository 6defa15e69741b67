"""Checks that a Keras model can be a pure function of its weights.

Each check raises a ValueError of one line that names the layer.

Choices:
  * Random operations and writes are found in the model's graph, which covers
    custom layers and lambdas; initializers are inspected in the same way.
    Refused are losses of activations and constraints, which no loss or
    optimizer here applies; lookup tables, which are resources and not tensors;
    and spectral normalisation, which writes to its weights. A normalisation
    after a softmax is not detected.
"""

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts
from tff_shift.models.keras import layer_names

_PROBABILITIES = ("softmax", "sigmoid")
_CROSS_ENTROPIES = (
  "SparseCategoricalCrossentropy",
  "CategoricalCrossentropy",
)
_CROSS_ENTROPY_FUNCTIONS = (
  "sparse_categorical_crossentropy",
  "categorical_crossentropy",
)
# Options of a loss, each with the values that do not change it.
_LOSS_OPTIONS = {
  "label_smoothing": (0,),
  "ignore_class": (None,),
  "axis": (-1,),
  "reduction": ("auto", "sum_over_batch_size"),
}
# Operations with random numbers that a run's seed does not determine; below,
# operations that write to variables.
_RANDOM = re.compile(r"(?!Stateless).*(Random|TruncatedNormal|Multinomial|Rng)")
_WRITING = re.compile(r"Assign|ResourceScatter")
_PYTHON = re.compile(r"(Eager)?PyFunc")
_TABLE = re.compile(r"LookupTable|.*HashTable")


def check_form(
  model: tf.keras.Model, inputs: Mapping[str, slice] | None = None
) -> None:
  """Refuses models that are not functional or Sequential ones to logits.

  A model has one input, or those of `inputs`.
  """
  if not isinstance(model, tf.keras.Model):
    raise ValueError(f"a Keras model is wanted, got {type(model).__name__}")
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
  _check_constants(model)
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


def _check_constants(model: tf.keras.Model) -> None:
  """Refuses masks of constants, which Keras copies as lists of texts."""
  for node in itertools.chain(*model._nodes_by_depth.values()):
    if isinstance(node.layer, tf.keras.Model):
      _check_constants(node.layer)
    for value in tf.nest.flatten([node.call_args, node.call_kwargs]):
      if isinstance(value, np.ndarray | tf.Tensor) and value.dtype == bool:
        raise ValueError(
          f"layer {node.layer.name!r} is called with a constant of booleans,"
          " which Keras cannot copy; compute it from the input, or in a layer"
        )


def check_scaling(model: tf.keras.Model, dtype: tf.DType) -> None:
  """Refuses models that scale images again."""
  for layer in _all_layers(model):
    if dtype == tf.uint8 and isinstance(layer, tf.keras.layers.Rescaling):
      raise ValueError(
        f"layer {layer.name!r} scales images that are already scaled; leave it"
        " out, and choose the scaling by input_scaling"
      )


def check_loss(model: tf.keras.Model) -> None:
  """Warns if a model was compiled with another loss than cross-entropy."""
  loss = getattr(model, "loss", None)
  if isinstance(loss, list | tuple | dict) and len(loss) == 1:
    (loss,) = loss.values() if isinstance(loss, dict) else loss
  if not loss:  # Keras keeps {} for None.
    return
  if hasattr(loss, "get_config"):
    name = type(loss).__name__
    # Changes of the loss, by their names in its configuration.
    changes = {
      key: value
      for key, value in loss.get_config().items()
      if key in _LOSS_OPTIONS and value not in _LOSS_OPTIONS[key]
    }
    is_used = (
      name in _CROSS_ENTROPIES
      and layer_names.is_of_keras(type(loss))
      and not changes
    )
    name += "".join(f" with {key}={value}" for key, value in changes.items())
  else:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", loss)
    is_used = layer_names.snake_case(
      str(name)
    ) in _CROSS_ENTROPY_FUNCTIONS and (
      isinstance(loss, str) or layer_names.is_of_keras(loss)
    )
  if not is_used:
    warnings.warn(
      f"model {model.name!r} was compiled with the loss {name}, which is not"
      " used: algorithms here train by the mean cross-entropy of the logits",
      stacklevel=3,
    )


def _check_last(model: tf.keras.Model, access: str) -> None:
  """Refuses models that end in probabilities."""
  last = model.outputs[0]._keras_history.layer
  layer = f"{access}.get_layer({last.name!r})"
  if isinstance(last, tf.keras.Model):
    return _check_last(last, layer)
  activation = getattr(getattr(last, "activation", None), "__name__", None)
  lines = f"{layer}.activation = tf.keras.activations.linear"
  is_softmax = isinstance(last, tf.keras.layers.Softmax)
  # A layer of an operation, such as `tf.nn.softmax`.
  symbol = getattr(last, "symbol", None) or ""
  if is_softmax or symbol.split(".")[-1] in _PROBABILITIES:
    activation = "softmax" if is_softmax else symbol.split(".")[-1]
    lines = f"model = tf.keras.Model(model.input, {layer}.input)"
    if access != "model":
      lines = f"a model {access!r} without this layer"
  if activation in _PROBABILITIES:
    raise ValueError(
      f"layer {last.name!r} ends in {activation}; logits are wanted, which two"
      f" lines give: `{lines}` and `split = ts.from_keras(model)`"
    )
  return None


def check_layers(model: tf.keras.Model) -> None:
  """Refuses layers that behave differently here than in Keras."""
  _check_last(model, "model")
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
    if layer.dtype not in (None, "float32", "int32", "int64", "bool"):
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


def check_calls(model: tf.keras.Model) -> None:
  """Refuses arguments of calls that a function of weights cannot honour."""
  for layer in _all_layers(model):
    for node in layer.inbound_nodes:
      training = node.call_kwargs.get("training")
      if not isinstance(training, bool | int | None):
        raise ValueError(
          f"layer {layer.name!r} is called with training= of a tensor; True,"
          " False or nothing is wanted"
        )
  if getattr(model.outputs[0], "_keras_mask", None) is not None:
    last = model.outputs[0]._keras_history.layer
    raise ValueError(
      f"layer {last.name!r} gives the logits a mask, by which Keras leaves"
      " examples out of the loss; leave the mask of whole examples out"
    )
  copied = tf.keras.models.clone_model(model)
  always: list[str] = []
  for layer in _all_layers(copied):
    keras_parts.use_seed([layer], functools.partial(_record, layer, always))
    if keras_parts.is_trained_normalization(layer):
      layer.call = functools.partial(_normalize, layer, layer.call, always)
  specs = [tf.TensorSpec(each.shape, each.dtype) for each in copied.inputs]
  tf.function(
    lambda x: copied(x if len(x) > 1 else x[0], training=False),
    autograph=False,
  ).get_concrete_function(specs)
  if always:
    raise ValueError(
      f"layer {always[0]!r} is called with training=True, so that it draws"
      " random numbers or changes its statistics at predictions too; call it"
      " without training="
    )


def _record(
  layer: tf.keras.layers.Layer, always: list[str], number: int
) -> tf.Tensor:
  """Stores the name of a layer that draws in evaluation."""
  del number
  always.append(layer.name)
  return tf.zeros([2], tf.int32)


def _normalize(
  layer: tf.keras.layers.BatchNormalization,
  evaluate: Callable[..., tf.Tensor],
  always: list[str],
  inputs,
  training=None,
  mask=None,
) -> tf.Tensor:
  """Normalises in evaluation, and stores the name of a layer in training."""
  del mask
  if layer._get_training_value(training):
    always.append(layer.name)
  return evaluate(inputs, training=False)


def _all_layers(model) -> Iterator[tf.keras.layers.Layer]:
  """Yields all layers, including layers inside of layers."""
  for layer in model.layers:
    yield layer
    yield from layer._flatten_layers(include_self=False)


def check_writes(model: tf.keras.Model) -> None:
  """Refuses operations that are no functions of weights and examples."""
  # Running statistics of batch normalisation are handled separately.
  model = tf.keras.models.clone_model(model)
  for layer in _all_layers(model):
    if isinstance(layer, tf.keras.layers.BatchNormalization):
      layer.trainable = False
  specs = [tf.TensorSpec(each.shape, each.dtype) for each in model.inputs]
  traced = tf.function(
    lambda x: model(x if len(x) > 1 else x[0], training=True)
  ).get_concrete_function(specs)
  known = {id(each) for each in model.variables}
  for variable in traced.graph.variables:
    if variable.dtype.is_floating and id(variable) not in known:
      raise ValueError(
        f"a layer uses the variable {variable.name!r}, which is a weight of no"
        " layer; make a layer that creates it by add_weight"
      )
  names = [layer.name for layer in model.layers]
  for pattern, message in (
    (_WRITING, "writes to a variable; a function of weights cannot"),
    (
      _TABLE,
      "looks values up in a table; do it before, and let the model take"
      " numbers",
    ),
    (_PYTHON, "calls Python, which no graph can be sent with"),
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
