"""The convolutional network for digits and letters.

Source: Federated Learning under Evolving Distribution Shifts, Appendix D: four
3x3 convolutions, each followed by group normalisation "using groups of 8
channels", then two linear layers with a hidden dimension of 64.

Choices:
  * Channels: 1-64-128-128-128, which follow from the parameter counts of Table
    7 (741,120 for two representations, 379,392 for one with its classifier; the
    linear layers have no bias). The counts also imply that the representation
    consists of the convolutions only, as in Section 5.1; Appendix D includes
    the first linear layer.
  * Downsampling: stride 2 in the first three convolutions, then the mean over
    the remaining 4x4 positions.
  * A network with the same parameter counts that keeps 14x14 positions costs
    five times as much per step.
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers

_CHANNELS_PER_GROUP = 8
_STRIDES = (2, 2, 2, 1)


def build(
  input_shape: tuple[int, ...] = (28, 28, 1),
  num_classes: int = 10,
  channels: tuple[int, int, int, int] = (64, 128, 128, 128),
  head_width: int = 64,
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    channels: The channels of the four convolutions, multiples of 8.
    head_width: The width of the hidden layer of the head.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `SplitModel` with an embedding of `channels[-1]`.

  Raises:
    ValueError: If channels are not multiples of 8.
  """
  if any(c < 1 or c % _CHANNELS_PER_GROUP for c in channels):
    raise ValueError(
      f"channels={channels} of the CNN must be multiples of"
      f" {_CHANNELS_PER_GROUP}"
    )

  def backbone():
    stack = [layers.InputLayer(input_shape)]
    for i, (width, stride) in enumerate(
      zip(channels, _STRIDES, strict=True), start=1
    ):
      stack += [
        layers.Conv2D(
          width,
          3,
          strides=stride,
          padding="same",
          name=f"layer{i}_convolution",
        ),
        layers.GroupNormalization(
          groups=width // _CHANNELS_PER_GROUP,
          name=f"layer{i}_normalization",
        ),
        layers.ReLU(),
      ]
    return tf.keras.Sequential(
      [*stack, layers.GlobalAveragePooling2D()], name="cnn_backbone"
    )

  def head():
    return tf.keras.Sequential(
      [
        layers.InputLayer((channels[-1],)),
        layers.Dense(
          head_width, activation="relu", use_bias=False, name="layer5"
        ),
        layers.Dense(num_classes, use_bias=False, name="layer6"),
      ],
      name="cnn_head",
    )

  return split_model.build_split_model(
    "cnn", backbone=backbone, head=head, input_dtype=input_dtype
  )
