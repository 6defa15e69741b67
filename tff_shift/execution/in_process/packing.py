"""What all clients have in one array per leaf, and back.

A leaf whose first axis differs from client to client becomes the rows of all of
them, with where each client's end; any other leaf becomes a table of clients.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution.in_process import values

_ARRAYS = np.ndarray, np.generic

# What TensorFlow asks of memory that it did not allocate, in bytes.
_ALIGNMENT = 64
# Below it, a copy costs less than a way around it.
_MIN_SHARED_BYTES = 2**16

# Below it, a block is not worth keeping; above it, all are too much to keep.
_MIN_KEPT_BYTES = 2**18
MAX_KEPT_BYTES = 2**28

# Above it, per client, packing and unpacking copy more than calls cost.
MAX_CLIENT_BYTES = 2**20
# Above it, all clients together, the copy might not find room in memory.
MAX_BYTES = 2**30


def member_of(type_spec: tff.Type) -> tff.Type:
  """Returns a type without its placement, if it has one."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.member
  return type_spec


def packed_specs(type_spec: tff.Type) -> list[tf.TensorSpec]:
  """Returns the specs of what `pack` makes of a part."""
  if not values.is_clients_list_type(type_spec):
    return values.leaf_specs(member_of(type_spec))
  specs = []
  for spec in values.leaf_specs(type_spec.member):
    shape = spec.shape.as_list()
    if shape and shape[0] is None:
      # All rows, and where each client's end.
      specs += [
        tf.TensorSpec([None, *shape[1:]], spec.dtype),
        tf.TensorSpec([None], tf.int32),
      ]
    else:
      specs.append(tf.TensorSpec([None, *shape], spec.dtype))
  return specs


def unpack(
  leaves: Iterator[np.ndarray], type_spec: tff.Type, num_clients: int
) -> object:
  """Arranges the tensors of a result; clients' values become lists."""
  if isinstance(type_spec, tff.StructType):
    return tuple(
      unpack(leaves, element, num_clients)
      for element in values.element_types(type_spec)
    )
  if not values.is_clients_list_type(type_spec):
    return values.unflatten(leaves, member_of(type_spec))
  tables = [next(leaves) for _ in values.leaf_specs(type_spec.member)]
  return [
    # A copy each: a view would keep the values of all clients alive.
    values.unflatten(
      (table[client].copy() for table in tables), type_spec.member
    )
    for client in range(num_clients)
  ]


class Memory:
  """Large blocks of memory that calls use one after the other.

  Memory that is new takes as long to come by as to be written to.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._free = []

  @contextlib.contextmanager
  def lent(self) -> Iterator["Lender"]:
    """Lends blocks for a `with` block; what was lent is then used again."""
    with self._lock:
      # Who comes meanwhile takes new ones.
      lender, self._free = Lender(self._free), []
    try:
      yield lender
    finally:
      with self._lock:
        self._free = lender.worth_keeping()


class Lender:
  """Gives the blocks of a call."""

  def __init__(self, free: list[np.ndarray]):
    self._free = free
    self._used = []

  def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array that TensorFlow can use where it lies."""
    size = math.prod(shape) * dtype.itemsize
    memory = self._block(size + _ALIGNMENT)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)

  def _block(self, size: int) -> np.ndarray:
    if size < _MIN_KEPT_BYTES:
      return np.empty(size, np.uint8)
    fitting = [each for each in self._free if each.nbytes >= size]
    if fitting:
      block = min(fitting, key=len)
      self._free = [each for each in self._free if each is not block]
    else:
      # The next cohort may be somewhat larger.
      block = np.empty(size + size // 4, np.uint8)
    self._used.append(block)
    return block

  def worth_keeping(self) -> list[np.ndarray]:
    """Returns the blocks of this call, up to a limit."""
    kept, left = [], MAX_KEPT_BYTES
    for block in self._used:
      if block.nbytes <= left:
        kept.append(block)
        left -= block.nbytes
    return kept


def pack(
  argument: object, type_spec: tff.Type, lender: Lender
) -> list[np.ndarray] | None:
  """Packs what clients have into one array per leaf.

  Args:
    argument: What the caller passed to a computation.
    type_spec: The computation's parameter type.
    lender: Where the arrays come from.

  Returns:
    The arrays; None if the argument is not made of NumPy values of the very
    types, or if clients have more than `MAX_CLIENT_BYTES` on average or
    `MAX_BYTES` together.

  Raises:
    TypeError: If a structure is not that of the type.
  """
  if isinstance(type_spec, tff.StructType):
    packed = []
    for part, element in values.pair_elements(argument, type_spec):
      found = pack(part, element, lender)
      if found is None:
        return None
      packed += found
    return packed
  if not values.is_clients_list_type(type_spec):
    leaves = _numpy_leaves(argument, member_of(type_spec))
    specs = values.leaf_specs(member_of(type_spec))
    return leaves if _fits([leaves], specs) else None
  rows = [_numpy_leaves(part, type_spec.member) for part in argument]
  specs = values.leaf_specs(type_spec.member)
  if not rows or not _fits(rows, specs):
    return None
  size = sum(leaf.nbytes for row in rows for leaf in row)
  if size > min(MAX_CLIENT_BYTES * len(rows), MAX_BYTES):
    return None
  packed = []
  for column, spec in zip(zip(*rows, strict=True), specs, strict=True):
    if spec.shape.rank and spec.shape[0] is None:
      sizes = [len(leaf) for leaf in column]
      shape = (sum(sizes), *column[0].shape[1:])
      rows = lender.array(shape, column[0].dtype)
      packed += [
        np.concatenate(column, out=rows),
        np.cumsum([0, *sizes], dtype=np.int32),
      ]
    else:
      shape = (len(column), *column[0].shape)
      packed.append(np.stack(column, out=lender.array(shape, column[0].dtype)))
  return packed


def to_tensor(array: np.ndarray) -> tf.Tensor:
  """Returns an array as a tensor; a large one of `pack` is not copied."""
  if array.nbytes < _MIN_SHARED_BYTES or array.ctypes.data % _ALIGNMENT:
    return tf.convert_to_tensor(array)
  try:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
  except (tf.errors.InvalidArgumentError, BufferError, TypeError):
    # A type that the protocol does not know, or an array that is read only.
    return tf.convert_to_tensor(array)


def _numpy_leaves(value: object, type_spec: tff.Type) -> list[object]:
  """Returns the leaves of a value without placement."""
  if not isinstance(type_spec, tff.StructType):
    return [value]
  elements = values.element_types(type_spec)
  if type(value) is tuple and not elements and not value:
    return []
  if type(value) is type_spec.python_container and (
    values.is_named_tuple_type(type_spec)
  ):
    # A named tuple has the names of its type: there is nothing to check.
    pairs = zip(value, elements, strict=True)
  else:
    pairs = values.pair_elements(value, type_spec)
  return [
    leaf for part, element in pairs for leaf in _numpy_leaves(part, element)
  ]


def _fits(rows: Sequence[Sequence[object]], specs) -> bool:
  """Tells whether all leaves are NumPy values of the very types."""
  checks = [
    (spec.dtype.as_numpy_dtype, tuple(spec.shape.as_list())) for spec in specs
  ]
  return all(
    isinstance(leaf, _ARRAYS)
    and leaf.dtype.type is kind
    and len(leaf.shape) == len(shape)
    and all(
      size in (None, found)
      for size, found in zip(shape, leaf.shape, strict=True)
    )
    for row in rows
    for leaf, (kind, shape) in zip(row, checks, strict=True)
  )
