"""The states of all clients, few of which need to be in memory.

A client's first state is a function of its seed and the current server state.
It is computed on request and takes no memory until the client gets another
state. Of the other states, the most recently used ones stay in memory, up to a
limit if there is one. A file has the rest, and all of them at a checkpoint.

Choices:
  * `result.client_states` is a sequence, not a list, so that the end of a run
    does not create the first states of 100,000 clients that never took part.
  * States beyond `--max_states_in_memory` are in SQLite: one file, with
    transactions, in Python's own library. LMDB needs a map whose size is fixed
    in advance; a file per client needs 100,000 inodes. The file has versions,
    so that both checkpoints can be restored.
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
from tff_shift.simulation.storage import run_file

# The number of states in memory while iterating over all of them.
_CHUNK = 1000


class Storage(NamedTuple):
  """The storage of states in a file.

  Attributes:
    max_in_memory: The number of states in memory, at least 1; the others are
      only in the file. None: all are in memory.
    file: The file.
  """

  max_in_memory: int | None
  file: run_file.RunFile


class ClientStates(Sequence):
  """The states of all clients by position; they share one structure.

  Iterating over all of them computes the first state of each client that has no
  other one; it stays in memory as long as the caller keeps it. Use `take` and
  `put` for some of the clients.
  """

  def __init__(
    self,
    num_clients: int,
    initialize: Callable[[list[Any]], Sequence[Any]],
    seed_of: Callable[[int], Any],
    storage: Storage | None = None,
  ):
    """Stores the arguments; computes nothing yet.

    Args:
      num_clients: The number of clients.
      initialize: Maps seeds of clients to their first states.
      seed_of: Maps a client to its seed.
      storage: The storage of states in a file. None: all stay in memory.
    """
    self._num_clients = num_clients
    self._initialize = initialize
    self._seed_of = seed_of
    self._storage = storage
    # In the order of their last use, if there is a limit.
    self._in_memory = {}
    # The states in memory that differ from the file.
    self._unwritten = set()
    self._example: tuple[Any] | None = None

  def __len__(self) -> int:
    return self._num_clients

  def __getitem__(self, index: int | slice) -> Any:
    clients = range(self._num_clients)
    if isinstance(index, slice):
      return self.take(clients[index])
    return self.take([clients[index]])[0]

  def __iter__(self) -> Iterator[Any]:
    for start in range(0, self._num_clients, _CHUNK):
      yield from self[start : start + _CHUNK]

  @property
  def storage(self) -> Storage | None:
    """The storage of states in a file; None: there is no file."""
    return self._storage

  @property
  def has_limit(self) -> bool:
    """Whether the number of states in memory is limited."""
    return self._storage is not None and self._storage.max_in_memory is not None

  @property
  def template(self) -> Any:
    """A state with the structure that all share."""
    if self._example is None:
      self._learn(self._initialize([self._seed_of(0)])[0])
    return self._example[0]

  @property
  def in_memory(self) -> Mapping[int, Any]:
    """The states in memory, by client; without a limit, all but first ones."""
    return dict(self._in_memory)

  def take(
    self, clients: Sequence[int], seeds: Sequence[Any] | None = None
  ) -> list[Any]:
    """Returns the states of some clients; computes missing ones in one call.

    Args:
      clients: Different clients.
      seeds: Their seeds, if available.

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
    """Replaces the states of all clients, in memory.

    Args:
      states: States by client; the other clients get their first states again.
    """
    self._in_memory = dict(states)
    self._unwritten = set(states)

  def attach(self, storage: Storage) -> None:
    """Uses a storage from now on.

    Raises:
      ValueError: If there is another one.
    """
    if self._storage is None:
      self._storage, self._unwritten = storage, set(self._in_memory)
      self._evict()
    if self._storage != storage:
      raise ValueError("storage must be the storage of the checkpoint")

  def write(self) -> None:
    """Writes the changed states in memory to the file; see `RunFile.commit`."""
    self._write(list(self._in_memory))

  def restore(self) -> None:
    """Takes over the states in the file after `RunFile.restore`."""
    self._in_memory, self._unwritten = {}, set()
    if not self.has_limit:
      for client, content in self._storage.file.read_clients():
        self._in_memory[client] = encoding.from_bytes(content, self.template)

  def close(self) -> None:
    """Closes the file; states that are only there are no longer available."""
    if self._storage is not None:
      self._storage.file.close()

  @property
  def _is_stateless(self) -> bool:
    """Whether the states are known to be empty."""
    return self._example is not None and not tf.nest.flatten(self._example)

  def _learn(self, state: Any) -> None:
    if self._example is None:
      # In a tuple, because a state can be None.
      self._example = (state,)

  def _find(self, client: int) -> tuple[Any] | None:
    """Returns a client's state in a tuple; None if it is the first one."""
    if client in self._in_memory:
      state = self._in_memory[client]
      if self.has_limit:
        del self._in_memory[client]
        self._in_memory[client] = state
      return (state,)
    if self.has_limit:
      content = self._storage.file.read(client)
      if content is not None:
        return (encoding.from_bytes(content, self.template),)
    return None

  def _evict(self) -> None:
    """Moves states out of memory until the limit is met."""
    if self.has_limit:
      surplus = len(self._in_memory) - self._storage.max_in_memory
      oldest = list(itertools.islice(self._in_memory, max(surplus, 0)))
      self._write(oldest)
      for client in oldest:
        del self._in_memory[client]

  def _write(self, clients: Sequence[int]) -> None:
    """Writes the states that differ from the file."""
    unwritten = [each for each in clients if each in self._unwritten]
    if unwritten:
      self._storage.file.write(
        (each, encoding.to_bytes(self._in_memory[each], self.template))
        for each in unwritten
      )
      self._unwritten.difference_update(unwritten)
