"""LeNet with a guide, which branches off at a chosen depth.

Source: FedDRM, Appendix F.2.3 and Fig. 12: "no sharing, shallow sharing, mid
sharing, and deep sharing". The paper gives no sizes; they follow the authors'
program (https://github.com/zijianwang0510/FedDRM):

    convolution 5x5, 32; normalisation in 8 groups; ReLU; maximum of 2x2
    convolution 5x5, 64; normalisation in 16 groups; ReLU; maximum of 2x2
    two linear layers, 512 and 256, each with layer normalisation and ReLU
    for each task: one such layer of 128, then a linear layer to the logits

The two tasks branch after nothing ("none"), the first convolution ("shallow"),
the second ("mid") or the linear layers ("deep"); each has its own copy of the
rest. Kernels and biases start uniformly in +-1 / sqrt(inputs of a unit), as in
that program.
"""

import math

import tensorflow as tf

from tff_shift.models import guided_model
from tff_shift.models.keras import fixed_layers as layers
from tff_shift.models.networks import projection
from tff_shift.models.networks import residual
from tff_shift.models.networks import shared_stages

_KERNEL_SIZE = 5
_CHANNELS_AND_GROUPS = ((32, 8), (64, 16))
_LINEAR_WIDTHS = (512, 256)
_BRANCH_WIDTH = 128
_SMALLEST_IMAGE = 16


def _initializers(num_inputs: int):
  bound = 1 / math.sqrt(num_inputs)
  return {
    name: tf.keras.initializers.RandomUniform(-bound, bound)
    for name in ("kernel_initializer", "bias_initializer")
  }


def _convolve(x, index: int):
  """Applies one of the two convolutional stages, counted from 1."""
  channels, groups = _CHANNELS_AND_GROUPS[index - 1]
  x = layers.Conv2D(
    channels,
    _KERNEL_SIZE,
    name=f"layer{index}_convolution",
    **_initializers(_KERNEL_SIZE**2 * x.shape[-1]),
  )(x)
  x = residual.normalize(x, groups, name=f"layer{index}")
  return layers.MaxPooling2D(2)(layers.ReLU()(x))


def _project(x, width: int, name: str):
  return projection.project(x, width, name=name, **_initializers(x.shape[-1]))


def _connect(x):
  """Applies the stage of the linear layers."""
  x = layers.Flatten()(x)
  for index, width in enumerate(
    _LINEAR_WIDTHS, start=len(_CHANNELS_AND_GROUPS) + 1
  ):
    x = _project(x, width, f"layer{index}")
  return x


def _linear(x, units: int, name: str):
  return projection.linear(x, units, name=name, **_initializers(x.shape[-1]))


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  num_clients: int = 8,
  sharing: str = "deep",
  input_dtype: tf.DType = tf.uint8,
) -> guided_model.GuidedModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image, 16 x 16 or larger.
    num_classes: The number of classes.
    num_clients: The number of clients.
    sharing: The shared stages. "none": nothing; "shallow": the first
      convolution; "mid": both; "deep": also the linear layers of 512 and 256.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `GuidedModel` with an embedding of 128.

  Raises:
    ValueError: If `sharing` is unknown or the image is too small.
  """
  if sharing not in shared_stages.SHARED_STAGES:
    raise ValueError(
      f"unknown sharing {sharing!r}; known:"
      f" {', '.join(shared_stages.SHARED_STAGES)}"
    )
  if min(input_shape[:2]) < _SMALLEST_IMAGE:
    raise ValueError(
      f"input_shape={input_shape} of LeNet must be {_SMALLEST_IMAGE} x"
      f" {_SMALLEST_IMAGE} or larger"
    )
  stages = (lambda x: _convolve(x, 1), lambda x: _convolve(x, 2), _connect)
  num_shared = shared_stages.SHARED_STAGES[sharing]

  def trunk():
    x = image = layers.Input(input_shape)
    for stage in stages[:num_shared]:
      x = stage(x)
    return tf.keras.Model(image, x, name="lenet_trunk")

  feature_shape = trunk().output_shape[1:] if num_shared else input_shape

  def branch(x):
    for stage in stages[num_shared:]:
      x = stage(x)
    return _project(x, _BRANCH_WIDTH, "projection")

  def target_branch():
    features = layers.Input(feature_shape)
    return tf.keras.Model(features, branch(features), name="target_branch")

  def client_branch():
    features = layers.Input(feature_shape)
    logits = _linear(branch(features), num_clients, "client_classifier")
    return tf.keras.Model(features, logits, name="client_branch")

  def head():
    embedding = layers.Input((_BRANCH_WIDTH,))
    logits = _linear(embedding, num_classes, "classifier")
    return tf.keras.Model(embedding, logits, name="head")

  return guided_model.build_guided_model(
    f"lenet_{sharing}",
    trunk=trunk if num_shared else None,
    target_branch=target_branch,
    head=head,
    client_branch=client_branch,
    input_dtype=input_dtype,
  )
