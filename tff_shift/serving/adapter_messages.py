"""What `ts.AdapterServer` and `ts.AdapterClient` send each other.

As bytes, a packet is a line of JSON with the digest of what follows, and then
the values of its tensors.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import Literal
from typing import TypeVar

import msgspec
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import records
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.learning import phases
from tff_shift.simulation.storage import encoding

# Rounds are int32 in computations; the number after the last one, too.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 2)]


class _Header(records.Record):
  """The first line of a packet."""

  kind: Literal["Broadcast", "Message"]
  key: records.Sha256
  timestep: _Number
  round_num: _Number
  phase: _Number
  clients: tuple[_Number, ...]
  content: records.Sha256


@dataclasses.dataclass(frozen=True, repr=False)
class Packet:
  """Values that the server or a client sends.

  Attributes:
    key: The key of the algorithm, the deployed model and the seed.
    timestep: The time step, from 1; 0 before the first one.
    round_num: The round, from 0.
    phase: The phase of the round, from 0.
    clients: The positions of clients, ascending.
    value: The values, a nested structure of arrays.
    type: The TFF type of `value` in the algorithm's computations.
  """

  key: str
  timestep: int
  round_num: int
  phase: int
  clients: tuple[int, ...]
  value: Any
  type: tff.Type

  def __repr__(self):
    return (
      f"{type(self).__name__}(timestep={self.timestep},"
      f" round_num={self.round_num}, phase={self.phase},"
      f" clients={self.clients}, type={self.type.compact_representation()})"
    )

  def to_bytes(self) -> bytes:
    """Returns the bytes that `receive` takes as well."""
    content = encoding.to_bytes(self.value, self.value)
    header = self.header(hashlib.sha256(content).hexdigest())
    return records.encode(header, indent=None).encode() + content

  def header(self, content: str) -> _Header:
    """Returns the valid header of a content with a digest.

    Raises:
      ValueError: If a field is not valid; one line.
    """
    fields = {
      each.name: getattr(self, each.name)
      for each in dataclasses.fields(self)
      if each.name not in ("value", "type")
    }
    fields |= {"kind": type(self).__name__, "content": content}
    return records.convert(fields, _Header)


class Broadcast(Packet):
  """What the server sends; `clients` are those that it asks for a message."""


class Message(Packet):
  """What a client sends to the server; `clients` has this client alone."""


_P = TypeVar("_P", bound=Packet)


def message_types(
  algorithm: algorithm_lib.FederatedAlgorithm,
) -> tuple[tff.Type, ...]:
  """Returns the TFF type of a client's message in each phase of a round."""
  return tuple(
    half.type_signature.result[1].member for half in algorithm.client_halves
  )


def broadcast_type(algorithm: algorithm_lib.FederatedAlgorithm) -> tff.Type:
  """Returns the TFF type of a broadcast."""
  return frozen_weights.state_type(algorithm.join.type_signature.parameter[0])


def received(
  given: Any, kind: type[_P], key: str, types: Sequence[tff.Type], what: str
) -> _P:
  """Returns a valid packet.

  Args:
    given: The packet or its bytes.
    kind: The required class.
    key: The required key.
    types: The type of its value in each phase.
    what: Its name in messages.

  Raises:
    ValueError: If it is not valid; one line.
  """
  content = None
  if isinstance(given, bytes):
    given, content = _from_bytes(given, what)
  if not isinstance(given, kind):
    raise ValueError(
      f"{what} must be a {kind.__name__} or its bytes, got a"
      f" {type(given).__name__}"
    )
  if given.key != key:
    raise ValueError(
      f"{what} is of another algorithm, deployed model or seed; server and"
      " clients must be built with the same"
    )
  if content is None:
    try:
      given.header("0" * 64)
    except (ValueError, TypeError) as error:
      raise ValueError(f"{what}: {error}") from error
  template = _template(types, given.phase, what)
  if content is not None:
    if len(content) != len(encoding.to_bytes(template, template)):
      raise _damaged(what, "its content has another size than its type")
    return dataclasses.replace(
      given,
      value=encoding.from_bytes(content, template),
      type=types[given.phase],
    )
  try:
    is_same = encoding.structure(given.value) == encoding.structure(template)
  except (TypeError, ValueError):
    is_same = False
  if not is_same:
    raise ValueError(
      f"{what} has values of another type than the algorithm's in phase"
      f" {given.phase}"
    )
  return given


def is_finite(values: Any) -> bool:
  """Returns whether all numbers of a nested structure are finite."""
  return all(
    np.isfinite(leaf).all() for leaf in map(np.asarray, tf.nest.flatten(values))
  )


def check_message(value: Any, what: str) -> None:
  """Refuses numbers that no client sends.

  A loss may be of any value: the mean loss of a round then is not finite.

  Args:
    value: The value of a message, of the type of a phase.
    what: Its name in messages.

  Raises:
    ValueError: If an update is not finite, or a weight or a count is not
      possible; one line.
  """
  report = value
  if isinstance(value, phases.Message):
    report = value.report
    for name in ("update", "weight", "plaintext_sum"):
      if not is_finite(getattr(value, name)):
        raise ValueError(f"{what} has {name} that is not finite")
    if value.weight < 0 or value.has_weight != (value.weight > 0):
      raise ValueError(
        f"{what} has weight {value.weight} and has_weight {value.has_weight}:"
        " a weight is at least 0, and has_weight is 1 above 0, otherwise 0"
      )
  for name in ("counts", "diverged"):
    if report[name] not in (0, 1):
      raise ValueError(f"{what} has {name} {report[name]}; it is 0 or 1")


def check_broadcast(
  found: Broadcast, algorithm: algorithm_lib.FederatedAlgorithm
) -> None:
  """Refuses numbers that no server sends.

  Raises:
    ValueError: If weights are not finite, or the round, time step, phase and
      clients are not those of one round; one line.
  """
  what, clients = "the broadcast", found.clients
  if not is_finite(found.value.weights):
    raise ValueError(f"{what} has weights that are not finite")
  if found.value.round_num != found.round_num:
    raise ValueError(
      f"{what} is of round {found.round_num}, and its state is of round"
      f" {found.value.round_num}"
    )
  if list(clients) != sorted(set(clients)):
    raise ValueError(
      f"{what} asks clients {list(clients)}; they must be different and"
      " ascending"
    )
  most = algorithm.max_clients
  if most is not None and any(client >= most for client in clients):
    raise ValueError(
      f"{what} asks client {max(clients)}; {algorithm.name} was built for"
      f" {most} clients"
    )
  if clients and not (found.timestep and algorithm.phases):
    raise ValueError(
      f"{what} asks clients for messages, "
      + ("and no time step has begun" if algorithm.phases else "of no phase")
    )
  if not clients and found.phase:
    raise ValueError(f"{what} asks no client in phase {found.phase}")
  if algorithm.phases and found.timestep > found.round_num + 1:
    raise ValueError(
      f"{what} is of time step {found.timestep} in round {found.round_num};"
      " every time step has a round"
    )


def _from_bytes(given: bytes, what: str) -> tuple[Packet, bytes]:
  """Returns a packet without its values, and their bytes."""
  line, _, content = given.partition(b"\n")
  try:
    header = records.decode(line.decode(), _Header)
  except ValueError as error:
    raise _damaged(what, str(error)) from error
  if header.content != hashlib.sha256(content).hexdigest():
    raise _damaged(what, "its content has changed")
  kind = {each.__name__: each for each in (Broadcast, Message)}[header.kind]
  found = kind(
    header.key,
    header.timestep,
    header.round_num,
    header.phase,
    header.clients,
    value=(),
    type=tff.types.to_type(()),
  )
  return found, content


def _damaged(what: str, reason: str) -> ValueError:
  return ValueError(f"{what} is damaged ({reason}); send it once more")


def _template(types: Sequence[tff.Type], phase: int, what: str) -> Any:
  """Returns zeros in the structure of the type of a phase."""
  if phase >= len(types):
    raise ValueError(
      f"{what} is of phase {phase}; a round has phases 0 to {len(types) - 1}"
    )
  return tff.types.structure_from_tensor_type_tree(
    lambda each: np.zeros(each.shape, each.dtype.type), types[phase]
  )
