"""One file with the client states of all checkpoints.

An SQLite database with one row for each version of a client's state. Writes
after the checkpoint of step P have version P + 1; the checkpoint of a step S
commits them in one transaction. Checkpoint S thus consists of each client's
last version up to S, and restoring it removes the versions above. SQLite
discards the writes after the last checkpoint if the process is killed.

The cost of a commit and of removing old versions depends on the number of
changed clients, not on the number of clients. All rows have digests, whose sum
is updated incrementally, so that the content is verified when the file is
opened again.
"""

import contextlib
import hashlib
import os
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterable
from collections.abc import Iterator

from tff_shift import files
from tff_shift import records

_MODULUS = 2**256
_SCHEMA = (
  "CREATE TABLE run (key TEXT NOT NULL)",
  # The digest first: SQLite finds it without reading a long content.
  "CREATE TABLE states (client INTEGER, version INTEGER,"
  " digest BLOB NOT NULL, content BLOB NOT NULL,"
  " PRIMARY KEY (client, version))",
)
_WRITE = (
  "INSERT INTO states VALUES (?, ?, ?, ?) ON CONFLICT (client, version)"
  " DO UPDATE SET digest = excluded.digest, content = excluded.content"
)
_LAST = "SELECT {} FROM states WHERE client = ? ORDER BY version DESC LIMIT 1"
# In a query with MAX, SQLite takes the other columns from the same row.
_ALL = (
  "SELECT client, digest, content, MAX(version) FROM states"
  " WHERE version <= ? GROUP BY client"
)
# Deletes the versions that have a newer one up to a step.
_PRUNE_ALL = (
  "DELETE FROM states AS old WHERE EXISTS (SELECT 1 FROM states AS newer"
  " WHERE newer.client = old.client AND newer.version > old.version"
  " AND newer.version <= ?)"
)


# SQLite's errors for a file that is not a database or lacks the table.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class UnusableError(ValueError):
  """The reason why a checkpoint cannot be used."""


class UseError(files.WriteError):
  """The file cannot be used any longer, for example on a full disk.

  Attributes:
    is_damage: Whether the content of the file is the reason.
  """

  def __init__(self, path: pathlib.Path, error: sqlite3.Error):
    OSError.__init__(self, f"{path} cannot be used: {error}")
    self.strerror = str(error)
    # The last byte of an extended code is the basic code.
    self.is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


class Content(records.Record):
  """The expected content of a file.

  Attributes:
    num_clients: The number of clients with a state.
    digest: The digest of all their last states, 64 hexadecimal digits.
  """

  num_clients: records.Count
  digest: records.Sha256


def _digest(client: int, content: bytes) -> bytes:
  return hashlib.sha256(client.to_bytes(8, "little") + content).digest()


class StateFile:
  """The states of some clients as bytes; created by the first write.

  Attributes:
    path: The file. For a temporary file, its folder: the file has no name and
      is removed when the process ends.
  """

  def __init__(
    self, path: pathlib.Path, key: str = "", *, is_temporary: bool = False
  ):
    """Sets the path; reads and writes nothing yet.

    Args:
      path: The file, or the folder of a temporary file.
      key: The key of the run to which the file belongs.
      is_temporary: Whether the file is temporary.
    """
    self.path = path
    self._key = key
    self._is_temporary = is_temporary
    self._connection = None
    self._version = 1
    # The clients written in each version, whose old versions can be pruned.
    self._written = {}
    self._num_clients = 0
    self._sum = 0

  def __len__(self) -> int:
    """Returns the number of clients with a state."""
    return self._num_clients

  def read(self, client: int) -> bytes | None:
    """Returns a client's last state; None if there is none."""
    if not self._num_clients:
      return None
    with self._using() as connection:
      row = connection.execute(_LAST.format("content"), (client,)).fetchone()
    return row and row[0]

  def read_all(self) -> Iterator[tuple[int, bytes]]:
    """Yields each client with a state, in order, and its last state."""
    if self._num_clients:
      with self._using() as connection:
        for client, _, content, _ in connection.execute(_ALL, (2**62,)):
          yield client, content

  def write(self, states: Iterable[tuple[int, bytes]]) -> None:
    """Writes new states of clients, made permanent by the next `commit`.

    Args:
      states: Clients and their states.

    Raises:
      UseError: If they cannot be written.
    """
    with self._changing() as connection:
      for client, content in states:
        digest = _digest(client, content)
        last = connection.execute(_LAST.format("digest"), (client,)).fetchone()
        if last is None:
          self._num_clients += 1
        else:
          self._sum -= int.from_bytes(last[0], "little")
        self._sum += int.from_bytes(digest, "little")
        connection.execute(_WRITE, (client, self._version, digest, content))
        self._written.setdefault(self._version, set()).add(client)

  def commit(self, step: int) -> Content:
    """Makes the writes permanent, as the states at a step.

    Args:
      step: The step, above the steps of earlier calls.

    Returns:
      The argument `content` of `restore`.

    Raises:
      UseError: If the file cannot be written.
    """
    if self._connection is not None:
      with self._using() as connection:
        if connection.in_transaction:
          connection.execute("COMMIT")
    self._version = step + 1
    return self._content

  def prune(self, oldest: int) -> None:
    """Removes the versions that are not needed from a step on.

    Args:
      oldest: The first step that is still needed.

    Raises:
      UseError: If the file cannot be written.
    """
    for version in [each for each in self._written if each <= oldest]:
      clients = self._written.pop(version)
      with self._changing() as connection:
        connection.executemany(
          "DELETE FROM states WHERE client = ? AND version < ?",
          ((client, version) for client in sorted(clients)),
        )

  def restore(self, step: int, content: Content, oldest: int) -> None:
    """Restores and verifies the states at a step.

    Args:
      step: The step.
      content: The result of `commit` for the step.
      oldest: The first step that is still needed.

    Raises:
      UnusableError: If the file is missing, damaged or of another run; it stays
        unchanged.
    """
    if not content.num_clients:
      # Then earlier steps had no states either.
      self.remove()
    else:
      problem = self._problem(step, content)
      if problem is not None:
        self._forget()
        raise UnusableError(f"the file of its clients' states {problem}")
      self._remove_above(step, oldest)
    self._version = step + 1
    self._num_clients = content.num_clients
    self._sum = int(content.digest, 16)

  def _remove_above(self, step: int, oldest: int) -> None:
    """Removes newer versions than a step, and versions that no step needs."""
    with self._changing() as connection:
      connection.execute("DELETE FROM states WHERE version > ?", (step,))
      connection.execute(_PRUNE_ALL, (oldest,))
      self._written = {}
      for client, version in connection.execute(
        "SELECT client, version FROM states WHERE version > ?", (oldest,)
      ):
        self._written.setdefault(version, set()).add(client)

  def _problem(self, step: int, content: Content) -> str | None:
    """Returns why the file does not contain the states of a step."""
    if not self.path.exists():
      return "is missing"
    num_clients = total = 0
    try:
      with self._using() as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
          return "is damaged: " + " ".join(found.split())
        key = connection.execute("SELECT key FROM run").fetchall()
        if key != [(self._key,)]:
          return "is of another run"
        for client, digest, state, _ in connection.execute(_ALL, (step,)):
          is_whole = isinstance(state, bytes)
          if not is_whole or digest != _digest(client, state):
            return f"is damaged: the state of client {client} has changed"
          num_clients += 1
          total += int.from_bytes(digest, "little")
    except UseError as error:
      if error.is_damage:
        return f"is damaged: {error.strerror}"
      raise
    if content != _content(num_clients, total):
      return "has other states"
    return None

  def remove(self) -> None:
    """Removes the file, even if damaged; a write creates a new one."""
    self._forget()
    if not self._is_temporary:
      for suffix in ("", "-journal"):
        files.remove(self.path.with_name(self.path.name + suffix))

  def close(self) -> None:
    """Closes the file; uncommitted writes are lost."""
    if self._connection is not None:
      self._connection.close()

  def _forget(self) -> None:
    """Resets the object to its state before the file was opened."""
    self.close()
    self._connection = None
    self._version, self._written = 1, {}
    self._num_clients = self._sum = 0

  @property
  def _content(self) -> Content:
    return _content(self._num_clients, self._sum)

  @contextlib.contextmanager
  def _using(self) -> Iterator[sqlite3.Connection]:
    """Yields the open file."""
    try:
      if self._connection is None:
        self._connection = self._open()
      yield self._connection
    except sqlite3.Error as error:
      raise UseError(self.path, error) from error

  @contextlib.contextmanager
  def _changing(self) -> Iterator[sqlite3.Connection]:
    """Yields the open file in a transaction that stays open."""
    with self._using() as connection:
      if not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")
      if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        for statement in _SCHEMA:
          connection.execute(statement)
        connection.execute("INSERT INTO run VALUES (?)", (self._key,))
      yield connection

  def _open(self) -> sqlite3.Connection:
    with files.writing(self.path):
      if not self._is_temporary:
        files.make_folder(self.path.parent)
        # SQLite would follow a link.
        os.close(files.open_to_append(self.path))
        return sqlite3.connect(self.path, isolation_level=None, timeout=1.0)
      handle, name = tempfile.mkstemp(".tmp", ".states-", self.path)
      os.close(handle)
    connection = sqlite3.connect(name, isolation_level=None)
    # Never committed: nothing needs to survive the process.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    os.unlink(name)
    return connection


def _content(num_clients: int, total: int) -> Content:
  return Content(num_clients, f"{total % _MODULUS:064x}")
