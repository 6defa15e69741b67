"""Balanced accuracy: the mean recall of the classes that occur."""

import tensorflow as tf

from tff_shift.learning import metric
from tff_shift.learning.metrics import confusion_matrix


def _value(sums, num_examples):
  correct, examples, _ = confusion_matrix.counts(sums)
  recall = tf.math.divide_no_nan(correct, examples)
  occurs = tf.cast(examples > 0, tf.float32)
  return tf.reduce_sum(recall, axis=-1) / tf.reduce_sum(occurs, axis=-1)


METRIC = metric.Metric(
  confusion_matrix.per_example, _value, needs_probabilities=False
)
