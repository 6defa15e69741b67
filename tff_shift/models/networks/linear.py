"""Multinomial logistic regression: one dense layer on the inputs.

The embedding is the flattened input, and the backbone has no weights: methods
with personal heads train nothing in common.
"""

import math

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers


def build(
  input_shape: tuple[int, ...] = (2,),
  num_classes: int = 2,
  input_dtype: tf.DType = tf.float32,
) -> split_model.SplitModel:
  """Builds the regression.

  Args:
    input_shape: The shape of one example; it is flattened.
    num_classes: The number of classes.
    input_dtype: `tf.float32`, or `tf.uint8` for images in 0..255.

  Returns:
    A `SplitModel` whose embedding is the input.
  """

  def backbone():
    return tf.keras.Sequential(
      [layers.InputLayer(input_shape), layers.Flatten()],
      name="linear_backbone",
    )

  def head():
    return tf.keras.Sequential(
      [
        layers.InputLayer((math.prod(input_shape),)),
        layers.Dense(num_classes, name="layer"),
      ],
      name="linear_head",
    )

  return split_model.build_split_model(
    "linear", backbone=backbone, head=head, input_dtype=input_dtype
  )
