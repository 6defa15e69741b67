"""Confusion matrix: how often each class is predicted as each class.

A row is a true class, a column a predicted label. The last column counts
predictions that are not finite.
"""

import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import metric


def per_example(logits, y):
  """Returns an example's only count, [n, num_classes, num_classes + 1]."""
  num_classes = logits.shape[1]
  predicted = evaluation.predicted_classes(logits)
  is_class = tf.not_equal(predicted, evaluation.NO_CLASS)
  column = tf.where(is_class, predicted, num_classes)
  return (
    tf.one_hot(y, num_classes)[:, :, tf.newaxis]
    * tf.one_hot(column, num_classes + 1)[:, tf.newaxis]
  )


def counts(sums):
  """Returns what recall and precision are made of, each [..., num_classes].

  Args:
    sums: The confusion matrix, [..., num_classes, num_classes + 1].

  Returns:
    The correct predictions of each class, its examples, and its predictions.
  """
  return (
    tf.linalg.diag_part(sums[..., :-1]),
    tf.reduce_sum(sums, axis=-1),
    tf.reduce_sum(sums[..., :-1], axis=-2),
  )


METRIC = metric.Metric(
  per_example,
  lambda sums, num_examples: sums,
  needs_probabilities=False,
  is_table=True,
)
