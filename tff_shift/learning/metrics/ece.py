"""ECE, expected calibration error: how far confidence is from accuracy.

On Calibration of Modern Neural Networks (Guo, Pleiss, Sun, Weinberger; ICML
2017), with 15 bins of equal width: (0, 1/15], (1/15, 2/15] and so on.
The confidence of a prediction is its highest probability. Predictions that are
not finite count as wrong with confidence 1.
"""

import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import metric

_NUM_BINS = 15


def per_example(logits, y):
  """Returns one, confidence and correctness in its bin, [n, 3, bins]."""
  predicted = evaluation.predicted_classes(logits)
  is_finite = tf.not_equal(predicted, evaluation.NO_CLASS)
  confidence = tf.reduce_max(tf.nn.softmax(logits), axis=1)
  confidence = tf.where(is_finite, confidence, 1.0)
  place = tf.cast(tf.math.ceil(confidence * _NUM_BINS), tf.int32) - 1
  place = tf.one_hot(tf.clip_by_value(place, 0, _NUM_BINS - 1), _NUM_BINS)
  values = [
    tf.ones_like(confidence),
    confidence,
    tf.cast(tf.equal(predicted, y), tf.float32),
  ]
  return tf.stack(values, axis=1)[:, :, tf.newaxis] * place[:, tf.newaxis]


def _value(sums, num_examples):
  gaps = tf.abs(sums[:, 2] - sums[:, 1])
  return tf.reduce_sum(gaps, axis=1) / num_examples


METRIC = metric.Metric(per_example, _value, higher_is_better=False)
