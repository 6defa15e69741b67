"""Lazy values of a computation, see `cohorts`.

A value at SERVER is a tensor, a tuple of values or a `Lazy`; a value at CLIENTS
is a `ClientValue`. `Aggregate` and `Collection` are the outputs of a loop over
the clients.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values

# The key of the client's number among the known values: of all clients, or of
# those of `BLOCK`.
INDEX = object()
# The key of the values of a block's clients: those of each argument, by it.
BLOCK = object()


class Lazy:
  """A value at SERVER that is computed on first use.

  Attributes:
    waits_for: The aggregates that must be computed before.
  """

  def __init__(self, compute: Callable[[], values.Value], *inputs: Any):
    self.waits_for = _aggregates_of(inputs)
    self._compute = compute
    self._value: values.Value = None
    self._is_done = False

  def __getitem__(self, position: int) -> "Lazy":
    """Returns an element of a structure."""
    return Lazy(lambda: self.force()[position], self)

  def force(self) -> values.Value:
    """Returns the value; computes it at the first call."""
    if not self._is_done:
      self._value = self._compute()
      self._is_done = True
    return self._value


class Aggregate:
  """An aggregate, computed by a loop over clients.

  Attributes:
    part: The clients' values, a `ClientValue`.
    zero: The initial total.
    accumulate: A closure, `(total, part) -> total`.
    type_spec: The type of the total.
    total: The sum, after the loop.
    waits_for: As in `Lazy`, without the aggregate itself.
  """

  def __init__(self, part, zero, accumulate, type_spec):
    self.part = part
    self.zero = zero
    self.accumulate = accumulate
    self.type_spec = type_spec
    self.total = None
    self.waits_for = _aggregates_of((part, zero, accumulate))


class Collection:
  """A value at CLIENTS that the computation returns.

  Attributes:
    part: The clients' values, a `ClientValue`.
    type_spec: The type of a client's value.
    stacked: A tensor for each leaf, with a first axis of clients, after the
      loop.
    waits_for: As in `Aggregate`.
  """

  def __init__(self, part, type_spec):
    self.part = part
    self.type_spec = type_spec
    self.stacked = None
    self.waits_for = _aggregates_of((part,))


class ClientValue:
  """A value at CLIENTS, as a function of other values of one client.

  Attributes:
    waits_for: As in `Lazy`.
  """

  def __init__(self, compute: Callable[[dict], values.Value], *inputs: Any):
    self.waits_for = _aggregates_of(inputs)
    self.inputs = inputs
    self._compute = compute

  def of_client(self, known: dict) -> values.Value:
    """Returns a client's value; `known` contains the computed values."""
    if self not in known:
      known[self] = self._compute(known)
    return known[self]


def _aggregates_of(value: Any) -> frozenset[Aggregate]:
  """Returns the aggregates that a value depends on."""
  if isinstance(value, tuple):
    return frozenset(itertools.chain.from_iterable(map(_aggregates_of, value)))
  if isinstance(value, Aggregate):
    return value.waits_for | {value}
  if isinstance(value, programs.Closure):
    return _aggregates_of(tuple(captured(value).values()))
  return getattr(value, "waits_for", frozenset())


def captured(closure: programs.Closure) -> dict[str, Any]:
  """Returns the values that a function captures, by name."""
  return {
    reference.name: closure.environment[reference.name]
    for reference in programs.free_references(closure.function)
  }


def force(value: Any) -> values.Value:
  """Computes all lazy parts of a value."""
  if isinstance(value, tuple):
    return tuple(map(force, value))
  return value.force() if isinstance(value, Lazy) else value


def as_client_value(value: Any) -> ClientValue:
  """Returns each client's part of a structure of values at CLIENTS."""
  if isinstance(value, ClientValue):
    return value
  if isinstance(value, tuple):
    parts = tuple(map(as_client_value, value))
    return ClientValue(
      lambda known: tuple(part.of_client(known) for part in parts), parts
    )
  # Shared by all clients.
  return ClientValue(lambda known: force(value), value)


def force_inputs(value: Any, seen: set[int]) -> None:
  """Computes all lazy inputs of a client's value."""
  if isinstance(value, tuple):
    for part in value:
      force_inputs(part, seen)
  elif id(value) in seen:
    return
  else:
    seen.add(id(value))
    if isinstance(value, Lazy):
      value.force()
    elif isinstance(value, ClientValue):
      force_inputs(value.inputs, seen)
    elif isinstance(value, programs.Closure):
      force_inputs(tuple(captured(value).values()), seen)


def elements(value: Any, count: int) -> Sequence[Any]:
  """Returns the elements of a structure, which may be lazy."""
  if isinstance(value, tuple):
    return value
  return [value[position] for position in range(count)]
