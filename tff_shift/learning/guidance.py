"""Queries that reach the server: who answers them, and how.

Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning,
Remark 2.4 and Section 4: a query is routed to the client that most probably
knows best, and answered by that client's own model. Methods that cannot guide
ask all clients and take the vote of the majority.

Queries come from outside and are no client's data. What leaves a client to
answer them is a class for each query that it was asked.
"""

import collections
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import evaluation
from tff_shift.learning import frozen_weights
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

# The class of a query that no client answers, or only with what is no number.
NO_CLIENT = evaluation.NO_CLASS


class Guidance(NamedTuple):
  """How queries are answered; x are `num_queries` examples.

  S is the server's state, C a client's personal state, D its data, of which
  only the number of examples and what a client needs to predict count; P is
  what a client has prepared, or C where nothing is to be prepared.

  Attributes:
    num_queries: The number of queries that are answered at a time.
    prepare: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> {P}@CLIENTS`, what clients
      work out before they predict, once for all queries; it stays with them.
      None where there is no such thing.
    guide: `(S@SERVER, {D}@CLIENTS, x@SERVER) -> routing@SERVER`, which is what
      `route` gives. None where the server cannot tell.
    answer: `(S@SERVER, {P}@CLIENTS, {D}@CLIENTS, x@SERVER, routes@SERVER) ->
      classes@SERVER`: each client predicts the queries whose route, an int32,
      is its id, and no others. The class of a query without such a client, or
      with one that does not predict a number, is `NO_CLIENT`.
    vote: `(S@SERVER, {P}@CLIENTS, {D}@CLIENTS, x@SERVER) -> classes@SERVER`:
      every client predicts every query, and the class of most clients wins, see
      `winners`. What is no number is no vote.
  """

  num_queries: int
  prepare: tff.Computation | None
  guide: tff.Computation | None
  answer: tff.Computation
  vote: tff.Computation


def route(
  client_logits, client_weights
) -> collections.OrderedDict[str, tf.Tensor]:
  """Tells which client most probably knows best.

  A softmax of the logits is the probability of each client if a query came from
  a client as often as training examples did, each weighed as its client is
  (with n_i, as in Algorithm 1, gamma of Theorem 2.2 holds log n_i); divided by
  the clients' shares n_i / N and normalised again, it is the probability if all
  clients were asked alike.

  Args:
    client_logits: [num_queries, num_clients] float32.
    client_weights: What each client counted in the mean of training, such as
      its number of examples, n_i: [num_clients] float32. A client of weight 0
      is no route of the corrected kind.

  Returns:
    An ordered dictionary: `probabilities` [num_queries, num_clients] float32
    and `routes` [num_queries] int32, corrected for the shares; and the same of
    the plain softmax, as the paper has it: `uncorrected_probabilities`,
    `uncorrected_routes`. A route is the client of highest probability, the
    lowest id if there are several.
  """
  shares = client_weights / tf.reduce_sum(client_weights)
  corrected = tf.where(
    shares > 0, client_logits - tf.math.log(shares), client_logits.dtype.min
  )
  routing = collections.OrderedDict()
  for prefix, logits in (("", corrected), ("uncorrected_", client_logits)):
    routing[f"{prefix}probabilities"] = tf.nn.softmax(logits)
    routing[f"{prefix}routes"] = tf.argmax(logits, axis=1, output_type=tf.int32)
  return routing


def winners(votes) -> tf.Tensor:
  """Returns the class with most votes, the lowest of them if several have.

  Args:
    votes: [num_queries, num_classes] int32.

  Returns:
    [num_queries] int32; `NO_CLIENT` where nobody has voted.
  """
  classes = tf.argmax(votes, axis=1, output_type=tf.int32)
  return tf.where(tf.reduce_any(votes > 0, axis=1), classes, NO_CLIENT)


def build_guidance(
  model: split_model.SplitModel,
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  num_queries: int,
  prepare_client: Callable[[Any, Any, Any, Any], Any] | None,
  predict_as_client: Callable[[Any, Any, Any, Any], tf.Tensor],
  guide_queries: Callable[[Any, Any], tf.Tensor] | None,
  client_weight: Callable[[Any], Any],
) -> Guidance:
  """Builds how queries are answered.

  Args:
    model: The model; its inputs fix the type of a query.
    server_type: The type of what the computations take at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of what functions take as weights.
    client_type: The type of a client's state.
    examples_type: The type of a client's data, which have a `client_id`.
    num_queries: The number of queries at a time, at least 1. What is summed
      over clients needs a shape of its own.
    prepare_client: See `algorithm.AlgorithmSpec`, as the functions that follow.
    predict_as_client: `(weights, client_state, data, evaluation_data) ->
      logits`.
    guide_queries: `(weights, x) -> logits` over the clients, or None.
    client_weight: `data -> weight` of a client in the mean of training.

  Returns:
    A `Guidance`.
  """
  queries_type = tff.TensorType(
    model.input_dtype.as_numpy_dtype, (num_queries, *model.input_shape)
  )
  routes_type = tff.TensorType(np.int32, (num_queries,))
  prepare = None
  if prepare_client is not None:
    prepare = preparation(
      server_type, shared_type, client_type, examples_type, prepare_client
    )
    client_type = prepare.type_signature.result.member
  client_types = shared_type, client_type, examples_type, queries_type

  def predict(weights, client_state, data, x):
    num_examples = tf.shape(x)[0]
    examples = local_training.ClientData(
      x=x,
      # What is not known.
      y=tf.zeros([num_examples], tf.int32),
      domain_sizes=num_examples[tf.newaxis],
      # Predictions draw nothing.
      seed=tf.zeros(randomness.SEED_SHAPE, tf.int32),
      client_id=data.client_id,
    )
    logits = predict_as_client(weights, client_state, data, examples)
    return evaluation.predicted_classes(logits)

  @tff.tensorflow.computation(*client_types, routes_type)
  def answer_own(weights, client_state, data, x, routes):
    own = tf.where(tf.equal(routes, data.client_id))
    classes = predict(
      weights, client_state, data, tf.gather(x, tf.squeeze(own, 1))
    )
    # Sums to NO_CLIENT where no client answers, or not with a number.
    return tf.scatter_nd(own, classes - NO_CLIENT, [num_queries])

  @tff.tensorflow.computation(*client_types)
  def cast_votes(weights, client_state, data, x):
    classes = predict(weights, client_state, data, x)
    return tf.one_hot(
      tf.ensure_shape(classes, [num_queries]),
      model.num_classes,
      dtype=tf.int32,
    )

  @tff.tensorflow.computation(routes_type)
  def read_answers(summed):
    return summed + NO_CLIENT

  @tff.tensorflow.computation(
    tff.TensorType(np.int32, (num_queries, model.num_classes))
  )
  def count_votes(votes):
    return winners(votes)

  at_server = [
    tff.FederatedType(each, tff.SERVER) for each in (queries_type, routes_type)
  ]
  at_clients = [
    tff.FederatedType(each, tff.CLIENTS)
    for each in (client_type, examples_type)
  ]

  @tff.federated_computation(server_type, *at_clients, *at_server)
  def answer(server, client_states, data, x, routes):
    weights, x, routes = tff.federated_broadcast(
      (frozen_weights.shared(server), x, routes)
    )
    answers = tff.federated_map(
      answer_own, (weights, client_states, data, x, routes)
    )
    return tff.federated_map(read_answers, tff.federated_sum(answers))

  @tff.federated_computation(server_type, *at_clients, at_server[0])
  def vote(server, client_states, data, x):
    weights, x = tff.federated_broadcast((frozen_weights.shared(server), x))
    votes = tff.federated_map(cast_votes, (weights, client_states, data, x))
    return tff.federated_map(count_votes, tff.federated_sum(votes))

  guide = None
  if guide_queries is not None:
    guide = _guide(
      server_type,
      shared_type,
      at_clients[1],
      at_server[0],
      guide_queries,
      client_weight,
    )
  return Guidance(num_queries, prepare, guide, answer, vote)


def preparation(
  server_type: tff.Type,
  shared_type: tff.Type,
  client_type: tff.Type,
  examples_type: tff.Type,
  prepare_client: Callable[[Any, Any, Any, Any], Any],
) -> tff.Computation:
  """Builds what clients do before they predict.

  Args:
    server_type: See `build_guidance`, as the types that follow.
    shared_type: The type of what functions take as weights.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    prepare_client: See `algorithm.AlgorithmSpec`.

  Returns:
    `prepare` of a `Guidance`.
  """
  work = tff.tensorflow.computation(
    prepare_client, shared_type, client_type, examples_type, np.int32
  )

  @tff.federated_computation(
    server_type,
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def prepare(server, client_states, data):
    weights, round_num = tff.federated_broadcast(
      (frozen_weights.shared(server), frozen_weights.state(server).round_num)
    )
    return tff.federated_map(work, (weights, client_states, data, round_num))

  return prepare


def _guide(
  server_type,
  shared_type,
  data_at_clients,
  queries_at_server,
  guide_queries,
  client_weight,
) -> tff.Computation:
  """Builds the server's guidance; clients tell what they count in the mean."""
  logits_of = tff.tensorflow.computation(
    guide_queries, shared_type, queries_at_server.member
  )
  logits_type = logits_of.type_signature.result
  num_clients = logits_type.shape[1]

  @tff.tensorflow.computation(data_at_clients.member)
  def weight_of(data):
    weight = tf.cast(client_weight(data), tf.float32)
    return weight * tf.one_hot(data.client_id, num_clients)

  route_fn = tff.tensorflow.computation(
    route, logits_type, tff.TensorType(np.float32, (num_clients,))
  )

  @tff.federated_computation(server_type, data_at_clients, queries_at_server)
  def guide(server, data, x):
    logits = tff.federated_map(logits_of, (frozen_weights.shared(server), x))
    weights = tff.federated_sum(tff.federated_map(weight_of, data))
    return tff.federated_map(route_fn, (logits, weights))

  return guide
