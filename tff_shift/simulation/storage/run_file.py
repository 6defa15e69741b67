"""The file of a run: its checkpoints and all states, an SQLite database.

    run           the key of the run
    checkpoints   the record of each checkpoint, JSON text, and its digest
    states        one row per part of a state of the server or of a client
    measurements  one row per evaluation and metric: a value of each client
    evaluations   the columns of each evaluation in metrics.csv, JSON text
    details       the columns of the run, and the names of the clients

A checkpoint is one transaction. If the process is killed, SQLite discards the
writes after the last checkpoint. States that are written after the checkpoint
of step P have step P + 1. The checkpoint of step S thus consists of the last
rows up to S, and restoring it removes the rows above. The file has the last two
checkpoints.

The cost of a checkpoint depends on the number of changed states, not on the
number of clients. SQLite does not detect a changed bit in a row, so a
checkpoint has a digest of its record and of the sum of the digests of its
states, which is updated incrementally.

Choices:
  * TFF's `FileProgramStateManager` needs a folder and a SavedModel per
    checkpoint, writes all states each time, and is not atomic with the record.
  * A rollback journal with full synchronisation, for network folders.
    `secure_delete` is off: Debian's library has it on, which made a checkpoint
    of 80 MB take 1.1 s instead of 0.4 s. Pages have 16 kB; with 4 kB it took
    0.7 s. Old rows are removed at the end of a transaction, so that their space
    is reused without a copy in the journal: states that change between all
    checkpoints take three times their size, not two. An empty file has 131 kB.
  * SQLite takes only a path: the file is first opened without following links,
    then by SQLite.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import sqlite3
import tempfile
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift._util import files
from tff_shift.simulation.storage import client_values

# The owner of the server's state; clients are numbers from 0.
SERVER = -1

_FORMAT = 2
_NUM_KEPT = 2
_SUFFIXES = ("", "-journal")
# SQLite's header, with the position of `user_version`.
_MAGIC, _VERSION = b"SQLite format 3\0", slice(60, 64)
# SQLite's limit is 10^9 bytes in a row.
_MAX_PART = 2**28
# Fewer pages make large states faster; small changes write whole pages.
_PAGE_SIZE = 2**14
_MODULUS = 2**256
_ABOVE_ALL = 2**62
_SCHEMA = (
  "CREATE TABLE run (key TEXT NOT NULL)",
  "CREATE TABLE checkpoints"
  " (step INTEGER PRIMARY KEY, record TEXT NOT NULL, digest TEXT NOT NULL)",
  # The digest first: SQLite finds it without reading a long content.
  "CREATE TABLE states (owner INTEGER, part INTEGER, step INTEGER,"
  " digest BLOB NOT NULL, content BLOB NOT NULL,"
  " PRIMARY KEY (owner, part, step))",
  "CREATE INDEX states_by_step ON states (step)",
  "CREATE TABLE measurements (step INTEGER, metric TEXT,"
  " digest BLOB NOT NULL, content BLOB NOT NULL, PRIMARY KEY (step, metric))",
  "CREATE TABLE evaluations (step INTEGER PRIMARY KEY, places TEXT NOT NULL)",
  "CREATE TABLE details (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
  f"PRAGMA user_version = {_FORMAT}",
)
# The names of details.
_LABELS, _NAMES = "labels", "client_names"
_STEPPED = ("checkpoints", "states", "measurements", "evaluations")
_OF_CLIENTS = ("measurements", "evaluations")
_WRITE = (
  "INSERT INTO states VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, part, step)"
  " DO UPDATE SET digest = excluded.digest, content = excluded.content"
)
# In a query with MAX, SQLite takes the other columns from the same row.
_LAST_DIGEST = (
  "SELECT digest, MAX(step) FROM states WHERE owner = ? AND part = ?"
)
_LAST_PARTS = (
  "SELECT content, MAX(step) FROM states WHERE owner = ? GROUP BY part"
)
# The plus sign has SQLite read in the order of owners, not of steps.
_ALL = (
  "SELECT owner, part, CAST(content AS BLOB), MAX(step) FROM states"
  " WHERE +step <= ? GROUP BY owner, part"
)
# Deletes the rows that have a newer one between two steps.
_PRUNE = (
  "DELETE FROM states WHERE rowid IN (SELECT old.rowid FROM states AS newer"
  " CROSS JOIN states AS old USING (owner, part)"
  " WHERE newer.step > ? AND newer.step <= ? AND old.step < newer.step)"
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


def remove_leftovers(folder: pathlib.Path, name: str = "*") -> None:
  """Removes the temporary files of processes that were killed.

  Args:
    folder: The folder, which this process has locked.
    name: A pattern for the names of files of runs.
  """
  with files.writing(folder):
    for path in list(folder.glob(files.temporary_pattern(name))):
      files.remove(path)


def _digest(owner: int, part: int, content: bytes | memoryview) -> bytes:
  found = hashlib.sha256(f"{owner}/{part}/".encode())
  found.update(content)
  return found.digest()


def _checkpoint_digest(step: int, record: str, total: int) -> str:
  """Returns the digest of a checkpoint.

  Args:
    step: Its step.
    record: Its record.
    total: The sum of the digests of its states.
  """
  text = f"{step}/{total % _MODULUS}/{record}"
  return hashlib.sha256(text.encode()).hexdigest()


class RunFile:
  """The checkpoints and states of a run; created by the first write.

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
    self._forget()

  def _forget(self) -> None:
    self._connection: sqlite3.Connection | None = None
    # The digests of the values of clients in the file, by step.
    self._measured = {}
    # The step of the next writes, and those of checkpoints, descending.
    self._next, self._steps = 1, []
    self._sum = 0

  def exists(self) -> bool:
    """Whether there is a file."""
    return not self._is_temporary and self.path.exists()

  def check_format(self) -> None:
    """Raises a ValueError if the file has another format."""
    if self.exists():
      with files.reading(self.path) as file:
        header = file.read(_VERSION.stop)
      found = int.from_bytes(header[_VERSION], "big")
      if header.startswith(_MAGIC) and found != _FORMAT:
        raise ValueError(
          f"{self.path} has format {found}, and this version of tff_shift reads"
          f" format {_FORMAT}; start again in another folder or overwrite it"
        )

  def checkpoints(self) -> dict[int, str]:
    """Returns the record of each checkpoint by step, the last one first.

    Raises:
      UnusableError: If the file is damaged or of another run.
    """
    if not self.exists():
      return {}
    with self._reading() as connection:
      if connection.execute("SELECT * FROM run").fetchall() != [(self._key,)]:
        raise UnusableError("it belongs to a run with other flags")
      return dict(
        connection.execute(
          "SELECT step, record FROM checkpoints ORDER BY step DESC"
        )
      )

  def last_step(self) -> int:
    """Returns the step of the last written state, 0 without any."""
    with self._reading() as connection:
      (last,) = connection.execute("SELECT MAX(step) FROM states").fetchone()
    return last or 0

  def restore(self, step: int) -> None:
    """Restores and verifies the states of a checkpoint.

    Raises:
      UnusableError: If it has changed or is missing; the file stays as it is.
    """
    total = 0
    with self._reading() as connection:
      for owner, part, state, _ in connection.execute(_ALL, (step,)):
        total += int.from_bytes(_digest(owner, part, state), "little")
      saved = {
        row[0]: row[1:]
        for row in connection.execute(
          "SELECT * FROM checkpoints ORDER BY step DESC"
        )
      }
    record, digest = saved.get(step, ("", ""))
    if digest != _checkpoint_digest(step, record, total):
      raise UnusableError("it is damaged: its digest is another")
    steps = list(saved)
    if max(self.last_step(), steps[0]) > step:
      with self._changing() as connection:
        self._remove_above(connection, step)
    self._steps = [each for each in steps if each <= step]
    self._next = step + 1
    self._sum = total

  def move(self, step: int) -> None:
    """Makes the restored states those of an earlier step.

    The next `commit`, of this step, replaces all checkpoints.
    """
    with self._changing() as connection:
      connection.execute(_PRUNE, (0, _ABOVE_ALL))
      connection.execute(
        "UPDATE states SET step = ? WHERE step > ?", (step, step)
      )
      connection.execute("DELETE FROM checkpoints")
      self._remove_above(connection, step)
    self._next, self._steps = step, []

  def _remove_above(self, connection: sqlite3.Connection, step: int) -> None:
    for table in _STEPPED:
      connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

  @property
  def _has_content(self) -> bool:
    """Whether there is a file, which reading would otherwise create."""
    return self._connection is not None or self.exists()

  def read(self, owner: int) -> bytes | None:
    """Returns the last state of a client or the server; None: there is none."""
    if not self._has_content:
      return None
    with self._using() as connection:
      parts = connection.execute(_LAST_PARTS, (owner,)).fetchall()
    return b"".join(part for part, _ in parts) if parts else None

  def read_clients(self) -> Iterator[tuple[int, bytes]]:
    """Yields each client with a state, in order, and its last state."""
    if self._has_content:
      with self._using() as connection:
        rows = connection.execute(_ALL, (_ABOVE_ALL,))
        for owner, parts in itertools.groupby(rows, lambda row: row[0]):
          if owner != SERVER:
            yield owner, b"".join(part[2] for part in parts)

  def write(self, states: Iterable[tuple[int, bytes]]) -> None:
    """Writes new states, made permanent by the next `commit`.

    Args:
      states: Clients, or `SERVER`, and their states. All states of an owner
        have the same size.

    Raises:
      UseError: If they cannot be written.
    """
    with self._changing() as connection:
      for owner, content in states:
        starts = range(0, max(1, len(content)), _MAX_PART)
        for part, start in enumerate(starts):
          piece = memoryview(content)[start : start + _MAX_PART]
          digest = _digest(owner, part, piece)
          last, _ = connection.execute(_LAST_DIGEST, (owner, part)).fetchone()
          self._sum -= int.from_bytes(last or b"", "little")
          self._sum += int.from_bytes(digest, "little")
          connection.execute(_WRITE, (owner, part, self._next, digest, piece))

  def read_measurements(self) -> dict[str, bytes]:
    """Returns all values of clients, by digest."""
    with self._reading() as connection:
      return {
        client_values.digest(step, metric, content).hex(): content
        for step, metric, content in connection.execute(
          "SELECT step, metric, CAST(content AS BLOB) FROM measurements"
        )
      }

  def keep_measurements(
    self, measured: Iterable[client_values.ClientValues]
  ) -> None:
    """Notes the restored values of clients, which `write_measurements` keeps.

    Args:
      measured: Those of the restored checkpoint.
    """
    self._measured = {each.step: each.digests for each in measured}

  def write_measurements(
    self, measured: Sequence[client_values.ClientValues]
  ) -> None:
    """Makes the values of clients those of a run, with the next `commit`.

    Args:
      measured: All of the run so far. Those in the file are not written again.

    Raises:
      UseError: If they cannot be written.
    """
    wanted = {each.step: each for each in measured}
    removed = [
      step
      for step, digests in self._measured.items()
      if step not in wanted or wanted[step].digests != digests
    ]
    added = [
      each
      for step, each in wanted.items()
      if self._measured.get(step) != each.digests
    ]
    if not removed and not added:
      return
    with self._changing() as connection:
      for table in _OF_CLIENTS:
        connection.executemany(
          f"DELETE FROM {table} WHERE step = ?", [(step,) for step in removed]
        )
      for each in added:
        connection.execute(
          "INSERT INTO evaluations VALUES (?, ?)",
          (each.step, json.dumps(each.places)),
        )
        connection.executemany(
          "INSERT INTO measurements VALUES (?, ?, ?, ?)",
          [
            (each.step, name, bytes.fromhex(digest), each[name].tobytes())
            for name, digest in each.digests.items()
          ],
        )
    self._measured = {step: each.digests for step, each in wanted.items()}

  def write_details(
    self, labels: Mapping[str, Any], client_names: Sequence[str] | None
  ) -> None:
    """Writes what readers need to know, with the next `commit`.

    Args:
      labels: The columns of the run in `metrics.csv`, in JSON types.
      client_names: The names of the clients. None: unknown.

    Raises:
      UseError: If they cannot be written.
    """
    details: dict[str, Any] = {_LABELS: dict(labels)}
    if client_names is not None:
      details[_NAMES] = list(client_names)
    with self._changing() as connection:
      connection.executemany(
        "INSERT INTO details VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        [(name, json.dumps(each)) for name, each in details.items()],
      )

  def commit(self, step: int, record: str) -> None:
    """Makes the writes and a record permanent, as the checkpoint of a step.

    Args:
      step: The step, above the steps of earlier calls.
      record: The record.

    Raises:
      UseError: If the file cannot be written; earlier checkpoints remain.
    """
    steps = [step, *self._steps]
    with self._changing() as connection:
      connection.execute(
        "INSERT INTO checkpoints VALUES (?, ?, ?)",
        (step, record, _checkpoint_digest(step, record, self._sum)),
      )
      # Here, not with the next writes: SQLite reuses the space of rows that an
      # earlier transaction removed without a copy in the journal.
      for removed in steps[_NUM_KEPT:]:
        connection.execute("DELETE FROM checkpoints WHERE step = ?", (removed,))
        connection.execute(_PRUNE, (removed, steps[_NUM_KEPT - 1]))
      connection.execute("COMMIT")
    self._next, self._steps = step + 1, steps[:_NUM_KEPT]

  def remove(self) -> None:
    """Removes the file, even if damaged; a write creates a new one."""
    self.close()
    self._forget()
    if not self._is_temporary:
      for suffix in _SUFFIXES:
        files.remove(self.path.with_name(self.path.name + suffix))

  def close(self) -> None:
    """Closes the file; uncommitted writes are lost."""
    if self._connection is not None:
      self._connection.close()

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
  def _reading(self) -> Iterator[sqlite3.Connection]:
    """Yields the open file; damage is an `UnusableError`."""
    try:
      with self._using() as connection:
        yield connection
    except UseError as error:
      if not error.is_damage:
        raise
      raise UnusableError(f"the file is damaged: {error.strerror}") from error

  @contextlib.contextmanager
  def _changing(self) -> Iterator[sqlite3.Connection]:
    """Yields the open file in a transaction that stays open."""
    with self._using() as connection:
      try:
        if not connection.in_transaction:
          connection.execute("BEGIN IMMEDIATE")
        yield connection
      except sqlite3.Error:
        # Restores the last checkpoint and releases the file.
        connection.close()
        raise

  def _open(self) -> sqlite3.Connection:
    with files.writing(self.path):
      if self._is_temporary:
        handle, name = tempfile.mkstemp(".tmp", ".states-", self.path)
        os.close(handle)
        connection = _connect(name, is_temporary=True)
        self._create_tables(connection)
        os.unlink(name)
        return connection
      files.make_folder(self.path.parent)
      if not self.path.exists():
        self._create()
    return _connect(self.path)

  def _create(self) -> None:
    """Creates the file; a process that is killed here leaves none."""
    temporary = files.temporary_path(self.path)
    try:
      # With the permissions of other files. SQLite would give fewer.
      temporary.touch(exist_ok=False)
      with contextlib.closing(
        _connect(temporary, is_temporary=True)
      ) as connection:
        self._create_tables(connection)
      os.replace(temporary, self.path)
    finally:
      temporary.unlink(missing_ok=True)

  def _create_tables(self, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
      connection.execute(statement)
    connection.execute("INSERT INTO run VALUES (?)", (self._key,))
    connection.execute("COMMIT")


def _connect(
  name: str | pathlib.Path, *, is_temporary: bool = False
) -> sqlite3.Connection:
  connection = sqlite3.connect(name, isolation_level=None, timeout=1.0)
  # A temporary file need not survive the process. A rollback journal also
  # works in network folders, where processes cannot share memory.
  modes = ("OFF", "OFF") if is_temporary else ("DELETE", "FULL")
  for setting in (
    f"journal_mode = {modes[0]}",
    f"synchronous = {modes[1]}",
    f"page_size = {_PAGE_SIZE}",
    # Otherwise SQLite may overwrite removed rows with zeros.
    "secure_delete = OFF",
  ):
    connection.execute(f"PRAGMA {setting}")
  return connection


class SavedValues(NamedTuple):
  """The values of clients in the file of a run.

  Attributes:
    labels: The columns of the run in `metrics.csv`.
    client_names: The names of the clients. None: unknown.
    values: Those of each evaluation, in order.
  """

  labels: Mapping[str, Any]
  client_names: Sequence[str] | None
  values: Sequence[client_values.ClientValues]


def read_clients(path: pathlib.Path) -> SavedValues | None:
  """Reads the values of clients from the file of a run; changes nothing.

  Args:
    path: The file. Its run may be active: the result is of its last checkpoint.

  Returns:
    The values; None before the first checkpoint.

  Raises:
    ValueError: If the file cannot be read, or values are damaged; one line.
  """
  RunFile(path).check_format()
  try:
    with contextlib.closing(
      sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as connection:
      # In one transaction, between two checkpoints of an active run.
      connection.execute("BEGIN")
      details = {
        name: json.loads(value)
        for name, value in connection.execute("SELECT * FROM details")
      }
      if _LABELS not in details:
        return None
      places = connection.execute("SELECT * FROM evaluations").fetchall()
      rows = connection.execute(
        "SELECT step, metric, digest, content FROM measurements ORDER BY rowid"
      ).fetchall()
  except (sqlite3.Error, ValueError) as error:
    raise ValueError(
      f"{path}: the values of clients cannot be read ({error}); if a run is"
      " active here, wait for it, and if it was interrupted, continue it with"
      " --resume"
    ) from error
  by_step = {}
  for step, metric, digest, content in rows:
    if digest != client_values.digest(step, metric, content):
      raise ValueError(
        f"{path}: the values of clients are damaged: {metric} of step {step}"
        " has changed"
      )
    by_step.setdefault(step, {})[metric] = content
  values = []
  for step, text in sorted(places):
    found = json.loads(text)
    values.append(
      client_values.ClientValues(
        step,
        found,
        {
          metric: np.frombuffer(content, "<f4").reshape(len(found), -1)
          for metric, content in by_step.get(step, {}).items()
        },
      )
    )
  return SavedValues(details[_LABELS], details.get(_NAMES), values)
