"""The label distribution of unlabelled data, by black box shift estimation.

Sources: Detecting and Correcting for Label Shift with Black Box Predictors
(Lipton, Wang, Smola; ICML 2018); Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (2026), eq. 4 and Appendix B.

Under label shift a model confuses classes as often as before,
M[i, j] = P(predicted i | true j). Predictions on new data then have the
distribution Q_yhat = M Q_y, which is solved for Q_y.

Choices:
  * Singular values of M below 0.05 of the largest are dropped
    (`svd_threshold`), negative entries are set to 0, and the result is divided
    by its sum. This biases the estimate for small batches; Lemma 5 has no
    clipping. Predictions are hard (`soft_predictions`).
"""

import numpy as np
import tensorflow as tf

# The histogram of 50 predictions (ten classes) has an error of up to 0.045 in
# each direction, sqrt(0.9 / 50 / 9). Divided by a singular value below 0.05,
# this is nearly as large as a probability. The largest singular value is at
# least 1, since columns sum to 1.
DEFAULT_THRESHOLD = 0.05


def _predictions(logits, soft: bool) -> tf.Tensor:
  """Returns each example's contribution by class, [batch, num_classes]."""
  if soft:
    return tf.nn.softmax(logits)
  num_classes = logits.shape[-1]
  # Not `tf.argmax`, whose choice among equal maxima is not specified.
  largest = tf.equal(logits, tf.reduce_max(logits, axis=-1, keepdims=True))
  lowest_index = tf.reduce_min(
    tf.where(largest, tf.range(num_classes), num_classes), axis=-1
  )
  return tf.one_hot(lowest_index, num_classes)


def prediction_distribution(logits, soft: bool = False) -> tf.Tensor:
  """Computes the distribution of a model's predictions, Q_yhat of eq. 4.

  Args:
    logits: [batch, num_classes] float32; the number of classes is static.
    soft: Uses the mean softmax (eq. 11) instead of the histogram of predicted
      labels. Ties go to the lowest class.

  Returns:
    [num_classes] float32, which sums to 1; zeros for an empty batch.
  """
  predictions = _predictions(logits, soft)
  num_examples = tf.cast(tf.maximum(tf.shape(logits)[0], 1), tf.float32)
  return tf.reduce_sum(predictions, axis=0) / num_examples


def confusion_matrix(logits, y, soft: bool = False) -> tf.Tensor:
  """Measures M[i, j] = P(predicted i | true j) of eq. 4 on labelled data.

  A class without examples gets the unit column: its predictions are taken as
  correct, since nothing is known about its confusions. A column of zeros would
  make the matrix singular and exclude the class for ever.

  Args:
    logits: [batch, num_classes] float32; the number of classes is static.
    y: The true classes, [batch] int32.
    soft: See `prediction_distribution`; it must be the same there.

  Returns:
    [num_classes, num_classes] float32; columns sum to 1.
  """
  num_classes = logits.shape[-1]
  truth = tf.one_hot(y, num_classes)  # [batch, num_classes]
  counts = tf.reduce_sum(truth, axis=0)
  totals = tf.matmul(_predictions(logits, soft), truth, transpose_a=True)
  return tf.where(
    counts > 0, tf.math.divide_no_nan(totals, counts), tf.eye(num_classes)
  )


def estimate(
  predicted, confusion, threshold: float = DEFAULT_THRESHOLD
) -> tf.Tensor:
  """Estimates the label distribution, M^-1 Q_yhat of eq. 4.

  The inverse is truncated, as Appendix B suggests: directions with a small
  singular value are dropped. Negative entries of the solution become 0, for
  example for a class that is predicted less often than M's confusions alone
  explain; the rest is divided by its sum.

  Args:
    predicted: The distribution of predictions, [num_classes] float32.
    confusion: M, [num_classes, num_classes] float32; columns sum to 1.
    threshold: Singular values below this fraction of the largest are dropped.
      Those below the matrix's numerical rank always are, so that a singular M
      has a finite result.

  Returns:
    [num_classes] float32, not negative, sums to 1. Uniform if there are no
    predictions (zeros, as for an empty batch) or no positive entries remain.

  Raises:
    ValueError: If the threshold is not between 0 and 1.
  """
  if not 0 <= threshold <= 1:  # Also refuses NaN.
    raise ValueError(f"threshold must lie between 0 and 1, got {threshold}")
  num_classes = confusion.shape[0]
  values, left, right = tf.linalg.svd(confusion)
  rank_tolerance = num_classes * float(np.finfo(np.float32).eps)
  dropped = values < max(threshold, rank_tolerance) * values[0]
  coordinates = tf.linalg.matvec(left, predicted, transpose_a=True)
  coordinates = tf.where(
    dropped, 0.0, tf.math.divide_no_nan(coordinates, values)
  )
  positive = tf.nn.relu(tf.linalg.matvec(right, coordinates))
  total = tf.reduce_sum(positive)
  # NaN stays: it must not become a uniform distribution.
  return tf.where(
    total <= 0, 1.0 / num_classes, tf.math.divide_no_nan(positive, total)
  )
