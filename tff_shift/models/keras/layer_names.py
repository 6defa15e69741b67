"""Names of Keras layers that do not depend on what a process built before."""

import re
from collections.abc import Iterable

import tensorflow as tf


def counted(layers: Iterable[tf.keras.layers.Layer]) -> dict[str, str]:
  """Returns a name for the name of each layer.

  Those that Keras has chosen (`dense_3`) are counted anew (`dense.2`), so that
  they depend on these layers alone. All others stay.
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
  """Tells whether Keras has chosen a layer's name."""
  kind = snake_case(type(layer).__name__)
  return re.fullmatch(rf"{kind}(_\d+)?", layer.name) is not None


def snake_case(name: str) -> str:
  """Returns what Keras calls the layers of a class, but for their numbers."""
  name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
  return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
