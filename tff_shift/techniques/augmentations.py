"""Random augmentations of one image, as pure TensorFlow functions.

AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty
(Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan; ICLR 2020), Section 3.
Three chains of one to three operations start from the image; with w from
Dirichlet(1, 1, 1) and m from Beta(1, 1), which is uniform, an augmentation is

    m x + (1 - m) (w_1 chain_1(x) + w_2 chain_2(x) + w_3 chain_3(x)).

How much an operation does follows from a level that is uniform from 0.1 to
`strength`. At the highest level, 10, it is: rotate by 30 degrees, shear by 0.3,
translate by a third of the image, solarise from 0 on, posterise to 0 bits; at
0: solarise from 256 on, posterise to 4 bits, else nothing. In between it is in
proportion, and what comes in whole numbers is rounded towards what is at 0, as
published. So at MEMO's strength, 1, an image of less than 30 pixels is not
translated, and posterise leaves 4 bits.

Pixels from outside of a rotated, sheared or translated image are 128, as in the
programs of AugMix, MEMO and FedTHE. Those write Pillow's `fillcolor=128`, which
for images of three channels is the dark red (128, 0, 0); here all channels are
128. Pixels from outside of a crop are 0, as in the programs.

Left out by default, because they change what a digit is: a flip (the mirror
image of a 2 is none) and a random crop (AugMix and MEMO move images of 32x32 by
up to 4 pixels). Both are options.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.techniques import image_operations

Operation = image_operations.Operation

_NUM_CHAINS = 3
_MAX_DEPTH = 3
_LOWEST_LEVEL = 0.1
# The largest level, to which the largest amounts belong.
_HIGHEST_LEVEL = 10.0
# NONE is not drawn.
_NUM_OPERATIONS = len(Operation) - 1


class Chains(NamedTuple):
  """What is drawn for some augmentations of one image.

  Attributes:
    operations: [count, chains, depth] int32, `Operation.NONE` where a chain has
      ended.
    amounts: What the operations are given, [count, chains, depth] float32.
    weights: Those of the chains, which add up to 1, [count, chains] float32.
    share: That of the image as it is, [count] float32.
    shift: From how many columns and rows further each pixel comes before
      anything else is done, [count, 2] int32.
    is_flipped: Whether the image is mirrored before that, [count] bool.
  """

  operations: tf.Tensor
  amounts: tf.Tensor
  weights: tf.Tensor
  share: tf.Tensor
  shift: tf.Tensor
  is_flipped: tf.Tensor


def check_images(name: str, model: split_model.SplitModel) -> None:
  """Refuses a model whose examples are no images.

  Args:
    name: What asks for it, for the error.
    model: The model.

  Raises:
    ValueError: If it takes anything but uint8 [height, width, 1 or 3].
  """
  shape = model.input_shape
  if (
    model.input_dtype != tf.uint8 or len(shape) != 3 or shape[-1] not in (1, 3)
  ):
    raise ValueError(
      f"{name}: augmentations are of images, uint8 [height, width, 1 or 3], and"
      f" model {model.name!r} takes {model.input_dtype.name} {list(shape)}"
    )


def _amounts(operation, level, is_positive, height, width) -> tf.Tensor:
  """Returns what belongs to a level, in the shape of all three, float32."""
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
    height: That of the image.
    width: That of the image.
    strength: The largest level, from 0.1 to 10.
    crop: See `augment`.

  Returns:
    The chains.
  """
  steps = [count, _NUM_CHAINS, _MAX_DEPTH]

  def uniform(number, shape):
    return tf.random.stateless_uniform(shape, randomness.fold(seed, number))

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
  """Flips and crops images, each where that is asked for."""
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
    seed: An int32 tensor of shape [2]. The draws depend on the pixels as well:
      images with one seed have draws of their own, wherever they stand.
    count: The number of augmentations.
    strength: The largest level of an operation, from 0.1 to 10. MEMO has 1,
      AugMix 3.
    flip: Whether every other augmentation starts from the mirror image.
    crop: By how many pixels at most the image is moved, in both directions,
      before the chains; 0 comes in from outside.
    fill: The value of pixels that come from outside of an image that an
      operation moves, in all channels.

  Returns:
    [count, height, width, channels] uint8, rounded to nearest.
  """
  height, width, _ = x.shape
  # Eight bytes, as two numbers.
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
