"""Recall of each class: the fraction of its examples predicted correctly."""

from tff_shift.learning import metric
from tff_shift.learning.metrics import confusion_matrix


def _value(sums, num_examples):
  correct, examples, _ = confusion_matrix.counts(sums)
  return correct / examples


METRIC = metric.Metric(
  confusion_matrix.per_example,
  _value,
  needs_probabilities=False,
  by_class="recall",
)
