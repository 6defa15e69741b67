"""Whole Keras models as `SplitModel`s.

`from_keras` cuts a Sequential or functional model into backbone and head.
Models that would behave differently here than in Keras are refused.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.keras import keras_3
from tff_shift.models.keras import keras_checks
from tff_shift.models.keras import keras_inputs
from tff_shift.models.keras import keras_parts
from tff_shift.models.keras import layer_names

INITIAL = ("random", "given")

_LONGEST_REASON = 120


def from_keras(
  model: tf.keras.Model | Callable[[], tf.keras.Model],
  *,
  cut: str | None = None,
  input_dtype: tf.DType | None = None,
  name: str | None = None,
  initial: str = "random",
  inputs: Mapping[str, slice] | None = None,
) -> split_model.SplitModel:
  """Makes a `SplitModel` from a Keras model.

  The Keras model is copied and not changed. Its layers keep their names, which
  are part of the weights' names. Names that Keras has chosen (`dense_3`) are
  counted again (`dense.2`), so that they do not depend on what a process has
  built before. Layers whose names share a prefix up to the first underscore,
  such as `layer1_convolution` and `layer1_normalization`, count as one layer
  for methods that personalise the last layer of the backbone.

  Args:
    model: A Sequential or functional model to logits [batch, num_classes], or a
      function that builds one. It may contain nested models. Weights that are
      not trainable are frozen. A model of Keras 3 is first converted to
      `tf.keras`.
    cut: The name of the first layer of the head; it takes a vector. None: the
      last layer with weights.
    input_dtype: `tf.uint8` for images in 0..255, which become float32 between 0
      and 1 before the model (`split_model.with_input_scaling` for other
      scalings); otherwise the model's dtype. None: the model's dtype.
    name: The name of the architecture. None: the Keras model's.
    initial: The initial weights. "random": drawn from the seed of a run by the
      initializers of the layers. "given": the current weights, for every seed.
    inputs: For a model with several inputs, a slice of the last axis of
      examples [batch, features] for the name of each input. Slices are reshaped
      and cast to the input. None: the model has one input, the examples.

  Returns:
    The `SplitModel`; with equal weights it computes the logits of the Keras
    model.

  Raises:
    ValueError: If the model is not supported; one line with the reason.

  Examples:
    >>> import tensorflow as tf
    >>> body = tf.keras.layers.Dense(4, activation="relu", input_shape=(2,))
    >>> model = ts.from_keras(
    ...   tf.keras.Sequential([body, tf.keras.layers.Dense(3)])
    ... )
    >>> model.num_classes, model.head.shapes
    (3, ((4, 3), (3,)))
  """
  if initial not in INITIAL:
    raise ValueError(
      f"unknown initial {initial!r}; known: {', '.join(INITIAL)}"
    )
  if not isinstance(model, tf.keras.Model) and not keras_3.is_keras_3(model):
    if not callable(model):
      raise ValueError(
        "a Keras model or a function that builds one is wanted, got"
        f" {type(model).__name__}"
      )
    model = model()
  name = name or getattr(model, "name", type(model).__name__)
  new_names = {}
  try:
    given = model
    if keras_3.is_keras_3(given):
      model = keras_3.rebuild(given)
    keras_checks.check_form(model, inputs)
    keras_checks.check_loss(given)
    if model is not given:
      keras_3.copy_weights(given, model)
    split = None
    if inputs is None:
      input_shape = tuple(model.input_shape[1:])
      dtype = tf.as_dtype(input_dtype or model.inputs[0].dtype)
      split_model.check_input_dtype(name, model, dtype)
    else:
      split = keras_inputs.splitter(model, inputs)
      input_shape = (split.num_features,)
      dtype = keras_inputs.dtype(input_dtype)
    # Keras does not allow calls of a model after a graph has made layers of the
    # same classes, so a new copy is inspected.
    model = _clone(model, {})
    keras_checks.check_scaling(model, dtype)
    keras_checks.check_layers(model)
    keras_checks.check_calls(model)
    keras_checks.check_writes(model)
    new_names = layer_names.counted(model.layers)
    backbone, head = _cut(_clone(model, new_names), new_names, cut)
    is_given = initial == "given"
    found = split_model.SplitModel(
      name=name,
      backbone=keras_parts.make_part(
        backbone, parts.BACKBONE, is_given=is_given, split=split
      ),
      head=keras_parts.make_part(head, parts.HEAD, is_given=is_given),
      input_shape=input_shape,
      input_dtype=dtype,
      num_classes=model.output_shape[-1],
      embedding_size=backbone.output_shape[-1],
    )
    keras_checks.check_initializers(found)
    keras_checks.check_draws(found)
    return found
  except ValueError as error:
    prefix = f"model {name!r}: "
    message = " ".join(str(error).removeprefix(prefix).split())
    for old, new in new_names.items():
      message = message.replace(repr(new), repr(old))
    raise ValueError(prefix + message) from error


def with_group_normalization(
  model: tf.keras.Model, groups: int = 8
) -> tf.keras.Model:
  """Copies a Keras model, replacing batch by group normalisation.

  Args:
    model: A Sequential or functional model, of `tf.keras` or Keras 3.
    groups: The number of groups. If it does not divide the channels of a layer,
      the largest number that divides both is used.

  Returns:
    The copy, of `tf.keras`. It has the weights of the model except the running
    statistics, so a trained model must be trained further.

  Raises:
    ValueError: If a layer normalises more than one axis, or if a model of Keras
      3 cannot be converted.
  """
  if keras_3.is_keras_3(model):
    model = keras_3.convert(model)
  copies = []

  def copy(layer):
    copies.append((layer, copy_layer(layer)))
    return copies[-1][1]

  def copy_layer(layer):
    if isinstance(layer, tf.keras.Model):
      return with_group_normalization(layer, groups)
    config = layer.get_config()
    if not isinstance(layer, tf.keras.layers.BatchNormalization):
      return type(layer).from_config(config)
    axes = tf.nest.flatten(config["axis"])
    if len(axes) != 1:
      raise ValueError(
        f"layer {layer.name!r} normalises {len(axes)} axes; groups are of one"
      )
    known = inspect.signature(tf.keras.layers.GroupNormalization).parameters
    settings = {key: config[key] for key in config if key in known}
    settings["axis"] = axes[0]
    settings["groups"] = math.gcd(groups, layer.input_shape[axes[0]])
    settings["trainable"] = layer.trainable
    settings["dtype"] = config["dtype"]
    if not layer_names.is_by_keras(layer):
      settings["name"] = layer.name
    return tf.keras.layers.GroupNormalization(**settings)

  copied = tf.keras.models.clone_model(model, clone_function=copy)
  for layer, copied_layer in copies:
    # Scale and offset come before the running statistics.
    size = len(copied_layer.get_weights())
    copied_layer.set_weights(layer.get_weights()[:size])
  return copied


def with_batch_normalization(
  model: split_model.SplitModel,
) -> split_model.SplitModel:
  """Replaces group by batch normalisation.

  It uses the settings of other libraries: epsilon 1e-5, and a fraction of 0.1
  of each batch in the running statistics.

  Args:
    model: A model of Keras layers, such as this package's networks for images.

  Returns:
    The model. Its initial weights do not change, even if given.

  Raises:
    ValueError: If it does not consist of Keras layers only, or has no group
      normalisation.
  """
  num_replaced = 0

  def copy(layer):
    nonlocal num_replaced
    if isinstance(layer, tf.keras.Model):
      return tf.keras.models.clone_model(layer, clone_function=copy)
    config = layer.get_config()
    if not isinstance(layer, tf.keras.layers.GroupNormalization):
      return type(layer).from_config(config)
    num_replaced += 1
    known = inspect.signature(tf.keras.layers.BatchNormalization).parameters
    settings = {key: config[key] for key in config if key in known}
    return tf.keras.layers.BatchNormalization(
      **settings | {"epsilon": 1e-5, "momentum": 0.9, "name": layer.name},
      trainable=layer.trainable,
      dtype=config["dtype"],
    )

  found: dict[str, Any] = {}
  for stream, name in (parts.BACKBONE, "backbone"), (parts.HEAD, "head"):
    part = getattr(model, name)
    source = getattr(part.source, "keras_model", None)
    if source is None and part.names:
      raise ValueError(
        f"model {model.name!r} is not made of Keras layers alone, so its"
        " normalisation cannot be replaced"
      )
    if source is None:
      continue
    changed = keras_parts.make_part(copy(source), stream)
    found[name] = dataclasses.replace(
      changed, initializers=part.initializers, paths=part.paths
    )
  if not num_replaced:
    raise ValueError(
      f"model {model.name!r} has no group normalisation to be replaced"
    )
  origin = model.origin
  if origin is not None:
    origin = origin._replace(
      options={**origin.options, "normalization": "batch"}
    )
  return dataclasses.replace(model, **found, origin=origin)


def _clone(model: tf.keras.Model, new_names: dict[str, str]) -> tf.keras.Model:
  """Copies a model with its weights; layers get new names."""
  copies = []

  def copy(layer):
    copies.append((layer, copy_layer(layer)))
    return copies[-1][1]

  def copy_layer(layer):
    new_name = new_names.get(layer.name, layer.name)
    if isinstance(layer, tf.keras.Model):
      copied = _clone(layer, {})
      copied._name = new_name
      return copied
    adapted = keras_inputs.adapted_numbers(layer)
    try:
      return type(layer).from_config(
        {**layer.get_config(), **adapted, "name": new_name}
      )
    except Exception as error:
      reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
      raise ValueError(
        f"layer {layer.name!r} cannot be copied: its get_config has to give"
        f" what its __init__ takes ({reason})"
      ) from error

  copied = tf.keras.models.clone_model(model, clone_function=copy)
  for layer, copied_layer in copies:
    # Nested models were copied with their weights; constants are not weights.
    if copied_layer.weights and not isinstance(layer, tf.keras.Model):
      copied_layer.set_weights(layer.get_weights())
  if not model.trainable:
    # A copy has the layers' trainable flags but not the model's.
    copied.trainable = False
  return copied


def _cut(
  model: tf.keras.Model, new_names: dict[str, str], cut: str | None
) -> tuple[tf.keras.Model, tf.keras.Model]:
  """Cuts a model before a layer; the halves have layers of their own."""
  with_weights = [layer for layer in model.layers if layer.variables]
  if not with_weights:
    raise ValueError("it has no layer with weights; there is nothing to train")
  old_names = {new: old for old, new in new_names.items()}
  # Cutting adds to the layers, so their inputs are read first.
  inputs = {
    layer.name: layer.input
    for layer in model.layers
    if len(layer.inbound_nodes) == 1 and tf.is_tensor(layer.input)
  }

  def halves(name):
    """Returns backbone and head, or the reason why it cannot be cut."""
    if name not in inputs:
      return "is used more than once or takes several inputs"
    between = inputs[name]
    if len(between.shape) != 2 or between.shape[1] is None:
      return f"takes {tuple(between.shape[1:])}, which is not a vector"
    if getattr(between, "_keras_mask", None) is not None:
      return "takes a vector with a mask, which the head would not get"
    if between.dtype != tf.float32:
      return f"takes {between.dtype.name}, which is not float32"
    backbone = tf.keras.Model(model.input, between)
    try:
      head = tf.keras.Model(between, model.output)
    except ValueError:
      return "has a path around it, from before the cut to the logits"
    first, second = (
      {layer.name for layer in half.layers if layer.variables}
      for half in (backbone, head)
    )
    if first & second:
      shared = old_names[min(first & second)]
      return f"has the shared layer {shared!r} before and behind it"
    return backbone, head

  if cut is not None and cut not in new_names:
    raise ValueError(
      f"there is no layer {cut!r} to cut at; there are {', '.join(new_names)}"
    )
  chosen = new_names[cut] if cut else with_weights[-1].name
  found = halves(chosen)
  if isinstance(found, str):
    fitting = [
      old
      for old, new in new_names.items()
      if new != chosen and not isinstance(halves(new), str)
    ]
    raise ValueError(
      f"it cannot be cut at layer {old_names[chosen]!r}, which {found}; "
      + (f"cut= may name {', '.join(fitting)}" if fitting else "no layer fits")
    )
  for half in found:
    if not model.trainable:
      # Setting it reaches all layers, including those with their own flag.
      half.trainable = False
  return tuple(_clone(half, {}) for half in found)
