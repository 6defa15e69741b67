"""Classifier collaboration: how much of whose head a client's head is made of.

Personalized Federated Learning with Feature Alignment and Classifier
Collaboration (Xu, Tong, Huang; ICLR 2023): the combination of heads with the
least bound on a client's error, from what clients tell of the features that one
and the same backbone gives them.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.techniques import prototypes
from tff_shift.techniques import simplex_programs

_SMALLEST_SHARE = 1e-3


class Statistics(NamedTuple):
  """What a client knows of its features.

  Attributes:
    h: [num_classes, embedding_size] float32.
    v: A float32 scalar.
    means: The mean feature of each class, as h; zeros for one without examples.
  """

  h: Any
  v: Any
  means: Any


def statistics(features, y, num_classes: int) -> Statistics:
  """Computes h, v and class means.

  Args:
    features: [num_examples, embedding_size] float32.
    y: The classes, [num_examples] int32.
    num_classes: The number of classes.

  Returns:
    `Statistics`.
  """
  count = tf.cast(tf.maximum(tf.size(y), 1), tf.float32)
  sums = prototypes.class_sums(features, y, num_classes)
  h = sums.total / count
  squares = tf.reduce_sum(tf.square(features)) / count
  # Not negative, but for rounding.
  variance = tf.maximum(squares - tf.reduce_sum(tf.square(h)), 0.0)
  return Statistics(h, variance / count, prototypes.class_means(sums).mean)


def shares(h, v, present) -> tf.Tensor:
  """Solves the programs of all clients.

  Args:
    h: [num_clients, num_classes, embedding_size] float32.
    v: [num_clients] float32.
    present: [num_clients] float32, 1 for who has sent them, 0 for others.

  Returns:
    a of client i in row i, [num_clients, num_clients] float32; 0 for clients
    that are not present.
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
  found = tf.where(found >= _SMALLEST_SHARE, found, 0)
  found /= tf.reduce_sum(found, axis=1, keepdims=True)
  return tf.cast(found, tf.float32)


def combine(heads: Any, combination, present, before: Any) -> Any:
  """Makes the heads of those that take part.

  Args:
    heads: Heads that clients have trained, each tensor with a first axis of
      num_clients.
    combination: What `shares` gives.
    present: [num_clients] float32, as there.
    before: The heads of before, like `heads`, which others keep.

  Returns:
    Heads, likewise.
  """

  def combine_tensor(rows, old):
    takes_part = tf.reshape(present > 0, [-1] + [1] * (old.shape.rank - 1))
    return tf.where(takes_part, tf.tensordot(combination, rows, 1), old)

  return tf.nest.map_structure(combine_tensor, heads, before)
