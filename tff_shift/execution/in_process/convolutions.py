"""Convolutions whose kernel is a client's own, for all clients of a batch.

TensorFlow's converters know one kernel for all. After its first step a client
has its own, and then they run convolutions in a loop over the clients. The
converters here have two forms of the same result (`is_grouped`):

*   Groups: the channels of all clients lie side by side, and a client is a
    group of a grouped convolution. One call of the library's kernel.
*   Patches: windows of the images are rows, which a batched product of matrices
    multiplies by the kernels. It runs on any device and in any type, and takes
    as many times the memory of the images as a window has elements, divided by
    the strides.

Images are [client, image, height, width, channel], kernels [client, height,
width, channel of the input, channel of the output]. Three dimensions are a sum
of two-dimensional convolutions, one for each place in the depth of the kernel.
A kernel that all clients share is left to TensorFlow. Importing the module
registers the converters.
"""

import dataclasses
import importlib
import platform
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

import tensorflow as tf

from tff_shift.execution.in_process import converters

_port: Any = importlib.import_module("tensorflow.python.util._pywrap_util_port")

# A number where it is known, else a scalar.
_Size: TypeAlias = int | tf.Tensor

_UNKNOWN = "The sizes of a kernel must be known."


def is_grouped(device: str, dtype: tf.DType) -> bool:
  """Returns whether convolutions of clients are groups, or else patches.

  Groups, on GPUs and with oneDNN. Without it, which has float32 on x86, a CPU
  has no gradients of grouped convolutions.

  Args:
    device: The name of the device, or "" for TensorFlow's choice.
    dtype: The type of images and kernels.
  """
  if "GPU" in device or (not device and tf.config.list_logical_devices("GPU")):
    return True
  return (
    dtype == tf.float32
    and _port.IsMklEnabled()
    and platform.machine() in ("x86_64", "AMD64")
  )


@dataclasses.dataclass(frozen=True)
class _Axis:
  """How windows lie along an axis of images.

  Attributes:
    stride: The step from a window to the next.
    dilation: The step from an element of a window to the next.
    padding: "SAME", "VALID" or "EXPLICIT".
    explicit: The widths of the borders if the padding is explicit.
  """

  stride: int
  dilation: int
  padding: str
  explicit: tuple[int, int] = (0, 0)

  def reach(self, kernel: int) -> int:
    """Returns the distance of a window's last element from its first."""
    return (kernel - 1) * self.dilation

  def borders(self, size: _Size, kernel: int) -> tuple[_Size, _Size]:
    """Returns the widths of the borders of images of a size."""
    if self.padding != "SAME":
      return self.explicit
    last = (size + self.stride - 1) // self.stride - 1
    total = last * self.stride + self.reach(kernel) + 1 - size
    total = max(total, 0) if isinstance(total, int) else tf.maximum(total, 0)
    return total // 2, total - total // 2

  def without_borders(self) -> "_Axis":
    """Returns the axis of images that have their explicit borders."""
    if self.padding != "EXPLICIT":
      return self
    return dataclasses.replace(self, padding="VALID", explicit=(0, 0))


_Axes: TypeAlias = Sequence[_Axis]


def _options(axes: _Axes) -> dict[str, Any]:
  """Returns the attributes of a two-dimensional convolution."""
  return {
    "strides": [1, *(each.stride for each in axes), 1],
    "dilations": [1, *(each.dilation for each in axes), 1],
    "padding": axes[0].padding,
  }


def _convolve(images, kernels, axes: _Axes, grouped: bool) -> tf.Tensor:
  """Returns the convolutions of images and kernels, both stacked."""
  images, axes = _with_explicit_borders(images, axes)
  clients, batch, *_ = _sizes(images)
  _, *sizes = _sizes(kernels)
  filters = sizes[-1]
  if grouped:
    found = tf.raw_ops.Conv2D(
      input=_side_by_side(images),
      filter=_side_by_side(kernels),
      **_options(axes),
    )
    return _apart(found, clients, filters)
  rows, height, width = _rows(images, sizes, axes)
  matrices = tf.reshape(kernels, [clients, -1, filters])
  return tf.reshape(rows @ matrices, [clients, batch, height, width, filters])


def _gradient_of_images(
  sizes: Sequence[_Size], kernels, gradient, axes: _Axes, grouped: bool
) -> tf.Tensor:
  """Returns gradients of images, of `sizes` (image, height, width, channel)."""
  batch, *inner, depth = sizes
  clients, *window, _, _ = _sizes(kernels)
  if not grouped:
    # A convolution of the turned kernels and of the gradient, with zeros where
    # a stride leaves out a place.
    borders = [
      each.borders(*rest)
      for each, *rest in zip(axes, inner, window, strict=True)
    ]
    for i, axis in enumerate(axes):
      reach = axis.reach(window[i])
      gradient = _spread(
        gradient, i + 2, axis.stride, reach, inner[i] + sum(borders[i]) + reach
      )
    turned = tf.transpose(tf.reverse(kernels, [1, 2]), [0, 1, 2, 4, 3])
    axes = [_Axis(1, each.dilation, "VALID") for each in axes]
    found = _convolve(gradient, turned, axes, grouped)
    return _without_borders(found, borders)
  borders = [each.explicit for each in axes]
  inner = [size + sum(each) for size, each in zip(inner, borders, strict=True)]
  found = tf.raw_ops.Conv2DBackpropInput(
    input_sizes=tf.stack([batch, *inner, clients * depth]),
    filter=_side_by_side(kernels),
    out_backprop=_side_by_side(gradient),
    **_options([each.without_borders() for each in axes]),
  )
  return _without_borders(_apart(found, clients, depth), borders)


def _gradient_of_kernels(
  images, sizes: Sequence[_Size], gradient, axes: _Axes, grouped: bool
) -> tf.Tensor:
  """Returns gradients of kernels, of `sizes` without clients."""
  images, axes = _with_explicit_borders(images, axes)
  clients = _sizes(images)[0]
  *rest, filters = sizes
  if grouped:
    found = tf.raw_ops.Conv2DBackpropFilter(
      input=_side_by_side(images),
      filter_sizes=tf.stack([*rest, clients * filters]),
      out_backprop=_side_by_side(gradient),
      **_options(axes),
    )
    return _apart(found, clients, filters)
  rows, *_ = _rows(images, sizes, axes)
  gradient = tf.reshape(gradient, [clients, -1, filters])
  return tf.reshape(
    tf.matmul(rows, gradient, transpose_a=True), [clients, *sizes]
  )


def _sizes(tensor: tf.Tensor) -> list[_Size]:
  """Returns the sizes of a tensor: operations on shapes take time too."""
  known = tensor.shape.as_list()
  found = tf.shape(tensor) if None in known else known
  return [found[i] if size is None else size for i, size in enumerate(known)]


def _with_explicit_borders(images, axes: _Axes) -> tuple[tf.Tensor, _Axes]:
  """Pads images: oneDNN leaves it to kernels without groups."""
  if axes[0].padding != "EXPLICIT":
    return images, axes
  borders = [(0, 0), (0, 0), *(each.explicit for each in axes), (0, 0)]
  return tf.pad(images, borders), [each.without_borders() for each in axes]


def _without_borders(images, borders) -> tf.Tensor:
  """Removes the borders of the axes after the first two."""
  if all(isinstance(each, int) for each in sum(borders, ())) and not any(
    sum(borders, ())
  ):
    return images
  inside = [
    slice(before, size - after)
    for size, (before, after) in zip(_sizes(images)[2:], borders, strict=False)
  ]
  return images[:, :, *inside]


def _side_by_side(tensor: tf.Tensor) -> tf.Tensor:
  """Returns [client, a, b, c, channel] as [a, b, c, client * channel]."""
  clients, *inner, depth = _sizes(tensor)
  return tf.reshape(
    tf.transpose(tensor, [1, 2, 3, 0, 4]), [*inner, clients * depth]
  )


def _apart(tensor: tf.Tensor, clients: _Size, depth: _Size) -> tf.Tensor:
  """Returns [a, b, c, client * channel] as [client, a, b, c, channel]."""
  *inner, _ = _sizes(tensor)
  return tf.transpose(
    tf.reshape(tensor, [*inner, clients, depth]), [3, 0, 1, 2, 4]
  )


def _rows(
  images, kernel: Sequence[_Size], axes: _Axes
) -> tuple[tf.Tensor, _Size, _Size]:
  """Returns windows as rows of matrices, and how many along each axis.

  Args:
    images: The images.
    kernel: The sizes of a client's kernel.
    axes: The axes.

  Returns:
    The rows, and the numbers of windows.
  """
  *window, kernel_depth, _ = kernel
  clients, batch, *inner, depth = _sizes(images)
  if not all(isinstance(each, int) for each in window):
    raise converters.pfor.ConversionNotImplementedError(_UNKNOWN)
  depths = [kernel_depth, depth]
  if all(isinstance(each, int) for each in depths) and depth != kernel_depth:
    raise converters.pfor.ConversionNotImplementedError("It has groups.")
  windows = tf.image.extract_patches(
    tf.reshape(images, [clients * batch, *inner, depth]),
    [1, *window, 1],
    [1, *(each.stride for each in axes), 1],
    [1, *(each.dilation for each in axes), 1],
    axes[0].padding,
  )
  _, height, width, _ = _sizes(windows)
  rows = [clients, batch * height * width, window[0] * window[1] * depth]
  return tf.reshape(windows, rows), height, width


def _spread(tensor, axis: int, stride: int, start: int, size) -> tf.Tensor:
  """Puts a tensor between zeros along an axis.

  Args:
    tensor: The tensor.
    axis: The axis.
    stride: The step from an element of the tensor to the next.
    start: The place of the first.
    size: The size of the result.

  Returns:
    The result.
  """
  sizes = _sizes(tensor)
  rank = len(sizes)

  def pad(padded, axis, before, after):
    borders = [(0, 0)] * len(padded.shape)
    borders[axis] = before, after
    return tf.pad(padded, borders)

  if stride > 1:
    tensor = pad(tf.expand_dims(tensor, axis + 1), axis + 1, 0, stride - 1)
    sizes[axis] *= stride
    tensor = tf.reshape(tensor, sizes)
    # The zeros after the last element may be too many.
    sizes[axis] -= stride - 1
    tensor = tf.slice(tensor, [0] * rank, sizes)
  return pad(tensor, axis, start, size - sizes[axis] - start)


# Three dimensions.


def _convolve_3d(images, kernels, axes: _Axes, grouped: bool) -> tf.Tensor:
  planes, count = _planes(images, kernels.shape[1], axes[0])
  found = [
    _convolve(each, kernel, axes[1:], grouped)
    for each, kernel in zip(planes, tf.unstack(kernels, axis=1), strict=True)
  ]
  return _with_depth(tf.add_n(found), count)


def _gradient_of_images_3d(
  sizes: Sequence[_Size], kernels, gradient, axes: _Axes, grouped: bool
) -> tf.Tensor:
  batch, depth, *rest = sizes
  axis = axes[0]
  count = _sizes(gradient)[2]
  gradient = _without_depth(gradient)
  before, after = axis.borders(depth, kernels.shape[1])
  found = [
    _spread(
      _with_depth(
        _gradient_of_images(
          [batch * count, *rest], kernel, gradient, axes[1:], grouped
        ),
        count,
      ),
      2,
      axis.stride,
      i * axis.dilation,
      before + depth + after,
    )
    for i, kernel in enumerate(tf.unstack(kernels, axis=1))
  ]
  return tf.add_n(found)[:, :, before : before + depth]


def _gradient_of_kernels_3d(
  images, sizes: Sequence[_Size], gradient, axes: _Axes, grouped: bool
) -> tf.Tensor:
  planes, _ = _planes(images, sizes[0], axes[0])
  gradient = _without_depth(gradient)
  found = [
    _gradient_of_kernels(each, sizes[1:], gradient, axes[1:], grouped)
    for each in planes
  ]
  return tf.stack(found, 1)


def _planes(
  images, window: _Size | None, axis: _Axis
) -> tuple[list[tf.Tensor], _Size]:
  """Returns the planes of each place in the depth of a window, as images.

  Args:
    images: [client, image, depth, height, width, channel].
    window: The depth of a window.
    axis: The axis of the depth.

  Returns:
    For each place [client, image * number, height, width, channel], and the
    number of windows along the depth.
  """
  if not isinstance(window, int):
    raise converters.pfor.ConversionNotImplementedError(_UNKNOWN)
  size = _sizes(images)[2]
  before, after = axis.borders(size, window)
  images = _spread(images, 2, 1, before, before + size + after)
  last = before + size + after - axis.reach(window)
  found = [
    images[:, :, start : start + last : axis.stride]
    for start in range(0, axis.reach(window) + 1, axis.dilation)
  ]
  return list(map(_without_depth, found)), _sizes(found[0])[2]


def _without_depth(tensor: tf.Tensor) -> tf.Tensor:
  """Returns images of three dimensions as images of two."""
  clients, batch, depth, *rest = _sizes(tensor)
  return tf.reshape(tensor, [clients, batch * depth, *rest])


def _with_depth(tensor: tf.Tensor, depth: _Size) -> tf.Tensor:
  clients, batch, *rest = _sizes(tensor)
  return tf.reshape(tensor, [clients, batch // depth, depth, *rest])


# Converters.


@converters.register("Conv2D", "Conv3D")
def _of_images(inputs: converters.Input) -> converters.Output:
  if not inputs.input(1).is_stacked:
    return converters.pfor._convert_flatten_batch(inputs, inputs.op_type, [0])
  axes = _axes(inputs)
  images, kernels = _stacked(inputs, 0, 1)
  convolve = _convolve if len(axes) == 2 else _convolve_3d
  return converters.pfor.wrap(
    convolve(images, kernels, axes, _is_grouped(inputs))
  )


@converters.register("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def _to_images(inputs: converters.Input) -> converters.Output:
  if not inputs.input(1).is_stacked:
    return converters.pfor._convert_flatten_batch_shape_input(
      inputs, inputs.op_type, flatten_dims=[2], shape_dim=0
    )
  axes, sizes = _axes(inputs), _result_sizes(inputs, 0)
  kernels, gradient = _stacked(inputs, 1, 2)
  convolve = _gradient_of_images if len(axes) == 2 else _gradient_of_images_3d
  return converters.pfor.wrap(
    convolve(sizes, kernels, gradient, axes, _is_grouped(inputs))
  )


@converters.register("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
def _to_kernels(inputs: converters.Input) -> converters.Output:
  axes, sizes = _axes(inputs), _result_sizes(inputs, 1)
  images, gradient = _stacked(inputs, 0, 2)
  convolve = _gradient_of_kernels if len(axes) == 2 else _gradient_of_kernels_3d
  return converters.pfor.wrap(
    convolve(images, sizes, gradient, axes, _is_grouped(inputs))
  )


def _operands_stacked(name: str, convert, *places: int) -> None:
  """Registers TensorFlow's converter for operands that clients may share."""

  @converters.register(name)
  def convert_stacked(inputs):
    inputs.stack_inputs(places)
    return convert(inputs)


_operands_stacked(
  "DepthwiseConv2dNative",
  converters.pfor._convert_depthwise_conv2d_native,
  0,
  1,
)
_operands_stacked(
  "DepthwiseConv2dNativeBackpropInput",
  converters.pfor._convert_depthwise_conv2d_native_backprop_input,
  *(1, 2),
)
_operands_stacked(
  "DepthwiseConv2dNativeBackpropFilter",
  converters.pfor._convert_depthwise_conv2d_native_backprop_filter,
  *(0, 2),
)


@converters.register("FusedBatchNormV3")
def _batch_normalisation(inputs: converters.Input) -> converters.Output:
  """Normalises with statistics that are given, and may be a client's own."""
  _, *parameters = inputs.inputs
  if inputs.get_attr("is_training") or not any(
    each.is_stacked for each in parameters
  ):
    return converters.pfor._convert_fused_batch_norm(inputs)
  _check_channels_last(inputs)
  inputs.stack_inputs()
  images, *parameters = (each.t for each in inputs.inputs)
  rank = images.shape.rank
  scale, offset, mean, variance = (
    each[:, *[tf.newaxis] * (rank - 2)] for each in parameters
  )
  factor = scale * tf.math.rsqrt(variance + inputs.get_attr("epsilon"))
  found = (tf.cast(images, scale.dtype) - mean) * factor + offset
  return [
    converters.pfor.wrap(tf.cast(found, images.dtype)),
    *(converters.pfor.wrap(each) for each in parameters[2:] * 2),
    converters.pfor.wrap(tf.zeros([0], scale.dtype), False),
  ]


def _is_grouped(inputs: converters.Input) -> bool:
  return is_grouped(inputs.op.device, inputs.op.outputs[0].dtype)


def _stacked(inputs: converters.Input, *places: int) -> list[tf.Tensor]:
  """Returns operands of a convolution, of all clients."""
  inputs.stack_inputs(places)
  operands = [inputs.stacked_input(place) for place in places]
  for each in operands:
    each.set_shape([None] * (1 + len(inputs.get_attr("strides"))))
  return operands


def _axes(inputs: converters.Input) -> list[_Axis]:
  """Returns the axes of windows."""
  _check_channels_last(inputs)
  padding = inputs.get_attr("padding").decode()
  strides, dilations = inputs.get_attr("strides"), inputs.get_attr("dilations")
  borders = [0] * 2 * len(strides)
  if padding == "EXPLICIT":
    borders = inputs.get_attr("explicit_paddings")
  return [
    _Axis(
      strides[i], dilations[i], padding, (borders[2 * i], borders[2 * i + 1])
    )
    for i in range(1, len(strides) - 1)
  ]


def _check_channels_last(inputs: converters.Input) -> None:
  if not inputs.get_attr("data_format").endswith(b"C"):
    raise converters.pfor.ConversionNotImplementedError(
      "The channels must be the last axis."
    )


def _result_sizes(inputs: converters.Input, index: int) -> list[_Size]:
  """Returns the sizes of a client's result, of which an input is a vector."""
  sizes = converters.equal(inputs.input(index))
  known = converters.pfor.tensor_util.constant_value_as_shape(sizes)
  known = known.merge_with(inputs.op.outputs[0].shape)
  known = known.merge_with([None] * len(inputs.get_attr("strides")))
  return [sizes[i] if size is None else size for i, size in enumerate(known)]
