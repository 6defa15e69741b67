"""Operations that TensorFlow runs in a loop over the clients of a batch.

A converter gets the inputs of one operation, stacked where they differ between
clients, and returns its stacked outputs. Importing the module registers them.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any
from typing import TypeAlias

import tensorflow as tf

from tff_shift._util import batch_values

# `tensorflow.python.ops.parallel_for.pfor` is a function.
pfor: Any = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")

# TensorFlow's `_PforInput`, and what a converter returns.
Input: TypeAlias = Any
Output: TypeAlias = Any

# Philox-4x32-10 (Parallel random numbers: as easy as 1, 2, 3, Salmon et al.; SC
# 2011), and TensorFlow's numbers of it: its own, and the device's default.
_PHILOX = 1, 3
_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_WORD = 32
_LOW = 2**_WORD - 1


def register(*names: str) -> Callable[[Callable[[Input], Output]], Any]:
  """Makes a function the converter of operations, in place of any other."""

  def decorate(converter):
    for name in names:
      pfor._pfor_converter_registry[name] = converter
    return converter

  return decorate


_broadcast_in_graph = pfor._PforInput.expanddim_inputs_for_broadcast


def _broadcast(inputs: Input) -> None:
  """Gives all stacked inputs the same rank.

  TensorFlow 2.14 has several operations for it, also where ranks are known.
  """
  ranks = [value.t.shape.rank for value in inputs.inputs]
  if None in ranks:
    _broadcast_in_graph(inputs)
    return
  ranks = [
    rank + (not value.is_stacked)
    for rank, value in zip(ranks, inputs.inputs, strict=True)
  ]
  for place, (rank, value) in enumerate(zip(ranks, inputs.inputs, strict=True)):
    if value.is_stacked:
      tensor = value.t
      for _ in range(max(ranks) - rank):
        tensor = tf.expand_dims(tensor, 1)
      inputs.inputs[place] = pfor.wrap(tensor, True)


pfor._PforInput.expanddim_inputs_for_broadcast = _broadcast


@register("TopKV2")
def _top_k(inputs: Input) -> Output:
  values, indices = tf.raw_ops.TopKV2(
    input=inputs.stacked_input(0),
    k=inputs.unstacked_input(1),
    sorted=inputs.get_attr("sorted"),
  )
  return pfor.wrap(values), pfor.wrap(indices)


@register("Squeeze")
def _squeeze(inputs: Input) -> Output:
  """TensorFlow's converter can remove the axis of a single client."""
  shape = inputs.op.inputs[0].shape
  axes = inputs.get_attr("squeeze_dims")
  if not axes:
    if not shape.is_fully_defined():
      return pfor._fallback_converter(inputs)
    axes = [axis for axis, size in enumerate(shape) if size == 1]
  axes = [axis + (axis >= 0) for axis in axes]
  value = inputs.stacked_input(0)
  return pfor.wrap(tf.squeeze(value, axes) if axes else value)


@register("TensorListConcatV2")
def _concatenation(inputs: Input) -> Output:
  """TensorFlow's converter takes all elements for as long as the first one."""
  dtype = inputs.get_attr("element_dtype")
  handle = pfor._untile_variant(inputs.stacked_input(0))
  length = tf.raw_ops.TensorListLength(input_handle=handle)
  # Of each element and client; any number of rows.
  rest = tf.ensure_shape(inputs.unstacked_input(1), [None])[1:]
  shape = tf.concat([[-1], inputs.pfor.loop_len_vector, rest], 0)
  transposed = tf.raw_ops.TensorListReserve(
    element_shape=shape, num_elements=length, element_dtype=dtype
  )

  def transpose(i, transposed):
    element = tf.raw_ops.TensorListGetItem(
      input_handle=handle, index=i, element_shape=-1, element_dtype=dtype
    )
    return i + 1, tf.raw_ops.TensorListSetItem(
      input_handle=transposed,
      index=i,
      item=pfor._transpose_first_two_dims(element),
    )

  _, transposed = tf.while_loop(
    lambda i, _: i < length, transpose, (tf.constant(0), transposed)
  )
  rows, lengths = tf.raw_ops.TensorListConcatV2(
    input_handle=transposed,
    element_shape=shape,
    leading_dims=inputs.unstacked_input(2),
    element_dtype=dtype,
  )
  rows = pfor._transpose_first_two_dims(rows)
  return pfor.wrap(rows), pfor.wrap(lengths, False)


@register("StatelessRandomUniformFullIntV2")
def _full_integers(inputs: Input) -> Output:
  algorithm = tf.get_static_value(inputs.unstacked_input(3))
  if algorithm is None or algorithm not in _PHILOX:
    return pfor._fallback_converter(inputs)
  shape = _equal(inputs.input(0))
  num_clients = inputs.pfor.loop_len_vector
  key, counter = (
    each.t
    if each.is_stacked
    else tf.tile(each.t[None], tf.concat([num_clients, [1]], 0))
    for each in (inputs.input(1), inputs.input(2))
  )
  shape = tf.cast(shape, tf.int32)
  draw = philox(inputs.get_attr("dtype"))
  drawn = draw(key, counter, tf.reduce_prod(shape))
  return pfor.wrap(tf.reshape(drawn, tf.concat([num_clients, shape], 0)))


@register("PreventGradient")
def _identity(inputs: Input) -> Output:
  value = inputs.input(0)
  message = inputs.get_attr("message").decode()
  if message == batch_values.EQUAL:
    return pfor.wrap(_equal(value), False)
  if message == batch_values.LARGEST and value.is_stacked:
    return pfor.wrap(tf.reduce_max(value.t), False)
  return value


def _equal(value: Output) -> tf.Tensor:
  """Returns a value that is the same for all clients, or fails.

  A shape or a number of steps may be computed from the data of a client.
  """
  if not value.is_stacked:
    return value.t
  first = value.t[0]
  check = tf.debugging.Assert(
    tf.reduce_all(value.t == first),
    ["clients of a batch differ in a shape or a number of steps", value.t],
  )
  with tf.control_dependencies([check]):
    return tf.identity(first)


@functools.cache
def philox(dtype: tf.DType) -> Callable[..., tf.Tensor]:
  """Returns a function that draws TensorFlow's numbers for several keys.

  It is traced once, because many draws have it.

  Args:
    dtype: int32, uint32, int64 or uint64.

  Returns:
    A function of keys, [clients, 1] uint64, counters, [clients, 2] uint64, and
    the number of draws of a client, an int32 scalar, to [clients, draws] of
    `dtype`.
  """
  signature = (
    tf.TensorSpec([None, 1], tf.uint64),
    tf.TensorSpec([None, 2], tf.uint64),
    tf.TensorSpec([], tf.int32),
  )
  draw = functools.partial(_philox, dtype)
  with tf.init_scope():
    return tf.function(draw, signature, autograph=False).get_concrete_function()


def _philox(dtype, key, counter, size):
  # 32-bit words in 64 bits, so that a product keeps its upper half. What else
  # is in the upper halves is dropped only before the words are multiplied.
  mask, shift, *numbers = (
    tf.constant(number, tf.uint64)
    for number in (_LOW, _WORD, *_MULTIPLIERS, *_WEYL)
  )
  multipliers, steps = numbers[:2], numbers[2:]

  def upper(words):
    return tf.bitwise.right_shift(words, shift)

  per_block = 4 if dtype.size == 4 else 2
  blocks = tf.cast(tf.range(-(-size // per_block)), tf.uint64)[None]
  low = counter[:, :1] + blocks
  high = counter[:, 1:] + tf.cast(low < blocks, tf.uint64)
  words = [low, upper(low), high, upper(high)]
  keys = [key, upper(key)]
  for number in range(_ROUNDS):
    if number:
      keys = [word + step for word, step in zip(keys, steps, strict=True)]
    first, second = (
      (words[i] & mask) * multiplier
      for i, multiplier in zip((0, 2), multipliers, strict=True)
    )
    words = [
      upper(second) ^ words[1] ^ keys[0],
      second,
      upper(first) ^ words[3] ^ keys[1],
      first,
    ]
  drawn = tf.stack(words, -1) & mask
  if per_block == 4:
    drawn = tf.cast(drawn, tf.uint32)
  else:
    drawn = drawn[..., ::2] | tf.bitwise.left_shift(drawn[..., 1::2], shift)
  drawn = tf.reshape(drawn, [tf.shape(key)[0], tf.size(blocks) * per_block])
  return tf.bitcast(drawn[:, :size], dtype)
