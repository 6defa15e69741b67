"""AUROC: the area under the ROC curve, one class against the rest.

The mean over the classes that occur, of the probability that an example of the
class has a higher predicted probability of it than an example of another class;
ties count one half. Undefined if only one class occurs.

Probabilities are counted in 256 bins, which makes examples in the same bin tie.
Bins have equal width 1/8 in the log-odds log(p / (1 - p)), from -16 to 16, so
that probabilities near 0 and 1 stay apart. The error is at most `auroc_error`.
For predictions that are not finite, the true class gets the lowest and the
other classes the highest bin.
"""

import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import metric

_NUM_BINS = 256
_BINS_PER_UNIT = 8


def _log_odds(logits):
  """Returns log(p / (1 - p)) of each class, [n, num_classes]."""
  log_p = tf.nn.log_softmax(logits)
  p = tf.exp(log_p)
  is_top = tf.one_hot(tf.argmax(logits, axis=1), logits.shape[1], True, False)
  # 1 - p is inexact near p = 1, which only the top class can have.
  others = tf.reduce_sum(tf.where(is_top, 0.0, p), axis=1, keepdims=True)
  return log_p - tf.where(is_top, tf.math.log(others), tf.math.log1p(-p))


def per_example(logits, y):
  """Returns an example's count of each class, [n, num_classes, 2, bins].

  Counts of examples of the class come first, those of other classes second.
  """
  of_class = tf.one_hot(y, logits.shape[1])
  is_finite = tf.not_equal(
    evaluation.predicted_classes(logits), evaluation.NO_CLASS
  )
  # The bin in the middle is centred at 0: equal probabilities stay equal.
  places = _log_odds(logits) * _BINS_PER_UNIT + (_NUM_BINS // 2 + 0.5)
  places = tf.where(
    is_finite[:, tf.newaxis], places, (1 - of_class) * _NUM_BINS
  )
  places = tf.cast(
    tf.math.floor(tf.clip_by_value(places, 0.0, _NUM_BINS - 1.0)), tf.int32
  )
  kinds = tf.stack([of_class, 1 - of_class], axis=2)
  return (
    kinds[..., tf.newaxis] * tf.one_hot(places, _NUM_BINS)[:, :, tf.newaxis]
  )


def mean_over_classes(sums, of_bins):
  """Returns the mean over classes of a number of pairs, per pair.

  Args:
    sums: The histograms, [num_domains, num_classes, 2, bins].
    of_bins: `(positives, negatives) -> [..., bins]`, a number of pairs for each
      bin, from the counts of the bins.

  Returns:
    [num_domains] float32.
  """
  positives, negatives = tf.unstack(tf.cast(sums, tf.float64), axis=2)
  num_pairs = tf.reduce_sum(positives, axis=-1) * tf.reduce_sum(
    negatives, axis=-1
  )
  by_class = tf.math.divide_no_nan(
    tf.reduce_sum(of_bins(positives, negatives), axis=-1), num_pairs
  )
  has_pairs = tf.cast(num_pairs > 0, tf.float64)
  found = tf.reduce_sum(by_class, axis=-1) / tf.reduce_sum(has_pairs, axis=-1)
  return tf.cast(found, tf.float32)


def _won_pairs(positives, negatives):
  below = tf.cumsum(negatives, axis=-1, exclusive=True)
  return positives * (below + negatives / 2)


METRIC = metric.Metric(
  per_example, lambda sums, num_examples: mean_over_classes(sums, _won_pairs)
)
