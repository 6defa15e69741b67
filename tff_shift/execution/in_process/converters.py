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
  return draw(inputs, inputs.get_attr("dtype"), lambda bits: bits)


def draw(
  inputs: Input,
  dtype: tf.DType,
  convert: Callable[[tf.Tensor], tf.Tensor],
  multiple: int = 1,
) -> Output:
  """Converts an operation that draws numbers from a key and a counter.

  Args:
    inputs: The operation's: shape, key, counter, algorithm, and any others.
    dtype: The type of the bits of a number, see `philox`.
    convert: From bits, [clients, draws], to numbers.
    multiple: The draws are a multiple of this.

  Returns:
    The numbers.
  """
  algorithm = tf.get_static_value(inputs.unstacked_input(3))
  if algorithm is None or algorithm not in _PHILOX:
    return pfor._fallback_converter(inputs)
  shape = tf.cast(equal(inputs.input(0)), tf.int32)
  num_clients = inputs.pfor.loop_len_vector
  key, counter = (
    each.t
    if each.is_stacked
    else tf.tile(each.t[None], tf.concat([num_clients, [1]], 0))
    for each in (inputs.input(1), inputs.input(2))
  )
  size = tf.reduce_prod(shape)
  drawn = convert(philox(dtype)(key, counter, -(-size // multiple) * multiple))
  if multiple > 1:
    drawn = drawn[:, :size]
  return pfor.wrap(tf.reshape(drawn, tf.concat([num_clients, shape], 0)))


@register("PreventGradient")
def _identity(inputs: Input) -> Output:
  value = inputs.input(0)
  message = inputs.get_attr("message").decode()
  if message == batch_values.EQUAL:
    return pfor.wrap(equal(value), False)
  if message == batch_values.LARGEST and value.is_stacked:
    return pfor.wrap(batch_values.largest(tf.reduce_max(value.t)), False)
  return value


def equal(value: Output) -> tf.Tensor:
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
    return batch_values.equal(first)


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


_zeros_of_tensors = pfor._pfor_converter_registry["ZerosLike"]


@register("ZerosLike")
def _zeros(inputs: Input) -> Output:
  """A list has a zero for each element, which knows its own shape."""
  if inputs.op.outputs[0].dtype != tf.variant:
    return _zeros_of_tensors(inputs)
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
_reserved = pfor._pfor_converter_registry["TensorListReserve"]


@register("TensorListReserve")
def _reserve(inputs: Input) -> Output:
  """Sizes may be stacked: from a list of what each step of a loop kept."""
  inputs.inputs[:2] = [pfor.wrap(equal(size), False) for size in inputs.inputs]
  return _reserved(inputs)


def _make_segments_own(name: str) -> None:
  """Registers TensorFlow's converter for segments of each client."""
  convert = pfor._pfor_converter_registry[name]

  @register(name)
  def convert_segments(inputs):
    _, ids, number = inputs.inputs
    # TensorFlow 2.14 adds what is in no segment to another client's.
    places = tf.where(ids.t < 0, ids.t.dtype.min, ids.t)
    inputs.inputs[1:] = [
      pfor.wrap(places, ids.is_stacked),
      pfor.wrap(equal(number), False),
    ]
    return convert(inputs)


for _name in ("Max", "Min", "Prod", "Sum"):
  _make_segments_own(f"UnsortedSegment{_name}")


@register("TensorListGetItem")
def _get_item(inputs: Input) -> Output:
  """Takes from the elements at any client's place each client's part."""
  handle, place, shape = inputs.inputs
  if not handle.is_stacked or not place.is_stacked:
    return pfor._convert_tensor_list_get_item(inputs)
  places, which = tf.unique(place.t)
  elements = tf.raw_ops.TensorListGather(
    input_handle=pfor._untile_variant(handle.t),
    indices=places,
    element_shape=_shape_of_elements(equal(shape), inputs.pfor.loop_len_vector),
    element_dtype=inputs.get_attr("element_dtype"),
  )
  which = tf.stack([which, tf.range(tf.size(which))], -1)
  return pfor.wrap(tf.gather_nd(elements, which))


@register("TensorListSetItem")
def _set_item(inputs: Input) -> Output:
  """A place that is a client's own is one of several to scatter to."""
  place = inputs.input(1)
  if not place.is_stacked or place.t is inputs.pfor.all_indices:
    return pfor._convert_tensor_array_set_item(inputs)
  inputs.stack_inputs([2])
  item = inputs.stacked_input(2)
  inputs.inputs[1:] = [pfor.wrap(each[:, None]) for each in (item, place.t)]
  return pfor._convert_tensor_list_scatter(inputs)


@register("StridedSlice")
def _slice(inputs: Input) -> Output:
  """Takes elements, or rows one after the other, at a client's own place."""
  value, start, stop, step = inputs.inputs
  length = start.t.shape[-1]
  masks = "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"
  shrinks = inputs.get_attr("shrink_axis_mask")
  is_element = bool(length) and shrinks == 2 ** (length or 0) - 1
  is_row = length == 1 and not shrinks and tf.get_static_value(step.t) == 1
  if (
    not start.is_stacked
    or any(map(inputs.get_attr, masks))
    or not (is_element or is_row)
  ):
    return pfor._convert_strided_slice(inputs)
  batch = int(value.is_stacked)
  sizes = tf.shape(value.t, start.t.dtype)[batch : batch + length]

  def from_start(place):
    return tf.where(place < 0, place + sizes, place)

  place = from_start(start.t)
  if is_element:
    return pfor.wrap(tf.gather_nd(value.t, place, batch))
  place, end = (
    tf.clip_by_value(each, 0, sizes) for each in (place, from_start(stop.t))
  )
  count = equal(pfor.wrap(tf.maximum(end - place, 0)))[0]
  rows = place + tf.range(count, dtype=place.dtype)
  return pfor.wrap(tf.gather(value.t, rows, axis=batch, batch_dims=batch))


@register(
  *("TensorScatterAdd", "TensorScatterMax", "TensorScatterMin"),
  *("TensorScatterSub", "TensorScatterUpdate"),
)
def _scatter(inputs: Input) -> Output:
  inputs.stack_inputs()
  tensor, places, updates = (each.t for each in inputs.inputs)
  return _with_attributes(inputs, tensor, _with_client(places), updates)


@register("ScatterNd")
def _scatter_to_zeros(inputs: Input) -> Output:
  inputs.stack_inputs([0, 1])
  places, updates, shape = inputs.inputs
  shape = equal(shape)
  num_clients = tf.cast(inputs.pfor.loop_len_vector, shape.dtype)
  return _with_attributes(
    inputs,
    _with_client(places.t),
    updates.t,
    tf.concat([num_clients, shape], 0),
  )


def _with_client(places: tf.Tensor) -> tf.Tensor:
  """Puts the number of a client before each place, [clients, ..., axes]."""
  numbers = tf.range(tf.shape(places, places.dtype)[0], dtype=places.dtype)
  numbers = tf.reshape(numbers, [-1] + [1] * (places.shape.rank - 1))
  return tf.concat([numbers + tf.zeros_like(places[..., :1]), places], -1)


def _with_attributes(inputs: Input, *stacked: tf.Tensor) -> Output:
  """Returns the results of the operation with other inputs."""
  dtypes = [each.dtype for each in inputs.op.outputs]
  attributes = inputs.op.node_def.attr
  found = pfor._create_op(inputs.op_type, list(stacked), dtypes, attributes)
  return [pfor.wrap(each) for each in found.outputs]


@register("Svd")
def _singular_values(inputs: Input) -> Output:
  found = _with_attributes(inputs, inputs.stacked_input(0))
  if inputs.get_attr("compute_uv"):
    return found
  # The vectors are empty, also of many matrices.
  return [found[0], *(pfor.wrap(each.t, False) for each in found[1:])]


@register("Qr")
def _orthogonal(inputs: Input) -> Output:
  return _with_attributes(inputs, inputs.stacked_input(0))


@register("L2Loss")
def _half_of_squares(inputs: Input) -> Output:
  value = tf.reshape(
    inputs.stacked_input(0), [inputs.pfor.loop_len_vector[0], -1]
  )
  return pfor.wrap(tf.reduce_sum(tf.square(value), 1) / 2)


@register("LogSoftmax", "Softmax")
def _softmax(inputs: Input) -> Output:
  """Rows of a matrix: oneDNN takes five axes at most."""
  value = inputs.stacked_input(0)
  shape = tf.shape(value)
  (result,) = _with_attributes(inputs, tf.reshape(value, [-1, shape[-1]]))
  return pfor.wrap(tf.reshape(result.t, shape))


@register("Bincount", "DenseBincount")
def _counts(inputs: Input) -> Output:
  """Counts in rows, each of them a client's."""
  binary = inputs.op_type == "DenseBincount" and inputs.get_attr(
    "binary_output"
  )
  if inputs.op_type == "DenseBincount" and inputs.op.inputs[0].shape.rank != 1:
    return pfor._fallback_converter(inputs)
  has_weights = inputs.op.inputs[2].shape.num_elements() != 0
  inputs.stack_inputs([0, 2] if has_weights else [0])
  values, _, weights = (each.t for each in inputs.inputs)
  rows = [inputs.pfor.loop_len_vector[0], -1]
  counts = tf.raw_ops.DenseBincount(
    input=tf.reshape(values, rows),
    size=equal(inputs.input(1)),
    weights=tf.reshape(weights, rows) if has_weights else weights,
    binary_output=binary,
  )
  return pfor.wrap(counts)


@register(
  "ResizeBilinear", "ResizeNearestNeighbor", "ResizeNearestNeighborGrad"
)
def _resize(inputs: Input) -> Output:
  return pfor._convert_flatten_batch(inputs, inputs.op_type, [0])


@register("ResizeBilinearGrad")
def _resize_gradient(inputs: Input) -> Output:
  return pfor._convert_flatten_batch(inputs, inputs.op_type, [0, 1])
