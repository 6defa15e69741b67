"""Layers on the images of CIFAR-10-C: the ice of `frost`, drops of water.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019).

Their ice is cut out of photographs. Here it is noise with the photographs' mean
colours, standard deviations and approximate correlation between neighbouring
pixels.

Their water operations are OpenCV's on 8-bit images, reimplemented here: edges
by the algorithm of J. Canny ("A Computational Approach to Edge Detection", IEEE
TPAMI 8, 1986), distances by the 5 x 5 chamfer of G. Borgefors ("Distance
Transformations in Digital Images", CVGIP 34, 1986), histogram equalisation, and
an emboss filter.
"""

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from tff_shift.data.images import corruption_primitives as primitives
from tff_shift.data.images.corruption_primitives import Generators

# The photographs at a fifth of their size: mean red, green and blue, and
# standard deviation of grey, out of 255. Two of the five are the same.
_PHOTOGRAPHS = (
  (78, 149, 166, 18),
  (201, 205, 214, 22),
  (201, 205, 214, 22),
  (138, 153, 165, 28),
  (112, 123, 135, 43),
)
# The octaves of ice: the blur of the noise in pixels, and their fractions of
# the variance; the rest is variance between pieces of a photograph.
_ICE_OCTAVES = ((0.4, 0.5), (1, 0.15), (3, 0.15))
_ICE_BETWEEN = 0.2

# Brightens surfaces that rise from the upper left to the lower right.
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)

# Canny's thresholds: a gradient above the first is an edge if it is connected
# to one above the second. Gradients are sums of absolute Sobel filters.
_WEAK, _STRONG = 50, 150
# The largest distance, in pixels of an image of 32 x 32.
_FARTHEST = 20
# The cost of steps to the side, the diagonal and a knight's move: 1, 1.4 and
# 2.1969, as OpenCV's binary fractions, which affect rounding down.
_STEPS = ((0, 1, 1.0), (1, 1, 91750 / 2**16), (1, 2, 143976 / 2**16))
# A direction is along an axis within 22.5 degrees of it.
_AXIS = np.tan(np.pi / 8)


def ice(rngs: Generators, shape: Sequence[int], scale: float) -> np.ndarray:
  """Draws a piece of ice for each image.

  Args:
    rngs: One generator per image.
    shape: Height, width and channels of an image, 3 or 1.
    scale: 1 for images of 32 x 32; the texture grows in proportion to it.

  Returns:
    `[N, height, width, channels]` float32 in [0, 1].
  """
  photographs = [rng.integers(len(_PHOTOGRAPHS)) for rng in rngs]
  drawn = np.array(_PHOTOGRAPHS, np.float32)[photographs] / 255
  drawn = drawn[:, np.newaxis, np.newaxis]
  color, deviation = drawn[..., :3], drawn[..., 3:]
  between = primitives.normal(rngs, (1, 1, 1))
  noise = primitives.normal(rngs, (*shape[:2], len(_ICE_OCTAVES)))
  texture = np.sqrt(_ICE_BETWEEN) * between
  for octave, (sigma, share) in enumerate(_ICE_OCTAVES):
    smooth = primitives.blur(noise[..., octave, np.newaxis], scale * sigma)
    spread = smooth.std(axis=(1, 2, 3), keepdims=True, dtype=np.float64)
    smooth = smooth / spread.astype(np.float32)
    texture = texture + np.sqrt(share) * smooth
  if shape[2] == 1:
    color = primitives.grey(color)
  return (color + deviation * texture).clip(0, 1).astype(np.float32)


def light(surface: np.ndarray, inside: np.ndarray, scale: float) -> np.ndarray:
  """Returns the light reflected by drops of water.

  Args:
    surface: `[N, height, width, 1]` float32, the thickness of the water.
    inside: `[N, height, width, 1]` bool, the area of the drops.
    scale: 1 for images of 32 x 32; distances are proportional to it.

  Returns:
    `[N, height, width, 1]` float32, at least 0 and 0 outside of drops, in an
    arbitrary unit.
  """
  thickness = np.floor(255 * np.where(inside, surface, 0).clip(0, 1))[..., 0]
  distance = _distance(_edges(thickness), scale * _FARTHEST)
  # The added millionth corrects rounding errors of whole numbers.
  levels = np.floor(_mean_of_9(distance) + 1e-6).clip(0, 255)
  shades = ndimage.correlate(
    _equalized(levels), _EMBOSS[np.newaxis], mode="mirror"
  )
  shades = np.rint(_mean_of_9(shades.clip(0, 255)))
  return (thickness / 255 * shades).astype(np.float32)[..., np.newaxis]


def _mean_of_9(images: np.ndarray) -> np.ndarray:
  """Returns the mean over 3 x 3 pixels of `[N, height, width]` images."""
  return ndimage.uniform_filter(images, (0, 3, 3), mode="mirror")


def _edges(images: np.ndarray) -> np.ndarray:
  """Returns the edges of `[N, height, width]` images of 0..255, bool."""
  down, right = (
    ndimage.correlate1d(
      ndimage.correlate1d(images, [-1, 0, 1], axis, mode="nearest"),
      [1, 2, 1],
      3 - axis,
      mode="nearest",
    )
    for axis in (1, 2)
  )
  gradient = np.abs(down) + np.abs(right)
  padded = np.pad(gradient, ((0, 0), (1, 1), (1, 1)))
  height, width = images.shape[1:]

  def beside(rows: int, columns: int) -> np.ndarray:
    return padded[
      :, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width
    ]

  # An edge is a maximum of the gradient along its own direction. Of two equal
  # ones along an axis the later one counts, along a diagonal neither.
  along_width = np.abs(down) < _AXIS * np.abs(right)
  along_height = _AXIS * np.abs(down) > np.abs(right)
  falls = down * right < 0
  largest = np.select(
    [along_width, along_height, falls],
    [
      (gradient > beside(0, -1)) & (gradient >= beside(0, 1)),
      (gradient > beside(-1, 0)) & (gradient >= beside(1, 0)),
      (gradient > beside(-1, 1)) & (gradient > beside(1, -1)),
    ],
    (gradient > beside(-1, -1)) & (gradient > beside(1, 1)),
  )
  # Pixels of one image are connected by their sides and corners.
  touching = np.zeros((3, 3, 3), bool)
  touching[1] = True
  labels, num_labels = ndimage.label(largest & (gradient > _WEAK), touching)
  is_edge = np.zeros(num_labels + 1, bool)
  is_edge[labels[largest & (gradient > _STRONG)]] = True
  return is_edge[labels]


def _distance(edges: np.ndarray, farthest: float) -> np.ndarray:
  """Returns the distance to the next edge, `[N, height, width]` float64."""
  distance = np.where(edges, 0.0, farthest)
  height, width = edges.shape[1:]
  steps = {
    (rows * down, columns * right, cost)
    for a, b, cost in _STEPS
    for rows, columns in ((a, b), (b, a))
    for down in (-1, 1)
    for right in (-1, 1)
  }
  while True:
    padded = np.pad(
      distance, ((0, 0), (2, 2), (2, 2)), constant_values=farthest
    )
    shorter = distance
    for rows, columns, cost in steps:
      beside = padded[
        :, 2 + rows : 2 + rows + height, 2 + columns : 2 + columns + width
      ]
      shorter = np.minimum(shorter, beside + cost)
    if np.array_equal(shorter, distance):
      return distance
    distance = shorter


def _equalized(levels: np.ndarray) -> np.ndarray:
  """Equalises the histogram of levels over 0..255.

  Args:
    levels: `[N, height, width]` float, whole numbers of 0..255.

  Returns:
    `[N, height, width]` float32. The lowest level of an image becomes 0; an
    image with one level is not changed.
  """
  equalized = levels.astype(np.float32)
  for image, result in zip(levels.astype(np.int64), equalized, strict=True):
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = counts[image.min()]
    if lowest < image.size:
      above = np.cumsum(counts) - lowest
      result[:] = np.rint(255 * above / (image.size - lowest))[image]
  return equalized
