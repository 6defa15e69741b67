"""Accuracy per domain, as sums that clients can add up, and who computes it.

What leaves a client is, for each domain, the number of right predictions, the
number of examples and the sum of losses, never a prediction.
"""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import frozen_weights
from tff_shift.models import split_model

# Bounds the memory of a forward pass over a whole test set.
_EVALUATION_BATCH = 256


def predict_in_batches(
  predict: Callable[[tf.Tensor], tf.Tensor], x, width: int
) -> tf.Tensor:
  """Applies a function to many examples, a batch at a time.

  Args:
    predict: `x [batch, ...] -> [batch, width] float32`, example by example.
    x: The examples, [num_examples, ...].
    width: The length of the vector that `predict` gives for an example.

  Returns:
    A float32 tensor of shape [num_examples, width].
  """
  num_examples = tf.shape(x)[0]
  num_batches = -(-num_examples // _EVALUATION_BATCH)

  def predict_batch(i, outputs):
    batch = x[i * _EVALUATION_BATCH : (i + 1) * _EVALUATION_BATCH]
    return i + 1, outputs.write(i, predict(batch))

  _, outputs = tf.while_loop(
    lambda i, _: i < num_batches,
    predict_batch,
    (
      tf.constant(0),
      tf.TensorArray(
        tf.float32,
        size=num_batches,
        infer_shape=False,
        element_shape=[None, width],
      ),
    ),
    parallel_iterations=1,
  )
  # The concatenation of no batch has no shape of its own.
  return tf.cond(
    num_examples > 0,
    outputs.concat,
    lambda: tf.zeros([0, width], tf.float32),
  )


def predict(
  model: split_model.SplitModel, weights: split_model.SplitWeights, x
) -> tf.Tensor:
  """Predicts the logits of examples [num_examples, ...]."""
  return predict_in_batches(
    lambda batch: model.predict(weights, batch), x, model.num_classes
  )


def predict_by_domain(
  predict: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  x,
  domain_sizes,
  width: int,
) -> tf.Tensor:
  """Predicts the examples of each domain by themselves.

  What a method carries from one example to the next, such as a history, starts
  anew at every domain. So predictions for a domain do not depend on which other
  domains are predicted with it.

  Args:
    predict: `(domain, x [n, ...]) -> [n, width] float32`, with the domain an
      int32 scalar. It is not called for a domain without examples.
    x: The examples, [num_examples, ...], domain by domain.
    domain_sizes: How many belong to each domain, [num_domains] int32.
    width: The length of the vector that `predict` gives for an example.

  Returns:
    A float32 tensor of shape [num_examples, width].
  """
  num_domains = tf.size(domain_sizes)
  ends = tf.cumsum(domain_sizes)

  def predict_domain(domain, outputs):
    part = x[ends[domain] - domain_sizes[domain] : ends[domain]]
    predicted = tf.cond(
      domain_sizes[domain] > 0,
      lambda: predict(domain, part),
      lambda: tf.zeros([0, width]),
    )
    return domain + 1, outputs.write(domain, predicted)

  _, outputs = tf.while_loop(
    lambda domain, _: domain < num_domains,
    predict_domain,
    (
      tf.constant(0),
      tf.TensorArray(
        tf.float32,
        size=num_domains,
        infer_shape=False,
        element_shape=[None, width],
      ),
    ),
    parallel_iterations=1,
  )
  return outputs.concat()


def domain_metrics(
  logits, y, domain_sizes
) -> collections.OrderedDict[str, tf.Tensor]:
  """Adds up right predictions, examples and losses of each domain.

  Args:
    logits: [num_examples, num_classes] float32.
    y: The true classes, [num_examples] int32.
    domain_sizes: How many examples belong to each domain, in order,
      [num_domains] int32.

  Returns:
    An ordered dictionary of float32 tensors of shape [num_domains]: `correct`,
    `num_examples`, `loss_sum`.
  """
  num_domains = tf.size(domain_sizes)
  domains = tf.repeat(tf.range(num_domains), domain_sizes)

  def per_domain(values):
    return tf.math.unsorted_segment_sum(values, domains, num_domains)

  predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=logits
  )
  return collections.OrderedDict(
    correct=per_domain(tf.cast(tf.equal(predictions, y), tf.float32)),
    num_examples=tf.cast(domain_sizes, tf.float32),
    loss_sum=per_domain(losses),
  )


def _per_client(sums):
  """Adds what the mean over clients needs to a client's sums."""
  accuracy = tf.math.divide_no_nan(sums["correct"], sums["num_examples"])
  has_examples = tf.cast(sums["num_examples"] > 0, tf.float32)
  return collections.OrderedDict(
    sums, accuracy_sum=accuracy, num_clients=has_examples
  )


def finalize(sums) -> collections.OrderedDict[str, tf.Tensor]:
  """Turns summed metrics into means.

  Args:
    sums: What `domain_metrics` gives, with `accuracy_sum` and `num_clients`.

  Returns:
    An ordered dictionary of float32 tensors of shape [num_domains]:
    `accuracy`, the mean over the clients that have examples of the domain, each
    client counting alike; `pooled_accuracy`, the share of right predictions
    over all examples; `loss`, the mean over all examples; `num_examples`. Means
    over nothing are NaN.
  """
  return collections.OrderedDict(
    accuracy=sums["accuracy_sum"] / sums["num_clients"],
    pooled_accuracy=sums["correct"] / sums["num_examples"],
    loss=sums["loss_sum"] / sums["num_examples"],
    num_examples=sums["num_examples"],
  )


def federated_metrics(sums_at_clients: Any) -> tff.Value:
  """Aggregates `domain_metrics` of clients; call in a federated computation.

  Args:
    sums_at_clients: What `domain_metrics` gives, placed at CLIENTS.

  Returns:
    What `finalize` gives, placed at SERVER.
  """
  sums_type = sums_at_clients.type_signature.member
  per_client = tff.tensorflow.computation(_per_client, sums_type)
  summed = tff.federated_sum(tff.federated_map(per_client, sums_at_clients))
  return tff.federated_map(
    tff.tensorflow.computation(finalize, summed.type_signature.member),
    summed,
  )


def server_metrics(sums_at_server: Any) -> tff.Value:
  """Turns `domain_metrics` at the server into means, as one client's would be.

  Args:
    sums_at_server: What `domain_metrics` gives, placed at SERVER.

  Returns:
    What `finalize` gives, placed at SERVER.
  """
  sums_type = sums_at_server.type_signature.member
  return tff.federated_map(
    tff.tensorflow.computation(
      lambda sums: finalize(_per_client(sums)), sums_type
    ),
    sums_at_server,
  )


def client_evaluation(
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  evaluation_type: tff.Type,
  predict: Callable[[Any, Any, Any, Any], tf.Tensor],
) -> tff.Computation:
  """Builds the evaluation of the clients' own models on data of the clients.

  Args:
    server_type: The type of what the computation takes at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of what functions take as weights.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    evaluation_type: The type of the data to predict.
    predict: `(weights, client_state, data, evaluation_data) -> logits`.

  Returns:
    `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS, {E}@CLIENTS) -> metrics@SERVER`.
  """

  @tff.tensorflow.computation(
    shared_type, client_type, examples_type, evaluation_type
  )
  def evaluate_client(weights, client_state, data, evaluation_data):
    logits = predict(weights, client_state, data, evaluation_data)
    return domain_metrics(
      logits, evaluation_data.y, evaluation_data.domain_sizes
    )

  @tff.federated_computation(
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
    tff.FederatedType(evaluation_type, tff.CLIENTS),
  )
  def evaluate_clients(server, client_states, data, evaluation_data):
    weights = tff.federated_broadcast(frozen_weights.shared(server))
    sums = tff.federated_map(
      evaluate_client, (weights, client_states, data, evaluation_data)
    )
    return federated_metrics(sums)

  return evaluate_clients


def server_evaluation(
  server_type: tff.Type,
  shared_type: tff.Type,
  examples_type: tff.Type,
  evaluation_type: tff.Type,
  predict: Callable[[Any, Any, Any], tf.Tensor],
  summarize_client: Callable[[Any, Any], Any],
) -> tff.Computation:
  """Builds the evaluation of the shared model on data of the server.

  Args:
    server_type: The type of what the computation takes at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of what functions take as weights.
    examples_type: The type of a client's data.
    evaluation_type: The type of the data to predict.
    predict: `(weights, summary, evaluation_data) -> logits`.
    summarize_client: `(weights, data) -> summary`, summed over clients.

  Returns:
    `(S@SERVER, {D}@CLIENTS, E@SERVER) -> metrics@SERVER`.
  """
  summarize = tff.tensorflow.computation(
    summarize_client, shared_type, examples_type
  )
  summary_type = summarize.type_signature.result
  has_summary = bool(tff.structure.flatten(summary_type))

  @tff.tensorflow.computation(shared_type, summary_type, evaluation_type)
  def evaluate(weights, summary, evaluation_data):
    logits = predict(weights, summary, evaluation_data)
    return domain_metrics(
      logits, evaluation_data.y, evaluation_data.domain_sizes
    )

  @tff.federated_computation(
    server_type,
    tff.FederatedType(examples_type, tff.CLIENTS),
    tff.FederatedType(evaluation_type, tff.SERVER),
  )
  def evaluate_server(server, data, evaluation_data):
    weights = frozen_weights.shared(server)
    if has_summary:
      summary = tff.federated_sum(
        tff.federated_map(summarize, (tff.federated_broadcast(weights), data))
      )
    else:
      summary = tff.federated_value((), tff.SERVER)
    return server_metrics(
      tff.federated_map(evaluate, (weights, summary, evaluation_data))
    )

  return evaluate_server
