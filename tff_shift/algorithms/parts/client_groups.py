"""Groups of clients: the connected components of a graph of close clients.

They are the clusters of DBSCAN with one sample per core point (A Density-Based
Algorithm for Discovering Clusters, Ester, Kriegel, Sander, Xu; KDD 1996). With
two samples the clusters are the same, and a client without a neighbour, which
DBSCAN then calls noise, is a group of its own.
"""

import math

import tensorflow as tf


def connected(is_close, max_clients: int) -> tf.Tensor:
  """Finds which clients are connected by a path of close clients.

  Args:
    is_close: 1 if two clients are close, else 0, [n, n] float32, symmetric,
      with ones on the diagonal.
    max_clients: The maximum n.

  Returns:
    1 if two clients are in one group, else 0, [n, n] float32.
  """
  # Paths of up to 1, 2, 4, ... steps.
  for _ in range(math.ceil(math.log2(max(max_clients, 2)))):
    is_close = tf.cast(tf.matmul(is_close, is_close) > 0, tf.float32)
  return is_close


def labels(members) -> tf.Tensor:
  """Numbers the groups of `connected` by their first clients.

  Args:
    members: [n, n] float32.

  Returns:
    The number of each client's group, from 0, [n] int32.
  """
  first = tf.argmax(members, axis=1, output_type=tf.int32)
  is_first = tf.cast(tf.equal(first, tf.range(tf.size(first))), tf.int32)
  return tf.gather(tf.cumsum(is_first) - 1, first)


def spanning_lengths(distances) -> tf.Tensor:
  """Computes the edges of a minimum spanning tree (Prim).

  A graph of the distances up to a threshold has n less the number of these
  edges up to the threshold as connected components.

  Args:
    distances: [n, n] float32, symmetric, with n at least 1.

  Returns:
    The lengths of the n - 1 edges, ascending, [n - 1] float32.
  """

  def add_nearest(carry, _):
    is_reached, nearest, _ = carry
    waiting = tf.where(is_reached, math.inf, nearest)
    added = tf.argmin(waiting, output_type=tf.int32)
    return (
      tf.ensure_shape(
        is_reached | tf.equal(tf.range(number), added), nearest.shape
      ),
      tf.minimum(nearest, distances[added]),
      waiting[added],
    )

  number = tf.shape(distances)[0]
  _, _, lengths = tf.scan(
    add_nearest,
    tf.range(number - 1),
    (
      tf.ensure_shape(tf.equal(tf.range(number), 0), distances.shape[:1]),
      distances[0],
      tf.constant(0.0),
    ),
  )
  return tf.sort(lengths)
