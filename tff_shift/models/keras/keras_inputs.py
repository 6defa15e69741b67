"""Processing of examples before the first weights of Keras models.

Models with several inputs take slices of one array; some layers scale features
with numbers to which they were adapted.

Choices:
  * `inputs=` takes slices of one array: data sets, splits, checks and saved
    models have a single `x`.
  * Adapted layers (`Normalization`, `Discretization`) become constants, not
    frozen weights: Keras computes with values that it derives when a layer is
    adapted, and a copy of the layer does not have them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Splitter:
  """Splits examples [batch, num_features] into the inputs of a model.

  Attributes:
    features: The slice of each input, in the order of the model.
    specs: The shape of an example and the dtype of each input.
    num_features: The number of features of an example.
  """

  features: tuple[slice, ...]
  specs: tuple[tf.TensorSpec, ...]
  num_features: int

  def __call__(self, x) -> list[tf.Tensor]:
    """Returns a tensor for each input."""
    return [
      tf.cast(tf.reshape(x[:, each], [-1, *spec.shape]), spec.dtype)
      for each, spec in zip(self.features, self.specs, strict=True)
    ]


def dtype(given: tf.DType | None) -> tf.DType:
  """Returns the dtype of examples that are split: float32."""
  if given not in (None, tf.float32):
    raise ValueError(
      f"examples that inputs= splits are float32, not {tf.as_dtype(given).name}"
    )
  return tf.float32


def splitter(model: tf.keras.Model, inputs: Mapping[str, slice]) -> Splitter:
  """Checks `inputs` of `from_keras`.

  Args:
    model: A functional model.
    inputs: A slice of the features for the name of each input.

  Returns:
    The splitter of examples.

  Raises:
    ValueError: If a name or a size is not the model's, or a feature belongs to
      no input.
  """
  known = list(model.input_names)
  for name in inputs:
    if name not in known:
      raise ValueError(
        f"inputs= names {name!r}; the model has {', '.join(known)}"
      )
  for name in known:
    if name not in inputs:
      raise ValueError(f"inputs= lacks the model's input {name!r}")
  specs = []
  for name, tensor in zip(known, model.inputs, strict=True):
    shape, given = tuple(tensor.shape[1:]), inputs[name]
    if (
      not isinstance(given, slice)
      or not all(
        isinstance(each, int) for each in (given.start or 0, given.stop)
      )
      or given.step not in (None, 1)
      or not 0 <= (given.start or 0) < given.stop
    ):
      raise ValueError(
        f"inputs[{name!r}] is {given!r}; slice(start, stop) of whole numbers"
        " from 0 is wanted"
      )
    found, wanted = given.stop - (given.start or 0), math.prod(shape)
    if found != wanted:
      raise ValueError(
        f"inputs[{name!r}] is of {found} features, and the input of shape"
        f" {shape} takes {wanted}"
      )
    specs.append(tf.TensorSpec(shape, tensor.dtype))
  features = tuple(inputs[name] for name in known)
  taken = {
    place for each in features for place in range(each.start or 0, each.stop)
  }
  num_features = max(taken) + 1
  unused = sorted(set(range(num_features)) - taken)
  if unused:
    raise ValueError(f"feature {unused[0]} belongs to no input of inputs=")
  return Splitter(features, tuple(specs), num_features)


def _is_adapted(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer was adapted, in this process or before it was saved."""
  if isinstance(layer, tf.keras.layers.Normalization):
    return layer.built and bool(layer.count > 0)
  return layer.built and tf.size(layer.summary) > 0


def adapted_numbers(layer: tf.keras.layers.Layer) -> dict[str, Any]:
  """Returns constants in place of the numbers to which a layer was adapted.

  Keras computes with attributes of the adapted layer, which a copy of the layer
  would not have.

  Args:
    layer: Any layer.

  Returns:
    Replacements for entries of its configuration; {} for most layers.

  Raises:
    ValueError: If the layer must be adapted, and was not.
  """
  found: tuple[tuple[str, str], ...]
  if isinstance(layer, tf.keras.layers.Normalization):
    if layer.input_mean is not None:
      return {}
    found = ("mean", "adapt_mean"), ("variance", "adapt_variance")
  elif isinstance(layer, tf.keras.layers.Discretization):
    if layer.input_bin_boundaries is not None:
      return {}
    found = (("bin_boundaries", "bin_boundaries"),)
  else:
    return {}
  if not _is_adapted(layer):
    names = " and ".join(name for name, _ in found)
    raise ValueError(
      f"layer {layer.name!r} was not adapted; call its adapt(examples), or give"
      f" it {names}"
    )
  constants = {
    name: np.reshape(
      getattr(layer, name), np.shape(getattr(layer, saved))
    ).tolist()
    for name, saved in found
  }
  # Keras takes only one of both.
  return {**constants, "num_bins": None} if len(found) == 1 else constants
