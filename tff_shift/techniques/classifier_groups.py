"""Groups of clients by class, from the rows of their classifiers.

Classifier Clustering and Feature Alignment for Federated Learning under
Distributed Concept Drift (Chen, Xue, Wang, Liu, Huang; NeurIPS 2024). A linear
layer has a row for each class, its weights and its bias. For a class, clients
are the closer the more alike their rows are to those of all others; groups are
what DBSCAN gives with one sample as a core: the connected components of all
pairs within a distance.
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import client_slots
from tff_shift.techniques import prototypes


@dataclasses.dataclass(frozen=True)
class GroupHParams(hyperparameters.HParams):
  """How clients are told apart, and joined."""

  num_slots: int = hyperparameters.hparam(
    100,
    "Rows of the server's table: at least the number of clients. The binary"
    " takes that number unless told otherwise.",
    minimum=1,
  )
  cluster_distance: float = hyperparameters.hparam(
    0.1,
    "The largest distance of two rows that joins their clients; 2 joins all.",
    minimum=0,
    maximum=2,
  )


class Sent(NamedTuple):
  """What a client tells the server of its classes.

  Attributes:
    compared: The rows that tell groups apart, [num_classes, row_size] float32.
    rows: Those that are averaged, likewise.
    means: The mean embedding of each class, [num_classes, embedding_size]
      float32; zeros for a class without examples.
  """

  compared: Any
  rows: Any
  means: Any


class Merged(NamedTuple):
  """What clients receive, each tensor with a first axis of clients.

  Attributes:
    rows: The mean rows of the group, [num_classes, row_size] float32.
    anchors: The mean of the mean embeddings, [num_classes, embedding_size]
      float32; zeros for a class that no member of the group has.
  """

  rows: Any
  anchors: Any


class Table(NamedTuple):
  """What the server has made in a round of what clients have sent.

  Attributes:
    merged: A `Merged` of num_slots clients; zeros for those that took no part.
    written: The round, from 1, in which a client last took part, [num_slots]
      float32; 0 if in none.
  """

  merged: Any
  written: Any


def rows_of(head: tuple[tf.Tensor, ...]) -> tf.Tensor:
  """Joins a linear layer's weights, [num_classes, size and 1 for a bias]."""
  kernel, *biases = head
  return tf.concat(
    [tf.transpose(kernel), *[bias[:, tf.newaxis] for bias in biases]], axis=1
  )


def head_of(rows, size: int) -> tuple[tf.Tensor, ...]:
  """Takes the weights of a linear layer of `size` inputs from its rows."""
  kernel = tf.transpose(rows[:, :size])
  return (kernel, *tf.unstack(rows[:, size:], axis=1))


def sent(
  compared: tuple[tf.Tensor, ...],
  head: tuple[tf.Tensor, ...],
  embeddings,
  y,
  num_classes: int,
) -> Sent:
  """Joins what a client tells the server.

  Args:
    compared: The weights of the linear layer that tells groups apart.
    head: Those of the layer that is averaged.
    embeddings: Of the client's examples, [n, embedding_size] float32.
    y: Their classes, [n] int32.
    num_classes: The number of classes.
  """
  sums = prototypes.class_sums(embeddings, y, num_classes)
  return Sent(
    rows_of(compared), rows_of(head), prototypes.class_means(sums).mean
  )


def place(hparams: GroupHParams, sent: Sent, client_id) -> client_slots.Slots:
  """Puts what a client sends into its slot; it is an error if there is none."""
  has_slot = tf.debugging.assert_less(
    client_id,
    hparams.num_slots,
    "num_slots must be at least the number of clients",
  )
  with tf.control_dependencies([has_slot]):
    return client_slots.place(sent, client_id, hparams.num_slots)


def distances(rows) -> tf.Tensor:
  """Computes how unlike two clients are to all others.

  Args:
    rows: A row of each client, [n, row_size] float32.

  Returns:
    The mean over all other clients z of |cos(v_i, v_z) - cos(v_j, v_z)|,
    [n, n] float32. Of fewer than three clients there is no other: zeros.
  """
  units = tf.math.l2_normalize(rows, axis=1)
  cosines = tf.matmul(units, units, transpose_b=True)
  differences = tf.abs(cosines[:, tf.newaxis] - cosines)  # [i, j, z]
  is_other = 1.0 - tf.eye(tf.shape(rows)[0])
  counts = is_other[:, tf.newaxis] * is_other
  return tf.math.divide_no_nan(
    tf.reduce_sum(counts * differences, axis=2),
    # All of a client's own row of counts but for i = j is n - 2.
    tf.reduce_sum(counts, axis=2),
  )


def groups(rows, largest_distance: float, max_clients: int) -> tf.Tensor:
  """Finds who is in a group with whom.

  Args:
    rows: A row of each client, [n, row_size] float32.
    largest_distance: What joins two clients (DBSCAN's epsilon).
    max_clients: A number that n is not above.

  Returns:
    1 where two clients are in one group, else 0, [n, n] float32. Fewer than
    three clients cannot be compared: each is a group of its own.
  """
  number = tf.shape(rows)[0]
  is_close = tf.where(
    number < 3,
    tf.eye(number),
    tf.cast(distances(rows) <= largest_distance, tf.float32),
  )
  # Paths of up to 1, 2, 4, ... steps.
  for _ in range(math.ceil(math.log2(max(max_clients, 2)))):
    is_close = tf.cast(tf.matmul(is_close, is_close) > 0, tf.float32)
  return is_close


def merge(sent: Sent, largest_distance: float, max_clients: int) -> Merged:
  """Averages what clients of a group have, class by class.

  Args:
    sent: What clients have sent, with a first axis of n clients.
    largest_distance: See `groups`.
    max_clients: See `groups`.

  Returns:
    A `Merged` of n clients. Mean embeddings are averaged over those members
    that have the class.
  """

  def merge_class(of_class):
    members = groups(of_class.compared, largest_distance, max_clients)
    has_class = tf.reduce_any(tf.not_equal(of_class.means, 0.0), axis=1)
    counts = tf.linalg.matvec(members, tf.cast(has_class, tf.float32))
    return Merged(
      tf.matmul(members, of_class.rows)
      / tf.reduce_sum(members, axis=1, keepdims=True),
      # Who does not have the class adds zeros.
      tf.math.divide_no_nan(
        tf.matmul(members, of_class.means), counts[:, tf.newaxis]
      ),
    )

  def swap(tensors):
    """Puts classes first, or clients again."""
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
  hparams: GroupHParams,
  head: tuple[tf.Tensor, ...],
  num_classes: int,
  size: int,
) -> Table:
  """Returns the table before the first round.

  Args:
    hparams: The number of slots.
    head: The weights of a linear layer.
    num_classes: The number of classes.
    size: The length of an embedding.
  """
  slots = [hparams.num_slots]
  return Table(
    Merged(
      tf.zeros([*slots, *rows_of(head).shape]),
      tf.zeros([*slots, num_classes, size]),
    ),
    tf.zeros(slots),
  )


def write_table(
  hparams: GroupHParams, table: Table, slots: client_slots.Slots, round_num
) -> Table:
  """Merges what clients have sent in a round.

  Args:
    hparams: The number of slots and the distance.
    table: The table of before.
    slots: A `Sent` of each client that took part, see `client_slots.place`.
    round_num: The round, an int32 scalar.

  Returns:
    The table.
  """
  present = tf.where(slots.present > 0)  # [n, 1]
  sent = tf.nest.map_structure(
    lambda rows: tf.gather_nd(rows, present), slots.values
  )
  merged = merge(sent, hparams.cluster_distance, hparams.num_slots)
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
  """Reads what a client receives.

  Args:
    table: The table.
    client_id: The client, an int32 scalar.
    round_num: The round, an int32 scalar.

  Returns:
    The client's `Merged`, and whether it is of this round, a bool scalar: what
    a client that has diverged sends does not reach the server.
  """
  merged, written = tf.nest.map_structure(
    lambda rows: tf.gather(rows, client_id), table
  )
  return merged, tf.equal(written, tf.cast(round_num + 1, tf.float32))
