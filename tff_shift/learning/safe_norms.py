"""Norms of vectors with a finite gradient everywhere."""

import tensorflow as tf

# The square root has no finite slope at 0: squares are bounded from below.
_SMALLEST_SQUARE = 1e-12


def root(squares) -> tf.Tensor:
  """Computes the square root of squares, float32 of any shape.

  Args:
    squares: Not negative.

  Returns:
    A tensor of the same shape. Roots below 1e-6 become 1e-6, with gradient 0.
  """
  return tf.sqrt(tf.maximum(squares, _SMALLEST_SQUARE))


def length(values, axis: int | None = None) -> tf.Tensor:
  """Computes the Euclidean norm, over one axis or over all, see `root`."""
  return root(tf.reduce_sum(tf.square(values), axis=axis))
