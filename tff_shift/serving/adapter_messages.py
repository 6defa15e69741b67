"""What `ts.AdapterServer` and `ts.AdapterClient` send each other.

As bytes, a packet is a line of JSON with the digest of what follows, and then
the values of its tensors.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import TypeVar

import numpy as np
import tensorflow_federated as tff

from tff_shift import records
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.serving import adapter_state
from tff_shift.simulation.storage import encoding


class _Header(records.Record):
  """The first line of a packet."""

  kind: Literal["Broadcast", "Message"]
  key: records.Sha256
  timestep: records.Count
  round_num: records.Count
  phase: records.Count
  clients: tuple[records.Count, ...]
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
    header = _Header(
      kind=type(self).__name__,  # type: ignore[arg-type] # One of both.
      key=self.key,
      timestep=self.timestep,
      round_num=self.round_num,
      phase=self.phase,
      clients=self.clients,
      content=hashlib.sha256(content).hexdigest(),
    )
    return records.encode(header, indent=None).encode() + content


class Broadcast(Packet):
  """What the server sends; `clients` are those that it asks for a message."""


class Message(Packet):
  """What a client sends to the server; `clients` has this client alone."""


_P = TypeVar("_P", bound=Packet)


def key(
  algorithm: algorithm_lib.FederatedAlgorithm, weights: Any, seed: int
) -> str:
  """Returns the key of the packets of a server and its clients."""
  return adapter_state.key(algorithm, weights, seed=seed)


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
  template = _template(types, given.phase, what)
  if content is not None:
    if len(content) != len(encoding.to_bytes(template, template)):
      raise _damaged(what, "its content has another size than its type")
    return dataclasses.replace(
      given,
      value=encoding.from_bytes(content, template),
      type=types[given.phase],
    )
  if encoding.structure(given.value) != encoding.structure(template):
    raise ValueError(
      f"{what} has values of another type than the algorithm's in phase"
      f" {given.phase}"
    )
  return given


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
