"""Brier score: the squared error of the predicted probabilities.

Verification of Forecasts Expressed in Terms of Probability (Brier; Monthly
Weather Review 1950): the mean over examples of the sum over classes, from 0 to
2. For two classes, it is twice the score of the second class alone.
Predictions that are not finite count as 2.
"""

import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import metric

_WORST = 2.0


def per_example(logits, y):
  """Returns the score of each example, [n]."""
  errors = tf.nn.softmax(logits) - tf.one_hot(y, logits.shape[1])
  is_finite = tf.not_equal(
    evaluation.predicted_classes(logits), evaluation.NO_CLASS
  )
  scores = tf.reduce_sum(tf.square(errors), axis=1)
  return tf.where(is_finite, scores, _WORST)


METRIC = metric.Metric(
  per_example,
  lambda sums, num_examples: sums / num_examples,
  higher_is_better=False,
)
