"""Quadratic programs over the simplex, solved inside a graph.

    min over a of  a^T P a / 2 + q^T a,   a >= 0, sum of a = 1

Used by servers that give each client a weight in a mixture: FedPAC solves one
for each client, ConFREE one for each layer.

The method is the primal-dual interior point method (Convex Optimization, Boyd,
Vandenberghe; 2004, Section 11.7). From an inner point it takes Newton steps
towards

    P a + q - z + lambda = 0,   a_j z_j = mu,   sum of a = 1,

while mu decreases tenfold per step. P may be singular. If the minimum is not
unique, the method converges to a central one: equal clients get equal weights.
"""

import tensorflow as tf

# Then a is exact to about 10 digits, for any condition number of P.
_NUM_STEPS = 20
_DECREASE = 0.1
_SMALLEST_GAP = 1e-14
# Fraction of the way to the nearest bound that a step may take.
_SHARE_OF_WAY = 0.99
# Added to a P of scale 1; makes the linear systems regular.
_RIDGE = 1e-12


def minimize_quadratic(matrix, slope, allowed) -> tf.Tensor:
  """Solves quadratic programs over the simplex.

  Args:
    matrix: P, symmetric and positive semidefinite, [batch, n, n] float64.
    slope: q, [batch, n] float64.
    allowed: Which entries of a may be above 0, at least one in each row,
      [batch, n] bool.

  Returns:
    a, [batch, n] float64. Entries that are not allowed are 0; other entries
    that are 0 at the minimum are below 1e-10.
  """
  free = tf.cast(allowed, tf.float64)
  count = tf.reduce_sum(free, axis=1, keepdims=True)
  both_free = free[:, :, tf.newaxis] * free[:, tf.newaxis]
  # The objective is scaled to order 1.
  scale = tf.maximum(
    tf.reduce_max(tf.abs(matrix) * both_free, axis=[1, 2]),
    tf.reduce_max(tf.abs(slope) * free, axis=1),
  )
  matrix = tf.math.divide_no_nan(
    matrix * both_free, scale[:, tf.newaxis, tf.newaxis]
  )
  slope = tf.math.divide_no_nan(slope * free, scale[:, tf.newaxis])

  def way(values, change):
    """Returns the step length along a change before a value reaches 0."""
    ratios = tf.where(change < 0, -values / tf.where(change < 0, change, 1), 1)
    return _SHARE_OF_WAY * tf.reduce_min(ratios, axis=1, keepdims=True)

  def newton_step(a, z, multiplier):
    gap = tf.reduce_sum(a * z, axis=1, keepdims=True) / count
    mu = tf.maximum(_DECREASE * gap, _SMALLEST_GAP)
    divisor = tf.where(allowed, a, 1)
    residual = tf.linalg.matvec(matrix, a) + slope + multiplier - mu / divisor
    diagonal = tf.where(allowed, z / divisor + _RIDGE, 1)
    solved = tf.linalg.solve(
      matrix + tf.linalg.diag(diagonal), tf.stack([-residual * free, free], -1)
    )
    towards, along = solved[:, :, 0], solved[:, :, 1]
    # Keeps the sum of a at 1.
    rest = tf.reduce_sum(a + towards, axis=1, keepdims=True) - 1
    multiplier_change = rest / tf.reduce_sum(along, axis=1, keepdims=True)
    a_change = towards - multiplier_change * along
    z_change = free * (mu / divisor - z - z / divisor * a_change)
    length = tf.minimum(way(a, a_change), way(z, z_change))
    return (
      a + length * a_change,
      z + length * z_change,
      multiplier + length * multiplier_change,
    )

  point = (free / count, free, tf.zeros_like(count))
  # Not a loop in the graph, whose overhead is larger.
  for _ in range(_NUM_STEPS):
    point = newton_step(*point)
  solution = point[0]
  # Removes the rounding error of ill-conditioned steps.
  return solution / tf.reduce_sum(solution, axis=1, keepdims=True)
