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
# A kink of an activation can lie between two roundings.
_OF_GRADIENTS = 1e-2
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
  config = keras.saving.serialize_keras_object(model)
  _simplify_calls(model, config["config"])
  return _object(config, "it")


def convert(model: Any) -> tf.keras.Model:
  """Builds a model again by `tf.keras`, with its weights.

  Args:
    model: A Sequential or functional model of Keras 3, with inputs of fixed
      shapes.

  Returns:
    The model.

  Raises:
    ValueError: If `tf.keras` cannot build it, or outputs differ; one line.
  """
  rebuilt = rebuild(model)
  copy_weights(model, rebuilt)
  return rebuilt


def copy_weights(model: Any, rebuilt: tf.keras.Model) -> None:
  """Copies the weights of a model, and compares outputs and gradients.

  Args:
    model: The model of Keras 3.
    rebuilt: The result of `rebuild`.

  Raises:
    ValueError: If weights, outputs or gradients differ; one line.
  """
  pairs = _copy_weights(model, rebuilt)
  inputs = _examples(rebuilt)
  wanted, found = (
    _outputs_and_gradients(function, inputs, [pair[number] for pair in pairs])
    for number, function in enumerate((model, rebuilt))
  )
  for what, tolerance in ("outputs", _TOLERANCE), ("gradients", _OF_GRADIENTS):
    difference = np.max(np.abs(wanted[what] - found[what]), initial=0.0)
    # Not a number is refused, too.
    if not difference <= tolerance * max(
      1, np.max(np.abs(wanted[what]), initial=0.0)
    ):
      _refuse(
        f"{what} of tf.keras's layers differ from its own: {difference:.2g}"
        f"{_first_other(model, rebuilt, inputs)}"
      )


def _outputs_and_gradients(
  function: Callable[..., Any], inputs: Any, variables: list[Any]
) -> dict[str, np.ndarray]:
  """Calls a model in evaluation; all numbers become one vector."""
  with tf.GradientTape() as tape:
    outputs = _called("it", function, inputs, training=False)
    flat = tf.concat(
      [tf.reshape(output, [-1]) for output in tf.nest.flatten(outputs)], 0
    )
    loss = tf.tensordot(flat, tf.linspace(-1.0, 1.0, len(flat)), 1)
  gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
  vectors = [np.ravel(tf.convert_to_tensor(value)) for value in gradients]
  return {
    "outputs": flat.numpy(),
    "gradients": np.concatenate([np.zeros(0, np.float32), *vectors]),
  }


def _examples(model: tf.keras.Model) -> Any:
  """Returns inputs of a model, of which some sequences end in masked steps."""
  generator = np.random.default_rng(0)
  masked = {
    layer.mask_value
    for layer in model._flatten_layers()
    if isinstance(layer, tf.keras.layers.Masking)
  }
  fills = [None, None, 0.0, *masked - {0.0}]
  inputs = []
  for tensor in model.inputs:
    shape = tuple(tensor.shape[1:])
    if None in shape:
      _refuse(f"its examples have the shape {shape}, which is not fixed")
    # Indices become 0 or 1, which every table of an embedding has.
    values = generator.uniform(-1, 2, (len(fills), *shape))
    if tensor.dtype == tf.bool:
      inputs.append(tf.constant(values > 0))
      continue
    if values.ndim > 1:
      for example, fill in zip(values, fills, strict=True):
        if fill is not None:
          example[len(example) // 2 :] = fill
    inputs.append(tf.cast(values, tensor.dtype))
  return tf.nest.pack_sequence_as(model.input, inputs)


def _first_other(model: Any, rebuilt: tf.keras.Model, inputs: Any) -> str:
  """Names the first layer whose outputs differ, if it is called once."""
  if isinstance(inputs, Mapping):
    return ""
  for layer in model.layers:
    copied = rebuilt.get_layer(layer.name)
    if len(copied.inbound_nodes) != 1:
      continue
    outputs = [
      tf.nest.flatten(kind(whole.inputs, inner.output)(tf.nest.flatten(inputs)))
      for kind, whole, inner in (
        (sys.modules["keras"].Model, model, layer),
        (tf.keras.Model, rebuilt, copied),
      )
    ]
    for wanted, output in zip(*outputs, strict=True):
      wanted, output = np.asarray(wanted, float), np.asarray(output, float)
      if not np.allclose(output, wanted, _TOLERANCE, _TOLERANCE):
        return f", first in layer {layer.name!r}"
  return ""


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
  if getattr(layer, "mode", None) == "horizontal_and_vertical":
    _refuse(
      f"layer {layer.name!r} flips both axes of an image or none, and"
      " tf.keras's each by itself; use a layer for each axis"
    )
  if layer.weights:
    with_weights.add(id(layer))
  for inner in layer.layers if is_keras_3(layer) else ():
    _check_classes(inner, with_weights)


def _simplify_calls(model: Any, config: dict[str, Any]) -> None:
  """Names arguments of calls, and leaves out masks that inputs carry.

  Keras 3 stores the mask that an input carries as if it had been given, and the
  operations that compute it as if they were layers.

  Args:
    model: The model of Keras 3.
    config: Its configuration, which is changed.
  """
  nodes_of_model = {
    id(node)
    for nodes in getattr(model, "_nodes_by_depth", {}).values()
    for node in nodes
  }
  operations = {
    operation.name: operation
    for operation in getattr(model, "operations", model.layers)
  }
  for inner in config["layers"]:
    operation = operations.get(inner["config"]["name"])
    if is_keras_3(operation):
      _simplify_calls(operation, inner["config"])
    if not inner.get("inbound_nodes"):
      continue
    names = list(inspect.signature(operation.call).parameters)
    nodes = [
      node
      for node in operation._inbound_nodes
      if not node.is_input and id(node) in nodes_of_model
    ]
    for node, stored in zip(nodes, inner["inbound_nodes"], strict=True):
      values, kwargs = (
        dict(zip(names, args, strict=False)) | given
        for args, given in (
          (node.arguments.args, node.arguments.kwargs),
          (stored["args"], stored["kwargs"]),
        )
      )
      for name in values:
        if name == "mask":
          owner = next(iter(values.values()))
        elif name.endswith("_mask"):
          owner = values.get(name.removesuffix("_mask"))
        else:
          continue
        masks = [
          getattr(tensor, "_keras_mask", None)
          for tensor in tf.nest.flatten(owner)
        ]
        if _are_equal(tf.nest.flatten(values[name]), masks):
          del kwargs[name]
      # Stored as if it had been given.
      training = inspect.signature(operation.call).parameters.get("training")
      if training and kwargs.get("training") == training.default:
        kwargs.pop("training", None)
      first = [name for name in names[:1] if stored["args"]]
      stored["args"] = [kwargs.pop(name) for name in first]
      stored["kwargs"] = kwargs


def _are_equal(first: Any, second: Any) -> bool:
  """Whether values are the same, or the same operation on the same ones."""
  if first is second:
    return True
  if isinstance(first, list | tuple):
    return len(first) == len(second) and all(map(_are_equal, first, second))
  keras: Any = sys.modules["keras"]
  if not all(isinstance(one, keras.KerasTensor) for one in (first, second)):
    return type(first) is type(second) and first == second
  kinds, configs, arguments = [], [], []
  for tensor in first, second:
    operation, call, number = tensor._keras_history
    if isinstance(operation, keras.Layer):
      return False
    node = operation._inbound_nodes[call].arguments
    kinds.append((type(operation), number, len(node.args), list(node.kwargs)))
    configs.append({**operation.get_config(), "name": None})
    arguments.append([*node.args, *node.kwargs.values()])
  return (
    kinds[0] == kinds[1]
    and configs[0] == configs[1]
    and all(map(_are_equal, *arguments))
  )


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
  needed = _needed(config)
  layers = {
    inner["config"]["name"]: _object(inner, "it")
    for inner in config["layers"]
    if inner["config"]["name"] in needed
  }
  if "output_layers" in config:
    model = tf.keras.Model(*_ends(config, layers), name=config["name"])
  else:
    model = tf.keras.Sequential(list(layers.values()), name=config["name"])
  if not config["trainable"]:
    model.trainable = False
  return model


def _needed(config: Mapping[str, Any]) -> set[str]:
  """Returns the names of the layers that a model's outputs depend on."""
  calls = {
    inner["config"]["name"]: inner.get("inbound_nodes", ())
    for inner in config["layers"]
  }
  if "output_layers" not in config:
    return set(calls)
  ends = tf.nest.flatten([config["input_layers"], config["output_layers"]])
  left = [name for name in ends if isinstance(name, str)]
  needed: set[str] = set()

  def collect(value):
    if isinstance(value, Mapping):
      if value.get("class_name") == "__keras_tensor__":
        left.append(value["config"]["keras_history"][0])
      else:
        collect(list(value.values()))
    elif isinstance(value, list | tuple):
      for item in value:
        collect(item)

  while left:
    name = left.pop()
    if name not in needed:
      needed.add(name)
      collect(calls[name])
  return needed


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
    # A functional model of Keras 3 passes its own `training` to all layers. It
    # stores the one that was given, and the default of the layer's call.
    training = given.pop("training", False)
    if training is not False:
      _refuse(
        f"{owner} is called with training={training}, which Keras 3 does not"
        " use in fit and predict; leave it out"
      )
    known = inspect.signature(layers[name].call).parameters
    for argument in given:
      if argument not in known and node["args"]:
        _refuse(
          f"{owner} is called with {argument}=, which tf.keras does not know"
        )
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
  for name in layers:
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
    # Keras 3 colours its messages.
    message = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    message = message[:_LONGEST_REASON]
    _refuse(f"{owner} raises an error ({type(error).__name__}: {message})")


def _copy_weights(
  model: Any, rebuilt: tf.keras.Model
) -> list[tuple[tf.Variable, tf.Variable]]:
  """Copies the weights of all layers; returns pairs of trained variables."""
  pairs = []
  for layer in model.layers:
    copied = rebuilt.get_layer(layer.name)
    if is_keras_3(layer):
      pairs += _copy_weights(layer, copied)
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
    if len(layer.trainable_weights) != len(copied.trainable_weights):
      _refuse(
        f"some weights of layer {layer.name!r} are not trained; freeze the"
        " layer (trainable=False)"
      )
    copied.set_weights(layer.get_weights())
    # A weight of Keras 3 wraps TensorFlow's variable.
    pairs += zip(
      (weight.value for weight in layer.trainable_weights),
      copied.trainable_weights,
      strict=True,
    )
    if isinstance(copied, tf.keras.layers.Normalization) and wanted:
      # Keras 3 does not count; Keras 2 takes 0 for a layer not adapted.
      copied.count.assign(1)
      copied.finalize_state()
  return pairs
