"""What a result needs is found, and nothing else is kept."""

import tensorflow as tf

from tests.fixtures.arrays import assert_equal
from tff_shift.serving import tracing

VECTOR = tf.TensorSpec([None], tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)


def operations(function):
  return {each.type for each in function.graph.get_operations()}


def test_only_what_is_needed_is_used():
  def function(given, x):
    tf.math.erf(given["unused"])
    return given["scale"] * x

  traced = tracing.trace(function, {"scale": SCALAR, "unused": VECTOR}, VECTOR)
  assert traced.used == (0, 2)
  assert "Erf" not in operations(traced.function)
  result = traced(
    ({"scale": tf.constant(2.0), "unused": None}, tf.constant([1.0, 3.0]))
  )
  assert_equal(result, [2.0, 6.0])


def test_what_a_loop_takes_in_is_used():
  def function(step, unused, x):
    tf.math.erf(unused)
    return tf.while_loop(
      lambda i, _: i < 3, lambda i, y: (i + 1, y + step), (0, x)
    )[1]

  traced = tracing.trace(function, SCALAR, VECTOR, VECTOR)
  assert traced.used == (0, 2)
  assert_equal(traced((tf.constant(2.0), None, tf.constant([1.0]))), [7.0])
