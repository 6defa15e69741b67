"""FedPAC: feature alignment, and a personal mixture of all clients' heads.

Personalized Federated Learning with Feature Alignment and Classifier
Collaboration (Xu, Tong, Huang; ICLR 2023, arXiv:2306.11867). A baseline of
Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning
(FedDRM), Table 1.

As in FedRep, a client first trains its head on the received backbone f, then
the backbone with this head. FedPAC adds two things.

Feature alignment: the backbone minimises

    CE + lambda * mean over batch and features of (f(x) - c_y)^2

with c_y the global centroid of class y, the mean over clients of their mean
features after training, weighted by their numbers of examples of the class.

Classifier collaboration: with the received f and before training, a client
computes its class fractions p_i(k) and mean features mu_i(k), and sends

    h_i[k] = p_i(k) mu_i(k),   v_i = (mean |f(x)|^2 - sum_k |h_i[k]|^2) / n_i.

For each client i the server solves

    min over a of  a^T (diag(v) + D^i) a,   a >= 0, sum of a = 1,
    D^i_jl = sum_k <h_i[k] - h_j[k], h_i[k] - h_l[k]>

and computes its head, the sum of a_j times the trained head of client j.

What leaves a client: the update of the backbone and the training loss; in
plaintext per client, its head, h and v; in plaintext sums over clients, the
number of examples and the sum of features of each class. The server broadcasts
all heads in one table, because TFF broadcasts one value: in this implementation
clients receive each other's heads.

Written from the steps of the authors' program.

`variant=program` is the FedPAC of the FedDRM paper's program: FedRep with the
proximal term mu / 2 |theta - theta_received|^2 of the backbone. Heads are not
combined, and the same values leave a client as in FedRep. It refuses the same
aggregators as `variant=published`.

Choices:
  * Compare rows of the FedDRM paper's tables with `variant=program`.
  * Weights of heads below 0.001 become 0; the others are rescaled to sum 1. The
    programs are solved in the graph, by an interior point method that needs no
    matrix of full rank. Only heads of the cohort are combined; other clients
    keep theirs.
  * The head is trained at the common learning rate (0.1 for one epoch in the
    program). All clients start with the initial head of the run's seed, see
    `learning.algorithm`.
  * Classes that no client of the cohort has keep their centroid. A client that
    has a class without a centroid aligns to its own mean from before training.
    Round 0 has no alignment, nor has `alignment_weight=0`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_prox
from tff_shift.algorithms import fed_rep
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import prototypes
from tff_shift.algorithms.parts import simplex_programs
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("guidance",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  per_client_values="its server computes each client's head from the heads and"
  " the feature statistics of individual clients"
)

# Smaller entries of a are dropped.
_SMALLEST_ENTRY = 1e-3


@dataclasses.dataclass(frozen=True)
class HParams(fed_rep.HParams):
  """Hyper-parameters of FedPAC; `local_steps` train the backbone."""

  variant: str = hyperparameters.variant_hparam(hyperparameters.FED_DRM_PROGRAM)
  alignment_weight: float = hyperparameters.hparam(
    1.0,
    "lambda: weight of the distance of features from global centroids"
    " (published); 0: no alignment.",
    minimum=0,
  )
  backbone_mu: float = hyperparameters.hparam(
    0.01,
    "mu: weight of the proximal term (program); 0: FedRep.",
    minimum=0,
  )


class Shared(NamedTuple):
  """The server weights.

  Attributes:
    backbone: The weights of f.
    centroids: c, [num_classes, embedding_size] float32; zeros for a class
      without a centroid.
    heads: The clients' heads, with a first axis of num_clients.
  """

  backbone: Any
  centroids: Any
  heads: Any


class Personal(NamedTuple):
  """A client's state.

  Attributes:
    head: Its head.
    loss: The mean loss of its steps, which the round's second phase reports.
  """

  head: Any
  loss: Any


class FeatureStatistics(NamedTuple):
  """Statistics of a client's features.

  Attributes:
    h: [num_classes, embedding_size] float32.
    v: A float32 scalar.
    means: The mean feature mu of each class, [num_classes, embedding_size]
      float32; zeros for a class without examples.
  """

  h: Any
  v: Any
  means: Any


def feature_statistics(features, y, num_classes: int) -> FeatureStatistics:
  """Computes h, v and the mean features of the classes.

  Args:
    features: [num_examples, embedding_size] float32.
    y: The classes, [num_examples] int32.
    num_classes: The number of classes.

  Returns:
    `FeatureStatistics`; all zeros without examples.
  """
  count = tf.cast(tf.maximum(tf.size(y), 1), tf.float32)
  sums = prototypes.class_sums(features, y, num_classes)
  h = sums.total / count
  means = prototypes.class_means(sums).mean
  # E|f|^2 - |h|^2 as variances within classes and between them: the difference
  # of squares of large numbers is not precise.
  within = tf.reduce_sum(
    tf.math.squared_difference(features, tf.gather(means, y))
  )
  fractions = sums.count / count
  between = tf.reduce_sum(
    fractions * (1.0 - fractions) * tf.reduce_sum(tf.square(means), axis=1)
  )
  return FeatureStatistics(h, (within / count + between) / count, means)


def combinations(h, v, present) -> tf.Tensor:
  """Solves the quadratic programs of all clients.

  Args:
    h: [num_clients, num_classes, embedding_size] float32.
    v: [num_clients] float32.
    present: [num_clients] float32, 1 for a client of the cohort, else 0.

  Returns:
    The vector a of client i in row i, [num_clients, num_clients] float32; 0 for
    clients outside of the cohort.
  """
  num_clients = v.shape[0]
  flat = tf.reshape(tf.cast(h, tf.float64), [num_clients, -1])
  products = tf.matmul(flat, flat, transpose_b=True)
  # <h_i - h_j, h_i - h_l> = G_ii - G_il - G_ji + G_jl.
  own = tf.linalg.diag_part(products)[:, tf.newaxis, tf.newaxis]
  distances = (
    own - products[:, tf.newaxis] - products[:, :, tf.newaxis] + products
  )
  found = simplex_programs.minimize_quadratic(
    distances + tf.linalg.diag(tf.cast(v, tf.float64)),
    tf.zeros([num_clients, num_clients], tf.float64),
    tf.tile(present[tf.newaxis] > 0, [num_clients, 1]),
  )
  found = tf.where(found >= _SMALLEST_ENTRY, found, 0)
  found /= tf.reduce_sum(found, axis=1, keepdims=True)
  return tf.cast(found, tf.float32)


def combine_heads(heads: Any, weights, present, before: Any) -> Any:
  """Combines the trained heads for each client of the cohort.

  Args:
    heads: The trained heads, each tensor with a first axis of num_clients.
    weights: The result of `combinations`.
    present: [num_clients] float32, 1 for a client of the cohort, else 0.
    before: The heads before the round, like `heads`, which other clients keep.

  Returns:
    The heads after the round, like `heads`.
  """

  def combine_tensor(rows, old):
    takes_part = tf.reshape(present > 0, [-1] + [1] * (old.shape.rank - 1))
    return tf.where(takes_part, tf.tensordot(weights, rows, 1), old)

  return tf.nest.map_structure(combine_tensor, heads, before)


def _build_published(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  num_classes = model.num_classes

  def initial_weights(seed):
    return Shared(
      model.initial_backbone(seed),
      tf.zeros([num_classes, model.embedding_size]),
      tf.nest.map_structure(
        lambda w: tf.repeat(w[tf.newaxis], num_clients, axis=0),
        model.initial_head(seed),
      ),
    )

  def train_client(shared, personal, data, round_num):
    features = adaptation.embed(model, shared.backbone, data.x)
    h, v, own_means = feature_statistics(features, data.y, num_classes)
    has_centroid = tf.reduce_any(
      tf.not_equal(shared.centroids, 0), axis=1, keepdims=True
    )
    targets = tf.where(has_centroid, shared.centroids, own_means)
    weight = hparams.alignment_weight * tf.cast(
      tf.reduce_any(has_centroid), tf.float32
    )

    def backbone_loss(weights, batch):
      embedding = model.embed(weights.backbone, batch.x)
      loss = local_training.cross_entropy(
        model.classify(weights.head, embedding), batch.y
      )
      if not hparams.alignment_weight:
        return loss
      return loss + weight * tf.reduce_mean(
        tf.math.squared_difference(embedding, tf.gather(targets, batch.y))
      )

    weights = shared.backbone, personal.head
    result = fed_rep.train_client(
      model, hparams, *weights, data, round_num, backbone_loss
    )
    trained = tf.nest.map_structure(tf.add, shared.backbone, result.update)
    total, count = prototypes.class_sums(
      adaptation.embed(model, trained, data.x), data.y, num_classes
    )
    head = result.client_state
    return result._replace(
      client_state=Personal(head, result.loss),
      plaintext_sum=(
        client_slots.place((h, v, head), client_slots.own_row(data)),
        tf.concat([total, count[:, tf.newaxis]], axis=1),
      ),
    )

  def update_server(shared, mean_update, sent, info):
    ((h, v, heads), present), class_sums = sent
    total, count = class_sums[:, :-1], class_sums[:, -1:]
    return Shared(
      info.step(shared.backbone, mean_update),
      tf.where(
        count > 0, tf.math.divide_no_nan(total, count), shared.centroids
      ),
      combine_heads(heads, combinations(h, v, present), present, shared.heads),
    )

  def personalize_client(shared, personal, data, round_num):
    del round_num
    head = tf.nest.map_structure(
      lambda rows: tf.gather(rows, data.client_id), shared.heads
    )
    return algorithm.PersonalResult(personal._replace(head=head), personal.loss)

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, shared: Personal(
      model.initial_head(seed), tf.constant(0.0)
    ),
    starts_alike=True,
    train_client=train_client,
    update_server=update_server,
    personalize_client=personalize_client,
    predict_as_client=lambda shared, personal, _, examples: evaluation.predict(
      model,
      split_model.SplitWeights(shared.backbone, personal.head),
      examples.x,
    ),
    max_clients=num_clients,
  )


def _build_program(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  def train_client(backbone, head, data, round_num):
    near = fed_prox.proximal_term(hparams.backbone_mu, backbone)
    loss = local_training.classification_loss(
      model.predict, lambda weights: near(weights.backbone)
    )
    return fed_rep.train_client(
      model, hparams, backbone, head, data, round_num, loss
    )

  return fed_rep.build(model, hparams)._replace(train_client=train_client)


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedPAC; see `algorithm.AlgorithmSpec`.

  The server has no model to predict with. A `client_id` must be below
  `num_clients`.
  """
  model = split_model.with_head(model, hparams.head)
  if hparams.variant == "program":
    return _build_program(model, hparams)
  return _build_published(model, hparams, num_clients)
