"""The small residual network for images of 32 x 32 and 28 x 28.

Source: Fed-ADE, Table 6: "CNN with 3 residual blocks", for CIFAR-10, CIFAR-100
and their corrupted versions. Its shared part psi is the backbone here, its
personal part phi (eq. 8) the linear head.

Choices:
  * Layers: a 3x3 convolution, then three basic blocks of ResNet (see
    `residual.block`), each of which halves the image and doubles the channels,
    then the mean over the remaining positions and one linear layer.
  * Width: 16 channels after the first convolution, hence an embedding of 128:
    small enough for many clients on a CPU.
  * Group normalisation, as in all models (see `split_model`), with 8 groups.
  * Preprocessing is not part of the network, see `input_scaling`: the paper's
    is `standardized`.
  * The head is the linear layer, which is personal. Width 16 has 304,154
    weights (`--model_width`).
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import residual

_NUM_BLOCKS = 3


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: int = 16,
  groups: int = 8,
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    width: The channels of the first convolution; the blocks have 2, 4 and 8
      times as many.
    groups: The number of groups of each normalisation, a divisor of `width`.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `SplitModel` with an embedding of 8 x `width`.

  Raises:
    ValueError: If `groups` does not divide `width`.
  """

  def backbone():
    image = layers.Input(input_shape)
    x = residual.convolve(image, width, 3, name="stem")
    x = layers.ReLU()(residual.normalize(x, groups, name="stem"))
    for block in range(1, _NUM_BLOCKS + 1):
      x = residual.block(
        x,
        channels=width * 2**block,
        strides=2,
        groups=groups,
        name=f"block{block}",
      )
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, x, name="residual_cnn_backbone")

  def head():
    return keras_parts.linear_head(width * 2**_NUM_BLOCKS, num_classes)

  return split_model.build_split_model(
    "residual_cnn", backbone=backbone, head=head, input_dtype=input_dtype
  )
