"""The largest possible error of `auroc` on the same predictions.

Half the fraction of pairs of examples, one of the class and one of another,
that are in the same bin; the mean over the classes that occur.
"""

from tff_shift.learning import metric
from tff_shift.learning.metrics import auroc


def _tied_pairs(positives, negatives):
  return positives * negatives / 2


METRIC = metric.Metric(
  auroc.per_example,
  lambda sums, num_examples: auroc.mean_over_classes(sums, _tied_pairs),
  higher_is_better=False,
)
