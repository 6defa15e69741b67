"""ResNet-18 for photographs (Caltran) and for images of 32 x 32.

Sources: Deep Residual Learning for Image Recognition (He et al., CVPR 2016,
https://arxiv.org/abs/1512.03385), Table 1 for the network and option B for the
shortcuts (a 1x1 convolution where the shape changes); Federated Learning under
Evolving Distribution Shifts, Appendix D: convolutions and average pooling are
the representation, the last linear layer the classifier.

Deviations: group normalisation in place of batch normalisation (see
`split_model`). The paper starts from unspecified pre-trained weights;
`split_model.load_weights` reads weights from a file, and without one the
network starts at random. Images must be scaled as in the training of the
weights: see `input_scaling`.
"""

import tensorflow as tf

from tff_shift.models import split_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import residual

_NUM_STAGES = 4
_BLOCKS_PER_STAGE = 2


def trunk(
  input_shape: tuple[int, ...],
  *,
  stem: str,
  width: int,
  groups: int,
  initial_scale: float = 1.0,
) -> tf.keras.Model:
  """Builds the network up to the mean over positions.

  Args:
    input_shape: Height, width and channels of an image.
    stem: The first layers, see `build`.
    width: The channels of the first stage.
    groups: The number of groups of each normalisation.
    initial_scale: The initial scale, see `residual.block`.

  Returns:
    A Keras model from images to vectors of 8 x `width`.

  Raises:
    ValueError: If the stem is unknown or `groups` does not divide `width`.
  """
  if stem not in ("imagenet", "cifar"):
    raise ValueError(f"unknown stem {stem!r}; known stems: imagenet, cifar")
  image = layers.Input(input_shape)
  if stem == "imagenet":
    x = residual.convolve(image, width, 7, strides=2, name="stem")
  else:
    x = residual.convolve(image, width, 3, name="stem")
  x = layers.ReLU()(residual.normalize(x, groups, name="stem"))
  if stem == "imagenet":
    # After a ReLU, zero padding does not change a maximum.
    x = layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))
  for stage in range(1, _NUM_STAGES + 1):
    for block in range(1, _BLOCKS_PER_STAGE + 1):
      x = residual.block(
        x,
        channels=width * 2 ** (stage - 1),
        strides=2 if stage > 1 and block == 1 else 1,
        groups=groups,
        name=f"stage{stage}.block{block}",
        initial_scale=initial_scale,
      )
  x = layers.GlobalAveragePooling2D()(x)
  return tf.keras.Model(image, x, name="resnet18_backbone")


def build(
  input_shape: tuple[int, ...] = (224, 224, 3),
  num_classes: int = 2,
  stem: str = "imagenet",
  width: int = 64,
  groups: int = 16,
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    stem: The first layers. "imagenet": 7x7 convolution at stride 2 and
      max-pooling at stride 2, for large images; "cifar": a 3x3 convolution, for
      images of 32 x 32.
    width: The channels of the first of the four stages; each further stage has
      twice as many.
    groups: The number of groups of each normalisation, a divisor of `width`.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `SplitModel` with an embedding of 8 x `width`.

  Raises:
    ValueError: If the stem is unknown or `groups` does not divide `width`.
  """

  def backbone():
    return trunk(input_shape, stem=stem, width=width, groups=groups)

  def head():
    return keras_parts.linear_head(width * 2 ** (_NUM_STAGES - 1), num_classes)

  return split_model.build_split_model(
    "resnet18", backbone=backbone, head=head, input_dtype=input_dtype
  )
