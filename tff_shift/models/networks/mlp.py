"""The five-layer perceptron for points in the plane (circle).

Source: Federated Learning under Evolving Distribution Shifts, Appendix D: three
dense layers of 256 with ReLU are the representation; two linear layers
(256 x 64, 64 x 2) the classifier. The paper does not specify a non-linearity
between the last two. Here it is a ReLU: without one, they would be equivalent
to one layer.
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers


def build(
  input_shape: tuple[int, ...] = (2,),
  num_classes: int = 2,
  width: int = 256,
  head_width: int = 64,
  input_dtype: tf.DType = tf.float32,
) -> split_model.SplitModel:
  """Builds the perceptron.

  Args:
    input_shape: The shape of one example; it is flattened.
    num_classes: The number of classes.
    width: The width of the three layers of the backbone.
    head_width: The width of the hidden layer of the head.
    input_dtype: `tf.float32`, or `tf.uint8` for images in 0..255.

  Returns:
    A `SplitModel` with an embedding of `width`.
  """

  def backbone():
    return tf.keras.Sequential(
      [layers.InputLayer(input_shape), layers.Flatten()]
      + [
        layers.Dense(width, activation="relu", name=f"layer{i}")
        for i in (1, 2, 3)
      ],
      name="mlp_backbone",
    )

  def head():
    return tf.keras.Sequential(
      [
        layers.InputLayer((width,)),
        layers.Dense(head_width, activation="relu", name="layer4"),
        layers.Dense(num_classes, name="layer5"),
      ],
      name="mlp_head",
    )

  return split_model.build_split_model(
    "mlp", backbone=backbone, head=head, input_dtype=input_dtype
  )
