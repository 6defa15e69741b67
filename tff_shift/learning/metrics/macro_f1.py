"""Macro F1: the mean of the F1 scores of the classes that occur.

The F1 score of a class is the harmonic mean of precision and recall, 0 if no
example of it is predicted correctly.
"""

import tensorflow as tf

from tff_shift.learning import metric
from tff_shift.learning.metrics import confusion_matrix


def _value(sums, num_examples):
  correct, examples, predictions = confusion_matrix.counts(sums)
  f1 = tf.math.divide_no_nan(2 * correct, examples + predictions)
  occurs = tf.cast(examples > 0, tf.float32)
  return tf.reduce_sum(f1 * occurs, axis=-1) / tf.reduce_sum(occurs, axis=-1)


METRIC = metric.Metric(
  confusion_matrix.per_example, _value, needs_probabilities=False
)
