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


@register("TopKV2")
def _top_k(inputs: Input) -> Output:
  values, indices = tf.raw_ops.TopKV2(
    input=inputs.stacked_input(0),
    k=inputs.unstacked_input(1),
    sorted=inputs.get_attr("sorted"),
  )
  return pfor.wrap(values), pfor.wrap(indices)


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
  shape = equal(inputs.input(0))
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


def equal(value: Output) -> tf.Tensor:
  """Returns a value that is the same for all clients, or fails.

  A shape may be computed from the data of a client.
  """
  if not value.is_stacked:
    return value.t
  first = value.t[0]
  check = tf.debugging.Assert(
    tf.reduce_all(value.t == first), ["clients differ in a shape", value.t]
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
  per_block = 4 if dtype.size == 4 else 2
  blocks = tf.cast(tf.range(-(-size // per_block)), tf.uint64)[None]
  low = counter[:, :1] + blocks
  high = counter[:, 1:] + tf.cast(low < blocks, tf.uint64)
  # 32-bit words in 64 bits, so that a product keeps its upper half.
  words = [*_halves(low), *_halves(high)]
  keys = _halves(key)
  for number in range(_ROUNDS):
    if number:
      keys = [
        (each + tf.constant(step, tf.uint64)) & _constant(_LOW)
        for each, step in zip(keys, _WEYL, strict=True)
      ]
    (low_0, high_0), (low_1, high_1) = (
      _halves(words[i] * _constant(factor))
      for i, factor in zip((0, 2), _MULTIPLIERS, strict=True)
    )
    words = [
      high_1 ^ words[1] ^ keys[0],
      low_1,
      high_0 ^ words[3] ^ keys[1],
      low_0,
    ]
  if per_block == 4:
    drawn = tf.cast(tf.stack(words, -1), tf.uint32)
  else:
    drawn = tf.stack(
      [
        lower | tf.bitwise.left_shift(upper, _constant(_WORD))
        for lower, upper in (words[:2], words[2:])
      ],
      -1,
    )
  drawn = tf.reshape(drawn, [tf.shape(key)[0], tf.size(blocks) * per_block])
  return tf.bitcast(drawn[:, :size], dtype)


def _halves(words: tf.Tensor) -> list[tf.Tensor]:
  """Returns the lower and the upper 32 bits."""
  return [
    words & _constant(_LOW),
    tf.bitwise.right_shift(words, _constant(_WORD)),
  ]


def _constant(value: int) -> tf.Tensor:
  return tf.constant(value, tf.uint64)


@register("ZerosLike")
def _zeros(inputs: Input) -> Output:
  """A list has a zero for each element, which knows its own shape."""
  if inputs.op.outputs[0].dtype != tf.variant:
    return pfor._convert_zeros_like(inputs)
  handle = pfor._untile_variant(inputs.stacked_input(0))
  return pfor.wrap(pfor._tile_variant(tf.raw_ops.ZerosLike(x=handle), inputs))


_shape_of_any_rank = pfor._stack_tensor_list_shape


def _shape_of_elements(shape: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
  """Returns the shape of a list's elements, stacked.

  TensorFlow forgets their rank if one of their sizes is unknown.
  """
  shape = tf.convert_to_tensor(shape)
  if shape.shape.rank != 1:
    return _shape_of_any_rank(shape, num_clients)
  return tf.concat([tf.cast(num_clients, shape.dtype), shape], 0)


pfor._stack_tensor_list_shape = _shape_of_elements


@register("TensorListReserve")
def _reserved(inputs: Input) -> Output:
  """A shape can come from a list of what each step of a loop kept."""
  for place, value in enumerate(inputs.inputs):
    inputs.inputs[place] = pfor.wrap(equal(value), False)
  return pfor._convert_tensor_list_reserve(inputs)
