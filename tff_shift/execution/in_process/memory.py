"""Memory for the packed arrays of all clients.

Allocating new memory takes as long as writing to it, so large blocks are reused
by the next call. What is packed from arrays that cannot change
(`data.examples.read_only`) stays in its block until then. If the same arrays
recur before, the block is kept for them, and they are not packed again.

Choices:
  * Packed arrays are where TensorFlow can use them (aligned, by DLPack): they
    are copied once, into up to 256 MiB kept for the next call, and 256 MiB more
    for arrays that recur (packed again, into memory of its own, if the block
    was reused in between). Only copies into bytes are read-only: a flag can be
    reset, and an earlier view written to. Arrays recur if they are the same
    objects, so drivers make the data of a time step, and the training data and
    targets of evolving domains, once.
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
# A block that is kept for its content is not much larger.
_MAX_WASTE = 2.0
# Cohorts that do not recur are forgotten after this many others.
_MAX_CONSTANTS = 32


class Memory:
  """Reusable blocks, and what is packed from arrays that cannot change."""

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
        self._free = lender.worth_keeping(self._free)

  def constant(
    self, column: Sequence[np.ndarray], size: int
  ) -> "_Constant | None":
    """Returns the record of arrays that cannot change.

    Args:
      column: An array of each client.
      size: The size of what is packed, in bytes: with padding it is another.

    Returns:
      The record; None if the arrays can change or are small.
    """
    if not _MIN_KEPT_BYTES <= size <= MAX_KEPT_BYTES:
      return None
    if not all(map(_stays_as_it_is, column)):
      return None
    key = size, *map(id, column)
    with self._lock:
      found = self._constants.pop(key, None)
      if found is not None and found.is_of(column):
        found.is_kept = True
      else:
        found = _Constant(column)
      self._constants[key] = found
      self._forget()
    return found

  def empty(self, block: "_Block") -> bool:
    """Prepares a block for other arrays; False if it is kept for its own."""
    with self._lock:
      return block.empty()

  def _forget(self) -> None:
    """Drops records that are useless, or exceed the limit."""
    left = MAX_KEPT_BYTES
    # Most recently used first.
    for number, (key, each) in enumerate(reversed([*self._constants.items()])):
      if each.is_kept:
        left -= sum(array.nbytes for array in each.packed or ())
      if left < 0 or number >= _MAX_CONSTANTS or not each.is_alive():
        del self._constants[key]


class _Constant:
  """A column of arrays that cannot change.

  Attributes:
    packed: The packed arrays; None before they are packed, and after their
      block was reused.
    is_kept: Whether their block is not reused, because the column has recurred.
      A sampled cohort may not recur.
  """

  def __init__(self, column: Sequence[np.ndarray]):
    self.packed: list[np.ndarray] | None = None
    self.is_kept = False
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


class _Block:
  """Reusable memory.

  Attributes:
    memory: [bytes] uint8.
    content: What is packed in it, if its arrays cannot change.
  """

  def __init__(self, size: int):
    self.memory = _new_memory(size)
    self.content: _Constant | None = None

  def empty(self) -> bool:
    """Drops the content; returns False if the block is kept for it."""
    if self.content is not None:
      if self.content.is_kept:
        return False
      self.content.packed = None
      self.content = None
    return True


def _stays_as_it_is(array: np.ndarray) -> bool:
  """Returns whether nothing can write to the memory of an array.

  A flag can be reset, and a view that was made before can be written to.
  """
  while isinstance(array, np.ndarray):
    array = array.base
  return isinstance(array, bytes)


class Lender:
  """Provides the arrays of a call."""

  def __init__(self, memory: Memory, free: list[_Block]):
    self._memory = memory
    self._free = free
    self._used: list[_Block] = []

  def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array that TensorFlow can use without a copy."""
    return _aligned(self._block, shape, dtype)

  def pack(
    self,
    column: Sequence[np.ndarray],
    size: int,
    pack: Callable[[Callable[..., np.ndarray]], list[np.ndarray]],
  ) -> list[np.ndarray]:
    """Packs the arrays of clients, unless they are packed already.

    Args:
      column: An array of each client.
      size: The size of what is packed, in bytes.
      pack: Packs them into the array from a function `(shape, dtype) -> array`.

    Returns:
      The result of `pack`, possibly of an earlier call.
    """
    constant = self._memory.constant(column, size)
    if constant is None:
      return pack(self.array)
    if constant.packed is not None:
      return constant.packed
    if constant.is_kept:
      constant.packed = pack(functools.partial(_aligned, _new_memory))
      return constant.packed
    packed = pack(self.array)
    block = self._used[-1]
    if block.memory.nbytes <= _MAX_WASTE * size:
      block.content, constant.packed = constant, packed
    return packed

  def _block(self, size: int) -> np.ndarray:
    if size < _MIN_KEPT_BYTES:
      return _new_memory(size)
    # Arrays that may recur are overwritten last.
    self._free.sort(key=lambda each: (bool(each.content), each.memory.nbytes))
    for block in self._free:
      if block.memory.nbytes >= size and self._memory.empty(block):
        break
    else:
      # The next cohort may be slightly larger.
      block = _Block(size + size // 4)
    self._free = [each for each in self._free if each is not block]
    self._used.append(block)
    return block.memory

  def worth_keeping(self, others: Sequence[_Block] = ()) -> list[_Block]:
    """Returns the blocks of the last call that had any, up to a limit.

    Args:
      others: The free blocks of calls that ended during this one.
    """
    known = [*self._used, *self._free, *others]
    candidates = self._used or known
    kept, left = [], MAX_KEPT_BYTES
    for block in known:
      # What has recurred keeps its block.
      if block.content is not None and block.content.is_kept:
        continue
      if block in candidates and block.memory.nbytes <= left:
        kept.append(block)
        left -= block.memory.nbytes
      else:
        block.empty()
    return kept


def _new_memory(size: int) -> np.ndarray:
  return np.empty(size, np.uint8)


def _aligned(
  block: Callable[[int], np.ndarray], shape: Sequence[int], dtype: np.dtype
) -> np.ndarray:
  """Returns an array with the alignment that TensorFlow needs."""
  size = math.prod(shape) * dtype.itemsize
  memory = block(size + ALIGNMENT)
  start = -memory.ctypes.data % ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)
