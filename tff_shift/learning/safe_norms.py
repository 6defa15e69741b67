"""Lengths of vectors whose gradient is a number everywhere."""

import tensorflow as tf

# The root has no slope at 0: no length is below that of this square.
_SMALLEST_SQUARE = 1e-12


def root(squares) -> tf.Tensor:
  """Computes the root of squares, float32 of any shape.

  Args:
    squares: Not negative.

  Returns:
    A tensor of the same shape. Roots below 1e-6 become 1e-6, and their gradient
    is 0.
  """
  return tf.sqrt(tf.maximum(squares, _SMALLEST_SQUARE))


def length(values, axis: int | None = None) -> tf.Tensor:
  """Computes the Euclidean norm, over one axis or over all, see `root`."""
  return root(tf.reduce_sum(tf.square(values), axis=axis))
