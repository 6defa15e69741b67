"""Metrics that are computed from sums over all predictions.

A client adds up an array of fixed size over its examples of a domain. The
server adds up the clients' arrays and computes the metric from the sum. No
prediction leaves a client, and sums of remote workers can be merged in any
order. Counts in float32 are exact up to 2**24.

`learning.metrics` has one file per metric.
"""

import collections
import dataclasses
import math
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Bounds the memory of the arrays of a batch of examples, in numbers.
_LARGEST_BATCH = 2**20
# Prefixes of the values that clients send.
_SUMS = "sums_of_"
_COUNT = "num_clients_of_"


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric as two pure TensorFlow functions.

  Attributes:
    per_example: `(logits [n, num_classes] float32, y [n] int32) -> [n, ...]
      float32`, an array of fixed shape for each example, which does not depend
      on the other examples. Metrics with the same function send its sums once.
    value: `(sums [num_domains, ...], num_examples [num_domains]) ->
      [num_domains] float32`, from the sums of `per_example`. NaN: not defined,
      for example without examples.
    higher_is_better: Whether tables and pages take higher values as better.
    needs_probabilities: Whether the metric depends on more than the predicted
      labels. Scenarios in which clients only send labels refuse it.
    by_class: If not empty, `value` is [num_domains, num_classes], and the
      columns are this prefix and the name of a class.
    is_table: Whether `value` is [num_domains, rows, columns] of counts, which
      are saved in a file after the last evaluation and have no column.
    counts_clients: Whether the metric is the unweighted mean over the clients
      for which `value` is defined, each with the value of its own examples.
      Otherwise it is the value of the examples of all clients.

  Examples:
    >>> import tensorflow as tf
    >>> top_2 = ts.Metric(
    ...   lambda logits, y: tf.cast(tf.math.in_top_k(y, logits, 2), tf.float32),
    ...   lambda sums, num_examples: sums / num_examples,
    ... )
    >>> logits = np.float32([[3, 2, 1], [3, 2, 1]])
    >>> top_2.per_example(logits, np.int32([1, 2])).numpy().tolist()
    [1.0, 0.0]
  """

  per_example: Callable[[Any, Any], tf.Tensor]
  value: Callable[[Any, Any], tf.Tensor]
  higher_is_better: bool = True
  needs_probabilities: bool = True
  by_class: str = ""
  is_table: bool = False
  counts_clients: bool = False


class Chosen(NamedTuple):
  """The metrics that an algorithm measures besides accuracy and loss.

  Attributes:
    metrics: By name.
    columns: The columns of each metric, by its name: one, or one per class, or
      none for a table.
    num_classes: The number of classes.
  """

  metrics: Mapping[str, Metric] = types.MappingProxyType({})
  columns: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
  num_classes: int = 0

  @property
  def directions(self) -> dict[str, bool]:
    """Whether higher values are better, by column."""
    return {
      column: self.metrics[name].higher_is_better
      for name, columns in self.columns.items()
      for column in columns
    }


NONE = Chosen()


def sums_names(chosen: Chosen) -> dict[Callable[..., Any], str]:
  """Returns the name of the sums of each function `per_example`."""
  names = {}
  # The sums of the first metrics are sent, those of the others may not be.
  for name, metric in sorted(
    chosen.metrics.items(), key=lambda each: each[1].counts_clients
  ):
    names.setdefault(metric.per_example, f"{_SUMS}{name}")
  return names


def domain_sum(values, domains, num_domains) -> tf.Tensor:
  """Sums values over the examples of each domain.

  Args:
    values: [n, ...].
    domains: The domain of each example, [n] int32; `num_domains` for rows that
      are no examples.
    num_domains: The number of domains.

  Returns:
    [num_domains, ...].
  """
  sums = tf.math.unsorted_segment_sum(values, domains, num_domains + 1)
  return sums[:num_domains]


def domain_sums(
  chosen: Chosen, logits, y, domains, num_domains
) -> collections.OrderedDict[str, tf.Tensor]:
  """Sums the arrays of the metrics over the examples of each domain.

  Args:
    chosen: The metrics.
    logits: [num_examples, num_classes] float32.
    y: The true classes, [num_examples] int32.
    domains: The domain of each example, [num_examples] int32, as in
      `domain_sum`.
    num_domains: The number of domains.

  Returns:
    An ordered dictionary of float32 tensors of shape [num_domains, ...].
  """
  if chosen.metrics:
    # Not every prediction has a known shape.
    logits = tf.ensure_shape(logits, [None, chosen.num_classes])
  return collections.OrderedDict(
    (name, _add_up(per_example, logits, y, domains, num_domains))
    for per_example, name in sums_names(chosen).items()
  )


def _add_up(per_example, logits, y, domains, num_domains) -> tf.Tensor:
  """Sums the arrays of one function, a batch of examples at a time."""
  shape = per_example(logits[:0], y[:0]).shape.as_list()[1:]
  batch = max(1, _LARGEST_BATCH // math.prod(shape))
  # Loops need shapes that do not change.
  sums_shape = [tf.get_static_value(num_domains), *shape]

  def add(start, sums):
    part = slice(start, start + batch)
    values = tf.ensure_shape(per_example(logits[part], y[part]), [None, *shape])
    added = domain_sum(values, domains[part], num_domains)
    return start + batch, tf.ensure_shape(sums + added, sums_shape)

  zeros = tf.zeros(tf.concat([[num_domains], np.int32(shape)], axis=0))
  _, sums = tf.while_loop(
    lambda start, _: start < tf.shape(y)[0],
    add,
    (tf.constant(0), tf.ensure_shape(zeros, sums_shape)),
    shape_invariants=(tf.TensorShape([]), tf.TensorShape(sums_shape)),
    parallel_iterations=1,
  )
  return sums


def _across(values, like) -> tf.Tensor:
  """Reshapes [num_domains] so that it broadcasts to a value's shape."""
  ones = [1] * (len(like.shape) - 1)
  return tf.reshape(values, [-1, *ones])


def client_addends(
  chosen: Chosen, sums: Mapping[str, Any], num_examples
) -> collections.OrderedDict[str, tf.Tensor]:
  """Converts a client's sums to its addends of the sums over clients.

  Args:
    chosen: The metrics.
    sums: The result of `domain_sums`.
    num_examples: [num_domains] float32.

  Returns:
    The sums of metrics over examples. For each metric that counts clients, its
    value, or 0 if it is not defined, and whether it is defined.
  """
  names, sent = sums_names(chosen), collections.OrderedDict()
  for name, metric in chosen.metrics.items():
    of_metric = sums[names[metric.per_example]]
    if not metric.counts_clients:
      sent[names[metric.per_example]] = of_metric
      continue
    value = metric.value(of_metric, num_examples)
    is_finite = tf.reduce_all(
      tf.math.is_finite(of_metric), axis=range(1, len(of_metric.shape))
    )
    # NaN from sums that are not finite stays: it is no lack of examples.
    is_defined = ~tf.math.is_nan(value) | ~_across(is_finite, value)
    sent[name] = tf.where(is_defined, value, 0.0)
    sent[f"{_COUNT}{name}"] = tf.cast(is_defined, tf.float32)
  return sent


def final_values(
  chosen: Chosen, totals: Mapping[str, Any], num_examples
) -> collections.OrderedDict[str, tf.Tensor]:
  """Computes the metrics from the sums over clients of `client_addends`."""
  names = sums_names(chosen)
  return collections.OrderedDict(
    (
      name,
      totals[name] / totals[f"{_COUNT}{name}"]
      if metric.counts_clients
      else metric.value(totals[names[metric.per_example]], num_examples),
    )
    for name, metric in chosen.metrics.items()
  )


def of_labels(
  chosen: Chosen, predicted, y, clients, num_clients: int
) -> collections.OrderedDict[str, tf.Tensor]:
  """Computes metrics from predicted labels.

  Args:
    chosen: The metrics; none needs probabilities.
    predicted: The predicted labels, [num_examples] int32. Negative: none.
    y: The true classes, [num_examples] int32.
    clients: The client of each example, [num_examples] int32.
    num_clients: The number of clients.

  Returns:
    The metrics of one domain, by name.
  """
  # With a domain for each client, the addends of all are computed at once.
  sums, sizes = _sums_of_labels(chosen, predicted, y, clients, num_clients)
  totals = tf.nest.map_structure(
    lambda each: tf.reduce_sum(each, axis=0, keepdims=True),
    client_addends(chosen, sums, sizes),
  )
  return final_values(chosen, totals, tf.reduce_sum(sizes)[tf.newaxis])


def of_labels_by_client(
  chosen: Chosen, predicted, y, clients, num_clients: int
) -> dict[str, tf.Tensor]:
  """Computes metrics from the predicted labels of each client.

  Args:
    chosen: The metrics; none needs probabilities.
    predicted: The predicted labels, see `of_labels`.
    y: The true classes, [num_examples] int32.
    clients: The client of each example, [num_examples] int32.
    num_clients: The number of clients.

  Returns:
    The values of each client, [num_clients, ...], by name.
  """
  sums, sizes = _sums_of_labels(chosen, predicted, y, clients, num_clients)
  names = sums_names(chosen)
  return {
    name: metric.value(sums[names[metric.per_example]], sizes)
    for name, metric in chosen.metrics.items()
  }


def _sums_of_labels(chosen, predicted, y, clients, num_clients):
  """Returns the result of `domain_sums`, and the sizes, of each client."""
  logits = tf.where(
    tf.constant(predicted)[:, tf.newaxis] < 0,
    np.float32(np.nan),
    tf.one_hot(predicted, chosen.num_classes),
  )
  sums = domain_sums(chosen, logits, y, clients, num_clients)
  sizes = tf.math.unsorted_segment_sum(
    tf.ones_like(y, tf.float32), clients, num_clients
  )
  return sums, sizes


def mean_of_defined(values) -> float:
  """Returns the mean of the values that are not NaN; NaN if there are none."""
  values = np.asarray(values, float)
  values = values[~np.isnan(values)]
  return float(np.mean(values)) if values.size else math.nan
