"""Conversion of Python values to tensors and back, by TFF type.

Inside the in-process context a value is made of positional tuples (TFF
structures; their names live in the types), tensors (TFF tensors, and data
sets as variant tensors) and, for a value at CLIENTS that is not the same for
all, one Python list with an entry per client.
"""

import collections
import functools
import itertools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

# A tensor, or tuples of values; see the module's docstring.
Value = Any


def is_clients_list_type(type_spec: tff.Type) -> bool:
  """Returns whether a value of this type has an entry per client."""
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is tff.CLIENTS
    and not type_spec.all_equal
  )


def element_types(type_spec: tff.StructType) -> list[tff.Type]:
  """Returns the types of a structure's elements, in order."""
  return [element for _, element in tff.structure.iter_elements(type_spec)]


def tensor_dtype(type_spec: tff.TensorType) -> tf.DType:
  """Returns TensorFlow's dtype for a tensor type."""
  return tf.dtypes.as_dtype(type_spec.dtype.type)


def leaf_specs(type_spec: tff.Type | None) -> list[tf.TensorSpec]:
  """Returns a spec for each tensor of a value without placement.

  Args:
    type_spec: The value's type; None (no value) has no tensors.

  Returns:
    The specs in the order of `flatten`; a data set counts as one variant.
  """
  if type_spec is None:
    return []
  if isinstance(type_spec, tff.StructType):
    return list(
      itertools.chain.from_iterable(map(leaf_specs, element_types(type_spec)))
    )
  if isinstance(type_spec, tff.SequenceType):
    return [tf.TensorSpec([], tf.variant)]
  if isinstance(type_spec, tff.TensorType):
    return [tf.TensorSpec(type_spec.shape, tensor_dtype(type_spec))]
  raise TypeError(f"a value of type {type_spec} cannot enter TensorFlow")


def flatten(value: Value) -> list[tf.Tensor]:
  """Returns the tensors of a value without lists of clients."""
  leaves = []

  def collect(part):
    if type(part) is tuple:
      for element in part:
        collect(element)
    else:
      leaves.append(part)

  collect(value)
  return leaves


def unflatten(leaves: Iterator[tf.Tensor], type_spec: tff.Type) -> Value:
  """Takes from `leaves` the tensors of a value of this type; arranges them."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
      unflatten(leaves, element) for element in element_types(type_spec)
    )
  return next(leaves)


def count_clients(argument: Any, type_spec: tff.Type | None) -> int | None:
  """Returns the number of clients in an argument.

  Args:
    argument: The argument of a computation.
    type_spec: The computation's parameter type.

  Returns:
    The number of clients, or None if the argument does not determine it.

  Raises:
    TypeError: If a value that differs between clients is not a list or tuple.
    ValueError: If two parts of the argument disagree.
  """
  if type_spec is None:
    return None
  if is_clients_list_type(type_spec):
    if not isinstance(argument, (list, tuple)):
      raise TypeError(
        f"a value of type {type_spec} must be a list with an entry per "
        f"client; got {type(argument).__name__}"
      )
    return len(argument)
  if not isinstance(type_spec, tff.StructType):
    return None
  counts = {
    count_clients(part, element)
    for part, element in pair_elements(argument, type_spec)
  } - {None}
  if len(counts) > 1:
    raise ValueError(
      "the arguments must have the same number of clients; got "
      + " and ".join(map(str, sorted(counts)))
    )
  return counts.pop() if counts else None


def to_tensors(
  value: Any, type_spec: tff.Type, devices: Sequence[str], server: str
) -> Value:
  """Converts the argument of a computation.

  Args:
    value: Structures of Python numbers, NumPy arrays, tensors, data sets.
    type_spec: The type to conform to.
    devices: The clients' devices, assigned in turn.
    server: The server's device.

  Returns:
    The value in the form that the module's docstring describes.

  Raises:
    TypeError: If the value is not of the type. As in TFF's C++ context a dtype
      may be widened but not narrowed, and integers do not become floats.
  """
  if isinstance(type_spec, tff.FederatedType):
    if is_clients_list_type(type_spec):
      converted = []
      for part, device in zip(value, itertools.cycle(devices), strict=False):
        with tf.device(device):
          converted.append(_convert(part, type_spec.member))
      return converted
    type_spec = type_spec.member
  elif isinstance(type_spec, tff.StructType):
    return tuple(
      to_tensors(part, element, devices, server)
      for part, element in pair_elements(value, type_spec)
    )
  with tf.device(server):
    return _convert(value, type_spec)


def to_python(value: Value, type_spec: tff.Type, *, materialize: bool) -> Any:
  """Converts a result for the caller.

  Args:
    value: A value in the form that the module's docstring describes.
    type_spec: Its type, whose Python containers are used.
    materialize: Whether tensors become NumPy values.

  Returns:
    Python containers of tensors or NumPy values; lists for clients.
  """
  if is_clients_list_type(type_spec):
    if not leaf_specs(type_spec.member):
      # An empty value for many clients: made once.
      nothing = to_python(
        unflatten(iter(()), type_spec.member),
        type_spec.member,
        materialize=materialize,
      )
      return [nothing] * len(value)
    return [
      to_python(part, type_spec.member, materialize=materialize)
      for part in value
    ]
  if isinstance(type_spec, tff.FederatedType):
    return to_python(value, type_spec.member, materialize=materialize)
  if isinstance(type_spec, tff.TensorType) and not materialize:
    return value
  container = getattr(type_spec, "python_container", None)
  names = tff.structure.name_list(type_spec) if container else []
  is_dictionary = container is collections.OrderedDict
  if (
    is_dictionary
    or is_named_tuple_type(type_spec)
    or (container is tuple and not names)
  ):
    # TFF's own conversion inspects each container, which takes longer for many
    # clients than their work.
    parts = [
      to_python(part, element, materialize=materialize)
      for part, element in zip(value, element_types(type_spec), strict=True)
    ]
    if is_dictionary:
      return container(zip(names, parts, strict=True))
    return container(*parts) if names else tuple(parts)
  structure = _to_structure(value, type_spec, materialize)
  return tff.types.type_to_py_container(structure, type_spec)


def is_named_tuple_type(type_spec: tff.Type) -> bool:
  """Returns whether a type is a named tuple's and has all of its names."""
  container = getattr(type_spec, "python_container", None)
  return hasattr(container, "_fields") and container._fields == tuple(
    tff.structure.name_list(type_spec)
  )


def to_numpy(value: Any) -> Any:
  """Converts every eager tensor of a structure to a NumPy value.

  Args:
    value: Any structure of Python containers, such as the result of a
      computation in a context without `materialize`.

  Returns:
    The same structure with NumPy values; other values are not changed.
  """
  return tff.tensorflow.transform_result(value)


def pair_elements(
  value: Any, type_spec: tff.StructType
) -> list[tuple[Any, tff.Type]]:
  """Pairs the elements of a container with their types.

  Args:
    value: A Python container or a TFF structure.
    type_spec: The expected type.

  Returns:
    The elements and their types, in order.

  Raises:
    TypeError: If their number or a name differs.
  """
  try:
    structure = tff.structure.from_container(value)
  except TypeError:
    raise TypeError(
      f"a value of type {type_spec} must be a structure; got "
      f"{type(value).__name__}"
    ) from None
  if len(structure) != len(type_spec):
    raise TypeError(
      f"a value of type {type_spec} must have {len(type_spec)} elements; "
      f"got {len(structure)}"
    )
  pairs = []
  for (name, part), (expected_name, element) in zip(
    tff.structure.iter_elements(structure),
    tff.structure.iter_elements(type_spec),
    strict=True,
  ):
    if None not in (name, expected_name) and name != expected_name:
      raise TypeError(
        f"a value of type {type_spec} must have an element named "
        f"{expected_name} where {name} was found"
      )
    pairs.append((part, element))
  return pairs


def _convert(value: Any, type_spec: tff.Type) -> Value:
  """Converts a value without placement, on the device in scope."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
      _convert(part, element)
      for part, element in pair_elements(value, type_spec)
    )
  if isinstance(type_spec, tff.SequenceType):
    return _convert_sequence(value, type_spec)
  if isinstance(type_spec, tff.TensorType):
    return _convert_tensor(value, type_spec)
  raise TypeError(f"a value of type {type_spec} cannot be an argument")


def _convert_tensor(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
  """Converts a number, array, list or tensor to a tensor."""
  if isinstance(value, tf.Variable):
    value = value.read_value()
  # A list may contain lists and arrays, but is passed as one tensor.
  parts = tree.flatten(value) if isinstance(value, (list, tuple)) else [value]
  for part in parts:
    if not _has_compatible_dtype(part, type_spec.dtype.type):
      found = part.dtype if hasattr(part, "dtype") else type(part)
      name = getattr(found, "name", None) or found.__name__
      raise TypeError(f"a value of type {type_spec} was expected; got {name}")
  try:
    shape = value.shape if hasattr(value, "shape") else np.shape(value)
  except ValueError as error:
    raise TypeError(
      f"a value of type {type_spec} was expected; got a ragged list"
    ) from error
  if not tf.TensorShape(type_spec.shape).is_compatible_with(shape):
    raise TypeError(
      f"a value of type {type_spec} was expected; got shape {tuple(shape)}"
    )
  dtype = tensor_dtype(type_spec)
  if isinstance(value, tf.Tensor):
    return value if value.dtype == dtype else tf.cast(value, dtype)
  return tf.convert_to_tensor(value, dtype)


def _has_compatible_dtype(value: Any, expected: Any) -> bool:
  """Returns whether a value is of the same kind as a dtype, and no wider."""
  if isinstance(value, tf.Tensor):
    return _is_compatible_dtype(np.dtype(value.dtype.as_numpy_dtype), expected)
  if isinstance(value, (np.ndarray, np.generic)):
    return _is_compatible_dtype(value.dtype, expected)
  if isinstance(value, (str, bytes)):
    return expected is np.str_
  if isinstance(value, bool):
    return expected is np.bool_
  kinds: tuple[tuple[Any, Any], ...] = (
    (int, np.integer),
    (float, np.floating),
    (complex, np.complexfloating),
  )
  for python_type, kind in kinds:
    if isinstance(value, python_type):
      return np.issubdtype(expected, kind) and _fits(value, expected)
  return False


def _fits(value: complex, expected: Any) -> bool:
  """Returns whether a Python number is within the limits of a dtype."""
  if isinstance(value, int):
    limits = np.iinfo(expected)
    return int(limits.min) <= value <= int(limits.max)
  size = max(abs(value.real), abs(value.imag))
  return not np.isfinite(value) or size <= float(np.finfo(expected).max)


@functools.cache
def _is_compatible_dtype(found: np.dtype, expected: type[np.generic]) -> bool:
  """Returns whether one dtype is of the same kind as another, and no wider."""
  if found.type is expected:
    return True
  if found.kind in "SUO":
    return expected is np.str_
  return any(
    np.issubdtype(found, kind)
    and np.issubdtype(expected, kind)
    and np.can_cast(found, expected)
    for kind in (np.integer, np.floating, np.complexfloating)
  )


def _convert_sequence(value: Any, type_spec: tff.SequenceType) -> tf.Tensor:
  """Converts a data set or a list of elements to a variant tensor."""
  if isinstance(value, list):
    with tf.device("CPU:0"):
      elements = [_convert(part, type_spec.element) for part in value]
    return variant_from_elements(elements, type_spec.element)
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
      f"a value of type {type_spec} must be a tf.data.Dataset or a list of "
      f"elements; got {type(value).__name__}"
    )
  found = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  if not type_spec.is_assignable_from(found):
    raise TypeError(f"a value of type {type_spec} was expected; got {found}")
  return tf.data.experimental.to_variant(value)


def variant_from_elements(
  elements: Sequence[Value], type_spec: tff.Type
) -> tf.Tensor:
  """Returns a data set of elements, whose shapes may differ, as a variant."""
  empty = [
    tf.zeros([0, *(size or 0 for size in spec.shape)], spec.dtype)
    for spec in leaf_specs(type_spec)
  ]
  rows = [flatten(element) for element in elements]
  dataset = tf.data.Dataset.from_tensor_slices(
    _to_container(iter(empty), type_spec)
  )
  for _, group in itertools.groupby(
    rows, key=lambda row: [leaf.shape.as_list() for leaf in row]
  ):
    columns = map(tf.stack, zip(*group, strict=True))
    dataset = dataset.concatenate(
      tf.data.Dataset.from_tensor_slices(_to_container(columns, type_spec))
    )
  return tf.data.experimental.to_variant(dataset)


def _to_container(leaves: Iterator[Any], type_spec: tff.Type) -> Any:
  """Arranges an element's leaves in the structure that `tf.data` expects."""
  return tff.types.structure_from_tensor_type_tree(
    lambda _: next(leaves), type_spec
  )


def _to_structure(value: Value, type_spec: tff.Type, materialize: bool) -> Any:
  """Adds the type's names to a value."""
  if isinstance(type_spec, tff.FederatedType):
    if is_clients_list_type(type_spec):
      return [
        _to_structure(part, type_spec.member, materialize) for part in value
      ]
    return _to_structure(value, type_spec.member, materialize)
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      (name, _to_structure(part, element, materialize))
      for part, (name, element) in zip(
        value, tff.structure.iter_elements(type_spec), strict=True
      )
    )
  if isinstance(type_spec, tff.SequenceType):
    return tf.data.experimental.from_variant(
      value,
      structure=_to_container(
        iter(leaf_specs(type_spec.element)), type_spec.element
      ),
    )
  return value.numpy() if materialize else value
