"""Where the arrays lie that are packed of what all clients have.

New memory takes as long to come by as to be written to: large blocks are used
again by the next call. What is packed of arrays that are read only stays as it
is: it is used again without being written.
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

# What TensorFlow asks of memory that it did not allocate, in bytes.
ALIGNMENT = 64

# Below it, a block is not worth keeping; above it, all are too much to keep.
_MIN_KEPT_BYTES = 2**18
MAX_KEPT_BYTES = 2**28
# Of cohorts that do not come again nothing is known after so many others.
_MAX_CONSTANTS = 32


class Memory:
  """The blocks, and what was packed of read-only arrays."""

  def __init__(self):
    self._lock = threading.Lock()
    self._free = []
    self._constants = collections.OrderedDict()

  @contextlib.contextmanager
  def lent(self) -> Iterator["Lender"]:
    """Lends blocks for a `with` block; what was lent is then used again."""
    with self._lock:
      # Who comes meanwhile takes new ones.
      lender, self._free = Lender(self, self._free), []
    try:
      yield lender
    finally:
      with self._lock:
        self._free = lender.worth_keeping()

  def constant(self, column: Sequence[np.ndarray]) -> "_Constant | None":
    """Returns what is known of arrays that come again.

    Args:
      column: An array of each client.

    Returns:
      What is known of them; None if they can change, are small, or come for the
      first time: a cohort that was drawn may not come again.
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
    """Lets go of what is of no use, and of what is too much to keep."""
    left = MAX_KEPT_BYTES
    # What was used last is kept first.
    for number, (key, each) in enumerate(reversed([*self._constants.items()])):
      left -= sum(array.nbytes for array in each.packed or ())
      if left < 0 or number >= _MAX_CONSTANTS or not each.is_alive():
        del self._constants[key]


class _Constant:
  """Read-only arrays.

  Attributes:
    packed: What was packed of them; None before.
  """

  def __init__(self, column: Sequence[np.ndarray]):
    self.packed = None
    self._arrays = [weakref.ref(array) for array in column]

  def is_of(self, column: Sequence[np.ndarray]) -> bool:
    """Tells whether it is these arrays, and not others in their places."""
    return all(
      known() is array
      for known, array in zip(self._arrays, column, strict=True)
    )

  def is_alive(self) -> bool:
    """Tells whether the first of the arrays still exists."""
    return self._arrays[0]() is not None


def _stays_as_it_is(array: np.ndarray) -> bool:
  """Tells whether an array, and what it is a view of, is read only."""
  while isinstance(array, np.ndarray):
    if array.flags.writeable:
      return False
    array = array.base
  # Another object's memory may be written to by way of that object.
  return array is None


class Lender:
  """Gives the arrays of a call."""

  def __init__(self, memory: Memory, free: list[np.ndarray]):
    self._memory = memory
    self._free = free
    self._used = []

  def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array that TensorFlow can use where it lies."""
    return _aligned(self._block, shape, dtype)

  def pack(
    self,
    column: Sequence[np.ndarray],
    pack: Callable[[Callable[..., np.ndarray]], list[np.ndarray]],
  ) -> list[np.ndarray]:
    """Packs the arrays of clients, unless that was done before.

    Args:
      column: An array of each client.
      pack: Packs them into what the function `(shape, dtype) -> array` gives.

    Returns:
      What `pack` gives or gave.
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
      # The next cohort may be somewhat larger.
      block = _new_block(size + size // 4)
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


def _new_block(size: int) -> np.ndarray:
  return np.empty(size, np.uint8)


def _aligned(
  block: Callable[[int], np.ndarray], shape: Sequence[int], dtype: np.dtype
) -> np.ndarray:
  """Returns an array that begins where TensorFlow asks it to."""
  size = math.prod(shape) * dtype.itemsize
  memory = block(size + ALIGNMENT)
  start = -memory.ctypes.data % ALIGNMENT
  return memory[start : start + size].view(dtype).reshape(shape)
