"""Sampling noise in the distance of two batches.

This is our own addition: Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (2026) compares the means of two
batches without a correction (eq. 12 and 14).

A summary of a batch is the mean m = (v_1 + ... + v_n) / n of a vector for each
example: its probabilities (eq. 11) or its direction (eq. 13). The v_i are drawn
independently, with mean mu and covariance C, so that m = mu + e with E e = 0
and E e e' = C / n. The component of e along mu changes the length of m. The
component orthogonal to mu, with the variance

    tr(C_orthogonal) / n = v |mu|^2,

turns m by an angle whose square has the mean v, to first order in 1 / n. The
directions of two independent batches are turned independently, so their
expected cosine is

    E cos(m_1, m_2) = cos(mu_1, mu_2) (1 - (v_1 + v_2) / 2).

(This neglects that a batch may be turned further if its mean is short. The
neglected term is proportional to the sine of the true angle: zero without a
shift, and small compared to a large shift.)

Two batches of the same distribution, whose true distance 1 - cos is 0, thus
have the expected distance (v_1 + v_2) / 2. For small n it exceeds the distance
due to a slow drift.

The batch itself gives an estimate of v. Split it at random into two halves with
the means a and b: E |a - b|^2 = 4 tr(C) / n. Its mean over all splits needs no
split,

    4 / (n (n - 1)) sum_i |v_i - m|^2.

Only the component of v_i - m orthogonal to m counts, which is the orthogonal
component w_i of v_i:

    v = sum_i |w_i|^2 / (n (n - 1) |m|^2).

The correction is then cos(m_1, m_2) (1 + (v_1 + v_2) / 2). It vanishes as the
batches grow.

Choices:
  * Negative values are cut off once, in S, so that some noise is left. The
    corrected S follows the true shift better on every schedule, but still
    poorly under slow drift (`correct_batch_noise`; off by default).
"""

import tensorflow as tf


def noise_of_direction(rows) -> tf.Tensor:
  """Computes v, the mean squared angle by which noise turns a batch's mean.

  Args:
    rows: v_i, [batch, size] float32.

  Returns:
    A float32 scalar, at least 0. It is 0 if it cannot be estimated: for a
    single example, and if the mean is zero, as for an empty batch.
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
  """Removes the noise of two batches from the cosine distance of their means.

  Args:
    distance: 1 - cos(m_1, m_2), a float32 scalar.
    first: v of the first batch, a float32 scalar.
    second: v of the second batch, a float32 scalar.

  Returns:
    1 - cos(m_1, m_2) (1 + (v_1 + v_2) / 2), a float32 scalar. Its mean over
    batches of the same distribution is about 0, so it is negative for some of
    them. 0 if the distance is 0: the same batch again, or a mean of zero.
  """
  corrected = distance - (1.0 - distance) * 0.5 * (first + second)
  return tf.where(distance <= 0, 0.0, corrected)  # NaN stays.
