"""Names of Keras layers that do not depend on what a process built before."""

import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def counted(layers: Iterable[tf.keras.layers.Layer]) -> dict[str, str]:
  """Maps the names of layers to names that depend on these layers only.

  Names chosen by Keras (`dense_3`) are counted again (`dense.2`). All others do
  not change.
  """
  counts, names = {}, {}
  for layer in layers:
    names[layer.name] = layer.name
    if is_by_keras(layer):
      kind = snake_case(type(layer).__name__).replace("_", ".")
      counts[kind] = counts.get(kind, 0) + 1
      names[layer.name] = f"{kind}.{counts[kind]}"
  return names


def is_by_keras(layer: tf.keras.layers.Layer) -> bool:
  """Returns whether a layer's name was chosen by Keras."""
  kind = snake_case(type(layer).__name__)
  return re.fullmatch(rf"{kind}(_\d+)?", layer.name) is not None


def is_of_keras(kind: Any) -> bool:
  """Whether a class or function is Keras's, of any generation."""
  return kind.__module__.partition(".")[0] in ("keras", "tf_keras")


def snake_case(name: str) -> str:
  """Returns Keras's default name for layers of a class, without number."""
  name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
  return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
