"""Values of a computation before they are computed, see `cohorts`.

A value at SERVER is a tensor, a tuple of values or a `Lazy`; a value at CLIENTS
is a `ClientValue`. An `Aggregate` and a `Collection` are what a loop over the
clients has to give.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence

from tff_shift.execution.in_process import programs
from tff_shift.execution.in_process import values

# The key of the number of the client in what is known of it.
INDEX = object()


class Lazy:
  """A value at SERVER that is computed when it is asked for, once.

  Attributes:
    waits_for: The aggregates that have to be known before.
  """

  def __init__(self, compute: Callable[[], values.Value], *inputs: object):
    self.waits_for = _aggregates_of(inputs)
    self._compute = compute
    self._value = None
    self._is_done = False

  def force(self) -> values.Value:
    """Returns the value, which it computes at the first call."""
    if not self._is_done:
      self._value = self._compute()
      self._is_done = True
    return self._value


class Aggregate:
  """An aggregate; a loop over clients gives it its value.

  Attributes:
    part: The clients' values, a `ClientValue`.
    zero: What it starts from.
    accumulate: A closure, `(total, part) -> total`.
    total: The sum, once the loop is done.
    waits_for: As in `Lazy`, without the aggregate itself.
  """

  def __init__(self, part, zero, accumulate):
    self.part = part
    self.zero = zero
    self.accumulate = accumulate
    self.total = None
    self.waits_for = _aggregates_of((part, zero, accumulate))


class Collection:
  """A value at CLIENTS that the computation returns.

  Attributes:
    part: The clients' values, a `ClientValue`.
    type_spec: The type of a client's value.
    stacked: A tensor for each leaf, with a first axis of clients, once the loop
      is done.
    waits_for: As in `Aggregate`.
  """

  def __init__(self, part, type_spec):
    self.part = part
    self.type_spec = type_spec
    self.stacked = None
    self.waits_for = _aggregates_of((part,))


class ClientValue:
  """A value at CLIENTS: how it follows from others, for one client.

  Attributes:
    waits_for: As in `Lazy`.
  """

  def __init__(self, compute: Callable[[dict], values.Value], *inputs: object):
    self.waits_for = _aggregates_of(inputs)
    self.inputs = inputs
    self._compute = compute

  def of_client(self, known: dict) -> values.Value:
    """Returns a client's value; `known` holds those that are computed."""
    if self not in known:
      known[self] = self._compute(known)
    return known[self]


def _aggregates_of(value: object) -> frozenset[Aggregate]:
  """Returns the aggregates that a value depends on."""
  if isinstance(value, tuple):
    return frozenset(itertools.chain.from_iterable(map(_aggregates_of, value)))
  if isinstance(value, Aggregate):
    return value.waits_for | {value}
  if isinstance(value, programs.Closure):
    return _aggregates_of(tuple(captured(value).values()))
  return getattr(value, "waits_for", frozenset())


def captured(closure: programs.Closure) -> dict[str, object]:
  """Returns the values that a function refers to, by name."""
  return {
    reference.name: closure.environment[reference.name]
    for reference in programs.free_references(closure.function)
  }


def force(value: object) -> values.Value:
  """Computes what is lazy in a value."""
  if isinstance(value, tuple):
    return tuple(map(force, value))
  return value.force() if isinstance(value, Lazy) else value


def as_client_value(value: object) -> ClientValue:
  """Returns each client's part of a structure of values at CLIENTS."""
  if isinstance(value, ClientValue):
    return value
  if isinstance(value, tuple):
    parts = tuple(map(as_client_value, value))
    return ClientValue(
      lambda known: tuple(part.of_client(known) for part in parts), parts
    )
  # What all clients share.
  return ClientValue(lambda known: force(value), value)


def force_inputs(value: object, seen: set[int]) -> None:
  """Computes all that is lazy in what a client's value follows from."""
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


def elements(value: object, count: int) -> Sequence[object]:
  """Returns the elements of a structure, which may be lazy."""
  if isinstance(value, tuple):
    return value
  return [Lazy(lambda i=i: value.force()[i], value) for i in range(count)]
