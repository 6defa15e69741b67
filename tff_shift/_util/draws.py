"""Random numbers of a graph, from integer bits.

Each function is a pure function of its seed. The bits are those of Philox
(Parallel Random Numbers: As Easy as 1, 2, 3, Salmon, Moraes, Dror, Shaw; SC
2011), the same on every device and in graphs compiled by XLA. TensorFlow's own
floating-point draws are not: XLA makes them from other bits. Seeds are
non-negative, because TensorFlow extends the sign of a negative seed to 64 bits
and XLA does not.

Choices:
  * Layers of Keras that draw (dropout) have Keras's draws.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

# Makes an int32 non-negative.
POSITIVE = np.int32(2**31 - 1)
_PHILOX = tf.random.Algorithm.PHILOX.value
# TensorFlow's key for mixing the bits of a seed.
_MIXING_KEY = np.array([0x02461E293EC8F720], np.uint64)
_UPPER_HALF = np.array([0, 2**64 - 1], np.uint64)
# Float32 represents all integers of 24 bits.
_NUM_FLOAT_BITS = 24


def _philox(shape, key, counter, dtype: tf.DType) -> tf.Tensor:
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype
  )


def _bits(shape, seed, dtype: tf.DType = tf.int32) -> tf.Tensor:
  """Draws integers; all of their bits are random.

  The bits are those of `tf.random.stateless_uniform`, which takes three times
  as many operations. Tracing them was an eighth of the time of a short run.
  """
  mixed = _philox([2], _MIXING_KEY, tf.cast(seed, tf.uint64), tf.uint64)
  # Not `tf.slice`: GPUs have none for uint64.
  key = mixed[:1]
  # The lower half of the counter counts the numbers drawn.
  counter = tf.bitwise.bitwise_and(mixed, _UPPER_HALF)
  return _philox(shape, key, counter, dtype)


def fold_in(seed, value) -> tf.Tensor:
  """Derives a seed from a seed and an integer.

  Args:
    seed: An int32 tensor of shape [2].
    value: An integer or an integer tensor. Of negative numbers, the lower 31
      bits count.

  Returns:
    An int32 tensor of shape [2], non-negative.
  """
  value = tf.cast(value, tf.int32)
  return tf.bitwise.bitwise_and(tf.stack([_bits([], seed), value]), POSITIVE)


def integer(seed) -> tf.Tensor:
  """Draws an int32 scalar, from 0 to 2**31 - 1."""
  return tf.bitwise.bitwise_and(_bits([], seed), POSITIVE)


def integers(shape: Any, seed, low, high) -> tf.Tensor:
  """Draws integers.

  Args:
    shape: The shape of the result.
    seed: An int32 tensor of shape [2].
    low: The smallest value, an int32 scalar.
    high: The end of the values, an int32 scalar above `low`, far below 2**31:
      the values are remainders of 31 random bits.

  Returns:
    An int32 tensor, uniform from low to high - 1.
  """
  positive = tf.bitwise.bitwise_and(_bits(shape, seed), POSITIVE)
  return low + tf.math.floormod(positive, high - low)


def _fractions(shape, seed, num_bits: int, offset: float) -> tf.Tensor:
  """Returns (k + offset) / 2**num_bits for random k of `num_bits` bits."""
  mask = np.int32(2**num_bits - 1)
  k = tf.cast(tf.bitwise.bitwise_and(_bits(shape, seed), mask), tf.float32)
  return (k + offset) * 2.0**-num_bits


def uniform(shape: Any, seed, low=0.0, high=1.0) -> tf.Tensor:
  """Draws from the uniform distribution on [low, high).

  Args:
    shape: The shape of the result.
    seed: An int32 tensor of shape [2].
    low: The smallest value.
    high: The end of the values; rounding can reach it, except for 0 and 1.

  Returns:
    A float32 tensor.
  """
  return low + (high - low) * _fractions(shape, seed, _NUM_FLOAT_BITS, 0.0)


def normal(shape: Any, seed) -> tf.Tensor:
  """Draws from the standard normal distribution.

  Args:
    shape: The shape of the result.
    seed: An int32 tensor of shape [2].

  Returns:
    A float32 tensor, the normal quantiles of equally spaced probabilities: the
    largest is 5.3. Compiled graphs can round the last bits differently.
  """
  # One bit less, so that the halves between integers are represented too.
  p = _fractions(shape, seed, _NUM_FLOAT_BITS - 1, 0.5)
  return math.sqrt(2.0) * tf.math.erfinv(2.0 * p - 1.0)


def orders(num_draws, size, seed) -> tf.Tensor:
  """Draws random orders, one after the other.

  Args:
    num_draws: The number of draws, an int32 scalar, which determines all
      shapes.
    size: The number of elements of an order, an int32 scalar; it may be 0 if
      nothing is drawn.
    seed: An int32 tensor of shape [2].

  Returns:
    [num_draws] int32; each `size` of them are the integers from 0 to size - 1.
    An order at the end that is not complete is none.
  """
  # Sorts random numbers: `RandomIndexShuffle`, which needs no memory, takes 10
  # microseconds per index.
  places = tf.range(num_draws)
  by_number = tf.argsort(_bits([num_draws], seed, tf.int64))
  # Stable: the numbers of each order stay sorted.
  sorted_places = tf.gather(by_number, tf.argsort(by_number // size))
  return sorted_places - places // size * size


def categories(num_draws: int, probabilities, seed) -> tf.Tensor:
  """Draws categories with replacement.

  Args:
    num_draws: The number of draws.
    probabilities: [n] float32, up to a factor.
    seed: An int32 tensor of shape [2].

  Returns:
    [num_draws] int32, from 0 to n - 1; never one of probability 0.
  """
  ends = tf.cumsum(probabilities)
  drawn = uniform([num_draws, 1], seed) * ends[-1]
  return tf.reduce_sum(tf.cast(ends <= drawn, tf.int32), axis=1)
