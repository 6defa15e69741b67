"""Building blocks of the operators in `corruption_operators.py`.

Images are `[N, height, width, channels]` float32. Functions process images
independently, and the order of floating-point operations on an image does not
depend on the batch size: a batch of one gives the same bits.
"""

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
from PIL import Image
from scipy import ndimage
from scipy import sparse

Images = np.ndarray
Generators = Sequence[np.random.Generator]

# Weights of red, green and blue in grey, ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)


def normal(rngs: Generators, shape: Sequence[int]) -> np.ndarray:
  """Draws `[N, *shape]` float32 standard normal values."""
  return np.stack([rng.standard_normal(shape, np.float32) for rng in rngs])


def uniform(rngs: Generators, shape: Sequence[int]) -> np.ndarray:
  """Draws `[N, *shape]` float32 values in [0, 1)."""
  return np.stack([rng.random(shape, np.float32) for rng in rngs])


def rounded_down(images: Images) -> np.ndarray:
  """Returns the whole numbers below 255 times the values, `0..255` float32."""
  # The added amount corrects rounding errors of float32 at whole numbers.
  return np.floor(255 * images.clip(0, 1) + np.float32(1e-4))


def largest(images: Images) -> np.ndarray:
  """Returns the largest value of each image, `[N, 1, 1, 1]`, never 0."""
  values = images.max(axis=(1, 2, 3), keepdims=True)
  return np.where(values > 0, values, np.float32(1))


def grey(images: Images) -> np.ndarray:
  """Returns the luma (ITU-R BT.601) of images, `[N, height, width, 1]`."""
  if images.shape[3] == 1:
    return images
  return np.asarray(
    sum(
      weight * images[..., channel, np.newaxis]
      for channel, weight in enumerate(_LUMA)
    )
  )


def tinted(
  layer: np.ndarray, color: tuple[float, float, float], num_channels: int
) -> Images:
  """Returns a layer of one channel in a colour.

  Args:
    layer: `[N, height, width, 1]` float32.
    color: Red, green and blue in [0, 1].
    num_channels: 3, or 1 for the luma of the colour.

  Returns:
    `[N, height, width, num_channels]` float32.
  """
  if num_channels == 1:
    return layer * np.float32(np.dot(color, _LUMA))
  return layer * np.array(color, np.float32)


def blur(images: Images, sigma: float) -> Images:
  """Blurs with a Gaussian; the nearest pixel is repeated beyond the edge."""
  return ndimage.gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")


def smear(
  images: Images, angles: np.ndarray, radius: float, sigma: float
) -> np.ndarray:
  """Averages along a line that starts at each pixel, by half a Gaussian.

  Args:
    images: `[N, height, width, channels]` float32.
    angles: `[N]` degrees, from the right downwards.
    radius: Half of the length of the line, in pixels.
    sigma: Standard deviation of the Gaussian, in pixels.

  Returns:
    An array of the same shape; the nearest pixel is repeated beyond the edge.
  """
  height, width = images.shape[1:3]
  reach = math.ceil(2 * radius)
  distances = np.arange(reach + 1)
  weights = np.exp(-(distances**2) / (2 * sigma**2))
  weights = (weights / weights.sum()).astype(np.float32)
  margin = ((0, 0), (reach, reach), (reach, reach), (0, 0))
  padded = np.pad(images, margin, mode="edge")
  radians = np.deg2rad(angles)[:, np.newaxis]
  tops = reach + np.rint(distances * np.sin(radians)).astype(np.int64)
  lefts = reach + np.rint(distances * np.cos(radians)).astype(np.int64)
  result = np.zeros_like(images)
  for smeared, image, top, left in zip(
    result, padded, tops, lefts, strict=True
  ):
    for weight, y, x in zip(weights, top, left, strict=True):
      smeared += weight * image[y : y + height, x : x + width]
  return result


def zoom(images: Images, factors: tuple[float, ...]) -> np.ndarray:
  """Averages zooms into the middle of images, one for each factor.

  As in CIFAR-10-C, a zoom cuts out whole pixels, stretches them to whole pixels
  and crops the result. It differs slightly from its factor, and its middle from
  the image's middle.

  Args:
    images: `[N, height, width, channels]` float32.
    factors: Each at least 1; all are averaged.

  Returns:
    `[N, height, width, channels]` float32.
  """
  num_images, height, width, channels = images.shape
  # One column per image and channel: a sparse matrix then maps the pixels.
  columns = images.transpose(1, 2, 0, 3).reshape(height * width, -1)
  zoomed = _zoom_matrix(height, width, factors) @ columns
  return zoomed.reshape(height, width, num_images, channels).transpose(
    2, 0, 1, 3
  )


@functools.lru_cache(maxsize=16)
def _zoom_matrix(
  height: int, width: int, factors: tuple[float, ...]
) -> sparse.csr_matrix:
  """Returns `[height * width, height * width]`, the mean of the zooms."""
  zooms = [
    sparse.kron(
      _interpolation(_sources(height, factor)),
      _interpolation(_sources(width, factor)),
      "csr",
    )
    for factor in factors
  ]
  return (sum(zooms[1:], zooms[0]) / len(factors)).astype(np.float32)


def _sources(length: int, factor: float) -> np.ndarray:
  """Returns the sources for a stretched piece of whole pixels."""
  piece = math.ceil(length / factor)
  stretched = round(piece * factor)
  first = (length - piece) // 2
  left_out = (stretched - length) // 2
  # The outermost pixels of the piece become the outermost stretched ones.
  share = (np.arange(length) + left_out) / (stretched - 1)
  return first + share * (piece - 1)


def _interpolation(sources: np.ndarray) -> sparse.csr_matrix:
  """Returns the linear interpolation of a line at `[length]` positions."""
  length = len(sources)
  lower = np.floor(sources).astype(np.int64).clip(0, length - 2)
  upper_weight = sources - lower
  rows = np.arange(length)
  return sparse.csr_matrix(
    (
      np.concatenate([1 - upper_weight, upper_weight]),
      (np.tile(rows, 2), np.concatenate([lower, lower + 1])),
    ),
    shape=(length, length),
  )


def sample(
  images: Images, moves: np.ndarray, *, repeat_edge: bool = False
) -> np.ndarray:
  """Reads every pixel at a moved position: bilinear, mirrored at the edges.

  Args:
    images: `[N, height, width, channels]` float32.
    moves: `[N, height, width, 2]` float32, rows down and columns right.
    repeat_edge: Whether the mirror is behind the edge pixels, so that they are
      repeated, or in them.

  Returns:
    An array of the shape of `images`.
  """
  image = np.arange(len(images))[:, np.newaxis, np.newaxis]
  corners, weights = [], []
  for axis in (0, 1):
    last = images.shape[1 + axis] - 1
    places = np.indices(images.shape[1:3], np.float32)[axis] + moves[..., axis]
    if repeat_edge:
      side = last + 1
      places = side - np.abs((places + 0.5) % (2 * side) - side) - 0.5
      places = places.clip(0, last)
    else:
      places = last - np.abs(places % (2 * last) - last)
    lower = places.astype(np.int64).clip(0, last - 1)
    corners.append((lower, lower + 1))
    upper_weight = (places - lower)[..., np.newaxis]
    weights.append((1 - upper_weight, upper_weight))
  return sum(
    weights[0][down]
    * weights[1][right]
    * images[image, corners[0][down], corners[1][right]]
    for down in (0, 1)
    for right in (0, 1)
  )


def plasma(rngs: Generators, side: int, decay: float) -> np.ndarray:
  """Draws plasma fractals by the diamond-square algorithm, on a torus.

  Args:
    rngs: One generator per fractal.
    side: The minimum height and width.
    decay: The noise shrinks by its square from one grid to the next finer one.

  Returns:
    `[N, size, size]` float32 from 0 to 1, where `size` is the smallest power of
    two that is at least `side`.
  """
  size = 2 ** math.ceil(math.log2(side))
  noise = 2 * uniform(rngs, (size, size)) - 1
  plasma = np.zeros_like(noise)
  step, amplitude = size, 1.0
  while step > 1:
    half = step // 2
    corners = plasma[:, ::step, ::step]
    # First the middles of the squares: the mean of four corners plus noise.
    pairs = corners + np.roll(corners, -1, axis=1)
    middles = np.s_[:, half::step, half::step]
    plasma[middles] = (pairs + np.roll(pairs, -1, axis=2)) / 4
    plasma[middles] += amplitude * noise[middles]
    # Then the middles of their sides, between two corners and two middles.
    for edges, along, across in (
      (np.s_[:, ::step, half::step], 2, 1),
      (np.s_[:, half::step, ::step], 1, 2),
    ):
      total = corners + np.roll(corners, -1, axis=along)
      total += plasma[middles] + np.roll(plasma[middles], 1, axis=across)
      plasma[edges] = total / 4 + amplitude * noise[edges]
    step, amplitude = half, amplitude / decay**2
  plasma -= plasma.min(axis=(1, 2), keepdims=True)
  return plasma / plasma.max(axis=(1, 2), keepdims=True)


def by_pillow(
  images: Images, operation: Callable[[Image.Image], Image.Image]
) -> np.ndarray:
  """Applies an operation of Pillow to each image."""
  pixels = np.rint(255 * images).astype(np.uint8)
  if images.shape[3] == 1:
    pixels = pixels[..., 0]
  changed = [np.asarray(operation(Image.fromarray(image))) for image in pixels]
  return (np.stack(changed).astype(np.float32) / 255).reshape(images.shape)
