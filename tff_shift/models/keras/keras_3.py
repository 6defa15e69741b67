"""Models of Keras 3 as models of `tf.keras`, which is Keras 2.

Each layer is built again from its configuration, and its weights are copied.
Keras 3 is not imported: the program that made the model has imported it.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NoReturn
from typing import TypeGuard

import numpy as np
import tensorflow as tf

from tff_shift.models.keras import layer_names

_PARTS = ("layers", "initializers", "regularizers", "constraints")
# Fields that Keras 2 names differently, by class.
_RENAMED = {
  ("InputLayer", "batch_shape"): "batch_input_shape",
  ("LeakyReLU", "negative_slope"): "alpha",
}
# Fields that Keras 2 takes as `**kwargs`.
_IN_KWARGS = ("batch_input_shape", "zero_output_for_mask")
# Relative to the largest output. For MobileNetV2, rounding makes 1e-5; for one
# layer with Keras 3's `hard_sigmoid`, another function, it is 1e-2.
_TOLERANCE = 1e-4
_LONGEST_REASON = 120


def is_keras_3(model: Any) -> TypeGuard[tf.keras.Model]:
  """Whether a value is a model of Keras 3."""
  # With TensorFlow 2.14, the module `keras` is Keras 2.
  keras_model = getattr(sys.modules.get("keras"), "Model", ())
  return isinstance(model, keras_model) and not isinstance(
    model, tf.keras.Model
  )


def rebuild(model: Any) -> tf.keras.Model:
  """Builds a model again by `tf.keras`.

  Args:
    model: A Sequential or functional model of Keras 3.

  Returns:
    The model; its weights are not those of the given one yet.

  Raises:
    ValueError: If `tf.keras` cannot build it; one line.
  """
  keras: Any = sys.modules["keras"]
  backend = keras.backend.backend()
  if backend != "tensorflow":
    _refuse(f"Keras's backend is {backend}, not tensorflow")
  _check_classes(model, set())
  return _object(keras.saving.serialize_keras_object(model), "it")


def copy_weights(model: Any, rebuilt: tf.keras.Model) -> None:
  """Copies the weights of a model, and compares outputs.

  Args:
    model: The model of Keras 3.
    rebuilt: The result of `rebuild`; it has one output, and inputs of fixed
      shapes.

  Raises:
    ValueError: If weights or outputs differ; one line.
  """
  _copy_weights(model, rebuilt)
  generator = np.random.default_rng(0)
  inputs = []
  for tensor in rebuilt.inputs:
    # Indices become 0 or 1, which every table of an embedding has.
    values = generator.uniform(-1, 2, (2, *tensor.shape[1:]))
    inputs.append(tf.cast(values, tensor.dtype))
  batch = tf.nest.pack_sequence_as(rebuilt.input, inputs)
  wanted, logits = (
    np.ravel(_called("it", function, batch, training=False))
    for function in (model, rebuilt)
  )
  difference = np.max(np.abs(wanted - logits))
  # Not a number is refused, too.
  if not difference <= _TOLERANCE * max(1, np.max(np.abs(wanted))):
    _refuse(
      f"outputs of tf.keras's layers differ from its own: {difference:.2g}"
    )


def _refuse(reason: str) -> NoReturn:
  raise ValueError(
    f"it is a Keras 3 model, and cannot be converted: {reason}; build it by"
    " tf.keras (import tf_keras as keras)"
  )


def _check_classes(layer: Any, with_weights: set[int]) -> None:
  """Refuses a user's own classes, and layers that are in several models."""
  if not layer_names.is_of_keras(type(layer)):
    kind = "a subclassed model" if is_keras_3(layer) else "a layer of your own"
    _refuse(f"{layer.name!r} is {kind} ({type(layer).__name__})")
  if id(layer) in with_weights:
    _refuse(f"layer {layer.name!r} is in two models")
  if layer.weights:
    with_weights.add(id(layer))
  for inner in layer.layers if is_keras_3(layer) else ():
    _check_classes(inner, with_weights)


def _object(
  value: Any, owner: str, outputs: Callable[..., Any] | None = None
) -> Any:
  """Returns the object of `tf.keras` for a configuration of Keras 3.

  Args:
    value: A configuration, or any value inside of one.
    owner: The layer around it.
    outputs: Returns the outputs of a call of a layer.

  Returns:
    The layer, model, initializer, ..., or the value itself.
  """
  if isinstance(value, list | tuple):
    return type(value)(_object(item, owner, outputs) for item in value)
  if not isinstance(value, Mapping):
    return value
  if "class_name" not in value:
    return {key: _object(value[key], owner, outputs) for key in value}
  class_name, config = value["class_name"], value.get("config")
  module = value.get("module") or ""
  if class_name == "__keras_tensor__" and outputs:
    name, call, number = config["keras_history"]
    return outputs(name, call)[number]
  if class_name == "DTypePolicy":
    return config["name"]
  if "name" in value or "name" in (config or ()):
    owner = f"layer {value.get('name') or config['name']!r}"
  if class_name in ("Sequential", "Functional"):
    return _model(config)
  if class_name in ("__lambda__", "function"):
    _refuse(f"{owner} calls a Python function")
  part = module.removeprefix("keras.")
  kind = part in _PARTS and getattr(getattr(tf.keras, part), class_name, None)
  if not kind:
    _refuse(
      f"{owner} needs {module}{'.' * bool(module)}{class_name}, which tf.keras"
      " does not have"
    )
  if class_name == "Discretization" and config["bin_boundaries"]:
    # Keras 2 takes only one of both.
    config = {**config, "num_bins": None}
  known = _defaults(kind)
  defaults = _defaults(getattr(getattr(sys.modules["keras"], part), class_name))
  fields = {}
  for key, field in config.items():
    renamed = _RENAMED.get((class_name, key), key)
    if renamed in known or renamed in _IN_KWARGS:
      fields[renamed] = _object(field, owner)
    elif field not in (None, False, defaults.get(key)) and (key, field) != (
      # Where Keras 2 has no choice.
      "data_format",
      "channels_last",
    ):
      _refuse(f"{owner} has {key}={field!r}, which tf.keras does not know")
  return _called(owner, kind, **fields)


def _model(config: Mapping[str, Any]) -> tf.keras.Model:
  """Builds a model from its configuration."""
  layers = {
    inner["config"]["name"]: _object(inner, "it") for inner in config["layers"]
  }
  if "output_layers" in config:
    model = tf.keras.Model(*_ends(config, layers), name=config["name"])
  else:
    model = tf.keras.Sequential(list(layers.values()), name=config["name"])
  if not config["trainable"]:
    model.trainable = False
  return model


def _ends(config: Mapping[str, Any], layers: Mapping[str, Any]) -> list[Any]:
  """Calls the layers of a functional model; returns inputs and outputs."""
  calls = {inner["name"]: inner["inbound_nodes"] for inner in config["layers"]}
  kinds = {inner["name"]: inner["class_name"] for inner in config["layers"]}

  @functools.cache
  def outputs(name, call):
    if not calls[name]:
      return [layers[name].output]
    owner = f"layer {name!r}"
    node = _object(calls[name][call], owner, outputs)
    given = {k: v for k, v in node["kwargs"].items() if v is not None}
    return tf.nest.flatten(_called(owner, layers[name], *node["args"], **given))

  def tensors(value):
    if isinstance(value, Mapping):
      return {key: tensors(value[key]) for key in value}
    if not isinstance(value[0], str):
      return [tensors(item) for item in value]
    name, call, number = value
    # Here, unlike in the nodes, Keras 3 counts the calls of models from 1.
    return outputs(name, call - (kinds[name] == "Functional"))[number]

  # In order of depth, so that the recursion is not deep.
  for name in calls:
    for call in range(len(calls[name])):
      outputs(name, call)
  return [tensors(config[key]) for key in ("input_layers", "output_layers")]


def _defaults(kind: type) -> dict[str, Any]:
  """Returns the arguments of a class and its bases, with their defaults."""
  return {
    name: parameter.default
    for base in reversed(kind.__mro__)
    if "__init__" in vars(base)
    for name, parameter in inspect.signature(
      vars(base)["__init__"]
    ).parameters.items()
  }


def _called(owner: str, function: Callable[..., Any], *args, **kwargs) -> Any:
  """Calls a class, a layer or a model; refuses what raises an error."""
  try:
    return function(*args, **kwargs)
  except Exception as error:
    message = " ".join(str(error).split())[:_LONGEST_REASON]
    _refuse(f"{owner} raises an error ({type(error).__name__}: {message})")


def _copy_weights(model: Any, rebuilt: tf.keras.Model) -> None:
  """Copies the weights of all layers, also of nested models."""
  for layer in model.layers:
    copied = rebuilt.get_layer(layer.name)
    if is_keras_3(layer):
      _copy_weights(layer, copied)
      continue
    wanted, known = (
      # `depthwise_kernel` is `kernel` in Keras 3.
      [
        (re.split("[/_]", weight.name)[-1].split(":")[0], *weight.shape)
        for weight in owner.weights
      ]
      for owner in (layer, copied)
    )
    if wanted != known:
      _refuse(f"layer {layer.name!r} has other weights in tf.keras")
    copied.set_weights(layer.get_weights())
    if isinstance(copied, tf.keras.layers.Normalization) and wanted:
      # Keras 3 does not count; Keras 2 takes 0 for a layer not adapted.
      copied.count.assign(1)
      copied.finalize_state()
