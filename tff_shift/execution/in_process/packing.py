"""Packs the values of all clients into one array per leaf, and unpacks them.

A leaf whose first axis differs between clients becomes the concatenated rows of
all of them, with the end of each client; any other leaf becomes a table with a
row per client.
"""

import functools
import math
import operator
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution.in_process import memory as memory_lib
from tff_shift.execution.in_process import values

_ARRAYS = np.ndarray, np.generic

# Smaller arrays are copied, which is faster than sharing.
_MIN_SHARED_BYTES = 2**16

# Above this size per client, copying costs more than separate calls.
MAX_CLIENT_BYTES = 2**20
# Above this total size, the copy might not fit in memory.
MAX_BYTES = 2**30


def member_of(type_spec: tff.Type) -> tff.Type:
  """Returns a type without its placement, if it has one."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  return type_spec


def packed_specs(type_spec: tff.Type) -> list[tf.TensorSpec]:
  """Returns the specs of the output of a `Packer` for a part."""
  if not values.is_clients_list_type(type_spec):
    return values.leaf_specs(member_of(type_spec))
  specs = []
  for spec in values.leaf_specs(type_spec.member):
    shape = spec.shape.as_list()
    if shape and shape[0] is None:
      # All rows, and the end of each client.
      specs += [
        tf.TensorSpec([None, *shape[1:]], spec.dtype),
        tf.TensorSpec([None], tf.int32),
      ]
    else:
      specs.append(tf.TensorSpec([None, *shape], spec.dtype))
  return specs


def unpack(leaves: Iterator[Any], type_spec: tff.Type, num_clients: int) -> Any:
  """Arranges arrays or tensors of a result; clients' values become lists."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
      unpack(leaves, element, num_clients)
      for element in values.element_types(type_spec)
    )
  if not values.is_clients_list_type(type_spec):
    return values.unflatten(leaves, member_of(type_spec))
  tables = [next(leaves) for _ in values.leaf_specs(type_spec.member)]
  columns = [
    # Copies, since a view would keep the values of all clients alive.
    [row.copy() for row in table]
    if isinstance(table, np.ndarray)
    else tf.unstack(table)
    for table in tables
  ]
  rows = zip(*columns, strict=True) if columns else [()] * num_clients
  return [values.unflatten(iter(row), type_spec.member) for row in rows]


class Packer:
  """Packs arguments of a type."""

  def __init__(self, type_spec: tff.Type):
    """Analyses the type once, for all calls.

    Args:
      type_spec: The parameter type of a computation, or a part of it.
    """
    self._type = type_spec
    self._parts = []
    self._is_structure = isinstance(type_spec, tff.StructType)
    if self._is_structure:
      self._parts = [Packer(each) for each in values.element_types(type_spec)]
      return
    self._is_of_clients = values.is_clients_list_type(type_spec)
    self._member = member_of(type_spec)
    specs = values.leaf_specs(self._member)
    self._checks = [
      (spec.dtype.as_numpy_dtype, tuple(spec.shape.as_list())) for spec in specs
    ]
    self._leaves = _leaves_function(self._member)
    self._determining = list(leaves_of_shapes(self._member))
    self._with_zeros = list(_leaves_named("fields_of_zeros", self._member))
    self._padded = frozenset(_leaves_named("padded_fields", self._member))

  def shapes(self, argument: Any) -> list[tuple[Any, ...]]:
    """Returns what determines the shapes of each client's values.

    Args:
      argument: The argument of a computation.

    Returns:
      A tuple for each client: of open sizes (ints), those of the fields that
      the container of a type names by `padded_fields()` rounded up; of the
      fields that it names by `fields_of_shapes()`; and of the zeros of those
      that it names by `fields_of_zeros()`. [] without clients.
    """
    if self._is_structure:
      pairs = values.pair_elements(argument, self._type)
      columns = [
        packer.shapes(part)
        for (part, _), packer in zip(pairs, self._parts, strict=True)
      ]
      return [sum(row, ()) for row in zip(*filter(None, columns), strict=True)]
    if not self._is_of_clients:
      return []
    ragged = [
      i for i, (_, shape) in enumerate(self._checks) if None in shape[:1]
    ]
    if not ragged and not self._determining:
      return [()] * len(argument)
    return [
      (
        *(
          _padded_size(_size(row[i])) if i in self._padded else _size(row[i])
          for i in ragged
        ),
        *(np.asarray(row[i]).tobytes() for i in self._determining),
        *((np.asarray(row[i]) == 0).tobytes() for i in self._with_zeros),
      )
      for row in map(self._leaves, argument)
    ]

  def __call__(
    self,
    argument: Any,
    lender: memory_lib.Lender,
    order: Sequence[int] | None = None,
    max_bytes: int | None = None,
  ) -> list[np.ndarray] | None:
    """Packs the clients' values into one array per leaf.

    Args:
      argument: The argument of a computation.
      lender: Provides the arrays.
      order: The order of the clients in the arrays. None: theirs, and clients
        have at most `MAX_CLIENT_BYTES`.
      max_bytes: What clients may have together; None: `MAX_BYTES`.

    Returns:
      The arrays; None if the argument does not consist of NumPy values of
      exactly the right types, or if clients have more than `MAX_CLIENT_BYTES`
      on average (without `order`) or `max_bytes` together.

    Raises:
      TypeError: If a structure differs from the type.
    """
    if self._is_structure:
      packed = []
      pairs = values.pair_elements(argument, self._type)
      for (part, _), packer in zip(pairs, self._parts, strict=True):
        found = packer(part, lender, order, max_bytes)
        if found is None:
          return None
        packed += found
      return packed
    if not self._is_of_clients:
      leaves = self._leaves(argument)
      return leaves if self._fits([[leaf] for leaf in leaves]) else None
    rows = list(map(self._leaves, argument))
    if max_bytes is None:
      max_bytes = MAX_BYTES
    if order is None:
      max_bytes = min(max_bytes, MAX_CLIENT_BYTES * len(rows))
    else:
      rows = [rows[client] for client in order]
    columns = list(zip(*rows, strict=True))
    if not rows or not self._fits(columns):
      return None
    packs = []
    for place, (column, (_, shape)) in enumerate(
      zip(columns, self._checks, strict=True)
    ):
      num_bytes = sum(leaf.nbytes for leaf in column)
      if not shape or shape[0] is not None:
        packs.append((column, num_bytes, _stack))
        continue
      is_padded = order is not None and place in self._padded
      sizes = [len(leaf) for leaf in column]
      if is_padded:
        sizes = list(map(_padded_size, sizes))
        row = math.prod(column[0].shape[1:]) * column[0].itemsize
        num_bytes = sum(sizes) * row
      packs.append((column, num_bytes, functools.partial(_join, sizes)))
    if sum(num_bytes for _, num_bytes, _ in packs) > max_bytes:
      return None
    packed = []
    for column, num_bytes, pack in packs:
      packed += lender.pack(column, num_bytes, functools.partial(pack, column))
    return packed

  def _fits(self, columns: Sequence[Sequence[Any]]) -> bool:
    """Returns whether all leaves are NumPy values of the exact types."""
    return all(
      _column_fits(column, kind, shape)
      for column, (kind, shape) in zip(columns, self._checks, strict=True)
    )


def _column_fits(
  column: Sequence[Any], kind: type, shape: tuple[int | None, ...]
) -> bool:
  """Returns whether the values of a leaf have its type."""
  # Clients have few different types and shapes: each is checked once.
  return (
    all(issubclass(each, _ARRAYS) for each in set(map(type, column)))
    and {leaf.dtype.type for leaf in column} == {kind}
    and all(_has_shape(each, shape) for each in {leaf.shape for leaf in column})
  )


def _has_shape(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
  """Returns whether a shape is allowed."""
  return len(found) == len(shape) and all(
    wanted in (None, size) for wanted, size in zip(shape, found, strict=True)
  )


def _join(
  sizes: Sequence[int],
  column: Sequence[np.ndarray],
  new_array: Callable[..., np.ndarray],
) -> list[np.ndarray]:
  """Returns all rows, zeros up to each client's size, and its end."""
  rows = new_array((sum(sizes), *column[0].shape[1:]), column[0].dtype)
  ends = np.cumsum([0, *sizes], dtype=np.int32)
  if all(map(operator.eq, sizes, map(len, column))):
    return [np.concatenate(column, out=rows), ends]
  for leaf, start, end in zip(column, ends[:-1], ends[1:], strict=True):
    rows[start : start + len(leaf)] = leaf
    rows[start + len(leaf) : end] = 0
  return [rows, ends]


def _stack(
  column: Sequence[np.ndarray], new_array: Callable[..., np.ndarray]
) -> list[np.ndarray]:
  """Returns a table of clients."""
  shape = column[0].shape
  table = new_array((len(column), *shape), column[0].dtype)
  if shape:
    # As `np.stack`, which takes longer for each client.
    rows = table.reshape((len(column) * shape[0], *shape[1:]))
    np.concatenate(column, out=rows)
  else:
    table[:] = column
  return [table]


def to_tensor(array: np.ndarray) -> tf.Tensor:
  """Returns an array as a tensor; a large one of a `Lender` is not copied."""
  if (
    array.nbytes < _MIN_SHARED_BYTES or array.ctypes.data % memory_lib.ALIGNMENT
  ):
    return tf.convert_to_tensor(array)
  try:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
  except (tf.errors.InvalidArgumentError, BufferError, TypeError):
    # A type that the protocol does not support, or a read-only array.
    return tf.convert_to_tensor(array)


def leaves_of_shapes(type_spec: tff.Type) -> Iterator[int]:
  """Yields the places of the leaves that determine shapes of other values."""
  return _leaves_named("fields_of_shapes", type_spec)


def _leaves_named(
  method: str, type_spec: tff.Type, start: int = 0
) -> Iterator[int]:
  """Yields the places of the leaves that a method of containers names."""
  if isinstance(type_spec, tff.StructType):
    container = getattr(type_spec, "python_container", None)
    names = getattr(container, method, tuple)()
    for name, element in tff.structure.iter_elements(type_spec):
      number = len(values.leaf_specs(element))
      if name in names:
        yield from range(start, start + number)
      else:
        yield from _leaves_named(method, element, start)
      start += number


def _size(leaf: Any) -> int:
  """Returns the size of the first axis, if there is one."""
  return (np.shape(leaf) or (0,))[0]


def _padded_size(size: int) -> int:
  """Returns the next power of two; 0 for no rows."""
  return 1 << (size - 1).bit_length() if size else 0


def _leaves_function(type_spec: tff.Type) -> Callable[[Any], list[Any]]:
  """Returns a function of a value without placement to its leaves."""
  if not isinstance(type_spec, tff.StructType):
    return lambda value: [value]
  functions = list(map(_leaves_function, values.element_types(type_spec)))
  # Then no check is needed: its names are those of its type.
  container = getattr(type_spec, "python_container", None)
  is_named_tuple = values.is_named_tuple_type(type_spec)
  has_tensors_alone = not any(
    isinstance(each, tff.StructType) for each in values.element_types(type_spec)
  )

  def leaves(value):
    if is_named_tuple and getattr(value, "_fields", None) == container._fields:
      if has_tensors_alone:
        return value
      parts = value
    elif type(value) is tuple and not value and not functions:
      return []
    else:
      parts = [part for part, _ in values.pair_elements(value, type_spec)]
    return [
      leaf
      for part, function in zip(parts, functions, strict=True)
      for leaf in function(part)
    ]

  return leaves
