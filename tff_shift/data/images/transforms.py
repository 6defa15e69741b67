"""Image transforms before images reach a client."""

import math

import numpy as np
from scipy import ndimage


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
  """Rotates a batch of images about their centre by one angle.

  Bilinear interpolation; pixels from outside of an image are 0. Multiples of 90
  degrees move the pixels of square images without interpolation, as `np.rot90`
  does, and multiples of 360 change nothing.

  Args:
    images: `[N, height, width, channels]`, any real dtype. Integers are rounded
      to nearest.
    degrees: Angle. Positive angles rotate counter-clockwise, with row 0 at the
      top.

  Returns:
    A new array of the same shape and dtype.

  Raises:
    ValueError: If `images` does not have four axes, or `degrees` is not finite.
  """
  if images.ndim != 4:
    raise ValueError(
      "images must be [N, height, width, channels], got shape"
      f" {list(images.shape)}"
    )
  if not math.isfinite(degrees):
    raise ValueError(f"degrees must be a finite number, got {degrees}")
  if degrees % 360 == 0:
    return images.copy()
  # "grid-constant" interpolates towards the 0 outside; "constant" removes every
  # pixel whose source is less than one pixel outside.
  return ndimage.rotate(
    images,
    degrees,
    axes=(1, 2),
    reshape=False,
    order=1,
    mode="grid-constant",
    cval=0,
  )
