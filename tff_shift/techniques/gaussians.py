"""Gaussians of independent dimensions."""

import tensorflow as tf

# A deviation of 0 has no logarithm.
_SMALLEST_DEVIATION = 1e-6


def divergence(mean, deviation, other_mean, other_deviation) -> tf.Tensor:
  """Computes KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)).

  Args:
    mean: [batch, size] float32; the dimensions are independent.
    deviation: Likewise, not negative, as the other deviation.
    other_mean: Likewise.
    other_deviation: Likewise. Deviations below 1e-6 count as 1e-6.

  Returns:
    [batch] float32.
  """
  deviation, other_deviation = (
    tf.maximum(each, _SMALLEST_DEVIATION)
    for each in (deviation, other_deviation)
  )
  squares = tf.square(deviation) + tf.square(mean - other_mean)
  return tf.reduce_sum(
    tf.math.log(other_deviation)
    - tf.math.log(deviation)
    + squares / (2.0 * tf.square(other_deviation))
    - 0.5,
    axis=1,
  )
