"""Memory for the packed arrays of all clients.

Allocating new memory takes as long as writing to it, so large blocks are reused
by the next call. Arrays packed from read-only arrays are kept and reused
without packing again.
"""

import collections
import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

# TensorFlow's alignment for memory that it did not allocate, in bytes.
ALIGNMENT = 64

# Smaller blocks are not worth keeping; larger totals are too much to keep.
_MIN_KEPT_BYTES = 2**18
MAX_KEPT_BYTES = 2**28
# Read-only cohorts that do not recur are forgotten after this many others.
_MAX_CONSTANTS = 32


class Memory:
  """Reusable blocks, and arrays packed from read-only arrays."""

  def __init__(self):
    self._lock = threading.Lock()
    self._free = []
    self._constants = collections.OrderedDict()

  @contextlib.contextmanager
  def lent(self) -> Iterator["Lender"]:
    """Lends blocks for a `with` block, after which they are reused."""
    with self._lock:
      # Concurrent calls allocate new ones.
      lender, self._free = Lender(self, self._free), []
    try:
      yield lender
    finally:
      with self._lock:
        self._free = lender.worth_keeping()

  def constant(self, column: Sequence[np.ndarray]) -> "_Constant | None":
    """Returns the record of recurring read-only arrays.

    Args:
      column: An array of each client.

    Returns:
      The record; None if the arrays can change, are small, or occur for the
      first time, since a sampled cohort may not recur.
    """
    size = sum(array.nbytes for array in column)
    if not _MIN_KEPT_BYTES <= size <= MAX_KEPT_BYTES:
      return None
    if not all(map(_stays_as_it_is, column)):
      return None
    key = tuple(map(id, column))
    with self._lock:
      found = self._constants.pop(key, None)
      came_before = found is not None and found.is_of(column)
      self._constants[key] = found if came_before else _Constant(column)
      self._forget()
    return found if came_before else None

  def _forget(self) -> None:
    """Drops records that are useless, or exceed the limit."""
    left = MAX_KEPT_BYTES
    # Most recently used first.
    for number, (key, each) in enumerate(reversed([*self._constants.items()])):
      left -= sum(array.nbytes for array in each.packed or ())
      if left < 0 or number >= _MAX_CONSTANTS or not each.is_alive():
        del self._constants[key]


class _Constant:
  """A column of read-only arrays.

  Attributes:
    packed: The packed array; None before it is packed.
  """

  def __init__(self, column: Sequence[np.ndarray]):
    self.packed: list[np.ndarray] | None = None
    self._arrays = [weakref.ref(array) for array in column]

  def is_of(self, column: Sequence[np.ndarray]) -> bool:
    """Returns whether a column has these arrays, not only their addresses."""
    return all(
      known() is array
      for known, array in zip(self._arrays, column, strict=True)
    )

  def is_alive(self) -> bool:
    """Returns whether the first of the arrays still exists."""
    return self._arrays[0]() is not None


def _stays_as_it_is(array: np.ndarray) -> bool:
  """Returns whether an array and its base arrays are read-only."""
  while isinstance(array, np.ndarray):
    if array.flags.writeable:
      return False
    array = array.base
  # Memory of another object may be written through that object.
  return array is None


class Lender:
  """Provides the arrays of a call."""

  def __init__(self, memory: Memory, free: list[np.ndarray]):
    self._memory = memory
    self._free = free
    self._used = []

  def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array that TensorFlow can use without a copy."""
    return _aligned(self._block, shape, dtype)

  def pack(
    self,
    column: Sequence[np.ndarray],
    pack: Callable[[Callable[..., np.ndarray]], list[np.ndarray]],
  ) -> list[np.ndarray]:
    """Packs the arrays of clients, unless they are packed already.

    Args:
      column: An array of each client.
      pack: Packs them into the array from a function `(shape, dtype) -> array`.

    Returns:
      The result of `pack`, possibly of an earlier call.
    """
    constant = self._memory.constant(column)
    if constant is None:
      return pack(self.array)
    if constant.packed is None:
      constant.packed = pack(functools.partial(_aligned, _new_block))
    return constant.packed

  def _block(self, size: int) -> np.ndarray:
    if size < _MIN_KEPT_BYTES:
      return _new_block(size)
    fitting = [each for each in self._free if each.nbytes >= size]
    if fitting:
      block = min(fitting, key=len)
      self._free = [each for each in self._free if each is not block]
    else:
      # The next cohort may be slightly larger.
      block = _new_block(size + size // 4)
    self._used.append(block)
    return block

  def worth_keeping(self) -> list[np.ndarray]:
    """Returns the blocks of this call that are kept, up to a limit."""
    kept, left = [], MAX_KEPT_BYTES
    for block in self._used:
      if block.nbytes <= left:
        kept.append(block)
        left -= block.nbytes
    return kept


def _new_block(size: int) -> np.ndarray:
  return np.empty(size, np.uint8)


def _aligned(
  block: Callable[[int], np.ndarray], shape: Sequence[int], dtype: np.dtype
) -> np.ndarray:
  """Returns an array with the alignment that TensorFlow needs."""
  size = math.prod(shape) * dtype.itemsize
  memory = block(size + ALIGNMENT)
  start = -memory.ctypes.data % ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)
