"""Sums of updates that are in conflict, from their inner products alone.

Two updates are in conflict if their inner product is negative. What is done
about it here gives a linear combination of the updates; so what is computed are
its coefficients, from G, the matrix of all inner products.

Sources: Gradient Surgery for Multi-Task Learning (Yu, Kumar, Gupta, Levine,
Hausman, Finn; NeurIPS 2020), PCGrad; Conflict-Averse Gradient Descent for
Multi-task Learning (Liu, Liu, Jin, Stone, Liu; NeurIPS 2021), CAGrad.

In what follows u_1, ..., u_n are the updates of n clients, the columns of U. A
batch is of layers, each with a G of its own. A client that has sent nothing has
zeros in G and in the shares.
"""

import tensorflow as tf

from tff_shift.techniques import simplex_programs

# |U w| is looked for from this share of the longest update to all of it, in so
# many steps at most, until it is known so well.
_SHORTEST = 1e-4
_NUM_STEPS = 24
_TOLERANCE = 1e-5


def mean_of_projected(products, shares, orders) -> tf.Tensor:
  """Takes out of each update what is against others, and the mean of the rest.

  PCGrad: u_i' starts as u_i; for each other j in a random order

      u_i' <- u_i' - min(<u_i', u_j>, 0) / |u_j|^2 u_j.

  Args:
    products: G, [batch, n, n] float64.
    shares: What each client counts in the mean, [n] float64, of sum 1.
    orders: The order of the j for each i, [n, n] int32, a permutation of the
      clients in each row.

  Returns:
    Coefficients of the u_j in the mean over i of u_i', [batch, n] float64.
    Without conflicts they are the shares.
  """
  num_clients = products.shape[-1]
  lengths = tf.linalg.diag_part(products)
  identity = tf.eye(num_clients, dtype=tf.float64)
  # Row i has the coefficients of u_i'.
  kept = tf.broadcast_to(identity, tf.shape(products))
  for place in range(num_clients):
    others = tf.one_hot(orders[:, place], num_clients, dtype=tf.float64)
    others *= 1 - identity  # Not with itself.
    against = tf.reduce_sum(kept * tf.matmul(others, products), axis=2)
    against = tf.math.divide_no_nan(
      tf.minimum(against, 0), tf.linalg.matvec(others, lengths)
    )
    kept -= against[:, :, tf.newaxis] * others
  return tf.linalg.matvec(kept, shares, transpose_a=True)


def mean_of_pairwise_projected(products, shares) -> tf.Tensor:
  """Likewise, but with each other update as it was sent, all at once.

      u_i' = u_i - sum over j != i of min(<u_i, u_j>, 0) / |u_j|^2 u_j.

  Args:
    products: See `mean_of_projected`.
    shares: Likewise.

  Returns:
    Likewise.
  """
  lengths = tf.linalg.diag_part(products)
  # That with itself is not negative.
  against = tf.linalg.matvec(tf.minimum(products, 0), shares)
  return shares - tf.math.divide_no_nan(against, lengths)


def avert(products, guide, allowed, alpha: float) -> tf.Tensor:
  """Turns a mean towards the update that it helps least.

  CAGrad, with g_0 the mean, c = alpha |g_0| and w in the simplex:

      min over w of <U w, g_0> + c |U w|,
      g = (g_0 + c U w / |U w|) / (1 + alpha^2).

  |U w| is the least value of (|U w|^2 / t + t) / 2 over t > 0. For a given t a
  quadratic program is left, and the |U w| of its solution grows with t, but
  slower: the t that it is equal to lies between it and any other t.

  Args:
    products: See `mean_of_projected`.
    guide: The coefficients of g_0, [batch, n] float64.
    allowed: Which clients have sent an update, [n] bool.
    alpha: How far g may be from g_0, relative to its length, above 0.

  Returns:
    The coefficients of g, [batch, n] float64.
  """
  allowed = tf.broadcast_to(allowed, tf.shape(guide))
  slope = tf.linalg.matvec(products, guide)

  def length(coefficients):
    squares = tf.reduce_sum(
      coefficients * tf.linalg.matvec(products, coefficients), axis=1
    )
    return tf.sqrt(tf.maximum(squares, 0))

  radius = alpha * length(guide)

  def solve(t):
    return simplex_programs.minimize_quadratic(
      products,
      tf.math.divide_no_nan(t, radius)[:, tf.newaxis] * slope,
      allowed,
    )

  def narrow(step, low, high):
    middle = tf.sqrt(low * high)
    found = length(solve(middle))
    is_above = found > middle
    return (
      step + 1,
      tf.where(is_above, tf.minimum(found, high), low),
      tf.where(is_above, high, tf.maximum(found, low)),
    )

  longest = tf.sqrt(tf.reduce_max(tf.linalg.diag_part(products), axis=1))
  _, low, high = tf.while_loop(
    lambda step, low, high: (
      (step < _NUM_STEPS) & tf.reduce_any(high > (1 + _TOLERANCE) * low)
    ),
    narrow,
    (tf.constant(0), _SHORTEST * longest, longest),
    parallel_iterations=1,
  )
  t = tf.sqrt(low * high)
  solution = solve(t)
  # Where the updates can cancel each other, U w has no direction to speak of.
  turn = tf.math.divide_no_nan(radius, tf.maximum(length(solution), t))
  return (guide + turn[:, tf.newaxis] * solution) / (1 + alpha**2)
