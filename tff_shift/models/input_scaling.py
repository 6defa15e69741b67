"""Scaling of pixels or features before a model.

Images are passed as uint8 and become float32 inside the graph, in one place
(`SplitModel.scale`), with the model's mean and standard deviation:

    x = (pixel / 255 - mean) / deviation

Both are one number for all channels, or one for each channel. Papers use
different values, and the same run may need twice the rounds with another
choice.

Vectors of floating-point numbers can be scaled there too, feature by feature:

    x = (feature - mean) / deviation

since features in their own units (years, euros) differ by orders of magnitude,
and no single step size suits all of them. By default they are not scaled. The
scaling is part of the model, and therefore of a saved model.

Choices:
  * FedEvolve: 0 to 1. On rotated MNIST, standardized pixels cost FedEvolve 2.5
    to 7 points; on digits all methods gain (results/evolving.md).
  * Fed-ADE has "dataset-wide mean and standard deviation" for CIFAR-10 and
    nothing for other data sets: `standardized` for all, by the images of
    pre-training.
  * FedDRM: -1 to 1, as in the authors' program. From 0 to 1 it takes twice the
    rounds to the same accuracy (10 rounds of CIFAR-10, two seeds).
  * Fed-3DA: 0 to 1; standardized in the presets of CIFAR-10 and CIFAR-100, by
    measurement (results/dynamic_personalization.md).
  * The scaling is a property of the model, in its graph: every user of the
    model scales in the same way, and a pre-trained model in a cache belongs to
    its mean and standard deviation.
  * `standardized` computes mean and standard deviation from the pooled training
    examples of the first seed, outside of the federation; one model serves all
    seeds. For other values, such as those of an archive or those on which a
    population can agree, set the flags. config.json has the values as flags,
    and `--resume` refuses others.
  * Vectors are not standardized unless requested, not even in
    `online_adaptation`, where images are: the points of `circle`, and results
    on them, would change. Mean and standard deviation are in float64; a
    constant feature becomes 0. Distances, representations and public inputs use
    the same scale, because in raw units the largest feature would dominate.
    Values above 100 give only a warning: not every saturated network diverges.
"""

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_shift._util import arguments
from tff_shift.data import examples as examples_lib

NAMES = ("zero_one", "minus_one_one", "standardized")

_NUM_LEVELS = 256
# Networks are made for inputs near 1; standardized inputs rarely exceed this.
_LARGE = 10
# Standard deviations that no example is away from a mean by chance.
_EXTREME = 1_000
_NUM_LISTED = 3


@dataclasses.dataclass(frozen=True)
class InputScaling:
  """Mean and standard deviation of pixels (divided by 255) or of features.

  Attributes:
    mean: One number for all channels or features, or one for each.
    deviation: The standard deviation of each mean, above 0.
  """

  mean: tuple[float, ...]
  deviation: tuple[float, ...]

  def __post_init__(self):
    if not self.mean or len(self.mean) != len(self.deviation):
      raise ValueError(
        f"input mean {self.mean} and deviation {self.deviation} must have the"
        " same length, at least 1"
      )
    # The mean of features may be arbitrarily close to 0.
    if not all(
      abs(value) <= np.finfo(np.float32).max for value in self.mean
    ) or not all(
      arguments.is_float32(value) and value > 0 for value in self.deviation
    ):
      raise ValueError(
        f"input mean {self.mean} and deviation {self.deviation} must be"
        f" finite and {arguments.FLOAT32}, the deviation above 0"
      )

  def __call__(self, x) -> tf.Tensor:
    """Scales images.

    Args:
      x: [..., channels] uint8.

    Returns:
      [..., channels] float32.
    """
    return self.of_features(tf.cast(x, tf.float32) / 255.0)

  def of_features(self, x) -> tf.Tensor:
    """Scales features, [..., features] float32; `ZERO_ONE` changes nothing."""
    if self == ZERO_ONE:
      return x
    mean, deviation = (
      tf.constant(numbers, tf.float32)
      for numbers in (self.mean, self.deviation)
    )
    return (x - mean) / deviation

  def of_array(self, x: np.ndarray) -> np.ndarray:
    """Scales features as `of_features` does, [..., features], in NumPy."""
    if self == ZERO_ONE:
      return x
    mean, deviation = (
      np.asarray(numbers, np.float32) for numbers in (self.mean, self.deviation)
    )
    return (x - mean) / deviation

  def undone(self, x: np.ndarray) -> np.ndarray:
    """Returns the features [..., features] whose scaled values are given."""
    return x * np.asarray(self.deviation) + np.asarray(self.mean)


ZERO_ONE = InputScaling((0.0,), (1.0,))
MINUS_ONE_ONE = InputScaling((0.5,), (0.5,))


def standardized(parts: Iterable[np.ndarray]) -> InputScaling:
  """Returns the scaling to mean 0 and standard deviation 1.

  For images, mean and standard deviation are exact up to their last rounding:
  they depend neither on the order of the images nor on the division into parts.
  For features, they are sums of float64 values, part by part.

  Args:
    parts: Arrays of images [n, ..., channels] uint8, or of floating-point
      numbers [n, ..., features], with at least one pixel or number.

  Returns:
    Mean and standard deviation of each channel or feature over all examples and
    positions. Channels or features that are constant, up to the rounding of
    float32, are only shifted to 0.

  Raises:
    ValueError: If there are no examples.
  """
  parts = list(parts)
  if parts and parts[0].dtype != np.uint8:
    return _of_features(parts)
  counts = sum(map(_count_levels, parts))
  levels = np.arange(_NUM_LEVELS)
  means, deviations = [], []
  for row in np.atleast_2d(counts):
    # Python integers, because the squares could overflow.
    number, total, squares = (
      int(np.sum(row * levels**power)) for power in (0, 1, 2)
    )
    if not number:
      raise ValueError("there is no image to standardise by")
    means.append(total / number / 255)
    spread = math.sqrt(number * squares - total**2) / number / 255
    deviations.append(spread or 1.0)
  return InputScaling(tuple(means), tuple(deviations))


def _of_features(parts: Sequence[np.ndarray]) -> InputScaling:
  """Returns the scaling of features, see `standardized`."""
  rows = examples_lib.feature_rows(parts)
  if not rows:
    raise ValueError("there is no example to standardise by")
  number = sum(map(len, rows))
  mean = sum(each.sum(axis=0, dtype=np.float64) for each in rows) / number
  # In two passes, since means can be far larger than standard deviations.
  variance = sum(np.square(each - mean).sum(axis=0) for each in rows) / number
  deviation = np.sqrt(variance)
  low, high = (
    least([least(each, axis=0) for each in rows], axis=0)
    for least in (np.min, np.max)
  )
  is_constant = (low == high) | examples_lib.is_rounding(deviation, mean)
  return InputScaling(
    tuple(np.where(low == high, low, mean).tolist()),
    tuple(np.where(is_constant, 1.0, deviation).tolist()),
  )


def advice(
  dtype: tf.DType, scaling: InputScaling, parts: Iterable[np.ndarray] = ()
) -> str:
  """Returns advice for a diverged run, beside a smaller learning rate.

  Args:
    dtype: The type of the examples.
    scaling: The model's scaling.
    parts: Training examples.

  Returns:
    For unscaled features, the end of a sentence; "" for images, words, and
    features that are scaled or not large.
  """
  if dtype != tf.float32 or scaling != ZERO_ONE:
    return ""
  largest = max((np.abs(each).max(initial=0) for each in parts), default=None)
  if largest is None:
    which = "for features"
  elif largest > _LARGE:
    which = f"with features as large as {largest:.3g}"
  else:
    return ""
  return f" or, {which}, --input_scaling=standardized"


def extremes(
  scaling: InputScaling,
  parts: Sequence[np.ndarray],
  names: Sequence[str] = (),
) -> str:
  """Describes features that are extreme after scaling.

  Args:
    scaling: The scaling.
    parts: Examples of training and evaluation, [n, ..., features].
    names: The names of the features. Empty: they have none.

  Returns:
    The features, for a message; "" if there is none.
  """
  rows = examples_lib.feature_rows(parts)
  if not rows or scaling == ZERO_ONE:
    return ""
  with np.errstate(over="ignore"):
    largest = np.max(
      [np.abs(scaling.of_array(part)).max(axis=0) for part in rows], axis=0
    )
  listed = [
    f"{examples_lib.feature_name(names, place)} ({largest[place]:.3g})"
    for place in np.flatnonzero(largest > _EXTREME).tolist()
  ]
  more = f", and {len(listed) - _NUM_LISTED} more" * (len(listed) > _NUM_LISTED)
  return ", ".join(listed[:_NUM_LISTED]) + more


def _count_levels(images: np.ndarray) -> np.ndarray:
  """Counts the pixels of each value, [channels, 256] int64."""
  return np.stack(
    [
      np.bincount(channel.ravel(), minlength=_NUM_LEVELS)
      for channel in np.moveaxis(images, -1, 0)
    ]
  )


def make(name: str, parts: Iterable[np.ndarray]) -> InputScaling:
  """Returns a scaling by name.

  Args:
    name: One of `NAMES`: pixels become numbers from 0 to 1, from -1 to 1, or of
      mean 0 and standard deviation 1.
    parts: The images or features for `standardized`.

  Returns:
    The scaling.

  Raises:
    ValueError: If the name is unknown, or there are no examples.
  """
  if name == "standardized":
    return standardized(parts)
  arguments.choice("input_scaling", name, NAMES)
  return {"zero_one": ZERO_ONE, "minus_one_one": MINUS_ONE_ONE}[name]
