"""Reliability: confidence and accuracy of the bins of the metric `ece`.

Rows are the predictions of each bin, the sum of their confidences in
thousandths, and the correct ones. All are counts, as tables have.
"""

import numpy as np
import tensorflow as tf

from tff_shift.learning import metric
from tff_shift.learning.metrics import ece

_UNITS = (1, 1000, 1)


def bins(counts: np.ndarray) -> np.ndarray:
  """Converts a table to the sums of each bin, [3, bins]."""
  return np.asarray(counts) / np.reshape(_UNITS, (3, 1))


def _value(sums, num_examples):
  del num_examples
  return tf.round(sums * tf.constant(_UNITS, tf.float32, [3, 1]))


METRIC = metric.Metric(
  ece.per_example, _value, higher_is_better=False, is_table=True
)
