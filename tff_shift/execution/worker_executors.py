"""TFF executors on a worker at the other end of a gRPC channel.

Choices:
  * A worker keeps the values that were sent to it before, graphs and arrays of
    equal bytes, from the second time on, up to 256 MiB. TFF sends all of them
    in each call: with two workers and 20 small clients, 5.64 MB per round
    instead of 1.27. Federated values are sent whole: a cohort that does not
    recur is sent.
  * Equality is judged by content, since results and data may be changed in
    place. All bytes are read only if a sample of them was sent before, so that
    states that change cost nothing.
  * Arrays are released if they do not recur for eight times the interval at
    which they did, counted in values: an evaluation sends weights twice, and
    later rounds have others. Without this, workers grew by 1 to 2 MiB per
    evaluation of 16 clients.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import math
import weakref
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from typing import Any

import cachetools
import grpc
import numpy as np
import tensorflow_federated as tff

from tff_shift.execution import errors

# For channels to a worker.
CHANNEL_OPTIONS = [
  # Model weights and client data exceed gRPC's default of 4 MB.
  ("grpc.max_receive_message_length", -1),
  ("grpc.max_send_message_length", -1),
  # gRPC would use the proxy of `http_proxy` even for this machine.
  ("grpc.enable_http_proxy", 0),
]


# Disposed values may be gone, and the channel closed (a ValueError): such an
# error would come from a finalizer, at any time, and is irrelevant.
_NOT_WORTH_A_WORD = (grpc.RpcError, errors.WorkerError, ValueError)


class UnreadableResultError(ValueError):
  """A worker's result is not a value of its declared type."""


class _WorkerStub(tff.framework.RemoteExecutorGrpcStub):
  """Sends the requests of an executor to a worker."""

  def __init__(self, channel: grpc.Channel):
    # TFF's stub would watch the channel's readiness, which is known anyway: a
    # thread of gRPC would poll it five times a second and keep it alive after
    # the end of the context.
    channel.subscribe = lambda callback, try_to_connect=False: None
    super().__init__(channel)

  def dispose(self, request):
    with contextlib.suppress(*_NOT_WORTH_A_WORD):
      return super().dispose(request)

  def dispose_executor(self, request):
    with contextlib.suppress(*_NOT_WORTH_A_WORD):
      return super().dispose_executor(request)


# A worker keeps at most as much of what it was sent. Less than the smallest is
# not worth the search for it.
_KEPT_BYTES, _SMALLEST = 2**28, 2**12
# Number of recent values whose samples are remembered.
_SENT_BEFORE = 1024
# A value is released if it does not recur for as many of its intervals.
_KEPT_INTERVALS = 8
# Number of entries in the sample of an array.
_SAMPLED = 64


@dataclasses.dataclass(frozen=True)
class _Kept:
  """What a worker has for a value.

  Attributes:
    value: The reference to it.
    size: Its bytes.
    lasts: The number of values that may be sent before it recurs.
    is_of: Returns the computation that it is, or None if it is gone.
  """

  value: Any
  size: int
  lasts: float
  is_of: Callable[[], Any] | None = None


class _KeptValues:
  """Values that a worker has and keeps, because they were sent before.

  TFF sends the graphs and arguments of a computation at each call, and frees
  them after it. Clients' data and graphs do not change from round to round.
  What is sent for the second time is therefore kept by the worker, and used
  from the third time on. A computation is the same if it is the same object,
  and arrays if all their bytes are equal (by BLAKE2): they may be changed in
  place. All bytes are read only if a sample of them has been sent before.

  Weights are sent several times, for clients and server, within few other
  values, and do not recur in later rounds. Arrays are therefore kept for a
  multiple of the interval, counted in values, at which they recurred.
  """

  def __init__(self):
    self._num_sent = 0
    self._sent_before = cachetools.LRUCache(_SENT_BEFORE)
    self._values: cachetools.TLRUCache = cachetools.TLRUCache(
      _KEPT_BYTES,
      lambda _, kept, now: now + kept.lasts,
      timer=lambda: self._num_sent,
      getsizeof=lambda kept: kept.size,
    )

  def key(
    self, executor: int, value: Any, type_spec: tff.Type
  ) -> tuple[Hashable, int, float] | None:
    """Returns key, size and `lasts` of a value that may be kept, or None."""
    self._num_sent += 1
    if isinstance(value, tff.framework.ConcreteComputation):
      # Its size is not known before it is serialized. Graphs are small.
      return (executor, id(value)), _SMALLEST, math.inf
    arrays = []
    try:
      structure = _structure(value, arrays)
    except TypeError:
      return None
    size = sum(each.nbytes for each in arrays)
    if not _SMALLEST <= size <= _KEPT_BYTES:
      return None
    sample = hash(b"".join(map(_sample, arrays)))
    key = executor, type_spec, structure, sample
    before = self._sent_before.get(key)
    self._sent_before[key] = self._num_sent
    if before is None:
      return None
    digest = hashlib.blake2b()
    for each in arrays:
      digest.update(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)
    lasts = _KEPT_INTERVALS * (self._num_sent - before)
    return (*key, digest.digest()), size, lasts

  def get(self, key: Hashable, value: Any, lasts: float) -> Any | None:
    """Returns what the worker keeps for a value, or None."""
    kept = self._values.get(key)
    # The id of a computation that is gone may be another one's.
    if kept is None or (kept.is_of is not None and kept.is_of() is not value):
      return None
    # It is kept anew, from now on.
    self._values[key] = dataclasses.replace(kept, lasts=max(kept.lasts, lasts))
    return kept.value

  def put(
    self, key: Hashable, value: Any, found: Any, size: int, lasts: float
  ) -> None:
    """Keeps what the worker has for a value."""
    is_of = None
    if isinstance(value, tff.framework.ConcreteComputation):
      is_of = weakref.ref(value, lambda _: self._values.pop(key, None))
    self._values[key] = _Kept(found, size, lasts, is_of)

  def forget(self, executor: int) -> None:
    """Forgets what an executor kept, which is released."""
    for kept in (self._sent_before, self._values):
      for key in [each for each in kept if each[0] == executor]:
        kept.pop(key, None)


def _structure(value: Any, arrays: list[np.ndarray]) -> Hashable:
  """Collects the arrays of a value; returns all else: names, boundaries, kinds.

  Args:
    value: Arrays in Python containers or TFF structures.
    arrays: The list that they are appended to.

  Raises:
    TypeError: If the value has anything else.
  """
  if isinstance(value, np.ndarray | np.generic):
    if value.dtype.kind not in "biufc":
      raise TypeError(value.dtype)
    arrays.append(np.asarray(value))
    return value.shape, value.dtype.str
  if isinstance(value, tff.structure.Struct):
    names, parts = tuple(tff.structure.name_list_with_nones(value)), value
  elif isinstance(value, Mapping):
    names, parts = tuple(value), value.values()
  elif isinstance(value, list | tuple):
    names, parts = getattr(value, "_fields", None), value
  else:
    raise TypeError(type(value))
  return names, tuple(_structure(part, arrays) for part in parts)


def _sample(array: np.ndarray) -> bytes:
  flat = array.reshape(-1)
  return flat[:: max(1, flat.size // _SAMPLED)].tobytes()


class _WorkerExecutor(tff.framework.RemoteExecutor):
  """Validates a worker's results, and sends unchanged values once."""

  _numbers = itertools.count()
  # Set by TFF.
  _dispose_request: Any

  def __init__(self, stub: _WorkerStub, num_clients: int, kept: _KeptValues):
    super().__init__(stub)
    self._num_clients = num_clients
    self._kept = kept
    self._number = next(self._numbers)

  def close(self) -> None:
    self._kept.forget(self._number)
    super().close()

  def flush(self) -> None:
    """Makes the worker release at once what is no longer used.

    TFF waits until there are twenty values, whatever their size.
    """
    request = self._dispose_request
    if request is not None and request.value_ref:
      self._dispose_request = type(request)(executor=self._executor_id)
      self._stub.dispose(request)

  async def create_value(self, value, type_spec=None):
    known = self._kept.key(self._number, value, type_spec)
    if known is None:
      return await super().create_value(value, type_spec)
    key, size, lasts = known
    found = self._kept.get(key, value, lasts)
    if found is None:
      found = await super().create_value(value, type_spec)
      self._kept.put(key, value, found, size, lasts)
    return found

  async def _compute(self, value_ref, type_spec):
    try:
      value = await super()._compute(value_ref, type_spec)
      _check(value, type_spec, self._num_clients)
    except (grpc.RpcError, errors.WorkerError):
      raise
    except Exception as error:
      raise UnreadableResultError(str(error)) from error
    return value


def _check(value: Any, type_spec: tff.Type, num_clients: int) -> None:
  """Raises a `ValueError` if a result is not of its type: TFF trusts it."""
  if isinstance(type_spec, tff.StructType):
    for position, (_, element) in enumerate(
      tff.structure.iter_elements(type_spec)
    ):
      _check(value[position], element, num_clients)
  elif isinstance(type_spec, tff.FederatedType):
    members = [value]
    if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
      members = value
      if len(members) != num_clients:
        raise ValueError(f"{len(members)} clients instead of {num_clients}")
    for member in members:
      _check(member, type_spec.member, num_clients)
  elif isinstance(type_spec, tff.TensorType) and type_spec.dtype.kind != "U":
    found = np.asarray(value)
    expected = type_spec.shape
    if found.dtype != type_spec.dtype or not (
      expected is None
      or (
        len(expected) == found.ndim and all(map(_agree, expected, found.shape))
      )
    ):
      raise ValueError(f"{found.dtype}{list(found.shape)}, not {type_spec}")


def _agree(expected: int | None, found: int) -> bool:
  return expected is None or expected == found


class WorkerExecutorFactory(tff.framework.ResourceManagingExecutorFactory):
  """Makes the executors that send the parts of a computation to a worker.

  TFF repeats an invocation for ever when the connection is lost, and requests
  an executor each time. The check in `create_executor` turns a dead worker into
  an error.
  """

  def __init__(
    self,
    channel: grpc.Channel,
    check_running: Callable[[], None],
    default_num_clients: int,
  ):
    """Makes a factory.

    Args:
      channel: The channel to the worker, see `CHANNEL_OPTIONS`.
      check_running: Raises an error if the worker cannot be used.
      default_num_clients: The number of clients if the arguments of a
        computation do not determine it.
    """
    super().__init__(self._connected_executor)
    self._stub = _WorkerStub(channel)
    self._check_running = check_running
    self._default_num_clients = default_num_clients
    self._made = weakref.WeakSet()
    self._kept = _KeptValues()

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> tff.framework.RemoteExecutor:
    """Returns an executor for a number of clients, if the worker is usable."""
    self._check_running()
    return super().create_executor(cardinalities)

  def close(self) -> None:
    """Makes the worker release the executors and all values."""
    for executor in list(self._made):
      executor.close()

  def _connected_executor(
    self, cardinalities: Mapping[tff.framework.PlacementLiteral, int]
  ) -> tff.framework.RemoteExecutor:
    cardinalities = {tff.CLIENTS: self._default_num_clients, **cardinalities}
    executor = _WorkerExecutor(
      self._stub, cardinalities[tff.CLIENTS], self._kept
    )
    executor.set_cardinalities(cardinalities)
    self._made.add(executor)
    return executor
