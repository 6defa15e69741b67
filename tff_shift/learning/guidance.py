"""Queries that reach the server: routing and answering.

Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning,
Remark 2.4 and Section 4: a query is routed to the client that most probably
knows best, and answered by that client's own model. Methods without guidance
send it to all clients and take a majority vote.

Queries come from outside and are not client data. A client sends only the
predicted label of each query that it receives.
"""

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import batch_values
from tff_shift.data import client_dataset
from tff_shift.learning import evaluation
from tff_shift.learning import frozen_weights
from tff_shift.learning import function_types
from tff_shift.learning import randomness
from tff_shift.models import split_model

# The label of a query without an answer, or with logits that are not finite.
NO_CLIENT = evaluation.NO_CLASS


class Guidance(NamedTuple):
  """The computations that answer queries; x are `num_queries` examples.

  S is the server state, C a client's personal state and D its data, of which
  only the number of examples and what `prepare_client` needs are used. P is a
  client's prepared state, or C without preparation.

  Attributes:
    num_queries: The number of queries answered at a time.
    prepare: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> {P}@CLIENTS`, the clients'
      preparation, done once for all queries; P stays with the clients. None: no
      preparation.
    guide: `(S@SERVER, {D}@CLIENTS, x@SERVER) -> routing@SERVER`, the result of
      `route`. None: the server cannot rank clients.
    answer: `(S@SERVER, {P}@CLIENTS, {D}@CLIENTS, x@SERVER, routes@SERVER) ->
      classes@SERVER`: each client predicts only the queries whose route, an
      int32, is its id. The label of a query without such a client, or with
      logits that are not finite, is `NO_CLIENT`.
    vote: `(S@SERVER, {P}@CLIENTS, {D}@CLIENTS, x@SERVER) -> classes@SERVER`:
      every client predicts every query, and the majority wins, see `winners`.
      Logits that are not finite are not a vote.
  """

  num_queries: int
  prepare: tff.Computation | None
  guide: tff.Computation | None
  answer: tff.Computation
  vote: tff.Computation


def route(
  client_logits, client_weights
) -> collections.OrderedDict[str, tf.Tensor]:
  """Ranks the clients for each query.

  The softmax of the logits is the probability of each client for queries
  distributed like the training examples, weighted as clients are (with n_i, as
  in Algorithm 1, gamma of Theorem 2.2 contains log n_i). Divided by the
  clients' fractions n_i / N and normalised again, it is the probability for
  queries distributed uniformly over clients.

  Args:
    client_logits: [num_queries, num_clients] float32.
    client_weights: The clients' weights in the mean of training, such as the
      number of examples, n_i: [num_clients] float32. A client of weight 0 is
      never a corrected route.

  Returns:
    An ordered dictionary: `probabilities` [num_queries, num_clients] float32
    and `routes` [num_queries] int32, corrected for the fractions;
    `uncorrected_probabilities` and `uncorrected_routes`, of the plain softmax,
    as in the paper. A route is the client of highest probability; ties go to
    the lowest id.
  """
  fractions = client_weights / tf.reduce_sum(client_weights)
  corrected = tf.where(
    fractions > 0,
    client_logits - tf.math.log(fractions),
    client_logits.dtype.min,
  )
  routing = collections.OrderedDict()
  for prefix, logits in (("", corrected), ("uncorrected_", client_logits)):
    routing[f"{prefix}probabilities"] = tf.nn.softmax(logits)
    routing[f"{prefix}routes"] = tf.argmax(logits, axis=1, output_type=tf.int32)
  return routing


def winners(votes) -> tf.Tensor:
  """Returns the class with most votes; ties go to the lowest class.

  Args:
    votes: [num_queries, num_classes] int32.

  Returns:
    [num_queries] int32; `NO_CLIENT` without votes.
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
  prepare_client: function_types.PrepareClientFn | None,
  predict_as_client: function_types.PredictAsClientFn,
  guide_queries: function_types.GuideQueriesFn | None,
  client_weight: function_types.ClientWeightFn,
) -> Guidance:
  """Builds the computations that answer queries.

  Args:
    model: The model; its inputs determine the type of a query.
    server_type: The type of the computations' argument at SERVER, see
      `frozen_weights.server_type`.
    shared_type: The type of the weights that functions take.
    client_type: The type of a client's state.
    examples_type: The type of a client's data, which have a `client_id`.
    num_queries: The number of queries at a time, at least 1; fixed, since sums
      over clients need a fixed shape.
    prepare_client: `(weights, client_state, data, round_num) -> prepared`, see
      `algorithm.AlgorithmSpec`.
    predict_as_client: `(weights, client_state, data, evaluation_data) ->
      logits`.
    guide_queries: `(weights, x) -> logits` over the clients, or None.
    client_weight: `data -> weight` of a client in the mean of training.
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
    examples = client_dataset.ClientDataset(
      x=x,
      # Unknown.
      y=tf.zeros([num_examples], tf.int32),
      domain_sizes=num_examples[tf.newaxis],
      num_examples=num_examples,
      # Predictions are deterministic.
      seed=tf.zeros(randomness.SEED_SHAPE, tf.int32),
      client_id=data.client_id,
    )
    logits = predict_as_client(weights, client_state, data, examples)
    return evaluation.predicted_classes(logits)

  @tff.tensorflow.computation(*client_types, routes_type)
  def answer_own(weights, client_state, data, x, routes):
    is_own = tf.equal(routes, data.client_id)
    number = tf.math.count_nonzero(is_own, dtype=tf.int32)
    own_first = tf.argsort(tf.cast(~is_own, tf.int32), stable=True)
    # In a batch of clients, some predict more queries than their own.
    places = own_first[: batch_values.largest(number)]
    classes = predict(weights, client_state, data, tf.gather(x, places))
    # Sums to NO_CLIENT if no client answers, or its logits are not finite.
    answers = tf.where(
      tf.range(tf.size(places)) < number, classes - NO_CLIENT, 0
    )
    return tf.scatter_nd(places[:, None], answers, [num_queries])

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
  prepare_client: function_types.PrepareClientFn,
) -> tff.Computation:
  """Builds the clients' preparation for predicting.

  Args:
    server_type: The type of the computation's argument at SERVER.
    shared_type: The type of the weights that functions take.
    client_type: The type of a client's state.
    examples_type: The type of a client's data.
    prepare_client: `(weights, client_state, data, round_num) -> prepared`, see
      `algorithm.AlgorithmSpec`.

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
  """Builds the server's guidance; clients send their weights in the mean."""
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
