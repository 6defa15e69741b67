"""FLUX: FedAvg, then FedAvg in clusters of clients with similar data.

FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary
Distribution Shifts (Fenoglio, Li, Barbiero, Lane, Langheinrich, Gjoreski;
NeurIPS 2025, arXiv:2511.22305).

In rounds 0 to T0 - 1 all clients train one model by FedAvg. In round T0 - 1 a
client also describes its data: with z = P f(x), the embeddings f(x) by the
received model, projected to L numbers by a random matrix P, the descriptor is

    d = (mean of z, deviation of z, mean of z of each class,
         deviation of z of each class),   2 (U + 1) rows of L numbers,       (1)

for U classes, with -1 in the rows of a class that the client lacks. The server
scales each row to [0, 1] over the clients, and clusters the clients by DBSCAN
with two samples per core point: clients within eps of each other are
connected, and a client without a neighbour is a cluster. eps is the elbow of
the sorted distances delta of each client to its nearest one, times
`elbow_factor`. With the gap between the curve and the line from its first to
its last point,

    g_i = i / (n - 1) - (delta_i - delta_0) / (delta_(n-1) - delta_0),       (2)

the elbow is, from the last client to the first, the first local maximum after
which g falls by more than 1 / (n - 1) before it has a local minimum (Finding a
"Kneedle" in a Haystack, Satopaa, Albrecht, Irwin, Raghavan; ICDCS Workshops
2011, with sensitivity 1). From round T0 on, each cluster has a model, which
starts as the common one, and which its clients train by FedAvg.

A client that is not in a cluster, because it did not report in round T0 - 1,
goes to the cluster whose centroid is the nearest to its descriptor, by the
first two rows of (1), which need no labels. With `predict_with=nearest` all
clients do so for the examples that they predict.

Equation (1) and the elbow are those of the authors' program
(github.com/dariofenoglio98/FLUX, descriptors `Px_label_long`), which calls the
`kneed` package. Where kneed finds no elbow the program ends with an error; here
it is the client of the largest g, as everywhere with `elbow=largest_gap`.

With eps infinite, or T0 beyond the last round, it is FedAvg, bit for bit. With
eps 0 the clients train alone from round T0 on.

What leaves a client: its update of its cluster's model, in a table with zeros
for the other clusters, the number of the cluster, and the mean training loss;
in round T0 - 1, in plaintext per client, its descriptor. The server broadcasts
the models of all clusters, the number of each client's cluster, the centroids,
and the backbone that described the data.

Choices:
  * The program clusters when a round gains less than a threshold of accuracy on
    the clients' validation data, or after 80 % of the rounds. Here
    `clustering_round` is T0, because a round of a cohort has no common
    validation data.
  * Clients describe their data with the model that they receive in round T0 -
    1, and train it, as in the program; the mean of this round is still over all
    clients.
  * The number of models is fixed when the computation is built. If DBSCAN finds
    more clusters, eps grows: the result is single linkage with `max_clusters`
    clusters, and no client is lost.
  * P is random, as in the program, whose principal components are those of
    uniform random points. `predict_with=nearest` is off by default in the
    program too.
  * Clusters of one client are exactly `local` only if the mean over the cohort
    and its division by the client's fraction are exact, as for four clients of
    equal weights.
  * With few clients the elbow can lie below the distances within a group, and
    leave some clients alone: of six clients of two kinds it isolated one.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import client_groups
from tff_shift.algorithms.parts import model_stack
from tff_shift.algorithms.parts import prototypes
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import parts
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")

AGGREGATION_REQUIREMENTS = dataclasses.replace(
  model_stack.AGGREGATION_REQUIREMENTS,
  per_client_values="its server clusters the clients by the descriptors of each"
  " client's data",
)

# The number that is folded into the seed of P. No part of a model has it.
_STREAM = len(parts.STREAMS)
# The rows of a descriptor that need no labels.
_NUM_UNLABELLED = 2
# The value in the rows of a class without examples.
_ABSENT = -1.0


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FLUX."""

  clustering_round: int = hyperparameters.hparam(
    5,
    "T0: the number of rounds of FedAvg before clients are clustered; beyond"
    " the last round: fed_avg.",
    minimum=1,
  )
  max_clusters: int = hyperparameters.hparam(
    10,
    "Maximum number of clusters, each with a server model. If there are more,"
    " eps grows until there are no more than these; 1: fed_avg.",
    minimum=1,
    maximum=64,
  )
  eps: str = hyperparameters.hparam(
    "elbow",
    "Maximum distance of the descriptors of two connected clients: elbow, of"
    " the distances to the nearest client; fixed, cluster_distance.",
    choices=("elbow", "fixed"),
  )
  elbow: str = hyperparameters.hparam(
    "kneed",
    "The elbow: kneed, the one that the program's package finds; largest_gap,"
    " the distance farthest below the line from the first to the last.",
    choices=("kneed", "largest_gap"),
  )
  elbow_factor: float = hyperparameters.hparam(
    1.0, "The factor of the elbow.", minimum=0
  )
  cluster_distance: float = hyperparameters.hparam(
    1.0,
    "eps for eps=fixed, for descriptors scaled to [0, 1]. The paper has 1 on"
    " CheXpert; 0: each client alone.",
    minimum=0,
  )
  descriptor_size: int = hyperparameters.hparam(
    10,
    "L: the number of projections of an embedding.",
    minimum=1,
    maximum=1024,
  )
  predict_with: str = hyperparameters.hparam(
    "assigned",
    "The model that a client predicts with: assigned, its cluster's; nearest,"
    " that of the cluster with the nearest centroid to the examples that it"
    " predicts, each domain by itself.",
    choices=("assigned", "nearest"),
  )

  def check_together(self) -> None:
    """Refuses a distance that is not used."""
    super().check_together()
    for name in ("elbow", "elbow_factor"):
      hyperparameters.refuse_ignored(self, name, "eps", "elbow")
    hyperparameters.refuse_ignored(self, "cluster_distance", "eps", "fixed")


class Clusters(NamedTuple):
  """The clusters of clients; before round T0 all sizes are 0.

  Attributes:
    assigned: The number of each client's cluster, -1 if it has none,
      [num_clients] float32.
    sizes: The number of clients in each, [max_clusters] float32.
    centroids: The means of the clients' scaled rows without labels,
      [max_clusters, 2, L] float32.
    low: The smallest number in each of these rows, [2] float32.
    width: The largest number less the smallest, or 1, [2] float32.
  """

  assigned: Any
  sizes: Any
  centroids: Any
  low: Any
  width: Any


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    models: The models of the clusters, with a first axis of max_clusters.
    backbone: The backbone that describes data: that of the model that clients
      received in round T0 - 1.
    projection: P, [embedding_size, L] float32.
    clusters: The `Clusters`.
  """

  models: Any
  backbone: Any
  projection: Any
  clusters: Any


def moments(z) -> tf.Tensor:
  """Computes mean and standard deviation of rows [n, L]; [2, L] float32."""
  count = tf.cast(tf.shape(z)[0], tf.float32)
  mean = tf.math.divide_no_nan(tf.reduce_sum(z, axis=0), count)
  squares = tf.reduce_sum(tf.math.squared_difference(z, mean), axis=0)
  return tf.stack([mean, tf.sqrt(tf.math.divide_no_nan(squares, count))])


def describe(z, y, num_classes: int) -> tf.Tensor:
  """Computes a descriptor, Equation (1).

  Args:
    z: The projected embeddings, [n, L] float32.
    y: The classes, [n] int32.
    num_classes: U.

  Returns:
    [2 (U + 1), L] float32.
  """
  sums = prototypes.class_sums(z, y, num_classes)
  means = prototypes.class_means(sums)
  squares = prototypes.class_sums(
    tf.math.squared_difference(z, tf.gather(means.mean, y)), y, num_classes
  )
  deviations = tf.sqrt(prototypes.class_means(squares).mean)
  present = means.present[:, tf.newaxis]
  return tf.concat(
    [
      moments(z),
      tf.where(present, means.mean, _ABSENT),
      tf.where(present, deviations, _ABSENT),
    ],
    axis=0,
  )


def pairwise_distances(rows) -> tf.Tensor:
  """Computes Euclidean distances, [n, n] float32, of rows [n, ...]."""
  flat = tf.reshape(rows, [tf.shape(rows)[0], -1])
  return tf.map_fn(lambda row: tf.norm(flat - row, axis=1), flat)


def elbow(distances, kind: str = "kneed") -> tf.Tensor:
  """Finds the elbow of the distances to the nearest client.

  Args:
    distances: Those of all clients, [n, n] float32.
    kind: `kneed` or `largest_gap`, see `HParams`.

  Returns:
    eps, a float32 scalar; of one client, 0.
  """
  others = tf.linalg.set_diag(
    distances, tf.fill(tf.shape(distances)[:1], np.float32(np.inf))
  )
  delta = tf.sort(tf.reduce_min(others, axis=1))
  delta = tf.where(tf.math.is_inf(delta), 0.0, delta)
  last = tf.cast(tf.size(delta) - 1, tf.float32)
  below = tf.math.divide_no_nan(
    tf.range(last + 1.0), last
  ) - tf.math.divide_no_nan(delta - delta[0], delta[-1] - delta[0])
  largest = tf.argmax(below, output_type=tf.int32)
  if kind == "largest_gap":
    return delta[largest]
  # As kneed: in float64, from the last client to the first.
  exact = tf.cast(delta, tf.float64)
  height = tf.math.divide_no_nan(exact - exact[0], exact[-1] - exact[0])
  step = tf.math.divide_no_nan(
    tf.constant(1.0, tf.float64), tf.cast(last, tf.float64)
  )
  position = tf.range(tf.size(delta))
  place = tf.math.divide_no_nan(
    tf.cast(position, tf.float64), tf.cast(last, tf.float64)
  )
  gap = tf.reverse(1.0 - height, [0]) - tf.reverse(1.0 - place, [0])
  neighbours = tf.concat([gap[:1], gap, gap[-1:]], 0)
  before, after = neighbours[:-2], neighbours[2:]
  is_top = (gap >= before) & (gap >= after)
  is_bottom = (gap <= before) & (gap <= after)

  def latest(happens):
    seen = tf.where(happens, position, -1)
    return tf.scan(tf.maximum, seen)

  top, bottom = latest(is_top), latest(is_bottom)
  threshold = tf.gather(gap, tf.maximum(top, 0)) - step
  is_elbow = (top > bottom) & (after < threshold) & (position < position[-1])
  number = position[-1] - top[tf.argmax(tf.cast(is_elbow, tf.int32))]
  return delta[tf.where(tf.reduce_any(is_elbow), number, largest)]


def group(hparams: HParams, scaled, num_clients: int) -> tf.Tensor:
  """Clusters clients.

  Args:
    hparams: The maximum distance and number of clusters.
    scaled: The scaled descriptors, [n, 2 (U + 1), L] float32, n at least 1.
    num_clients: The maximum n.

  Returns:
    The number of each client's cluster, [n] int32, below max_clusters.
  """
  distances = pairwise_distances(scaled)
  if hparams.eps == "fixed":
    eps = tf.constant(hparams.cluster_distance)
  else:
    eps = elbow(distances, hparams.elbow) * hparams.elbow_factor
  # With the shortest n - max_clusters edges there are max_clusters clusters.
  lengths = tf.concat([[0.0], client_groups.spanning_lengths(distances)], 0)
  excess = tf.maximum(tf.size(lengths) - hparams.max_clusters, 0)
  is_close = distances <= tf.maximum(eps, lengths[excess])
  return client_groups.labels(
    client_groups.connected(tf.cast(is_close, tf.float32), num_clients)
  )


def make_clusters(hparams: HParams, slots: client_slots.Slots) -> Clusters:
  """Clusters the clients that have sent a descriptor.

  Args:
    hparams: The maximum distance and number of clusters.
    slots: The descriptors, of at least one client.
  """
  num_clients = slots.present.shape[0]
  is_present = slots.present > 0
  descriptors = tf.boolean_mask(slots.values, is_present)
  low, high = (
    reduce(descriptors, axis=[0, 2])
    for reduce in (tf.reduce_min, tf.reduce_max)
  )
  width = tf.where(tf.equal(high, low), 1.0, high - low)
  scaled = (descriptors - low[:, tf.newaxis]) / width[:, tf.newaxis]
  numbers = group(hparams, scaled, num_clients)
  members = tf.one_hot(numbers, hparams.max_clusters)
  sizes = tf.reduce_sum(members, axis=0)
  totals = tf.tensordot(members, scaled[:, :_NUM_UNLABELLED], [[0], [0]])
  return Clusters(
    tf.tensor_scatter_nd_update(
      tf.fill([num_clients], -1.0),
      tf.where(is_present),
      tf.cast(numbers, tf.float32),
    ),
    sizes,
    tf.math.divide_no_nan(totals, sizes[:, tf.newaxis, tf.newaxis]),
    low[:_NUM_UNLABELLED],
    width[:_NUM_UNLABELLED],
  )


def nearest(clusters: Clusters, z) -> tf.Tensor:
  """Returns the cluster with the nearest centroid; 0 without clusters.

  Args:
    clusters: The clusters.
    z: The projected embeddings of unlabelled examples, [n, L] float32.
  """
  scaled = (moments(z) - clusters.low[:, tf.newaxis]) / clusters.width[
    :, tf.newaxis
  ]
  squares = tf.reduce_sum(
    tf.math.squared_difference(clusters.centroids, scaled), axis=[1, 2]
  )
  return model_stack.smallest(
    tf.where(clusters.sizes > 0, squares, np.float32(np.inf))
  )


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FLUX; see `algorithm.AlgorithmSpec`.

  The server's memory is the fraction of the last cohort in each cluster,
  [max_clusters] float32. The server has no model of its own to predict with. A
  `client_id` must be below `num_clients`.
  """
  max_clusters, size = hparams.max_clusters, hparams.descriptor_size
  num_rows = _NUM_UNLABELLED * (model.num_classes + 1)

  def is_clustered(weights):
    return tf.reduce_any(weights.clusters.sizes > 0)

  def is_due(weights, round_num):
    # Later than planned if no client has reported.
    is_late = round_num >= hparams.clustering_round - 1
    return is_late & ~is_clustered(weights)

  def project(weights, backbone, x):
    return tf.matmul(adaptation.embed(model, backbone, x), weights.projection)

  def choose_nearest(weights, x):
    return nearest(weights.clusters, project(weights, weights.backbone, x))

  def choose(weights, data):
    """Returns the number of a client's model."""
    assigned = tf.cast(
      tf.gather(weights.clusters.assigned, data.client_id), tf.int32
    )
    return tf.cond(
      assigned < 0, lambda: choose_nearest(weights, data.x), lambda: assigned
    )

  def initial_weights(seed):
    start = model.initial_weights(seed)
    return Weights(
      tf.nest.map_structure(
        lambda w: tf.repeat(w[tf.newaxis], max_clusters, axis=0), start
      ),
      start.backbone,
      draws.normal(
        [model.embedding_size, size], randomness.fold(seed, _STREAM)
      ),
      Clusters(
        tf.zeros([num_clients]),
        tf.zeros([max_clusters]),
        tf.zeros([max_clusters, _NUM_UNLABELLED, size]),
        tf.zeros([_NUM_UNLABELLED]),
        tf.ones([_NUM_UNLABELLED]),
      ),
    )

  def train_client(weights, _, data, round_num):
    number = choose(weights, data)
    start = model_stack.take(weights.models, number)
    result = fed_avg.train_client(model, hparams, start, data, round_num)
    descriptor = tf.cond(
      is_due(weights, round_num),
      lambda: describe(
        project(weights, start.backbone, data.x), data.y, model.num_classes
      ),
      lambda: tf.zeros([num_rows, size]),
    )
    return result._replace(
      update=model_stack.update_of_one(result.update, number, max_clusters),
      plaintext_sum=client_slots.place(descriptor, client_slots.own_row(data)),
    )

  def update_server(weights, mean_update, slots, info):
    models = model_stack.add_means(weights.models, mean_update)

    def cluster():
      return Weights(
        tf.nest.map_structure(
          lambda w: tf.repeat(w[:1], max_clusters, axis=0), models
        ),
        model_stack.take(weights.models, 0).backbone,
        weights.projection,
        make_clusters(hparams, slots),
      )

    return (
      factories.either(
        is_due(weights, info.round_num),
        cluster,
        weights._replace(models=models),
      ),
      mean_update.members,
    )

  def prepare_client(weights, _, data, round_num):
    del round_num
    return model_stack.take(weights.models, choose(weights, data))

  def predict_nearest(weights, _, data, examples):
    del data

    def predict(x):
      chosen = model_stack.take(weights.models, choose_nearest(weights, x))
      return evaluation.predict(model, chosen, x)

    return evaluation.predict_as_one(predict, examples, model.num_classes)

  by_batch = hparams.predict_with == "nearest"
  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_memory=lambda seed: tf.zeros([max_clusters]),
    train_client=train_client,
    update_server=update_server,
    prepare_client=None if by_batch else prepare_client,
    predict_as_client=predict_nearest
    if by_batch
    else lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    fixed_weights=("projection",),
    predicts_batches=by_batch,
    max_clients=num_clients,
  )
