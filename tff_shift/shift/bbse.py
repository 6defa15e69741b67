"""The class distribution of unlabelled data, by black box shift estimation.

Sources: Detecting and Correcting for Label Shift with Black Box Predictors
(Lipton, Wang, Smola; ICML 2018); Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (2026), eq. 4 and Appendix B.

Under label shift a model mistakes class j for class i as often as before,
M[i, j] = P(predicted i | true j). Then predictions on new data are distributed
as Q_yhat = M Q_y, and Q_y follows from Q_yhat by solving for it.
"""

import numpy as np
import tensorflow as tf

# The histogram of 50 predictions (ten classes) is off by up to 0.045 in each
# direction, sqrt(0.9 / 50 / 9). Divided by a singular value below 0.05, that is
# nearly as large as a probability. The largest one is at least 1, since columns
# sum to 1.
DEFAULT_THRESHOLD = 0.05


def _predictions(logits, soft: bool) -> tf.Tensor:
  """Returns what each example counts for each class, [batch, num_classes]."""
  if soft:
    return tf.nn.softmax(logits)
  num_classes = logits.shape[-1]
  # Not `tf.argmax`, which does not promise which of several largest it returns.
  largest = tf.equal(logits, tf.reduce_max(logits, axis=-1, keepdims=True))
  lowest_index = tf.reduce_min(
    tf.where(largest, tf.range(num_classes), num_classes), axis=-1
  )
  return tf.one_hot(lowest_index, num_classes)


def prediction_distribution(logits, soft: bool = False) -> tf.Tensor:
  """Computes the distribution of a model's predictions, Q_yhat of eq. 4.

  Args:
    logits: [batch, num_classes] float32; the number of classes is static.
    soft: The mean softmax (eq. 11) in place of the histogram of the most
      probable classes. Of several most probable classes the lowest counts.

  Returns:
    [num_classes] float32, which sums to 1; zeros for an empty batch.
  """
  predictions = _predictions(logits, soft)
  num_examples = tf.cast(tf.maximum(tf.shape(logits)[0], 1), tf.float32)
  return tf.reduce_sum(predictions, axis=0) / num_examples


def confusion_matrix(logits, y, soft: bool = False) -> tf.Tensor:
  """Measures M[i, j] = P(predicted i | true j) of eq. 4 on labelled data.

  A class without examples gets the unit column: nothing is known of how the
  model mistakes it, and so predictions of it are taken at their word. A column
  of zeros would make the matrix singular and rule the class out for ever.

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
  """Estimates the class distribution, M^-1 Q_yhat of eq. 4.

  The inverse is the truncated one that Appendix B suggests: directions with a
  small singular value are left out. What is negative in the solution becomes 0,
  such as a class that is predicted less often than M's mistakes alone explain;
  the rest is divided by its sum.

  Args:
    predicted: The distribution of predictions, [num_classes] float32.
    confusion: M, [num_classes, num_classes] float32; columns sum to 1.
    threshold: Singular values below this share of the largest are left out.
      Those below the matrix's numerical rank always are, so that a singular M
      has a finite result.

  Returns:
    [num_classes] float32, not negative, sums to 1. Uniform where nothing was
    predicted (zeros, as of an empty batch) or nothing positive is left.

  Raises:
    ValueError: The threshold is not between 0 and 1.
  """
  if not 0 <= threshold <= 1:  # Also refuses NaN.
    raise ValueError(f"threshold must lie between 0 and 1, got {threshold}")
  num_classes = confusion.shape[0]
  values, left, right = tf.linalg.svd(confusion)
  rank_tolerance = num_classes * float(np.finfo(np.float32).eps)
  kept = values >= max(threshold, rank_tolerance) * values[0]
  coordinates = tf.linalg.matvec(left, predicted, transpose_a=True)
  coordinates = tf.where(kept, tf.math.divide_no_nan(coordinates, values), 0.0)
  positive = tf.nn.relu(tf.linalg.matvec(right, coordinates))
  total = tf.reduce_sum(positive)
  return tf.where(
    total > 0, tf.math.divide_no_nan(positive, total), 1.0 / num_classes
  )
