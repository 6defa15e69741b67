"""The states of all clients, of which few need be in memory.

A client's first state is a function of its seed and of what the server holds at
the moment: it is computed when it is asked for, and takes no memory until the
client has another one. Of the other
states so many as are allowed stay in memory, those that were used last; the
rest goes to a file.
"""

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import state_file

# So many are in memory while someone goes through all.
_CHUNK = 1000


class Storage(NamedTuple):
  """Where states go that are not to stay in memory.

  Attributes:
    max_in_memory: So many stay, at least 1.
    file: The file for the others.
  """

  max_in_memory: int
  file: state_file.StateFile


class ClientStates(Sequence):
  """The states of all clients by position; they share one structure.

  To go through all of them computes the first state of each client that has no
  other one, in memory for as long as the caller keeps it. `take` and `put` are
  for those of some.
  """

  def __init__(
    self,
    num_clients: int,
    initialize: Callable[[list[Any]], Sequence[Any]],
    seed_of: Callable[[int], Any],
    storage: Storage | None = None,
  ):
    """Computes nothing yet.

    Args:
      num_clients: The number of clients.
      initialize: Seeds of clients to their first states.
      seed_of: A client to its seed.
      storage: Where states go that are not to stay in memory. None: all stay.
    """
    self._num_clients = num_clients
    self._initialize = initialize
    self._seed_of = seed_of
    self._storage = storage
    # In the order of their last use, if there is a limit.
    self._in_memory = {}
    # Those of them that differ from what is in the file.
    self._unwritten = set()
    self._example = None

  def __len__(self) -> int:
    return self._num_clients

  def __getitem__(self, index: int | slice) -> Any:
    clients = range(self._num_clients)[index]
    if isinstance(index, slice):
      return self.take(clients)
    return self.take([clients])[0]

  def __iter__(self) -> Iterator[Any]:
    for start in range(0, self._num_clients, _CHUNK):
      yield from self[start : start + _CHUNK]

  @property
  def storage(self) -> Storage | None:
    """Where states go that are not to stay in memory; None: all stay."""
    return self._storage

  @property
  def template(self) -> Any:
    """A state with the structure of all."""
    if self._example is None:
      self._learn(self._initialize([self._seed_of(0)])[0])
    return self._example[0]

  @property
  def in_memory(self) -> Mapping[int, Any]:
    """The states in memory, by client; without a file, all but first ones."""
    return dict(self._in_memory)

  def take(
    self, clients: Sequence[int], seeds: Sequence[Any] | None = None
  ) -> list[Any]:
    """Returns the states of some clients; those in need are computed at once.

    Args:
      clients: Different clients.
      seeds: Their seeds, if they are at hand.

    Returns:
      The states, in the same order.
    """
    if self._is_stateless:
      return [self.template] * len(clients)
    found = {client: self._find(client) for client in clients}
    new = [
      (client, position)
      for position, client in enumerate(clients)
      if found[client] is None
    ]
    if new:
      initial = self._initialize(
        [
          self._seed_of(client) if seeds is None else seeds[position]
          for client, position in new
        ]
      )
      self._learn(initial[0])
      for (client, _), state in zip(new, initial, strict=True):
        found[client] = (state,)
    return [found[client][0] for client in clients]

  def put(self, clients: Sequence[int], states: Sequence[Any]) -> None:
    """Replaces the states of some clients.

    Args:
      clients: Different clients.
      states: Their new states.

    Raises:
      files.WriteError: If the file cannot be written.
    """
    for client, state in zip(clients, states, strict=True):
      self._learn(state)
      if self._is_stateless:
        return
      self._in_memory.pop(client, None)
      self._in_memory[client] = state
      if self._storage is not None:
        self._unwritten.add(client)
    self._evict()

  def replace(self, states: Mapping[int, Any]) -> None:
    """Puts the states of some clients, and gives all others their first one.

    A new file replaces that of before.
    """
    self._in_memory, self._unwritten = {}, set()
    if self._storage is not None:
      self._storage.file.remove()
    self.put(list(states), list(states.values()))

  def commit(self, step: int) -> state_file.Content:
    """Writes all states to the file, to last; see `StateFile.commit`."""
    self._write(list(self._in_memory))
    return self._storage.file.commit(step)

  def restore(
    self,
    file: state_file.StateFile,
    step: int,
    content: state_file.Content,
    oldest: int,
  ) -> None:
    """Goes back to the states at a step; see `StateFile.restore`.

    Args:
      file: The file; that of the storage, or one that is read whole.
      step: The step.
      content: What it must hold.
      oldest: The first step that is still needed.

    Raises:
      state_file.UnusableError: If it does not; all states are as before.
    """
    file.restore(step, content, oldest)
    if self._storage is not None and file is self._storage.file:
      self._in_memory, self._unwritten = {}, set()
    else:
      self.replace(
        {
          client: encoding.from_bytes(state, self.template)
          for client, state in file.read_all()
        }
      )

  def close(self) -> None:
    """Ends the use of the file; what is there cannot be asked for any more."""
    if self._storage is not None:
      self._storage.file.close()

  @property
  def _is_stateless(self) -> bool:
    """Whether it is known that there is nothing to keep."""
    return self._example is not None and not tf.nest.flatten(self._example)

  def _learn(self, state: Any) -> None:
    if self._example is None:
      # In a tuple, for a state may be None.
      self._example = (state,)

  def _find(self, client: int) -> tuple[Any] | None:
    """Returns a client's state in a tuple; None if it is the first one."""
    if client in self._in_memory:
      state = self._in_memory[client]
      if self._storage is not None:
        del self._in_memory[client]
        self._in_memory[client] = state
      return (state,)
    if self._storage is not None:
      content = self._storage.file.read(client)
      if content is not None:
        return (encoding.from_bytes(content, self.template),)
    return None

  def _evict(self) -> None:
    """Leaves so many in memory as are allowed."""
    if self._storage is not None:
      surplus = len(self._in_memory) - self._storage.max_in_memory
      oldest = list(itertools.islice(self._in_memory, max(surplus, 0)))
      self._write(oldest)
      for client in oldest:
        del self._in_memory[client]

  def _write(self, clients: Sequence[int]) -> None:
    """Writes to the file what is not there as it is in memory."""
    unwritten = [each for each in clients if each in self._unwritten]
    if unwritten:
      self._storage.file.write(
        (each, encoding.to_bytes(self._in_memory[each], self.template))
        for each in unwritten
      )
      self._unwritten.difference_update(unwritten)
