"""What the executors share: a cache of compiled computations, and transforms.

TFF's executors do not implement secure sums. A secure sum is a sum of integers,
so the plaintext sum of the same integers is equal.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Generic
from typing import TypeVar

import tensorflow_federated as tff

_Compiled = TypeVar("_Compiled")
_SECURE = "federated_secure_"


class CompilationCache(Generic[_Compiled]):
  """Compiles a computation at its first call; thread-safe."""

  def __init__(
    self, compile_fn: Callable[[tff.framework.ConcreteComputation], _Compiled]
  ):
    self._compile_fn = compile_fn
    self._compiled = {}
    self._lock = threading.Lock()

  def get(self, computation: tff.framework.ConcreteComputation) -> _Compiled:
    """Returns the compiled form of a computation, the same at each call."""
    # By identity: hashing a computation serializes all of its graphs.
    key = id(computation)
    with self._lock:
      if key not in self._compiled:
        compiled = self._compile_fn(computation)
        forget = functools.partial(_forget, self._compiled, key)
        self._compiled[key] = weakref.ref(computation, forget), compiled
      return self._compiled[key][1]

  def living(self) -> list[_Compiled]:
    """Returns the compiled forms of the computations that are alive."""
    return [compiled for _, compiled in list(self._compiled.values())]


def _forget(cache: dict[int, object], key: int, _: weakref.ref) -> None:
  """Drops the compiled form of a deleted computation."""
  cache.pop(key, None)


_blocks = CompilationCache[tff.framework.ComputationBuildingBlock](
  lambda computation: computation.to_building_block()
)


def block_of(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
  """Returns the building block of a computation, read only once."""
  return _blocks.get(computation)


def simulate_secure_sums(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Replaces secure sums and selections by the plaintext ones of TFF's tests.

  They check the range of the clients' values. All clients are simulated here:
  there is nobody to hide a value from.

  Args:
    computation: A computation.

  Returns:
    A computation of the same type with the same results; the same object
    without secure sums.
  """
  if not any(
    isinstance(block, tff.framework.Intrinsic) and block.uri.startswith(_SECURE)
    for block in walk(block_of(computation))
  ):
    return computation
  # Flat, because protocol buffers do not support deeply nested computations.
  flat = tff.framework.ConcreteComputation.from_building_block(
    to_call_dominant(computation)
  )
  simulated = tff.backends.test.replace_secure_intrinsics_with_bodies(flat)
  # Only the original type contains the Python containers.
  return tff.framework.ConcreteComputation.with_type(
    simulated, computation.type_signature
  )


def walk(
  block: tff.framework.ComputationBuildingBlock,
) -> list[tff.framework.ComputationBuildingBlock]:
  """Returns a building block and everything in it."""
  found = [block]
  for child in block.children():
    found += walk(child)
  return found


def to_call_dominant(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
  """Converts a computation to a list of calls, without changing its graphs.

  Intrinsics that TFF defines in terms of other intrinsics are expanded.
  """
  whole, _ = tff.tensorflow.replace_intrinsics_with_bodies(
    block_of(computation)
  )
  return tff.framework.to_call_dominant(whole)
