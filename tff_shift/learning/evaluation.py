"""Metrics per domain, as sums over clients, and the evaluation computations.

`METRICS` are the metrics that `evaluate_clients` and `evaluate_server` always
have. An algorithm can be built with more, see `learning.metrics`. The sums and
means here, the drivers' reports, and the columns and tables of the binaries
follow from both.

A client sends, for each domain, its number of examples and the sum or mean of
each metric over them, never a prediction.

Choices:
  * State for predictions is reset at each domain: `predict_by_domain` calls a
    predictor separately for each one, so that the target's accuracy does not
    depend on whether other domains are evaluated.
  * A prediction that is not finite is wrong, whatever its label: a model can
    have finite weights and no finite logits, or diverge during fine-tuning. The
    column `not_finite` has the fraction of such predictions; the first one
    gives a warning.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.data import client_dataset
from tff_shift.learning import frozen_weights
from tff_shift.learning import function_types
from tff_shift.learning import metric as metric_lib
from tff_shift.models import modes
from tff_shift.models import split_model

# The predicted label for logits that are not finite.
NO_CLASS = -1

# The logit of a class that a model cannot predict, for example without a
# prototype. Its examples count as wrong and are excluded from the loss, which
# would be infinite. The value is below every logit of a class that can be
# predicted, and finite, so that the softmax is defined.
NO_LOGIT = tf.float32.min

# Bounds the memory of a forward pass over a whole test set.
_EVALUATION_BATCH = 256


def _predict_parts(
  predict_part: Callable[[tf.Tensor], tf.Tensor], num_parts, width: int
) -> tf.Tensor:
  """Concatenates the outputs of a function for consecutive parts.

  Args:
    predict_part: `(number of the part) -> [n, width] float32`.
    num_parts: The number of parts, at least 1, an int32 scalar.
    width: The length of a row.

  Returns:
    A float32 tensor of shape [sum of n, width].
  """
  _, outputs = tf.while_loop(
    lambda part, _: part < num_parts,
    lambda part, outputs: (part + 1, outputs.write(part, predict_part(part))),
    (
      tf.constant(0),
      tf.TensorArray(
        tf.float32,
        size=num_parts,
        infer_shape=False,
        element_shape=[None, width],
      ),
    ),
    parallel_iterations=1,
  )
  return outputs.concat()


def predict_in_batches(
  predict: Callable[[tf.Tensor], tf.Tensor], x, width: int
) -> tf.Tensor:
  """Applies a function to many examples, a batch at a time.

  Where models normalise by the batch (`modes.by_batch`), the examples are one
  batch, of any size.

  Args:
    predict: `x [batch, ...] -> [batch, width] float32`, example by example.
    x: The examples, [num_examples, ...].
    width: The length of a row of `predict`.

  Returns:
    A float32 tensor of shape [num_examples, width].
  """
  num_examples = tf.shape(x)[0]
  if modes.normalizes_by_batch():
    # There are no moments of no examples.
    return tf.cond(
      num_examples > 0,
      lambda: tf.ensure_shape(predict(x), [None, width]),
      lambda: tf.zeros([0, width], tf.float32),
    )

  def predict_batch(i):
    return predict(x[i * _EVALUATION_BATCH : (i + 1) * _EVALUATION_BATCH])

  # The concatenation of no batches has no static shape.
  return tf.cond(
    num_examples > 0,
    lambda: _predict_parts(
      predict_batch, -(-num_examples // _EVALUATION_BATCH), width
    ),
    lambda: tf.zeros([0, width], tf.float32),
  )


def predict(
  model: split_model.SplitModel, weights: split_model.SplitWeights, x
) -> tf.Tensor:
  """Predicts the logits of examples [num_examples, ...]."""
  return predict_in_batches(
    lambda batch: model.predict(weights, batch), x, model.num_classes
  )


def predict_as_one(
  predict: Callable[[tf.Tensor], tf.Tensor],
  examples: client_dataset.ClientDataset,
  width: int,
) -> tf.Tensor:
  """Predicts evaluation data whose predictions depend on the batch.

  The examples of a domain are one batch: all of them, and nothing else. Batches
  are neither cut nor padded.

  Args:
    predict: `x [n, ...] -> [n, width] float32`. It is not called for a domain
      without examples.
    examples: The evaluation data.
    width: The length of a row of `predict`.

  Returns:
    A float32 tensor of shape [num_examples, width].
  """
  return predict_by_domain(
    lambda domain, x: predict(x), examples.x, examples.domain_sizes, width
  )


def predict_by_domain(
  predict: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  x,
  domain_sizes,
  width: int,
) -> tf.Tensor:
  """Predicts the examples of each domain separately.

  State that a method carries from example to example, such as a history, is
  reset at every domain. Predictions for a domain therefore do not depend on the
  other domains.

  Args:
    predict: `(domain, x [n, ...]) -> [n, width] float32`, with the domain an
      int32 scalar. It is not called for a domain without examples.
    x: The examples, [num_examples, ...], sorted by domain.
    domain_sizes: The number of examples of each domain, [num_domains] int32.
    width: The length of a row of `predict`.

  Returns:
    A float32 tensor of shape [num_examples, width].
  """
  ends = tf.cumsum(domain_sizes)

  def predict_domain(domain):
    part = x[ends[domain] - domain_sizes[domain] : ends[domain]]
    return tf.cond(
      domain_sizes[domain] > 0,
      lambda: predict(domain, part),
      lambda: tf.zeros([0, width]),
    )

  return _predict_parts(predict_domain, tf.size(domain_sizes), width)


class ExampleMetric(NamedTuple):
  """A metric of an example, and how it is averaged.

  Attributes:
    per_example: `(logits [n, num_classes] float32, y [n] int32) -> [n]
      float32`.
    counts_clients: Whether the mean is over clients, each with its own mean
      over its examples of a domain; otherwise it is over all examples.
    is_compared: Whether tables and figures compare runs by it. All metrics are
      in `metrics.csv` and `summary.json`.
    counts_example: `(logits, y) -> [n] bool`: the examples that the mean is
      over, if it does not count clients. None: all examples.
    higher_is_better: Whether pages take higher values as better.
  """

  per_example: Callable[[Any, Any], tf.Tensor]
  counts_clients: bool = False
  is_compared: bool = False
  counts_example: Callable[[Any, Any], tf.Tensor] | None = None
  higher_is_better: bool = True


def predicted_classes(logits) -> tf.Tensor:
  """Returns the predicted labels, `NO_CLASS` for logits that are not finite.

  Without this check, the argmax of logits that are not finite or all `NO_LOGIT`
  would be class 0, which can be right by chance.

  Args:
    logits: [n, num_classes] float32.

  Returns:
    [n] int32.
  """
  largest = tf.reduce_max(logits, axis=1)
  is_number = (
    tf.math.is_finite(largest)
    & (largest > NO_LOGIT)
    & ~tf.reduce_any(tf.math.is_nan(logits), axis=1)
  )
  classes = tf.argmax(logits, axis=1, output_type=tf.int32)
  return tf.where(is_number, classes, NO_CLASS)


def _is_right(logits, y) -> tf.Tensor:
  return tf.cast(tf.equal(predicted_classes(logits), y), tf.float32)


def _is_not_finite(logits, y) -> tf.Tensor:
  del y
  return tf.cast(tf.equal(predicted_classes(logits), NO_CLASS), tf.float32)


def _cross_entropy(logits, y) -> tf.Tensor:
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def _can_be_predicted(logits, y) -> tf.Tensor:
  return tf.not_equal(tf.gather(logits, y, batch_dims=1), NO_LOGIT)


# By name. A metric whose name ends in `accuracy` is reported in percent.
METRICS = {
  "accuracy": ExampleMetric(_is_right, counts_clients=True, is_compared=True),
  "pooled_accuracy": ExampleMetric(_is_right),
  # The loss of a class that cannot be predicted would be infinite.
  "loss": ExampleMetric(
    _cross_entropy, counts_example=_can_be_predicted, higher_is_better=False
  ),
  "not_finite": ExampleMetric(_is_not_finite, higher_is_better=False),
}


# The metrics that a client also has for itself. `pooled_accuracy` of a single
# client is its accuracy.
CLIENT_METRICS = ("accuracy", "loss")


def compared() -> list[str]:
  """Returns the names of the metrics that compare runs."""
  return [name for name, metric in METRICS.items() if metric.is_compared]


def report(
  means: Mapping[str, Any],
  read: Callable[[Any], Any],
  chosen: metric_lib.Chosen = metric_lib.NONE,
) -> dict[str, Any]:
  """Returns the metrics as drivers report them, accuracies in percent.

  Args:
    means: The result of `finalize`.
    read: Selects from the means of a metric, [num_domains] float32, for example
      one domain's mean as a float. Its result must support multiplication.
    chosen: The metrics besides `METRICS`; tables are left out.

  Returns:
    The selected values, by the name of the metric or of its column.
  """
  found = {name: _shown(name, read(means[name])) for name in METRICS}
  return found | report_chosen(means, read, chosen)


def report_chosen(
  means: Mapping[str, Any],
  read: Callable[[Any], Any],
  chosen: metric_lib.Chosen,
) -> dict[str, Any]:
  """Returns the chosen metrics as `report` does, without `METRICS`."""
  found = {}
  for name, columns in chosen.columns.items():
    parts: Iterable[Any] = [means[name]]
    if chosen.metrics[name].by_class:
      parts = np.moveaxis(np.asarray(means[name]), -1, 0)
    for column, values in zip(columns, parts, strict=False):
      found[column] = _shown(column, read(values))
  return found


def _shown(name: str, value):
  """Returns a metric in the unit of reports."""
  return 100.0 * value if name.endswith("accuracy") else value


def client_metrics(chosen: metric_lib.Chosen) -> tuple[str, ...]:
  """Returns the metrics that are one number per client and domain.

  Args:
    chosen: The metrics besides `METRICS`; tables and metrics with a value per
      class are left out.
  """
  return (
    *CLIENT_METRICS,
    *(name for name, own in chosen.columns.items() if own == (name,)),
  )


def report_clients(
  own: Sequence[Mapping[str, Any]], domain: int
) -> dict[str, np.ndarray]:
  """Returns the values of each client in a domain, accuracies in percent.

  Args:
    own: The values of each client, the second result of `evaluate_each_client`.
    domain: The domain.

  Returns:
    By name, [num_clients] float32; NaN: not defined for this client.
  """
  names = own[0] if own else ()
  return {
    name: _shown(
      name, np.array([each[name][domain] for each in own], np.float32)
    )
    for name in names
  }


def tables(
  means: Mapping[str, Any], chosen: metric_lib.Chosen, domains: slice
) -> dict[str, np.ndarray]:
  """Returns the tables among the chosen metrics, summed over domains.

  Args:
    means: The result of `finalize`.
    chosen: The metrics besides `METRICS`.
    domains: The domains to sum over.

  Returns:
    Counts, [rows, columns] int64, by the name of the metric.
  """
  return {
    name: np.asarray(means[name])[domains].sum(axis=0).astype(np.int64)
    for name, metric in chosen.metrics.items()
    if metric.is_table
  }


def domain_metrics(
  logits, y, domain_sizes, chosen: metric_lib.Chosen = metric_lib.NONE
) -> collections.OrderedDict[str, tf.Tensor]:
  """Sums the metrics over the examples of each domain.

  Args:
    logits: [num_examples or more, num_classes] float32.
    y: The true classes, [num_examples or more] int32.
    domain_sizes: The number of examples of each domain, in order, [num_domains]
      int32. Rows after them are ignored.
    chosen: The metrics besides `METRICS`.

  Returns:
    An ordered dictionary of float32 tensors of shape [num_domains]: the sum of
    each metric of `METRICS`; `num_examples`; and, for metrics over a subset of
    the examples, the size of the subset, such as `num_examples_of_loss`. And
    the sums of the chosen metrics, see `metric.domain_sums`.
  """
  num_domains = tf.size(domain_sizes)
  # The domain of padding is the number of domains.
  is_after = tf.range(tf.size(y))[:, None] >= tf.cumsum(domain_sizes)
  domains = tf.reduce_sum(tf.cast(is_after, tf.int32), axis=1)

  def add_up(values):
    return metric_lib.domain_sum(values, domains, num_domains)

  sums, counts = collections.OrderedDict(), collections.OrderedDict()
  for name, metric in METRICS.items():
    values = metric.per_example(logits, y)
    if metric.counts_example is not None:
      is_counted = metric.counts_example(logits, y)
      values = tf.where(is_counted, values, 0.0)
      counts[_count_of(metric, name)] = add_up(tf.cast(is_counted, tf.float32))
    sums[name] = add_up(values)
  sums["num_examples"] = tf.cast(domain_sizes, tf.float32)
  others = metric_lib.domain_sums(chosen, logits, y, domains, num_domains)
  return sums | counts | others


def _count_of(metric: ExampleMetric, name: str) -> str:
  """Returns the name of the count that a metric's sum is divided by."""
  if metric.counts_clients:
    return "num_clients"
  return "num_examples" + (f"_of_{name}" if metric.counts_example else "")


def _per_client(sums, chosen: metric_lib.Chosen):
  """Converts a client's sums to its addends of the sums over clients."""
  num_examples = sums["num_examples"]
  parts = collections.OrderedDict(
    (
      name,
      tf.math.divide_no_nan(sums[name], num_examples)
      if metric.counts_clients
      else sums[name],
    )
    for name, metric in METRICS.items()
  )
  parts["num_clients"] = tf.cast(num_examples > 0, tf.float32)
  own = metric_lib.sums_names(chosen).values()
  kept = collections.OrderedDict(
    (name, sums[name]) for name in sums if name not in own
  )
  others = metric_lib.client_addends(chosen, sums, num_examples)
  return kept | parts | others


def finalize(
  totals, chosen: metric_lib.Chosen = metric_lib.NONE
) -> collections.OrderedDict[str, tf.Tensor]:
  """Turns summed metrics into means.

  Args:
    totals: For each metric of `METRICS` the sum over clients of their means if
      it counts clients, otherwise of their sums; the numbers of examples of
      `domain_metrics`; and `num_clients`, the number of clients with examples
      of a domain. And the sums of the chosen metrics, see
      `metric.client_addends`.
    chosen: The metrics besides `METRICS`.

  Returns:
    An ordered dictionary of float32 tensors of shape [num_domains]: each metric
    of `METRICS`, `num_examples`, and the chosen metrics. `accuracy` is the
    unweighted mean over the clients with examples of the domain;
    `pooled_accuracy` the fraction of correct predictions over all examples;
    `loss` the mean over all examples of a class that can be predicted, see
    `NO_LOGIT`; `not_finite` the fraction of predictions that are not finite,
    which count as wrong. Means over nothing are NaN.
  """
  means = collections.OrderedDict(
    (name, totals[name] / totals[_count_of(metric, name)])
    for name, metric in METRICS.items()
  )
  means["num_examples"] = totals["num_examples"]
  return means | metric_lib.final_values(chosen, totals, totals["num_examples"])


def federated_metrics(
  sums_at_clients: Any, chosen: metric_lib.Chosen = metric_lib.NONE
) -> tff.Value:
  """Aggregates `domain_metrics` of clients; call in a federated computation.

  Args:
    sums_at_clients: The result of `domain_metrics`, placed at CLIENTS.
    chosen: The metrics besides `METRICS`.

  Returns:
    The result of `finalize`, placed at SERVER.
  """
  sums_type = sums_at_clients.type_signature.member
  per_client_values = tff.tensorflow.computation(
    lambda sums: _per_client(sums, chosen), sums_type
  )
  summed = tff.federated_sum(
    tff.federated_map(per_client_values, sums_at_clients)
  )
  return tff.federated_map(
    tff.tensorflow.computation(
      lambda totals: finalize(totals, chosen), summed.type_signature.member
    ),
    summed,
  )


def server_metrics(
  sums_at_server: Any, chosen: metric_lib.Chosen = metric_lib.NONE
) -> tff.Value:
  """Converts `domain_metrics` at the server to means, as for one client.

  Args:
    sums_at_server: The result of `domain_metrics`, placed at SERVER.
    chosen: The metrics besides `METRICS`.

  Returns:
    The result of `finalize`, placed at SERVER.
  """
  sums_type = sums_at_server.type_signature.member
  return tff.federated_map(
    tff.tensorflow.computation(
      lambda sums: finalize(_per_client(sums, chosen), chosen), sums_type
    ),
    sums_at_server,
  )


def client_evaluation(
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  evaluation_type: tff.Type,
  prepare: function_types.PrepareClientFn | None,
  predict: function_types.PredictAsClientFn,
  can_predict: function_types.CanPredictFn | None = None,
  chosen: metric_lib.Chosen = metric_lib.NONE,
) -> tuple[tff.Computation, tff.Computation]:
  """Builds the evaluations of the clients' own models on the clients' data.

  Args:
    server_type: The type of the computation's argument at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of the weights that functions take.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    evaluation_type: The type of the evaluation data.
    prepare: `(weights, client_state, data, round_num) -> prepared`, see
      `algorithm.AlgorithmSpec.prepare_client`.
    predict: `(weights, client_state, data, evaluation_data) -> logits`.
    can_predict: `(data) -> bool`; a client with False counts as a client
      without evaluation examples. None: all clients can predict.
    chosen: The metrics besides `METRICS`.

  Returns:
    `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS, {E}@CLIENTS) -> metrics@SERVER`, and
    a computation that also returns each client's own values: `-> <metrics@
    SERVER, {values}@CLIENTS>`, [num_domains] float32 for each of
    `client_metrics`.
  """

  @tff.tensorflow.computation(
    shared_type, client_type, examples_type, evaluation_type, np.int32
  )
  def evaluate_client(weights, client_state, data, evaluation_data, round_num):
    if prepare is not None:
      client_state = prepare(weights, client_state, data, round_num)
    logits = predict(weights, client_state, data, evaluation_data)
    sums = domain_metrics(
      logits, evaluation_data.y, evaluation_data.domain_sizes, chosen
    )
    if can_predict is None:
      return sums
    counts = can_predict(data)
    return tf.nest.map_structure(
      lambda each: tf.where(counts, each, tf.zeros_like(each)), sums
    )

  @tff.tensorflow.computation(evaluate_client.type_signature.result)
  def own_values(sums):
    own = finalize(_per_client(sums, chosen), chosen)
    return collections.OrderedDict(
      (name, own[name]) for name in client_metrics(chosen)
    )

  argument_types = (
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
    tff.FederatedType(evaluation_type, tff.CLIENTS),
  )

  def sums_at_clients(server, client_states, data, evaluation_data):
    weights, round_num = tff.federated_broadcast(
      (frozen_weights.shared(server), frozen_weights.state(server).round_num)
    )
    return tff.federated_map(
      evaluate_client,
      (weights, client_states, data, evaluation_data, round_num),
    )

  @tff.federated_computation(*argument_types)
  def evaluate_clients(server, client_states, data, evaluation_data):
    sums = sums_at_clients(server, client_states, data, evaluation_data)
    return federated_metrics(sums, chosen)

  @tff.federated_computation(*argument_types)
  def evaluate_each_client(server, client_states, data, evaluation_data):
    sums = sums_at_clients(server, client_states, data, evaluation_data)
    return federated_metrics(sums, chosen), tff.federated_map(own_values, sums)

  return evaluate_clients, evaluate_each_client


def client_summary(
  server_type: tff.Type,
  shared_type: tff.Type,
  examples_type: tff.Type,
  summarize_client: function_types.SummarizeClientFn,
) -> tff.Computation | None:
  """Builds the sums over clients that the server predicts with.

  Args:
    server_type: The type of the computation's argument at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of the weights that functions take.
    examples_type: The type of a client's data.
    summarize_client: `(weights, data) -> summary` of one client.

  Returns:
    `(S@SERVER, {D}@CLIENTS) -> summary@SERVER`; None if summaries are empty.
  """
  work = tff.tensorflow.computation(
    summarize_client, shared_type, examples_type
  )
  if not tff.structure.flatten(work.type_signature.result):
    return None

  @tff.federated_computation(
    server_type, tff.FederatedType(examples_type, tff.CLIENTS)
  )
  def summarize(server, data):
    weights = tff.federated_broadcast(frozen_weights.shared(server))
    return tff.federated_sum(tff.federated_map(work, (weights, data)))

  return summarize


def server_evaluation(
  server_type: tff.Type,
  shared_type: tff.Type,
  examples_type: tff.Type,
  evaluation_type: tff.Type,
  predict: function_types.PredictAsServerFn,
  summarize: tff.Computation | None,
  chosen: metric_lib.Chosen = metric_lib.NONE,
) -> tff.Computation:
  """Builds the evaluation of the server model on the server's data.

  Args:
    server_type: The type of the computation's argument at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of the weights that functions take.
    examples_type: The type of a client's data.
    evaluation_type: The type of the evaluation data.
    predict: `(weights, summary, evaluation_data) -> logits`.
    summarize: The result of `client_summary`.
    chosen: The metrics besides `METRICS`.

  Returns:
    `(S@SERVER, {D}@CLIENTS, E@SERVER) -> metrics@SERVER`.
  """
  summary_type = (
    tff.types.to_type(())
    if summarize is None
    else summarize.type_signature.result.member
  )

  @tff.tensorflow.computation(shared_type, summary_type, evaluation_type)
  def evaluate(weights, summary, evaluation_data):
    logits = predict(weights, summary, evaluation_data)
    return domain_metrics(
      logits, evaluation_data.y, evaluation_data.domain_sizes, chosen
    )

  @tff.federated_computation(
    server_type,
    tff.FederatedType(examples_type, tff.CLIENTS),
    tff.FederatedType(evaluation_type, tff.SERVER),
  )
  def evaluate_server(server, data, evaluation_data):
    summary = (
      tff.federated_value((), tff.SERVER)
      if summarize is None
      else summarize(server, data)
    )
    return server_metrics(
      tff.federated_map(
        evaluate, (frozen_weights.shared(server), summary, evaluation_data)
      ),
      chosen,
    )

  return evaluate_server
