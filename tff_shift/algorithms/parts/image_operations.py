"""Operations on images, chosen per image, as pure functions.

The operations are Pillow's. Autocontrast, equalise, posterise and solarise are
lookup tables of 256 entries per channel. Rotate, shear and translate are affine
maps with bilinear interpolation and a constant value outside, by default
`FILL`. Any mix of operations therefore takes one pass of table lookups and one
of affine maps.
"""

import enum
import math

import tensorflow as tf

_NUM_VALUES = 256

# The value of outside pixels in the programs of AugMix, MEMO and FedTHE.
FILL = 128


class Operation(enum.IntEnum):
  """An operation on an image, and the meaning of its amount.

  Attributes:
    NONE: No operation.
    AUTOCONTRAST: Stretches the values of each channel to 0..255.
    EQUALIZE: Makes the values of each channel equally frequent.
    POSTERIZE: Keeps this number of bits.
    SOLARIZE: Inverts values from the amount on.
    ROTATE: Rotates by degrees, counter-clockwise, about the centre.
    SHEAR_X: A row takes its pixels from the amount times y to the right.
    SHEAR_Y: A column takes its pixels from the amount times x below.
    TRANSLATE_X: Pixels come from this number of columns to the right.
    TRANSLATE_Y: Pixels come from this number of rows below.
  """

  NONE = -1
  AUTOCONTRAST = 0
  EQUALIZE = 1
  POSTERIZE = 2
  SOLARIZE = 3
  ROTATE = 4
  SHEAR_X = 5
  SHEAR_Y = 6
  TRANSLATE_X = 7
  TRANSLATE_Y = 8


def _is(operation, *which: Operation) -> tf.Tensor:
  return tf.reduce_any([tf.equal(operation, each) for each in which], axis=0)


def _tables(pixels, places, operation, amount) -> tf.Tensor:
  """Returns the lookup table of each operation, [n, channels, 256] int32.

  Args:
    pixels: [n, height, width, channels] int32.
    places: The index of each pixel's entry in the tables, in the same shape.
    operation: [n] int32; an operation without a table gets the identity.
    amount: [n] float32.
  """
  n, height, width, channels = pixels.shape
  values = tf.range(_NUM_VALUES)
  lowest, highest = (
    reduce(pixels, axis=[1, 2])[..., tf.newaxis]
    for reduce in (tf.reduce_min, tf.reduce_max)
  )  # [n, channels, 1]

  # As in Pillow: float64, in this order, and truncated.
  spread = tf.cast(tf.maximum(highest - lowest, 1), tf.float64)
  scale = 255.0 / spread
  offset = -tf.cast(lowest, tf.float64) * scale
  stretched = tf.cast(tf.cast(values, tf.float64) * scale + offset, tf.int32)
  stretched = tf.where(
    highest > lowest, tf.clip_by_value(stretched, 0, 255), values
  )

  counts = tf.reshape(
    tf.math.unsorted_segment_sum(
      tf.ones_like(pixels), places, n * channels * _NUM_VALUES
    ),
    [n, channels, _NUM_VALUES],
  )
  num_highest = tf.gather(counts, highest, batch_dims=2)
  step = (height * width - num_highest) // 255
  before = tf.cumsum(counts, axis=-1, exclusive=True)
  equalized = tf.where(
    step > 0,
    tf.minimum((step // 2 + before) // tf.maximum(step, 1), 255),
    values,
  )

  whole = tf.cast(amount, tf.int32)[:, tf.newaxis, tf.newaxis]
  unit = tf.bitwise.left_shift(1, 8 - tf.clip_by_value(whole, 0, 8))
  posterized = values - values % unit
  solarized = tf.where(values < whole, values, 255 - values)

  tables = tf.broadcast_to(values, [n, channels, _NUM_VALUES])
  for which, table in (
    (Operation.AUTOCONTRAST, stretched),
    (Operation.EQUALIZE, equalized),
    (Operation.POSTERIZE, posterized),
    (Operation.SOLARIZE, solarized),
  ):
    is_it = _is(operation, which)[:, tf.newaxis, tf.newaxis]
    tables = tf.where(is_it, table, tables)
  return tables


def _look_up(pixels, operation, amount) -> tf.Tensor:
  """Applies the operations that are tables; see `_tables`."""
  n, _, _, channels = pixels.shape
  starts = _NUM_VALUES * tf.reshape(tf.range(n * channels), [n, 1, 1, channels])
  places = starts + pixels
  tables = _tables(pixels, places, operation, amount)
  return tf.gather(tf.reshape(tables, [-1]), places)


def map_pixels(pixels, matrix, fill: int) -> tf.Tensor:
  """Takes each pixel from the position given by an affine map.

  Args:
    pixels: [n, height, width, channels] int32.
    matrix: Six float32 tensors [n], a to f: the pixel with its centre at (x, y)
      comes from (a x + b y + c, d x + e y + f).
    fill: The value of pixels from outside, in all channels.

  Returns:
    Pixels, interpolated and rounded down.
  """
  n, height, width, channels = pixels.shape
  a, b, c, d, e, f = (each[:, tf.newaxis, tf.newaxis] for each in matrix)
  to_x = tf.range(width, dtype=tf.float32) + 0.5
  to_y = tf.range(height, dtype=tf.float32)[:, tf.newaxis] + 0.5
  x = a * to_x + b * to_y + c  # [n, height, width]
  y = d * to_x + e * to_y + f
  is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
  x, y = x - 0.5, y - 0.5
  left, top = tf.floor(x), tf.floor(y)
  # [n, height, width, 1]
  right_share = (x - left)[..., tf.newaxis]
  low_share = (y - top)[..., tf.newaxis]
  columns, rows = tf.cast(left, tf.int32), tf.cast(top, tf.int32)
  flat = tf.cast(tf.reshape(pixels, [n * height * width, channels]), tf.float32)
  image = tf.range(n)[:, tf.newaxis, tf.newaxis] * height

  def take(row, column):
    row = tf.clip_by_value(row, 0, height - 1)
    column = tf.clip_by_value(column, 0, width - 1)
    return tf.gather(flat, (image + row) * width + column)

  def between(row):
    first = take(row, columns)
    return first + (take(row, columns + 1) - first) * right_share

  high = between(rows)
  found = high + (between(rows + 1) - high) * low_share
  return tf.where(is_inside[..., tf.newaxis], tf.cast(found, tf.int32), fill)


def _matrix(operation, amount, height: int, width: int):
  """Returns the affine map of each operation, see `map_pixels`."""
  zeros = tf.zeros_like(amount)
  given = lambda which: tf.where(_is(operation, which), amount, zeros)  # noqa: E731
  # The map leads from the result to the image, so it has the inverse rotation.
  angle = -given(Operation.ROTATE) * (math.pi / 180.0)
  cos, sin = tf.cos(angle), tf.sin(angle)
  x, y = width / 2, height / 2
  return (
    cos,
    sin + given(Operation.SHEAR_X),
    x - (cos * x + sin * y) + given(Operation.TRANSLATE_X),
    -sin + given(Operation.SHEAR_Y),
    cos,
    y - (cos * y - sin * x) + given(Operation.TRANSLATE_Y),
  )


def transform(pixels, operation, amount, fill: int = FILL) -> tf.Tensor:
  """Applies to each image its operation.

  Args:
    pixels: [n, height, width, channels] int32 from 0 to 255, of known shape.
    operation: An `Operation` for each, [n] int32.
    amount: The amount of each, see `Operation`, [n] float32.
    fill: The value of pixels from outside, in all channels.

  Returns:
    Images of the same shape and dtype. Tables give Pillow's pixels; affine maps
    are computed in float32, and a pixel may differ by 1.
  """
  _, height, width, _ = pixels.shape
  pixels = _look_up(pixels, operation, amount)
  return map_pixels(pixels, _matrix(operation, amount, height, width), fill)
