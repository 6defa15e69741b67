"""Colour as covariate shift: each client has its own colour transform.

FedDRM, Section 3.1 ("Non-IID settings") and Appendix F.2.1 and F.2.2: gamma
correction, a shift of the hue, and a scaling of the saturation, with different
values for each client; with many clients also posterisation, which keeps few
bits of each channel.

Choices:
  * The assignment of values to clients, the order of the steps (saturation,
    hue, gamma, posterisation) and the 2 bits follow the program of FedDRM's
    authors. From client to client, gamma changes first, then hue, then
    saturation.
  * Hue and saturation are those of the HSV colour space, as in `tf.image`. The
    program blends with luma instead of scaling S, and shifts the hue by 25/255
    instead of 0.1.
  * An image is rounded once, after the last step, and never cropped, so that a
    client's images are the same in every round. The program rounds to 8 bits
    after every step and crops at random whenever it reads an image.
  * Grey images are tinted orange (hue 1/12, saturation 1/2, value 1): black has
    no hue, but strokes do.
"""

import itertools
from typing import NamedTuple

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import partition

# The intensity without any change; grey images stay grey.
NONE = "none"

# Level of intensity -> (gamma, hue, saturation), two values each (F.2.2).
INTENSITIES = {
  "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
  "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
  "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
# The finer values for more than the eight clients of a level (F.2.1).
_MANY_CLIENTS = ((0.6, 1.0, 1.4), (-0.15, 0.0, 0.15), (0.4, 1.0, 1.6))
_ALL_BITS = 8
_FEW_BITS = 2

# Orange: hue 1/12, saturation 1/2, value 1.
TINT = (1.0, 0.75, 0.5)

# Images at a time: in float32, some 12 MB of 32x32 colour images.
_CHUNK_SIZE = 1024


class ColorTransform(NamedTuple):
  """The transform of all images of one client; the default changes nothing.

  Attributes:
    gamma: The exponent of the channels in [0, 1]; below 1: brighter.
    hue: Added to the hue, in turns of the colour circle.
    saturation: Factor of the saturation, at least 0.
    posterize_bits: Number of bits that each channel keeps, 1 to 8 (all).
  """

  gamma: float = 1.0
  hue: float = 0.0
  saturation: float = 1.0
  posterize_bits: int = _ALL_BITS


def pool(
  num_clients: int, intensity: str = "high"
) -> tuple[ColorTransform, ...]:
  """Returns the transforms of the clients, all different except with `NONE`.

  Up to 8 clients have the first of the 8 combinations of a level of intensity
  (F.2.2), more clients the first of the 54 combinations of F.2.1. From client
  to client, gamma changes fastest, then the hue, the saturation and the
  posterisation.

  Args:
    num_clients: Number of clients, 1 to 54; with `NONE`, any.
    intensity: One of `INTENSITIES`, with more than 8 clients "high"; or `NONE`
      for no changes.

  Returns:
    The transform of each client.

  Raises:
    ValueError: If there are no or too many clients, or the intensity is unknown
      or does not support this number of clients.
  """
  if intensity == NONE:
    partition.check_positive_integer("num_clients", num_clients)
    return (ColorTransform(),) * num_clients
  arguments.choice("intensity", intensity, (NONE, *INTENSITIES))
  few = _combinations(*INTENSITIES[intensity], (_ALL_BITS,))
  many = _combinations(*_MANY_CLIENTS, (_ALL_BITS, _FEW_BITS))
  if not 1 <= num_clients <= len(many):
    raise ValueError(
      f"num_clients must be 1 to {len(many)}, the number of different colour"
      f" transforms, got {num_clients}; with intensity {NONE} it may be any"
    )
  if num_clients <= len(few):
    return few[:num_clients]
  if intensity != "high":
    raise ValueError(
      f"intensity must be high when num_clients is above {len(few)}, got"
      f" intensity {intensity} and num_clients {num_clients}"
    )
  return many[:num_clients]


def apply(images: np.ndarray, transform: ColorTransform) -> np.ndarray:
  """Transforms the colours of images.

  Args:
    images: `[N, height, width, 3]` uint8, red, green and blue.
    transform: The transform. Steps without effect are skipped, so that the
      default transform returns the images bit for bit.

  Returns:
    A new array of the same shape and dtype.

  Raises:
    ValueError: If the images are not such an array, or a number of the
      transform is out of range.
  """
  _check_images(images, 3)
  gamma, hue, saturation, bits = transform
  # Written so that NaN is refused too.
  if not (gamma > 0 and -1 <= hue <= 1 and saturation >= 0):
    raise ValueError(
      "transform must have gamma > 0, hue in [-1, 1] and saturation >= 0, got"
      f" {transform}"
    )
  if bits not in range(1, _ALL_BITS + 1):
    raise ValueError(f"posterize_bits must be 1 to {_ALL_BITS}, got {bits}")
  result = images.copy()
  if (gamma, hue, saturation) != (1, 0, 1):
    for start in range(0, len(images), _CHUNK_SIZE):
      chunk = slice(start, start + _CHUNK_SIZE)
      result[chunk] = _adjusted(images[chunk], gamma, hue, saturation)
  # The highest bits: 11000000 for two of them.
  result &= np.uint8(256 - 2 ** (_ALL_BITS - bits))
  return result


def tint(images: np.ndarray) -> np.ndarray:
  """Colours grey images by `TINT`, so that they have a hue and a saturation.

  White becomes a bright orange and black stays black. The red channel is the
  grey image itself, so no information is lost. The three channels differ, so a
  shift of the hue changes all of them. A saturation of 1/2 allows the largest
  factor, 1.6, without clipping at 1.

  Args:
    images: `[N, height, width, 1]` uint8.

  Returns:
    `[N, height, width, 3]` uint8, rounded to nearest.

  Raises:
    ValueError: If the images are not such an array.
  """
  _check_images(images, 1)
  # A table of 256 colours, so that no images are held as floats.
  colors = np.rint(np.outer(np.arange(256), TINT)).astype(np.uint8)
  return colors[images[..., 0]]


def _combinations(
  gammas: tuple[float, ...],
  hues: tuple[float, ...],
  saturations: tuple[float, ...],
  bits: tuple[int, ...],
) -> tuple[ColorTransform, ...]:
  """Returns all combinations; gamma changes fastest and bits slowest."""
  # itertools.product changes its last factor fastest.
  slow_to_fast = itertools.product(bits, saturations, hues, gammas)
  return tuple(ColorTransform(*values[::-1]) for values in slow_to_fast)


def _adjusted(
  images: np.ndarray, gamma: float, hue: float, saturation: float
) -> np.ndarray:
  """Scales the saturation, shifts the hue, corrects gamma, and rounds."""
  # Here, so that other data do not import TensorFlow.
  import tensorflow as tf

  # On the CPU everywhere, so that images do not depend on a GPU.
  with tf.device("CPU"):
    x = tf.image.convert_image_dtype(images, tf.float32)
    if saturation != 1:
      x = tf.image.adjust_saturation(x, saturation)
    if hue != 0:
      x = tf.image.adjust_hue(x, hue)
    if gamma != 1:
      # Values slightly below 0, from the change of colour space, have no power.
      x = tf.image.adjust_gamma(tf.clip_by_value(x, 0, 1), gamma)
    return np.rint(255 * x.numpy().clip(0, 1)).astype(np.uint8)


def _check_images(images: np.ndarray, num_channels: int) -> None:
  """Raises ValueError unless images are uint8 with this number of channels."""
  if (
    images.dtype != np.uint8
    or images.ndim != 4
    or images.shape[-1] != num_channels
  ):
    raise ValueError(
      f"images must be uint8 [N, height, width, {num_channels}], got"
      f" {images.dtype} {list(images.shape)}"
    )
