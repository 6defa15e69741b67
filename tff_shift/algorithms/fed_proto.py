"""FedProto: clients share the mean embeddings of classes instead of weights.

FedProto: Federated Prototype Learning across Heterogeneous Clients (Tan, Long,
Liu, Zhou, Lu, Jiang, Zhang; AAAI 2022, arXiv:2105.00243), Algorithm 1.

Every client has a model of its own, with the embedding f_i. After training it
computes its prototypes, the mean embedding of each of its classes,

    P_i[c] = mean of f_i(x) over its examples (x, y) with y = c,

and the server averages those of each class over the clients that have it,
weighted by their numbers of examples n_i[c] of the class,

    P[c] = sum_i n_i[c] P_i[c] / sum_i n_i[c].

With the received P, a client minimises

    CE + lambda * mean over the examples of d(f_i(x), P[y]).

A client predicts the class of the nearest prototype among the P[c]. With
lambda = 0, and in round 0, a client takes the steps of local training. It is
not `local`, whose clients each start from weights of their own: here all start
from the same.

What leaves a client: the mean embedding of each of its classes, the fraction
(`client_weighting=uniform`: only the occurrence) of each class, its number of
examples, and the mean training loss. The whole model stays.

Choices, and differences from the authors' program
(github.com/yuetan031/FedProto):
  * d is the mean squared difference of the entries of embeddings, as in the
    program; `prototype_distance=l2` is the Euclidean distance.
  * Examples of a class without a P[c] are not in the mean of the second term.
    The program counts them as 0.
  * All models start equal, as in the program. Prototypes of models with
    different first weights have no common coordinates.
  * P_i comes from one pass over all examples after training. The program
    averages embeddings while the last epoch still trains.
  * `client_weighting=uniform` is the program's mean over clients.
  * P[c] stays until clients with class c take part again.
  * Predictions are among all classes with a P[c]; in the program, among those
    that the client has. Before the first P, and with
    `proto_prediction=classifier`, a client predicts with its last layer.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import prototypes
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import safe_norms
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance", "dynamic_personalization")

RUNNING_STATISTICS = algorithm.OWN_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="the server divides sums of embeddings by sums of class"
  " fractions, which clipping or noise would change separately",
  no_server_optimizer="its server replaces the prototypes of the last round",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedProto."""

  prototype_weight: float = hyperparameters.hparam(
    1.0,
    "lambda: weight of the distance of embeddings from the global prototypes;"
    " 0: the steps of local training.",
    minimum=0,
  )
  prototype_distance: str = hyperparameters.hparam(
    "mean_square",
    "The distance d: mean_square, the mean squared difference of the entries"
    " (the program); l2, the Euclidean distance.",
    choices=("mean_square", "l2"),
  )
  proto_prediction: str = hyperparameters.hparam(
    "prototypes",
    "Predictions of a client: prototypes, the class of the nearest global"
    " prototype (published); classifier, its own last layer.",
    choices=("prototypes", "classifier"),
  )
  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "A client's weight in the prototype of a class: num_examples, its number of"
    " examples of the class (published); uniform, equal for all clients with"
    " the class (the program).",
    choices=("uniform", "num_examples"),
    published=True,
  )
  head: str = hyperparameters.hparam(
    "last_layer",
    "What follows the embedding: last_layer, only the last linear layer;"
    " classifier, the model's whole head.",
    choices=split_model.HEADS,
  )


def is_present(means) -> tf.Tensor:
  """Returns whether a class has a prototype, [num_classes] bool."""
  return tf.reduce_any(tf.not_equal(means, 0), axis=1)


def prototype_distance(distance: str, embeddings, y, means) -> tf.Tensor:
  """Computes the mean distance d of embeddings from their prototypes.

  Args:
    distance: `mean_square` or `l2`.
    embeddings: [batch, embedding_size] float32.
    y: The classes, [batch] int32.
    means: The prototypes, [num_classes, embedding_size] float32; zeros for a
      class without one.

  Returns:
    A float32 scalar: the mean over the examples whose class has a prototype; 0
    if there are none.
  """
  targets = tf.gather(means, y)
  if distance == "l2":
    values = safe_norms.length(embeddings - targets, axis=1)
  else:
    values = tf.reduce_mean(
      tf.math.squared_difference(embeddings, targets), axis=1
    )
  counts = tf.cast(tf.gather(is_present(means), y), tf.float32)
  return tf.math.divide_no_nan(
    tf.reduce_sum(values * counts), tf.reduce_sum(counts)
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedProto; see `algorithm.AlgorithmSpec`.

  The server weights are the P[c], [num_classes, embedding_size] float32, zeros
  for a class without a prototype. A client's state is its whole model. The
  server has no model to predict with.
  """
  model = split_model.with_head(model, hparams.head)

  def loss_with(means):
    def loss(weights, batch):
      embeddings = model.embed(weights.backbone, batch.x)
      value = local_training.cross_entropy(
        model.classify(weights.head, embeddings), batch.y
      )
      if not hparams.prototype_weight:
        return value
      return value + hparams.prototype_weight * prototype_distance(
        hparams.prototype_distance, embeddings, batch.y, means
      )

    return loss

  def report(weights, data):
    """Returns P_i times the fraction of the class, and the fraction.

    They are one table, [num_classes, embedding_size + 1] float32, whose mean
    over clients `update_server` divides. With uniform weights, the fraction is
    1 for each class that the client has.
    """
    sums = prototypes.class_sums(
      adaptation.embed(model, weights.backbone, data.x),
      data.y,
      model.num_classes,
    )
    if hparams.client_weighting == "uniform":
      own = prototypes.class_means(sums)
      means, fractions = own.mean, tf.cast(own.present, tf.float32)
    else:
      # The weight in the mean is the number of all examples.
      size = tf.cast(tf.maximum(tf.size(data.y), 1), tf.float32)
      means, fractions = sums.total / size, sums.count / size
    return tf.concat([means, fractions[:, tf.newaxis]], axis=1)

  def train_client(means, personal, data, round_num):
    steps = local_training.num_local_steps(hparams, data, round_num)
    result = local_training.train_on_batches(
      loss_with(means),
      personal,
      data,
      steps * local_training.num_domains(data),
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      round_num=round_num,
    )
    return algorithm.ClientResult(
      update=report(result.weights, data),
      client_state=result.weights,
      loss=result.loss,
    )

  def update_server(means, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    total, fractions = mean_update[:, :-1], mean_update[:, -1:]
    return tf.where(
      fractions > 0, tf.math.divide_no_nan(total, fractions), means
    )

  def predict_as_client(means, personal, data, examples):
    del data

    def predict(x):
      embeddings = model.embed(personal.backbone, x)
      own = model.classify(personal.head, embeddings)
      if hparams.proto_prediction == "classifier":
        return own
      present = is_present(means)
      nearest = prototypes.logits(
        embeddings,
        prototypes.Prototypes(means, present),
        "l2",
        evaluation.NO_LOGIT,
      )
      return tf.where(tf.reduce_any(present), nearest, own)

    return evaluation.predict_in_batches(predict, examples.x, model.num_classes)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: tf.zeros(
      [model.num_classes, model.embedding_size]
    ),
    initial_client_state=lambda seed, means: model.initial_weights(seed),
    starts_alike=True,
    train_client=train_client,
    update_server=update_server,
    predict_as_client=predict_as_client,
  )
