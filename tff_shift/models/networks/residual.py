"""Layers and the basic block of the residual networks.

Convolutions and normalisations follow the published networks: kernels from a
normal distribution of variance 2 / (kernel positions x output channels), no
bias (a normalisation follows), and equal zero padding on all sides, unlike
Keras's "same" at stride 2. Weights trained elsewhere therefore give the same
values here.
"""

import tensorflow as tf

from tff_shift.models.keras import fixed_layers as layers

# The default of other libraries; Keras's default is 1e-3.
_EPSILON = 1e-5


def convolve(
  x, channels: int, kernel_size: int, *, strides: int = 1, name: str
):
  """Applies a square convolution to a Keras tensor [batch, y, x, channels].

  Args:
    x: The Keras tensor.
    channels: The number of output channels.
    kernel_size: Height and width of the kernel, an odd number.
    strides: The step of the kernel in both directions.
    name: The layer's name is `<name>_convolution`.

  Returns:
    A Keras tensor, height and width divided by `strides` and rounded up.
  """
  if strides > 1 and kernel_size > 1:
    x = layers.ZeroPadding2D(kernel_size // 2)(x)
  return layers.Conv2D(
    channels,
    kernel_size,
    strides=strides,
    padding="valid" if strides > 1 else "same",
    use_bias=False,
    kernel_initializer=tf.keras.initializers.VarianceScaling(
      scale=2.0, mode="fan_out", distribution="untruncated_normal"
    ),
    name=f"{name}_convolution",
  )(x)


def normalize(x, groups: int, *, name: str, initial_scale: float = 1.0):
  """Normalises a Keras tensor [batch, y, x, channels] in groups of channels.

  Args:
    x: The Keras tensor.
    groups: The number of groups, a divisor of the number of channels.
    name: The layer's name is `<name>_normalization`.
    initial_scale: The initial scale of all channels.

  Returns:
    A Keras tensor of the same shape.

  Raises:
    ValueError: If the groups do not divide the channels.
  """
  channels = x.shape[-1]
  if groups < 1 or channels % groups:
    raise ValueError(
      f"groups={groups} does not divide the {channels} channels of layer"
      f" {name!r}"
    )
  return layers.GroupNormalization(
    groups,
    epsilon=_EPSILON,
    gamma_initializer=tf.keras.initializers.Constant(initial_scale),
    name=f"{name}_normalization",
  )(x)


def block(
  x,
  channels: int,
  *,
  strides: int = 1,
  groups: int,
  name: str,
  initial_scale: float = 1.0,
):
  """Applies two 3x3 convolutions and a shortcut; ReLU after the sum.

  The basic block of Deep Residual Learning for Image Recognition (He et al.,
  CVPR 2016), with option B for the shortcut: the identity if the shape stays, a
  1x1 convolution if it changes.

  Args:
    x: A Keras tensor [batch, y, x, channels].
    channels: The number of output channels.
    strides: The step of the first convolution in both directions.
    groups: The number of groups of each normalisation, a divisor of `channels`.
    name: The layers' names begin with `<name>.`.
    initial_scale: The initial scale of the second normalisation. At 0 the block
      starts as its shortcut and a ReLU.

  Returns:
    A Keras tensor, height and width divided by `strides` and rounded up.

  Raises:
    ValueError: If the groups do not divide the channels.
  """
  relu = layers.ReLU
  y = convolve(x, channels, 3, strides=strides, name=f"{name}.layer1")
  y = relu()(normalize(y, groups, name=f"{name}.layer1"))
  y = convolve(y, channels, 3, name=f"{name}.layer2")
  y = normalize(y, groups, name=f"{name}.layer2", initial_scale=initial_scale)
  if x.shape[1:] != y.shape[1:]:
    x = convolve(x, channels, 1, strides=strides, name=f"{name}.shortcut")
    x = normalize(x, groups, name=f"{name}.shortcut")
  return relu()(layers.Add()([x, y]))
