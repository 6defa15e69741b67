"""How much of the distance of two batches is the noise of their examples.

This is ours: Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation
under Distribution Shift (2026) compares the means of two batches as they are
(eq. 12 and 14).

A summary of a batch is the mean m = (v_1 + ... + v_n) / n of a vector for each
example: its probabilities (eq. 11) or its direction (eq. 13). The v_i are drawn
independently, with mean mu and covariance C, so that m = mu + e with E e = 0
and E e e' = C / n. What of e lies along mu changes the length of m. What is
orthogonal to mu, with the variance

    tr(C_orthogonal) / n = v |mu|^2,

turns m by an angle whose square has the mean v, to first order in 1 / n. The
directions of two batches, drawn apart, are turned independently: their cosine
is in the mean

    E cos(m_1, m_2) = cos(mu_1, mu_2) (1 - (v_1 + v_2) / 2).

(Left out is that a batch may be turned further where its mean is short. That
has a part in the sine of the true angle only: none without a shift, a small one
beside a large shift.)

So two batches of one distribution, whose true distance 1 - cos is 0, are at the
distance (v_1 + v_2) / 2 in the mean, which for small n is more than that of a
slow drift.

The batch itself tells how large v is. Split it at random into two halves with
the means a and b: E |a - b|^2 = 4 tr(C) / n, and its mean over all splits needs
no split,

    4 / (n (n - 1)) sum_i |v_i - m|^2.

Of v_i - m the part orthogonal to m counts, that is, the part w_i of v_i:

    v = sum_i |w_i|^2 / (n (n - 1) |m|^2).

The correction is then cos(m_1, m_2) (1 + (v_1 + v_2) / 2). It vanishes as the
batches grow.
"""

import tensorflow as tf


def noise_of_direction(rows) -> tf.Tensor:
  """Computes v, the mean squared angle by which noise turns a batch's mean.

  Args:
    rows: v_i, [batch, size] float32.

  Returns:
    A float32 scalar, at least 0. It is 0 where it cannot be told: of a single
    example, and where the mean is zero, as of an empty batch.
  """
  num_rows = tf.cast(tf.shape(rows)[0], tf.float32)
  mean = tf.reduce_sum(rows, axis=0) / tf.maximum(num_rows, 1.0)
  squared_length = tf.reduce_sum(tf.square(mean))
  along = tf.math.divide_no_nan(tf.linalg.matvec(rows, mean), squared_length)
  orthogonal = rows - along[:, tf.newaxis] * mean
  return tf.math.divide_no_nan(
    tf.reduce_sum(tf.square(orthogonal)),
    num_rows * (num_rows - 1.0) * squared_length,
  )


def correct(distance, first, second) -> tf.Tensor:
  """Takes the noise of two batches out of the cosine distance of their means.

  Args:
    distance: 1 - cos(m_1, m_2), a float32 scalar.
    first: v of the first batch, a float32 scalar.
    second: That of the second.

  Returns:
    1 - cos(m_1, m_2) (1 + (v_1 + v_2) / 2), a float32 scalar. In the mean over
    batches of one distribution it is about 0, and so negative for some of them.
    0 where the distance is 0: the same batch again, or a mean of zero.
  """
  corrected = distance - (1.0 - distance) * 0.5 * (first + second)
  return tf.where(distance > 0, corrected, 0.0)
