"""Random augmentations of one image, as pure TensorFlow functions.

AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty
(Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan; ICLR 2020), Section 3.
Three chains of one to three operations start from the image; with w from
Dirichlet(1, 1, 1) and m from Beta(1, 1), which is uniform, an augmentation is

    m x + (1 - m) (w_1 chain_1(x) + w_2 chain_2(x) + w_3 chain_3(x)).

The amount of an operation follows from a level, uniform from 0.1 to `strength`.
At the highest level, 10: rotate by 30 degrees, shear by 0.3, translate by a
third of the image, solarise from 0 on, posterise to 0 bits. At level 0:
solarise from 256 on, posterise to 4 bits, others do nothing. Levels in between
are linear; integer amounts are rounded towards their value at level 0, as
published. At MEMO's strength, 1, an image of less than 30 pixels is therefore
not translated, and posterise keeps 4 bits.

Pixels from outside of a rotated, sheared or translated image are 128, as in the
programs of AugMix, MEMO and FedTHE. Those use Pillow's `fillcolor=128`, which
for images of three channels is the dark red (128, 0, 0); here all channels are
128. Pixels from outside of a crop are 0, as in the programs.

Two augmentations are optional, because they change the class of a digit: a flip
(a mirrored 2 is not a 2) and a random crop (AugMix and MEMO shift images of
32x32 by up to 4 pixels).

Choices:
  * Operations are Pillow's, as TensorFlow functions. Mixtures are rounded to
    uint8.
  * There is no flip and no crop before the chains, because they change the
    class of a digit: `augmentation_flip`, `augmentation_crop`;
    `augmentation_strength` and `augmentation_fill` for the rest. MEMO and
    FedTHE+ use the same augmentations.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import image_operations
from tff_shift.learning import randomness
from tff_shift.models import split_model

Operation = image_operations.Operation

_NUM_CHAINS = 3
_MAX_DEPTH = 3
_LOWEST_LEVEL = 0.1
# The level at which operations have their largest amounts.
_HIGHEST_LEVEL = 10.0
# NONE is never drawn.
_NUM_OPERATIONS = len(Operation) - 1


class Chains(NamedTuple):
  """The random draws of augmentations of one image.

  Attributes:
    operations: [count, chains, depth] int32, `Operation.NONE` after the end of
      a chain.
    amounts: The amounts of the operations, [count, chains, depth] float32.
    weights: The weights of the chains, with sum 1, [count, chains] float32.
    share: The weight of the original image, [count] float32.
    shift: The offset, in columns and rows, from which each pixel is taken
      before all operations, [count, 2] int32.
    is_flipped: Whether the image is mirrored before the shift, [count] bool.
  """

  operations: tf.Tensor
  amounts: tf.Tensor
  weights: tf.Tensor
  share: tf.Tensor
  shift: tf.Tensor
  is_flipped: tf.Tensor


def check_images(name: str, model: split_model.SplitModel) -> None:
  """Refuses a model whose examples are not images.

  Args:
    name: The name of the caller, for the error.
    model: The model.

  Raises:
    ValueError: If its examples are not uint8 [height, width, 1 or 3].
  """
  shape = model.input_shape
  if (
    model.input_dtype != tf.uint8 or len(shape) != 3 or shape[-1] not in (1, 3)
  ):
    raise ValueError(
      f"{name}: augmentations need images, uint8 [height, width, 1 or 3], and"
      f" model {model.name!r} takes {model.input_dtype.name} {list(shape)}"
    )


def _amounts(operation, level, is_positive, height, width) -> tf.Tensor:
  """Returns the amounts of operations at levels, in their shape, float32."""
  share = level / _HIGHEST_LEVEL
  sign = tf.where(is_positive, 1.0, -1.0)
  by_operation = {
    Operation.AUTOCONTRAST: tf.zeros_like(share),
    Operation.EQUALIZE: tf.zeros_like(share),
    Operation.POSTERIZE: 4.0 - tf.floor(share * 4),
    Operation.SOLARIZE: 256.0 - tf.floor(share * 256),
    Operation.ROTATE: sign * tf.floor(share * 30),
    Operation.SHEAR_X: sign * share * 0.3,
    Operation.SHEAR_Y: sign * share * 0.3,
    Operation.TRANSLATE_X: sign * tf.floor(share * (width / 3)),
    Operation.TRANSLATE_Y: sign * tf.floor(share * (height / 3)),
  }
  every = [by_operation[Operation(i)] for i in range(_NUM_OPERATIONS)]
  return tf.gather(
    tf.stack(every, axis=-1), operation, batch_dims=len(operation.shape)
  )


def draw_chains(
  seed, count: int, height: int, width: int, strength: float, crop: int = 0
) -> Chains:
  """Draws the chains of some augmentations.

  Args:
    seed: An int32 tensor of shape [2].
    count: The number of augmentations.
    height: The height of the image.
    width: The width of the image.
    strength: The largest level, from 0.1 to 10.
    crop: The maximum shift in pixels, see `augment`.

  Returns:
    The chains.
  """
  steps = [count, _NUM_CHAINS, _MAX_DEPTH]

  def uniform(number, shape):
    return draws.uniform(shape, randomness.fold(seed, number))

  def below(number, shape, end):
    return tf.cast(tf.floor(uniform(number, shape) * end), tf.int32)

  depth = 1 + below(0, [count, _NUM_CHAINS, 1], _MAX_DEPTH)
  operations = below(1, steps, _NUM_OPERATIONS)
  level = _LOWEST_LEVEL + (strength - _LOWEST_LEVEL) * uniform(2, steps)
  amounts = _amounts(operations, level, uniform(3, steps) > 0.5, height, width)
  # Exponential numbers, divided by their sum, are Dirichlet(1, 1, 1).
  numbers = -tf.math.log1p(-uniform(4, [count, _NUM_CHAINS])) + 1e-6
  return Chains(
    operations=tf.where(tf.range(_MAX_DEPTH) < depth, operations, -1),
    amounts=amounts,
    weights=numbers / tf.reduce_sum(numbers, axis=1, keepdims=True),
    share=uniform(5, [count]),
    shift=below(6, [count, 2], 2 * crop + 1) - crop,
    is_flipped=uniform(7, [count]) > 0.5,
  )


def _prepare(pixels, chains: Chains, flip: bool, crop: int) -> tf.Tensor:
  """Flips and shifts the images, as the draws of their chains require."""
  if not flip and not crop:
    return pixels
  n, _, width, _ = pixels.shape
  is_flipped = chains.is_flipped & flip
  zeros, ones = tf.zeros([n]), tf.ones([n])
  shift = tf.cast(chains.shift, tf.float32)
  return image_operations.map_pixels(
    pixels,
    (
      tf.where(is_flipped, -1.0, 1.0),
      zeros,
      tf.where(is_flipped, float(width), 0.0) + shift[:, 0],
      zeros,
      ones,
      shift[:, 1],
    ),
    fill=0,
  )


def augment(
  x,
  seed,
  count: int,
  *,
  strength: float = 1.0,
  flip: bool = False,
  crop: int = 0,
  fill: int = image_operations.FILL,
) -> tf.Tensor:
  """Draws augmentations of one image.

  Args:
    x: The image, [height, width, channels] uint8, of known shape.
    seed: An int32 tensor of shape [2]. The draws also depend on the pixels:
      different images with the same seed get different draws, wherever they are
      in a batch.
    count: The number of augmentations.
    strength: The largest level of an operation, from 0.1 to 10. MEMO uses 1,
      AugMix 3.
    flip: Whether an augmentation starts from the mirror image with probability
      1/2.
    crop: The maximum shift of the image in pixels, in both directions, before
      the chains; pixels from outside are 0.
    fill: The value of pixels from outside of the image after an operation, in
      all channels.

  Returns:
    [count, height, width, channels] uint8, rounded to nearest.
  """
  height, width, _ = x.shape
  # The fingerprint has eight bytes: two int32.
  hashed = tf.reshape(tf.fingerprint(x[tf.newaxis]), [2, 4])
  hashed = tf.bitcast(hashed, tf.int32)
  seed = randomness.fold(seed, hashed[0], hashed[1])
  chains = draw_chains(seed, count, height, width, strength, crop)
  start = tf.repeat(tf.cast(x, tf.int32)[tf.newaxis], count, axis=0)
  start = _prepare(start, chains, flip, crop)

  def take_step(step, moved):
    operation, amount = (
      tf.reshape(each[:, :, step], [count * _NUM_CHAINS])
      for each in (chains.operations, chains.amounts)
    )
    return step + 1, image_operations.transform(moved, operation, amount, fill)

  _, moved = tf.while_loop(
    lambda step, _: step < _MAX_DEPTH,
    take_step,
    (tf.constant(0), tf.repeat(start, _NUM_CHAINS, axis=0)),
    parallel_iterations=1,
  )
  moved = tf.reshape(
    tf.cast(moved, tf.float32), [count, _NUM_CHAINS, *start.shape[1:]]
  )
  mixed = tf.einsum("nchwk,nc->nhwk", moved, chains.weights)
  share = tf.reshape(chains.share, [count, 1, 1, 1])
  mixed = share * tf.cast(start, tf.float32) + (1.0 - share) * mixed
  return tf.cast(tf.clip_by_value(tf.round(mixed), 0, 255), tf.uint8)
