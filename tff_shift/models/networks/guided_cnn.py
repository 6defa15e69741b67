"""A small convolutional network with a guide, for CPUs.

No source: it replaces FedDRM's ResNet-18 (see `guided_resnet`) in runs of many
rounds on a laptop. Three convolutions that each halve the image, with group
normalisation and ReLU, are shared by classes and clients; as in FedDRM's Fig.
2, each task then has its own projection and linear layer. The projections take
all positions: their mean, as in ResNet, was less accurate on CIFAR-10 (50 %
instead of 56 % of the test images, after three epochs in batches of 64,
momentum 0.9 and a rate that decreases from 0.01 to 0). Initial weights are
those of `residual` and `projection`.
"""

import tensorflow as tf

from tff_shift.models import guided_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.networks import projection
from tff_shift.models.networks import residual

_KERNEL_SIZES = (5, 3, 3)


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  num_clients: int = 8,
  channels: tuple[int, int, int] = (16, 32, 64),
  groups: int = 8,
  width: int = 64,
  input_dtype: tf.DType = tf.uint8,
) -> guided_model.GuidedModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    num_clients: The number of clients.
    channels: The channels of the three convolutions.
    groups: The number of groups of each normalisation, a divisor of `channels`.
    width: The width of the projection of each task.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `GuidedModel` with an embedding of `width`.

  Raises:
    ValueError: If `groups` does not divide `channels`.
  """

  def trunk():
    x = image = layers.Input(input_shape)
    for index, (count, kernel_size) in enumerate(
      zip(channels, _KERNEL_SIZES, strict=True), start=1
    ):
      name = f"layer{index}"
      x = residual.convolve(x, count, kernel_size, strides=2, name=name)
      x = residual.normalize(x, groups, name=name)
      x = layers.ReLU()(x)
    return tf.keras.Model(image, layers.Flatten()(x), name="guided_cnn_trunk")

  feature_size = trunk().output_shape[-1]
  return guided_model.build_guided_model(
    "guided_cnn",
    trunk=trunk,
    target_branch=lambda: projection.target_branch(feature_size, width),
    head=lambda: projection.head(width, num_classes),
    client_branch=lambda: projection.client_branch(
      feature_size, width, num_clients
    ),
    input_dtype=input_dtype,
  )
