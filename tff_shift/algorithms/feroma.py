"""Feroma: a client trains from the models of clients with a similar profile.

Federated Learning with Profile Mapping under Distribution Shifts and Drifts
(Li, Fenoglio, Gjoreski, Langheinrich; ICLR 2026, arXiv:2602.07671).

A profile d describes a client's data of a round: mean and standard deviation of
their embeddings, over all examples and over those of each class. The embeddings
are those of an extractor that does not change, so that profiles of different
rounds are comparable. In round t, with the profiles and trained models of the
rounds before, client i computes

    W_ij = softmax over j of -|d_i^t - d_j|
    W_ij <- 0 if it is below the threshold, and rescales the others to sum 1

and trains from sum_j W_ij model_j; if no W_ij is left, from the mean of all
models. Clients need no identity over time: one whose distribution has changed
starts from the models of those that had such data before. In the scenario of
evolving domains, a round has the data of one source domain, see
`continual_tasks`.

The first `warm_up_rounds` are FedAvg's, bit for bit if there are no domains.
The extractor is the backbone that clients receive in the last of them, in which
they send their first profiles that count. If all profiles are equal, all rounds
are FedAvg's, up to rounding.

A client predicts with the model that it would train from next, by its own
labelled training data; with `assignment=inputs`, with the model of the client
whose profile is the nearest by the part without labels, computed from the
inputs to predict, as the paper does for unseen clients without labels. No label
of the predicted data is used. Concepts with equal inputs differ only in the
part with labels.

What leaves a client: in plaintext, by its id, its trained model and its
profile, with noise of `profile_noise`; and the mean training loss. The server
broadcasts all models and profiles in one table, of which a client computes its
mixture; the paper's server computes it and sends one model.

Choices:
  * The extractor is the global model after the rounds of FedAvg in the authors'
    program, here the one received in the last of them, so that its profiles
    count from that round on (`warm_up_rounds=0`: the initial one).
  * Profiles have moments of all features, and zeros for absent classes; the
    program projects embeddings to a few random directions, and writes -1.
  * Weights are the paper's softmax; the program has 1 / distance, without
    threshold. The paper's threshold is not known: 0.05 (`threshold`).
  * The client computes the mixture, from a table that all receive; the result
    is the same.
  * Last model and last profile of clients that did not take part in the last
    round count.
  * Clients with labels predict by their training data, because profiles without
    labels do not see concepts.
  * The paper's profiles are differentially private. `profile_noise` is
    optional, and no epsilon is computed of it.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import continual_tasks
from tff_shift.algorithms.parts import model_stack
from tff_shift.algorithms.parts import prototypes
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving", "dynamic_personalization")

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="clients train from mixtures of the models as they were sent, and"
  " clipping or zeroing would affect only their mean",
  per_client_values="clients train from mixtures of single clients' models",
  no_server_optimizer="clients train from mixtures of the models as they were"
  " sent, and it would affect only their mean",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of Feroma."""

  task_rounds: int = continual_tasks.task_rounds_hparam()
  warm_up_rounds: int = hyperparameters.hparam(
    5,
    "Number of rounds of FedAvg before profiles are used (5 in the authors'"
    " program); 0: the extractor is the initial backbone.",
    minimum=0,
  )
  threshold: float = hyperparameters.hparam(
    0.05,
    "W_ij below it are 0; 0: none. Above 1: always the mean of all models.",
    minimum=0,
  )
  assignment: str = hyperparameters.hparam(
    "training",
    "Data by which a client chooses the model that it predicts with: training,"
    " its labelled training data; or inputs, those to predict, of a domain at a"
    " time.",
    choices=("training", "inputs"),
  )
  profile_noise: float = hyperparameters.hparam(
    0.0,
    "Standard deviation of the Gaussian noise that is added to each number of a"
    " profile that leaves a client; no epsilon is computed for it.",
    minimum=0,
  )


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    mean: The mean of the models of the last cohort.
    extractor: The backbone of the profiles.
    models: The last model of each client, with a first axis of num_clients.
    profiles: The last profile of each client, [num_clients, profile_size].
    written: The last round, from 1, in which a client took part, [num_clients]
      float32; 0: never.
  """

  mean: Any
  extractor: Any
  models: Any
  profiles: Any
  written: Any


def moments(embeddings) -> tf.Tensor:
  """Computes the part of a profile that needs no labels.

  Args:
    embeddings: [num_examples, size] float32.

  Returns:
    Mean and standard deviation, [2 size] float32; zeros without examples.
  """
  of_one_class = tf.zeros([tf.shape(embeddings)[0]], tf.int32)
  return tf.reshape(_class_moments(embeddings, of_one_class, 1), [-1])


def _class_moments(embeddings, y, num_classes: int) -> tf.Tensor:
  """Computes mean and standard deviation of each class.

  Returns:
    [num_classes, 2 size] float32; zeros for a class without examples.
  """
  means = prototypes.class_means(
    prototypes.class_sums(embeddings, y, num_classes)
  ).mean
  # About the mean: the difference of squares of large numbers is not precise.
  variances = prototypes.class_means(
    prototypes.class_sums(
      tf.square(embeddings - tf.gather(means, y)), y, num_classes
    )
  ).mean
  return tf.concat([means, tf.sqrt(variances)], axis=1)


def profile(embeddings, y, num_classes: int) -> tf.Tensor:
  """Computes a profile d.

  Args:
    embeddings: [num_examples, size] float32.
    y: The classes, [num_examples] int32.
    num_classes: The number of classes.

  Returns:
    [2 (1 + num_classes) size] float32: mean and standard deviation of all
    examples, then of each class; zeros for a class without examples.
  """
  by_class = _class_moments(embeddings, y, num_classes)
  return tf.concat([moments(embeddings), tf.reshape(by_class, [-1])], axis=0)


def distances(own, profiles) -> tf.Tensor:
  """Computes the distances of a profile, or of the first part of one.

  Args:
    own: [size] float32.
    profiles: [num_clients, size or more] float32.

  Returns:
    [num_clients] float32, Euclidean.
  """
  return tf.norm(profiles[:, : own.shape[0]] - own, axis=1)


def associate(distance, is_known, threshold: float) -> tf.Tensor:
  """Computes W.

  Args:
    distance: The distances of a profile, [num_clients] float32.
    is_known: Which clients have a profile, [num_clients] bool.
    threshold: The smallest W that counts.

  Returns:
    [num_clients] float32 with the sum 1, or zeros if none is left.
  """
  lowest = tf.float32.min
  w = tf.nn.softmax(tf.where(is_known, -distance, lowest))
  w = tf.where(is_known & (w >= threshold), w, 0.0)
  return tf.math.divide_no_nan(w, tf.reduce_sum(w))


def mixture(weights: Weights, w) -> Any:
  """Returns the sum of w_j model_j; the mean of all models if w is zeros."""
  return factories.either(
    tf.reduce_any(w > 0),
    lambda: tf.nest.map_structure(
      lambda each: tf.tensordot(w, each, 1), weights.models
    ),
    weights.mean,
  )


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of Feroma; see `algorithm.AlgorithmSpec`.

  The server has no model of its own to predict with. A `client_id` must be
  below `num_clients`.
  """
  num_classes = model.num_classes
  profile_size = 2 * (1 + num_classes) * model.embedding_size
  by_inputs = hparams.assignment == "inputs"

  def embed(weights, x):
    return adaptation.embed(model, weights.extractor, x)

  def is_known(weights):
    # Profiles of earlier rounds are of another extractor.
    return weights.written >= max(hparams.warm_up_rounds, 1)

  def current_data(data, round_num):
    domain = continual_tasks.current_domain(
      hparams.task_rounds, round_num, tf.size(data.domain_sizes)
    )
    return continual_tasks.of_domain(data, domain)

  def start(weights, current):
    """Returns the profile of data, and the model to train from."""
    own = profile(embed(weights, current.x), current.y, num_classes)
    w = associate(
      distances(own, weights.profiles),
      is_known(weights) & (tf.size(current.y) > 0),
      hparams.threshold,
    )
    return own, mixture(weights, w)

  def train_client(weights, _, data, round_num):
    current = current_data(data, round_num)
    own, first = start(weights, current)
    result = local_training.train_on_pool(
      model.predict,
      first,
      current,
      continual_tasks.num_steps(hparams, data, current, round_num),
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
      hparams,
      round_num=round_num,
    )
    if hparams.profile_noise:
      seed = randomness.fold(
        data.seed, randomness.Purpose.PERSONALIZE, round_num
      )
      own += hparams.profile_noise * draws.normal([profile_size], seed)
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, result.weights, weights.mean),
      client_state=(),
      loss=result.loss,
      plaintext_sum=client_slots.place(
        (result.weights, own), client_slots.own_row(current)
      ),
      has_trained=tf.size(current.y) > 0,
    )

  def update_server(weights, mean_update, slots, info):
    (trained, profiles), present = slots
    is_present = present > 0

    def put(new, old):
      return tf.where(
        tf.reshape(is_present, [-1] + [1] * (old.shape.rank - 1)), new, old
      )

    mean = tf.nest.map_structure(tf.add, weights.mean, mean_update)
    return Weights(
      mean,
      factories.either(
        info.round_num + 1 < hparams.warm_up_rounds,
        mean.backbone,
        weights.extractor,
      ),
      tf.nest.map_structure(put, trained, weights.models),
      put(profiles, weights.profiles),
      tf.where(
        is_present, tf.cast(info.round_num + 1, tf.float32), weights.written
      ),
    )

  def prepare_client(weights, _, data, round_num):
    last = tf.maximum(round_num - 1, 0)
    return start(weights, current_data(data, last))[1]

  def predict_by_inputs(weights, _, data, examples):
    del data
    distance = tf.where(
      is_known(weights),
      distances(moments(embed(weights, examples.x)), weights.profiles),
      float("inf"),
    )
    w = tf.one_hot(model_stack.smallest(distance), num_clients)
    w = tf.where(tf.math.is_finite(distance), w, 0.0)
    return evaluation.predict(model, mixture(weights, w), examples.x)

  def initial_weights(seed):
    first = model.initial_weights(seed)
    return Weights(
      first,
      first.backbone,
      tf.nest.map_structure(lambda w: tf.stack([w] * num_clients), first),
      tf.zeros([num_clients, profile_size]),
      tf.zeros([num_clients]),
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    train_client=train_client,
    update_server=update_server,
    prepare_client=None if by_inputs else prepare_client,
    predict_as_client=predict_by_inputs
    if by_inputs
    else lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    predicts_batches=by_inputs,
    max_clients=num_clients,
  )
