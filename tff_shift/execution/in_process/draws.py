"""Draws of TensorFlow with a key of a client's own, for all clients of a batch.

TensorFlow runs them in a loop over the clients. The numbers are TensorFlow's, a
normal one up to rounding. Importing the module registers the converters.
"""

import math

import tensorflow as tf

from tff_shift.execution.in_process import converters

# TensorFlow's key for mixing the bits of a seed.
_MIXING_KEY = 0x02461E293EC8F720
_MANTISSA = 0x7FFFFF
_ONE = 0x3F800000
# What TensorFlow takes for 0 where the logarithm is needed.
_SMALLEST = 1e-7


@converters.register("StatelessRandomGetKeyCounter")
def _key_and_counter(inputs: converters.Input) -> converters.Output:
  seed = inputs.stacked_input(0)
  counter = tf.cast(tf.cast(seed, tf.int64), tf.uint64)
  key = tf.fill([tf.shape(seed)[0], 1], tf.constant(_MIXING_KEY, tf.uint64))
  mixed = converters.philox(tf.uint64)(key, counter, tf.constant(2))
  key, high = mixed[:, :1], mixed[:, 1:]
  # The lower half of the counter counts the numbers drawn.
  counter = tf.concat([tf.zeros_like(high), high], 1)
  return [converters.pfor.wrap(key), converters.pfor.wrap(counter)]


@converters.register("StatelessRandomUniformV2")
def _uniform(inputs: converters.Input) -> converters.Output:
  if inputs.get_attr("dtype") != tf.float32:
    return converters.pfor._fallback_converter(inputs)
  return converters.draw(inputs, tf.uint32, _fractions)


@converters.register("StatelessRandomNormalV2")
def _normal(inputs: converters.Input) -> converters.Output:
  if inputs.get_attr("dtype") != tf.float32:
    return converters.pfor._fallback_converter(inputs)
  return converters.draw(inputs, tf.uint32, _box_muller, multiple=2)


@converters.register("StatelessRandomUniformIntV2")
def _uniform_integers(inputs: converters.Input) -> converters.Output:
  if inputs.get_attr("dtype") != tf.int32:
    return converters.pfor._fallback_converter(inputs)
  low, high = (
    tf.reshape(tf.cast(each.t, tf.int64), [-1, 1]) for each in inputs.inputs[4:]
  )

  def between(bits):
    return tf.cast(low + tf.cast(bits, tf.int64) % (high - low), tf.int32)

  return converters.draw(inputs, tf.uint32, between)


def _fractions(bits: tf.Tensor) -> tf.Tensor:
  """Returns numbers from 0 to 1: the bits of numbers from 1 to 2, less 1."""
  bits = tf.bitwise.bitwise_and(bits, tf.constant(_MANTISSA, tf.uint32))
  bits = tf.bitwise.bitwise_or(bits, tf.constant(_ONE, tf.uint32))
  return tf.bitcast(bits, tf.float32) - 1


def _box_muller(bits: tf.Tensor) -> tf.Tensor:
  """Returns normal numbers, each two from two uniform ones."""
  radius, angle = _fractions(bits[:, ::2]), _fractions(bits[:, 1::2])
  radius = tf.sqrt(-2 * tf.math.log(tf.maximum(radius, _SMALLEST)))
  angle *= 2 * math.pi
  pairs = tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], -1)
  return tf.reshape(pairs, tf.shape(bits))
