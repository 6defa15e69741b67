"""The residual network of Fed-ADE's released program, for small images.

Source: the program that the authors of "Fed-ADE: Adaptive Learning Rate for
Federated Post-adaptation under Distribution Shift" (2026) released
(github.com/h2w1/Fed-ADE, commit ad36802), for CIFAR-10: three residual blocks
without a stem, with batch normalisation and dropout, and a head of two linear
layers (307,146 weights for images of 32 x 32 and ten classes). The blocks are
its shared part, the head is personal. `residual_cnn` is the network as the
paper describes it.

Batch normalisation has the settings of that program: epsilon 1e-5, and a
fraction of 0.1 of each batch in the running statistics. Initial weights are
those of the other residual networks here, see `residual`.
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.networks import residual

# Of the negative part, in the program's leaky ReLUs.
_SLOPE = 0.01
_EPSILON = 1e-5
_MOMENTUM = 0.9


def _normalize(x, name: str):
  return layers.BatchNormalization(
    epsilon=_EPSILON, momentum=_MOMENTUM, name=f"{name}_normalization"
  )(x)


def _block(x, channels: int, *, strides: int, dropout: float, name: str):
  """Applies two convolutions, dropout between them, and a shortcut."""
  y = residual.convolve(x, channels, 3, strides=strides, name=f"{name}.layer1")
  y = layers.LeakyReLU(_SLOPE)(_normalize(y, f"{name}.layer1"))
  y = layers.Dropout(dropout)(y)
  y = residual.convolve(y, channels, 3, name=f"{name}.layer2")
  y = _normalize(y, f"{name}.layer2")
  x = residual.convolve(
    x, channels, 1, strides=strides, name=f"{name}.shortcut"
  )
  x = _normalize(x, f"{name}.shortcut")
  return layers.ReLU()(layers.Add()([x, y]))


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  width: int = 32,
  dropout: tuple[float, float, float] = (0.5, 0.5, 0.3),
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    width: The channels of the first block; the others have 2 and 4 times as
      many, and the hidden layer of the head twice as many.
    dropout: The fraction that each block drops in training.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `SplitModel` with an embedding of 4 x `width`.
  """

  def backbone():
    image = layers.Input(input_shape)
    x = image
    for block, rate in enumerate(dropout):
      x = _block(
        x,
        width * 2**block,
        strides=2 if block else 1,
        dropout=rate,
        name=f"block{block + 1}",
      )
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, x, name="mini_resnet_backbone")

  def head():
    return tf.keras.Sequential(
      [
        layers.InputLayer((4 * width,)),
        layers.Dense(2 * width, name="hidden"),
        layers.LeakyReLU(_SLOPE),
        layers.Dense(num_classes, name="classifier"),
      ],
      name="mini_resnet_head",
    )

  return split_model.build_split_model(
    "mini_resnet", backbone=backbone, head=head, input_dtype=input_dtype
  )
