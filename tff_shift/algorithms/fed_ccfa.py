"""FedCCFA: classifiers are averaged class by class, in clusters of clients.

Classifier Clustering and Feature Alignment for Federated Learning under
Distributed Concept Drift (Chen, Xue, Wang, Liu, Huang; NeurIPS 2024,
arXiv:2410.18478); a baseline of Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026), Table
1.

A client keeps a personal classifier, the last layer. In a round, with the
received backbone f, it

  1. trains a copy of the server's initial classifier on equally many examples
     of each class, min(5, size of the rarest class), only for comparison;
  2. trains its own classifier, and then f with this classifier, with the loss

         CE + k CE(cos(f(x), P_c) / tau over the classes c),   k = H / gamma,

     where the second term starts in round `alignment_start`, P_c are the
     received anchors, and H is the entropy of the client's label distribution;
  3. computes the mean embedding of each class with its new backbone.

The server averages the backbones, weighted by number of examples. A classifier
has a row for each class: its weights and its bias. For each class the server
clusters the clients by the rows v of the classifiers of step 1, with the
distances

    d_ij = mean over all other clients z of |cos(v_i, v_z) - cos(v_j, v_z)|

by DBSCAN with one sample per core point: clusters are the connected components
of all pairs within `cluster_distance`. In a cluster, the rows of the
classifiers of step 2 and the mean embeddings are averaged. In a second phase
every client receives its classifier and its anchors.

What leaves a client: the update of the backbone, its number of unlabelled
examples, and the mean risk; in plaintext per client, both classifiers, and for
each class whether it occurs and its mean embedding. Label estimates stay. The
server keeps the merged values until the next round, and broadcasts all of them
in one table, of which each client reads its own entry.

Equations and constants follow the authors' program
(github.com/wenwenwenwenti/FedCCFA). With `stream_labels=risk`, all steps but
the first weight classes by the estimated label distribution, whose entropy is
H.

Choices:
  * The rate is 0.01, the program's base rate. Plain gradient descent
    (`momentum`, `weight_decay`).
  * The compared classifiers start as the one that all clients start with (here
    the pre-trained one), as in the program, whose server sends it in each
    round. From each client's own (`compared_start=own`), five clients of one
    concept are split into two groups. A client's own classifier starts from the
    same one; in the program a client's first classifier continues from the
    compared one, because its list is still empty.
  * With fewer than three clients in a round the distance divides by zero: they
    are not compared, and each keeps its classifier and its own mean embeddings.
  * Classes that a client lacks count neither in the entropy nor in the mean (in
    the program 0 log 0, and a mean that divides by all clients). A class
    without an anchor is not aligned.
  * The server's next weights contain the merged table of the round, which the
    second phase sends to all clients of the round.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import client_groups
from tff_shift.algorithms.parts import prototypes
from tff_shift.algorithms.parts import stream_labels
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  per_client_values="the server compares the classifiers of individual clients"
)


@dataclasses.dataclass(frozen=True)
class HParams(stream_labels.StreamLabelsHParams, hyperparameters.LocalHParams):
  """Hyper-parameters of FedCCFA."""

  balanced_epochs: int = hyperparameters.hparam(
    5,
    "Epochs over the class-balanced examples, for the classifiers that the"
    " server compares.",
    minimum=1,
  )
  balanced_examples: int = hyperparameters.hparam(
    5, "Maximum number of class-balanced examples per class.", minimum=1
  )
  entropy_divisor: float = hyperparameters.hparam(
    20.0,
    "gamma: the weight of feature alignment is the entropy of the client's"
    " label distribution over gamma; 0: no alignment.",
    minimum=0,
  )
  alignment_start: int = hyperparameters.hparam(
    20, "Number of rounds without feature alignment.", minimum=0
  )
  temperature: float = hyperparameters.hparam(
    0.1,
    "tau: divides the cosines of features and anchors.",
    minimum=0,
    exclusive_minimum=True,
    published=True,
  )
  cluster_distance: float = hyperparameters.hparam(
    0.1,
    "Maximum distance of the rows of two connected clients; 2: one cluster.",
    minimum=0,
    maximum=2,
  )
  local_epochs: int = hyperparameters.hparam(
    5,
    "Epochs over the client's training data for the backbone, rounded up to"
    " whole batches; 0: use local_steps.",
    minimum=0,
    published=True,
  )
  head_epochs: int = hyperparameters.hparam(
    1,
    "Epochs over the same data for the classifier.",
    minimum=1,
    published=True,
  )
  learning_rate: float = hyperparameters.hparam(
    0.01,
    "Learning rate of the backbone.",
    minimum=0,
    exclusive_minimum=True,
    published=True,
  )
  compared_start: str = hyperparameters.hparam(
    "common",
    "Initial weights of the classifier that is trained for comparison: common,"
    " the initial ones of all clients (the program); own, the client's.",
    choices=("common", "own"),
  )
  head_rate_factor: float = hyperparameters.hparam(
    10.0,
    "Learning rate of classifiers, as a multiple of the backbone's.",
    minimum=0,
    exclusive_minimum=True,
  )
  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "A client's weight in the mean of the backbones: num_examples, its number"
    " of unlabelled examples, or uniform.",
    choices=("uniform", "num_examples"),
    published=True,
  )


class Sent(NamedTuple):
  """A client's values in plaintext, beside the update of the backbone.

  Attributes:
    compared: The rows of the classifier of step 1, [num_classes, row_size]
      float32.
    rows: The rows of the classifier of step 2, [num_classes, row_size] float32.
    means: The mean embedding of each class, [num_classes, embedding_size]
      float32; zeros for a class without examples.
  """

  compared: Any
  rows: Any
  means: Any


class Merged(NamedTuple):
  """The merged values of clients, each tensor with a first axis of clients.

  Attributes:
    rows: The mean rows of the cluster, [num_classes, row_size] float32.
    anchors: The mean of the mean embeddings, [num_classes, embedding_size]
      float32; zeros for a class that no client of the cluster has.
  """

  rows: Any
  anchors: Any


class Table(NamedTuple):
  """The result of a round at the server.

  Attributes:
    merged: A `Merged` of num_clients clients; zeros for clients outside of the
      cohort.
    written: The last round, from 1, in which a client took part, [num_clients]
      float32; 0: never.
  """

  merged: Any
  written: Any


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    backbone: The weights of the backbone.
    head: The initial classifier of all clients.
    table: The merged values of the last cohort, a `Table`.
  """

  backbone: Any
  head: Any
  table: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    head: Its classifier, the weights of the last layer.
    anchors: P_c, [num_classes, embedding_size] float32; zeros for a class
      without an anchor.
    loss: The mean loss of its last backbone training, a float32 scalar.
  """

  head: Any
  anchors: Any
  loss: Any


def balance_examples(
  data: client_dataset.ClientDataset, most: int, num_classes: int, seed
) -> client_dataset.ClientDataset:
  """Draws the same number of examples of each class that the client has.

  Args:
    data: The examples.
    most: The maximum number per class. If the rarest class has fewer examples,
      all classes get this number.
    num_classes: The number of classes.
    seed: An int32 tensor of shape [2].

  Returns:
    The examples, in a random order.
  """
  size = tf.size(data.y)
  order = draws.orders(size, size, seed)
  membership = tf.one_hot(tf.gather(data.y, order), num_classes, dtype=tf.int32)
  counts = tf.reduce_sum(membership, axis=0)
  rarest = tf.reduce_min(tf.where(counts > 0, counts, most))
  # The rank of an example among the examples of its class, from 1.
  ranks = tf.reduce_sum(tf.cumsum(membership) * membership, axis=1)
  chosen = tf.boolean_mask(order, ranks <= tf.minimum(rarest, most))
  return data._replace(
    x=tf.gather(data.x, chosen),
    y=tf.gather(data.y, chosen),
    num_examples=tf.size(chosen),
  )


def alignment_weight(hparams: HParams, classes, round_num) -> tf.Tensor:
  """Computes k of a round from a label distribution, [num_classes]."""
  if not hparams.entropy_divisor:
    return tf.constant(0.0)
  entropy = -tf.reduce_sum(tf.math.xlogy(classes, classes))
  has_begun = tf.cast(round_num >= hparams.alignment_start, tf.float32)
  return has_begun * entropy / hparams.entropy_divisor


def alignment_loss(
  hparams: HParams, anchors, embeddings, y, class_weights
) -> tf.Tensor:
  """Computes the cross-entropy of the cosines of features and anchors.

  Args:
    hparams: The temperature.
    anchors: P_c, [num_classes, size] float32; zeros for a class without an
      anchor.
    embeddings: [batch, size] float32.
    y: The classes, [batch] int32.
    class_weights: The weight of an example of each class, [num_classes].

  Returns:
    A float32 scalar. Classes without an anchor are excluded.
  """
  present = tf.reduce_any(tf.not_equal(anchors, 0.0), axis=1)
  # These are the cosines minus 1, with the same softmax.
  cosines = prototypes.logits(
    embeddings, prototypes.Prototypes(anchors, present), "cosine"
  )
  return adaptation.risk(
    cosines / hparams.temperature,
    y,
    class_weights * tf.cast(present, tf.float32),
  )


def rows_of(head: tuple[tf.Tensor, ...]) -> tf.Tensor:
  """Returns the rows of a classifier, [num_classes, size (+ 1 with a bias)]."""
  kernel, *biases = head
  return tf.concat(
    [tf.transpose(kernel), *[bias[:, tf.newaxis] for bias in biases]], axis=1
  )


def head_of(rows, size: int) -> tuple[tf.Tensor, ...]:
  """Returns the weights of a classifier of `size` inputs from its rows."""
  kernel = tf.transpose(rows[:, :size])
  return (kernel, *tf.unstack(rows[:, size:], axis=1))


def make_sent(
  compared: tuple[tf.Tensor, ...],
  head: tuple[tf.Tensor, ...],
  embeddings,
  y,
  num_classes: int,
) -> Sent:
  """Makes the `Sent` of a client.

  Args:
    compared: The classifier of step 1.
    head: The classifier of step 2.
    embeddings: Embeddings of the client's examples, [n, embedding_size]
      float32.
    y: Their classes, [n] int32.
    num_classes: The number of classes.
  """
  sums = prototypes.class_sums(embeddings, y, num_classes)
  return Sent(
    rows_of(compared), rows_of(head), prototypes.class_means(sums).mean
  )


def row_distances(rows) -> tf.Tensor:
  """Computes the distances d of clients for one class.

  Args:
    rows: A row of each client, [n, row_size] float32.

  Returns:
    [n, n] float32; zeros for fewer than three clients, which have no other.
  """
  units = tf.math.l2_normalize(rows, axis=1)
  cosines = tf.matmul(units, units, transpose_b=True)
  differences = tf.abs(cosines[:, tf.newaxis] - cosines)  # [i, j, z]
  is_other = 1.0 - tf.eye(tf.shape(rows)[0])
  counts = is_other[:, tf.newaxis] * is_other
  return tf.math.divide_no_nan(
    tf.reduce_sum(counts * differences, axis=2),
    # Each sum is n - 2, except for i = j.
    tf.reduce_sum(counts, axis=2),
  )


def find_groups(rows, largest_distance: float, max_clients: int) -> tf.Tensor:
  """Finds the connected components of clients for one class.

  Args:
    rows: A row of each client, [n, row_size] float32.
    largest_distance: The maximum distance of two connected clients (DBSCAN's
      epsilon).
    max_clients: The maximum n.

  Returns:
    1 if two clients are in one cluster, else 0, [n, n] float32. Fewer than
    three clients cannot be compared: each is a separate cluster.
  """
  number = tf.shape(rows)[0]
  is_close = tf.where(
    number < 3,
    tf.eye(number),
    tf.cast(row_distances(rows) <= largest_distance, tf.float32),
  )
  return client_groups.connected(is_close, max_clients)


def merge(sent: Sent, largest_distance: float, max_clients: int) -> Merged:
  """Averages rows and mean embeddings over each cluster, class by class.

  Args:
    sent: A `Sent` with a first axis of n clients.
    largest_distance: The maximum distance of two connected clients.
    max_clients: The maximum n.

  Returns:
    A `Merged` of n clients. Mean embeddings are averaged over the clients that
    have the class.
  """

  def merge_class(of_class):
    members = find_groups(of_class.compared, largest_distance, max_clients)
    has_class = tf.reduce_any(tf.not_equal(of_class.means, 0.0), axis=1)
    counts = tf.linalg.matvec(members, tf.cast(has_class, tf.float32))
    return Merged(
      tf.matmul(members, of_class.rows)
      / tf.reduce_sum(members, axis=1, keepdims=True),
      # A client without the class adds zeros.
      tf.math.divide_no_nan(
        tf.matmul(members, of_class.means), counts[:, tf.newaxis]
      ),
    )

  def swap(tensors):
    """Swaps the axes of clients and classes."""
    return tf.nest.map_structure(lambda t: tf.transpose(t, [1, 0, 2]), tensors)

  merged = tf.map_fn(
    merge_class,
    swap(sent),
    fn_output_signature=Merged(
      tf.TensorSpec([None, sent.rows.shape[2]]),
      tf.TensorSpec([None, sent.means.shape[2]]),
    ),
  )
  return swap(merged)


def empty_table(
  num_clients: int,
  head: tuple[tf.Tensor, ...],
  num_classes: int,
  size: int,
) -> Table:
  """Returns the table before the first round.

  Args:
    num_clients: The number of all clients.
    head: The weights of a classifier.
    num_classes: The number of classes.
    size: The length of an embedding.
  """
  slots = [num_clients]
  return Table(
    Merged(
      tf.zeros([*slots, *rows_of(head).shape]),
      tf.zeros([*slots, num_classes, size]),
    ),
    tf.zeros(slots),
  )


def write_table(
  hparams: HParams, table: Table, slots: client_slots.Slots, round_num
) -> Table:
  """Merges the `Sent` of the clients of a cohort.

  Args:
    hparams: The distance.
    table: The table before the round.
    slots: The `Sent` of each client of the cohort.
    round_num: The round, an int32 scalar.

  Returns:
    The table.
  """
  present = tf.where(slots.present > 0)  # [n, 1]
  sent = tf.nest.map_structure(
    lambda rows: tf.gather_nd(rows, present), slots.values
  )
  num_clients = slots.present.shape[0]
  merged = merge(sent, hparams.cluster_distance, num_clients)
  return Table(
    tf.nest.map_structure(
      lambda before, rows: tf.scatter_nd(
        present, rows, tf.shape(before, tf.int64)
      ),
      table.merged,
      merged,
    ),
    tf.where(
      slots.present > 0, tf.cast(round_num + 1, tf.float32), table.written
    ),
  )


def read_table(table: Table, client_id, round_num) -> tuple[Merged, tf.Tensor]:
  """Reads a client's entry.

  Args:
    table: The table.
    client_id: The client, an int32 scalar.
    round_num: The round, an int32 scalar.

  Returns:
    The client's `Merged`, and whether it is from this round, a bool scalar.
    False for a diverged client, whose values do not reach the server.
  """
  merged, written = tf.nest.map_structure(
    lambda rows: tf.gather(rows, client_id), table
  )
  return merged, tf.equal(written, tf.cast(round_num + 1, tf.float32))


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedCCFA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`. A `client_id` must be below `num_clients`.
  """
  model = split_model.with_head(model, "last_layer")
  sizes = model.num_classes, model.embedding_size

  def train_client(weights, state, data, round_num):
    backbone = weights.backbone
    own = split_model.SplitWeights(backbone, state.head)
    predict = lambda x: evaluation.predict(model, own, x)  # noqa: E731
    lesson = stream_labels.lesson(model, hparams, own, data, predict)
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    # Classifiers are trained on the fixed received backbone.
    embedded = lesson.examples._replace(
      x=adaptation.embed(model, backbone, lesson.examples.x)
    )

    def train_head(start, examples, epochs, class_weights, number):
      return local_training.train_on_batches(
        lambda head, batch: adaptation.risk(
          model.classify(head, batch.x), batch.y, class_weights
        ),
        start,
        examples,
        epochs * local_training.epoch_steps(examples, hparams.batch_size),
        randomness.fold(seed, number),
        hparams,
        learning_rate=hparams.head_rate_factor
        * local_training.scheduled_rate(hparams, round_num),
      ).weights

    balanced = balance_examples(
      embedded,
      hparams.balanced_examples,
      model.num_classes,
      randomness.fold(seed, 0),
    )
    equal_weights = tf.ones([model.num_classes])
    compared = train_head(
      weights.head if hparams.compared_start == "common" else state.head,
      balanced,
      hparams.balanced_epochs,
      equal_weights,
      1,
    )
    head = train_head(
      state.head, embedded, hparams.head_epochs, lesson.class_weights, 2
    )
    k = alignment_weight(hparams, lesson.classes, round_num)

    def backbone_loss(current, batch):
      embeddings = model.embed(current, batch.x)
      logits = model.classify(head, embeddings)
      of_classes = adaptation.risk(logits, batch.y, lesson.class_weights)
      return of_classes + k * alignment_loss(
        hparams, state.anchors, embeddings, batch.y, lesson.class_weights
      )

    result = local_training.train_on_batches(
      backbone_loss,
      backbone,
      lesson.examples,
      local_training.num_local_steps(hparams, lesson.examples, round_num),
      randomness.fold(seed, 3),
      hparams,
      round_num=round_num,
    )
    embeddings = adaptation.embed(model, result.weights, lesson.examples.x)
    sent = make_sent(
      compared, head, embeddings, lesson.examples.y, model.num_classes
    )
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, result.weights, backbone),
      client_state=state._replace(head=head, loss=result.loss),
      loss=result.loss,
      plaintext_sum=client_slots.place(sent, data.client_id),
    )

  def update_server(weights, mean_update, slots, info):
    return weights._replace(
      backbone=info.step(weights.backbone, mean_update),
      table=write_table(hparams, weights.table, slots, info.round_num),
    )

  def initial_weights(seed):
    backbone, head = model.initial_weights(seed)
    table = empty_table(num_clients, head, *sizes)
    return Weights(backbone, head, table)

  def personalize_client(weights, state, data, round_num):
    merged, is_there = read_table(weights.table, data.client_id, round_num)
    received = state._replace(
      head=head_of(merged.rows, model.embedding_size),
      anchors=merged.anchors,
    )
    return algorithm.PersonalResult(
      tf.nest.map_structure(
        lambda new, old: tf.where(is_there, new, old), received, state
      ),
      state.loss,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, weights: ClientState(
      weights.head, tf.zeros(sizes), tf.constant(0.0)
    ),
    train_client=train_client,
    update_server=update_server,
    personalize_client=personalize_client,
    predict_as_client=lambda weights, state, data, examples: evaluation.predict(
      model,
      split_model.SplitWeights(weights.backbone, state.head),
      examples.x,
    ),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
    fixed_weights=("head",),
    max_clients=num_clients,
  )
