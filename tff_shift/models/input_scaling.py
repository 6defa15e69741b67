"""What is done to the pixels of an image before a model sees them.

Images travel as uint8 and become float32 inside the graph, in one place
(`SplitModel.scale`), by the numbers that the model has:

    x = (pixel / 255 - mean) / deviation

with a mean and a deviation for all channels or one for each. The papers of this
package differ in them, and the same run may need twice the rounds with another
choice.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

NAMES = ("zero_one", "minus_one_one", "standardized")

_NUM_LEVELS = 256


@dataclasses.dataclass(frozen=True)
class InputScaling:
  """A mean and a deviation of pixels, in units of the largest, 255.

  Attributes:
    mean: One number for all channels, or one for each.
    deviation: As many, each above 0.
  """

  mean: tuple[float, ...]
  deviation: tuple[float, ...]

  def __post_init__(self):
    if not self.mean or len(self.mean) != len(self.deviation):
      raise ValueError(
        f"input mean {self.mean} and deviation {self.deviation} have to be as"
        " many numbers, at least one"
      )
    if not all(map(math.isfinite, (*self.mean, *self.deviation))) or not all(
      value > 0 for value in self.deviation
    ):
      raise ValueError(
        f"input mean {self.mean} and deviation {self.deviation} have to be"
        " finite, the deviation above 0"
      )

  def __call__(self, x) -> tf.Tensor:
    """Scales images.

    Args:
      x: [..., channels] uint8.

    Returns:
      [..., channels] float32.
    """
    x = tf.cast(x, tf.float32) / 255.0
    if self == ZERO_ONE:
      return x
    mean, deviation = (
      tf.constant(numbers, tf.float32)
      for numbers in (self.mean, self.deviation)
    )
    return (x - mean) / deviation


ZERO_ONE = InputScaling((0.0,), (1.0,))
MINUS_ONE_ONE = InputScaling((0.5,), (0.5,))


def standardized(parts: Iterable[np.ndarray]) -> InputScaling:
  """Returns the scaling that gives each channel mean 0 and deviation 1.

  The numbers are exact but for their last rounding, so they do not depend on
  the order of the images or on how these are cut into parts.

  Args:
    parts: Arrays of images [n, ..., channels] uint8, with one pixel at least.

  Returns:
    Mean and standard deviation of each channel over all images and positions.
    A channel of one value everywhere is only moved to 0.

  Raises:
    ValueError: If there is no pixel.
  """
  counts = sum(map(_count_levels, parts))
  levels = np.arange(_NUM_LEVELS)
  means, deviations = [], []
  for row in np.atleast_2d(counts):
    # Python's integers have no end, which the squares would reach.
    number, total, squares = (
      int(np.sum(row * levels**power)) for power in (0, 1, 2)
    )
    if not number:
      raise ValueError("there is no image to standardise by")
    means.append(total / number / 255)
    spread = math.sqrt(number * squares - total**2) / number / 255
    deviations.append(spread or 1.0)
  return InputScaling(tuple(means), tuple(deviations))


def _count_levels(images: np.ndarray) -> np.ndarray:
  """Counts the pixels of each value, [channels, 256] int64."""
  return np.stack(
    [
      np.bincount(channel.ravel(), minlength=_NUM_LEVELS)
      for channel in np.moveaxis(images, -1, 0)
    ]
  )


def make(name: str, parts: Iterable[np.ndarray]) -> InputScaling:
  """Returns the scaling of a name.

  Args:
    name: One of `NAMES`: pixels become numbers from 0 to 1, from -1 to 1, or of
      mean 0 and deviation 1.
    parts: The images that `standardized` takes its numbers from.

  Returns:
    The scaling.

  Raises:
    ValueError: If the name is unknown, or there is no image to take numbers
      from.
  """
  if name == "standardized":
    return standardized(parts)
  try:
    return {"zero_one": ZERO_ONE, "minus_one_one": MINUS_ONE_ONE}[name]
  except KeyError:
    raise ValueError(
      f"unknown input scaling {name!r}; there are {', '.join(NAMES)}"
    ) from None
