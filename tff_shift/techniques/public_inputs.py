"""Inputs that anybody may have, without classes: what models are compared on.

They are constants of a graph: few, and the same for all who ask.
"""

import math

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tff_shift import memory
from tff_shift.data.texts import text
from tff_shift.models import split_model

NAMES = ("uniform", "digits")

_SEED = 0
# What a graph with its constants can take, as a message of protobuf.
_MAX_BYTES = 2**31 - 1


def make(
  name: str, model: split_model.SplitModel, number: int, bound: float
) -> np.ndarray:
  """Makes inputs of a model.

  Args:
    name: One of `NAMES`. "uniform": independent uniform numbers; of a model of
      tokens, titles of all lengths alike whose words are all alike. "digits":
      images of scikit-learn's digits at the size of the model's images; as many
      as there are, at most.
    model: The model.
    number: The number of inputs, at least 1.
    bound: Uniform numbers of a model that takes neither images nor tokens are
      from -bound to bound when the model has scaled them.

  Returns:
    `[number, ...]` in the model's dtype.

  Raises:
    ValueError: If the model takes no such inputs, or they are too many for a
      graph.
  """
  generator = np.random.default_rng(_SEED)
  if name == "uniform":
    shape = (number, *model.input_shape)
    num_bytes = math.prod(shape) * model.input_dtype.size
    if num_bytes > _MAX_BYTES:
      raise ValueError(
        f"public_examples={number}: {memory.described(num_bytes)} of inputs"
        f" {list(model.input_shape)}; a graph can hold 2 GiB, or"
        f" {_MAX_BYTES * number // num_bytes} of them"
      )
    if model.input_dtype == tf.uint8:
      return generator.integers(0, 256, shape, np.uint8)
    if model.input_dtype == tf.float32:
      numbers = generator.uniform(-bound, bound, shape)
      return model.input_scaling.undone(numbers).astype(np.float32)
    if model.vocabulary_size is not None:
      return _titles(generator, shape, model.vocabulary_size)
    raise ValueError(
      f"public_data=uniform is not for model {model.name!r}, which takes"
      f" {model.input_dtype.name}: it must be images, float32, or tokens of a"
      " model that says its vocabulary_size"
    )
  if model.input_dtype != tf.uint8 or len(model.input_shape) != 3:
    raise ValueError(
      f"public_data=digits is not for model {model.name!r}, which takes no"
      " images: it must be uniform"
    )
  images = datasets.load_digits().images  # [1797, 8, 8], from 0 to 16
  chosen = images[generator.permutation(len(images))[:number]]
  chosen = np.round(chosen * (255 / 16)).astype(np.uint8)
  # The nearest pixel of the digit.
  rows, columns = (
    np.arange(size) * there // size
    for size, there in zip(model.input_shape, chosen.shape[1:3], strict=False)
  )
  resized = chosen[:, rows[:, np.newaxis], columns, np.newaxis]
  return np.repeat(resized, model.input_shape[-1], axis=-1)


def _titles(
  generator: np.random.Generator, shape: tuple[int, int], vocabulary_size: int
) -> np.ndarray:
  """Draws titles [number, length] int32 of one word at least."""
  number, length = shape
  words = generator.integers(text.UNKNOWN, vocabulary_size, shape, np.int32)
  lengths = generator.integers(1, length, (number, 1), endpoint=True)
  return np.where(np.arange(length) < lengths, words, np.int32(text.PADDING))
