"""The wide residual network for portraits of 32 x 32.

Sources: Wide Residual Networks (Zagoruyko and Komodakis, BMVC 2016,
https://arxiv.org/abs/1605.07146), Table 1 with blocks B(3, 3); Federated
Learning under Evolving Distribution Shifts, Appendix D: convolutions and
average pooling are the representation, one linear layer the classifier.

Choices:
  * Depth 16, widening factor 2 (WRN-16-2), without dropout. This is the network
    for 32 x 32 of DomainBed (Gulrajani and Lopez-Paz, ICLR 2021,
    https://arxiv.org/abs/2007.01434), the benchmark of domain generalisation
    whose networks by input (perceptron, CNN with 64-128-128-128 channels, wide
    ResNet, ResNet) are the list of Table 9.
  * Group normalisation with 8 groups in place of batch normalisation (see
    `split_model`).
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import residual

_STEM_CHANNELS = 16
_NUM_STAGES = 3


def _block(x, channels: int, strides: int, groups: int, name: str):
  """Applies normalisation, ReLU and convolution twice, and a shortcut."""
  relu = layers.ReLU
  normalized = relu()(residual.normalize(x, groups, name=f"{name}.layer1"))
  y = residual.convolve(
    normalized, channels, 3, strides=strides, name=f"{name}.layer1"
  )
  y = relu()(residual.normalize(y, groups, name=f"{name}.layer2"))
  y = residual.convolve(y, channels, 3, name=f"{name}.layer2")
  if x.shape[1:] != y.shape[1:]:
    x = residual.convolve(
      normalized, channels, 1, strides=strides, name=f"{name}.shortcut"
    )
  return layers.Add()([x, y])


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 2,
  depth: int = 16,
  widening_factor: int = 2,
  groups: int = 8,
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels (for example 1 or 3) of an image.
    num_classes: The number of classes.
    depth: The number of convolutions, including the shortcuts: 4 more than a
      multiple of 6 (three stages of blocks of two).
    widening_factor: The stages have 16, 32 and 64 times as many channels.
    groups: The number of groups of each normalisation, a divisor of 16.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `SplitModel` with an embedding of 64 x `widening_factor`.

  Raises:
    ValueError: If the depth is not 10, 16, 22, ..., or if `groups` does not
      divide 16.
  """
  if depth < 10 or depth % 6 != 4:
    raise ValueError(
      f"depth={depth} of a wide ResNet must be one of 10, 16, 22, 28, ..."
    )
  blocks_per_stage = (depth - 4) // 6

  def backbone():
    image = layers.Input(input_shape)
    x = residual.convolve(image, _STEM_CHANNELS, 3, name="stem")
    for stage in range(1, _NUM_STAGES + 1):
      for block in range(1, blocks_per_stage + 1):
        name = f"stage{stage}.block{block}"
        x = _block(
          x,
          channels=_STEM_CHANNELS * 2 ** (stage - 1) * widening_factor,
          strides=2 if stage > 1 and block == 1 else 1,
          groups=groups,
          name=name,
        )
    # Named as a part of the last convolution's layer, so that methods that
    # personalise the last layer get more than a scale and an offset.
    x = layers.ReLU()(residual.normalize(x, groups, name=f"{name}.layer2_last"))
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, x, name="wide_resnet_backbone")

  def head():
    embedding_size = _STEM_CHANNELS * 2 ** (_NUM_STAGES - 1) * widening_factor
    return keras_parts.linear_head(embedding_size, num_classes)

  return split_model.build_split_model(
    f"wide_resnet_{depth}_{widening_factor}",
    backbone=backbone,
    head=head,
    input_dtype=input_dtype,
  )
