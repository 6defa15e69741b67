"""The files of states of `ts.Adapter`, and of its clients and server apart."""

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import weakref
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tff_shift._util import arguments
from tff_shift._util import files
from tff_shift._util import records
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import array_files
from tff_shift.data import examples as examples_lib
from tff_shift.data import table
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models import fingerprint
from tff_shift.serving import columns
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import run_file

# The maximum number of names in a line.
_MOST_NAMES = 10
_KEY = "states of adapters"
_REMEDY = "name another folder to start from the deployed model"
_DIGEST = re.compile(r'"[0-9a-f]{64}"')


class Saved(records.Record):
  """The record of a saved state.

  Attributes:
    timestep: The number of time steps.
    round_num: The number of rounds.
    origin: What determines the states, see `origin`.
    client_names: The names of the clients by position, see `Names.texts`.
    initial: The digest of the labelled examples of each client.
  """

  timestep: records.Count
  round_num: records.Count
  origin: dict[str, Any]
  client_names: tuple[str, ...] = ()
  initial: tuple[str | None, ...] = ()


_S = TypeVar("_S", bound=Saved)


class StateFile:
  """A file of states, which one object at a time may use.

  The lock belongs to the open file. The system releases it when the process
  ends, however it ends.

  Attributes:
    path: The file.
  """

  def __init__(self, folder: str | os.PathLike[str], name: str):
    """Creates and locks the folder; the first `save` creates the file.

    Args:
      folder: The folder of the state; a link is followed.
      name: The name of the file.

    Raises:
      ValueError: If the folder is in use, or the file is a link.
      files.WriteError: If the folder cannot be written.
    """
    folder = pathlib.Path(os.path.realpath(folder))
    self.path = folder / name
    files.make_folder(folder)
    with files.writing(folder):
      lock = os.open(folder / f".{name}.lock", os.O_WRONLY | os.O_CREAT, 0o666)
    self._unlock = weakref.finalize(self, os.close, lock)
    try:
      # Unlike `lockf`, also within a process.
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      self._unlock()
      if isinstance(error, BlockingIOError):
        raise ValueError(
          f"{folder} is in use by another object, in this process or another"
          " one; close it, or name another folder"
        ) from error
      raise files.WriteError(folder, error.strerror) from error
    run_file.remove_leftovers(folder, name)
    self._file = run_file.RunFile(self.path, _KEY)
    self._step = 0
    self._has_failed = False

  def restore(self, kind: type[_S]) -> _S | None:
    """Returns the last saved record; None without one.

    Raises:
      ValueError: If the file has another format or is damaged; one line.
    """
    self._file.check_format()
    try:
      saved = self._file.checkpoints()
      if not saved:
        return None
      self._step, text = next(iter(saved.items()))
      record = records.decode(text, kind)
      self._file.restore(self._step)
    except ValueError as error:
      raise ValueError(
        f"{self.path}: the saved state is damaged ({error}); {_REMEDY}"
      ) from error
    return record

  def check_origin(
    self, saved: Mapping[str, Any], current: Mapping[str, Any]
  ) -> None:
    """Refuses a state that other arguments have determined.

    Args:
      saved: The origin in the record, see `origin`.
      current: The present one.

    Raises:
      ValueError: If they differ; one line that names each difference.
    """
    differences = [
      _difference(name, saved.get(name), current.get(name))
      for name in dict.fromkeys([*saved, *current])
      if saved.get(name) != current.get(name)
    ]
    if differences:
      raise ValueError(
        f"{self.path}: the saved state is of another origin:"
        f" {'; '.join(differences)}. Use what it was saved with, or {_REMEDY}"
      )

  def save(
    self, states: Iterable[tuple[int, bytes]], kind: type[_S], **fields: Any
  ) -> None:
    """Saves all states, by client or `run_file.SERVER`, and a record.

    Args:
      states: The states.
      kind: The class of the record.
      **fields: Its fields.

    Raises:
      files.WriteError: If they cannot be written. The last saved ones remain,
        and the next call may succeed.
    """
    if not self._unlock.alive:
      raise files.WriteError(self.path, "it is closed")
    try:
      if self._has_failed:
        self._file = run_file.RunFile(self.path, _KEY)
        if self._step:
          self._file.restore(self._step)
        self._has_failed = False
      self._file.write(states)
      record = records.encode(kind(**fields), indent=None)
      self._file.commit(self._step + 1, record)
    except BaseException:
      # Discards what is not committed.
      self._file.close()
      self._has_failed = True
      raise
    self._step += 1

  def read(self, owner: int) -> bytes | None:
    """Returns the saved state of a client or the server; None without one."""
    return self._file.read(owner)

  def read_clients(self) -> Iterator[tuple[int, bytes]]:
    """Yields each client with a saved state, and the state."""
    return self._file.read_clients()

  def close(self) -> None:
    """Closes the file and releases the folder."""
    self._file.close()
    self._unlock()


class Names:
  """The names of clients.

  Attributes:
    names: The names by position.
  """

  def __init__(self, names: Sequence[Hashable]):
    """Raises a ValueError unless the names are different."""
    self.names = tuple(names)
    self._position = {name: i for i, name in enumerate(self.names)}
    # Saved states have the texts.
    if len(set(map(repr, self.names))) < len(self.names) or len(
      self._position
    ) < len(self.names):
      raise ValueError("client_names must be different")

  @property
  def texts(self) -> tuple[str, ...]:
    """The names as texts, by position, for a saved state."""
    return tuple(map(repr, self.names))

  def position(self, name: Hashable) -> int:
    """Returns the position of a client.

    Raises:
      ValueError: If it is unknown; one line.
    """
    try:
      return self._position[name]
    except (KeyError, TypeError):
      raise ValueError(
        f"client {name!r} is unknown"
        f"{arguments.did_you_mean(name, map(str, self._position))}; the"
        f" clients are {self.shown()}"
      ) from None

  def shown(self, positions: Sequence[int] | None = None) -> str:
    """Returns the names at some positions, or all; of many, the ends."""
    names = self.names
    if positions is not None:
      names = tuple(names[each] for each in positions)
    if len(names) <= _MOST_NAMES:
      return ", ".join(map(repr, names))
    return f"{names[0]!r}, {names[1]!r}, ..., {names[-1]!r} ({len(names)})"


def order(
  path: pathlib.Path, saved: Sequence[str], names: Sequence[Hashable]
) -> list[int]:
  """Returns the positions of names, those of a saved state first.

  Clients keep the position of their first time step, which their random numbers
  depend on; new ones follow.

  Args:
    path: The file of the saved state.
    saved: The saved names by position.
    names: The present names.

  Raises:
    ValueError: If a saved name is missing; one line that names it.
  """
  texts = list(map(repr, names))
  missing = [name for name in saved if name not in texts]
  if missing:
    new = [name for name in texts if name not in saved]
    raise ValueError(
      f"{path}: client_names lacks {columns.listed(missing)}, with a saved"
      " state"
      + (f", and has {columns.listed(new)}, without one" if new else "")
      + ". Keep the names of all saved clients: one that gets no batch is"
      " absent. A name cannot be changed"
    )
  known = [texts.index(name) for name in saved]
  return known + sorted(set(range(len(texts))).difference(known))


def origin(
  algorithm: algorithm_lib.FederatedAlgorithm, state: Any, **arguments: Any
) -> dict[str, Any]:
  """Returns what determines states, JSON types by name; digests of arrays.

  Args:
    algorithm: The algorithm.
    state: The first state of the server, a named tuple with `weights`.
    **arguments: Further arguments, JSON types.
  """
  others = state._replace(weights=())
  found = {
    "algorithm": algorithm.name,
    **{
      f"hparams.{name}": value
      for name, value in dataclasses.asdict(algorithm.hparams).items()
    },
    "model": fingerprint.function_digest(algorithm.model),
    "deployed weights": digest(state.weights),
    "aggregator, server optimizer or number of clients of the algorithm": (
      array_cache.key(
        {"structure": encoding.structure(state), "values": digest(others)}
      )
    ),
    **arguments,
  }
  # Tuples become lists, as in a file.
  return json.loads(json.dumps(records.to_json(found)))


def digest(arrays: Any) -> str | None:
  """Returns a digest of a nested structure of arrays; None without arrays."""
  if arrays is None:
    return None
  return array_cache.key(
    {
      "arrays": [
        array_files.digest(np.asarray(array))
        for array in tf.nest.flatten(arrays)
      ]
    }
  )


def key(
  algorithm: algorithm_lib.FederatedAlgorithm, state: Any, seed: int
) -> str:
  """Returns a digest of the origin of packets, see `origin`."""
  return array_cache.key(origin(algorithm, state, seed=seed))


def of_deployment(deployment: adaptation.Deployment) -> dict[str, Any]:
  """Returns the origin of all of a deployment but `initial`."""
  names = deployment.feature_names
  return {
    "deployment.confusion": digest(deployment.confusion),
    "deployment.held_out": digest(deployment.held_out),
    "deployment.feature_names": None if names is None else list(names),
  }


def by_client(names: Sequence[str], digests: Sequence[Any]) -> dict[str, Any]:
  """Returns the origin of the labelled examples of named clients."""
  return {
    f"deployment.initial of client {name}": found
    for name, found in zip(names, digests, strict=False)
  }


def _difference(name: str, saved: Any, current: Any) -> str:
  shown = [json.dumps(value) for value in (saved, current)]
  if any(_DIGEST.fullmatch(text) or len(text) > 80 for text in shown):
    return f"{name} differs"
  return f"{name} was {shown[0]}, and is {shown[1]}"


def with_examples(
  deployment: adaptation.Deployment,
  input_shape: Sequence[int],
  schema: table.Schema | None = None,
) -> tuple[adaptation.Deployment, table.Schema]:
  """Returns a deployment with `Examples` instead of pairs (x, y).

  Columns of data frames are matched by name, see `columns.matched`.

  Args:
    deployment: The deployment.
    input_shape: The shape of an input.
    schema: The names of the model's data. None: unknown.

  Returns:
    The deployment, and the schema with the deployment's names of features.

  Raises:
    ValueError: If an entry is no pair of arrays, or names of features do not
      fit the shape of an input; one line.
  """
  schema = schema or table.Schema()
  names = getattr(deployment, "feature_names", None)
  if names is None:
    names = schema.features
  if names is None:
    names = _columns_of(deployment.initial)
  if names is not None:
    schema = schema.replace(features=tuple(map(str, names)))
    examples_lib.check_feature_names(
      schema.features, (None, *input_shape), "deployment.feature_names"
    )

  def converted(pair, what):
    if pair is None:
      return None
    try:
      x, y = pair
    except (TypeError, ValueError):
      raise ValueError(
        f"{what} must be a pair of examples and labels"
      ) from None
    return examples_lib.Examples(
      examples_lib.as_array(
        columns.matched(x, schema, f"x of {what}"), f"x of {what}"
      ),
      examples_lib.as_array(y, f"y of {what}"),
    )

  converted_deployment = adaptation.Deployment(
    [
      converted(pair, f"deployment.initial of client {client}")
      for client, pair in enumerate(deployment.initial)
    ],
    deployment.confusion,
    converted(getattr(deployment, "held_out", None), "deployment.held_out"),
    getattr(deployment, "client_names", None),
    schema.features,
  )
  return converted_deployment, schema


def _columns_of(initial: Sequence[Any]) -> Sequence[str] | None:
  """Returns the columns of the first data frame of examples, if any."""
  for pair in initial:
    if isinstance(pair, tuple | list) and hasattr(pair[0], "columns"):
      return pair[0].columns
  return None
