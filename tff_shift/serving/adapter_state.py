"""The files of states of `ts.Adapter`, and of its clients and server apart."""

import dataclasses
import os
import pathlib
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tff_shift import arguments
from tff_shift import records
from tff_shift.data import examples as examples_lib
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models import fingerprint
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import run_file
from tff_shift.techniques import adaptation

# The maximum number of names in a line.
_MOST_NAMES = 10


class Saved(records.Record):
  """The record of a saved state.

  Attributes:
    timestep: The number of time steps.
    round_num: The number of rounds.
    states: The states in the file.
  """

  timestep: records.Count
  round_num: records.Count
  states: run_file.Content


_S = TypeVar("_S", bound=Saved)


class StateFile:
  """A file of states that belong to one algorithm and its arguments.

  Attributes:
    path: The file.
  """

  def __init__(self, folder: str | os.PathLike[str], name: str, key: str):
    """Sets the path; the first `save` creates the file.

    Args:
      folder: The folder of the state.
      name: The name of the file.
      key: The key of everything that determines the states.
    """
    self.path = pathlib.Path(folder) / name
    self._file = run_file.RunFile(self.path, key)
    self._step = 0

  def restore(self, kind: type[_S]) -> _S | None:
    """Returns the last saved record; None without one.

    Raises:
      ValueError: If the file has another key or is damaged; one line.
    """
    self._file.check_format()
    try:
      saved = self._file.checkpoints()
      if not saved:
        return None
      self._step, text = next(iter(saved.items()))
      record = records.decode(text, kind)
      self._file.restore(self._step, record.states)
    except (run_file.UnusableError, ValueError) as error:
      raise ValueError(
        f"{self.path}: the saved state is of another model, deployment or"
        f" other arguments, or damaged ({error}); name another folder to start"
        " from the deployed model"
      ) from error
    return record

  def save(
    self, states: Iterable[tuple[int, bytes]], kind: type[_S], **fields: Any
  ) -> None:
    """Saves states, by client or `run_file.SERVER`, and a record.

    Args:
      states: The states.
      kind: The class of the record.
      **fields: Its fields but `states`.

    Raises:
      files.WriteError: If they cannot be written.
    """
    self._file.write(states)
    record = kind(states=self._file.content, **fields)
    self._file.commit(self._step + 1, records.encode(record, indent=None))
    self._step += 1

  def read(self, owner: int) -> bytes | None:
    """Returns the saved state of a client or the server; None without one."""
    return self._file.read(owner)

  def read_clients(self) -> Iterator[tuple[int, bytes]]:
    """Yields each client with a saved state, and the state."""
    return self._file.read_clients()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class Names:
  """The names of clients.

  Attributes:
    names: The names by position.
  """

  def __init__(self, names: Sequence[Hashable]):
    """Raises a ValueError unless the names are different."""
    self.names = tuple(names)
    self._position = {name: i for i, name in enumerate(self.names)}
    if len(self._position) < len(self.names):
      raise ValueError("client_names must be different")

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


def key(
  algorithm: algorithm_lib.FederatedAlgorithm, arrays: Any, **arguments: Any
) -> str:
  """Returns the key of everything that determines states.

  Args:
    algorithm: The algorithm.
    arrays: A nested structure of arrays, such as the deployed weights.
    **arguments: Other arguments, JSON types.
  """
  return array_cache.key(
    {
      "algorithm": algorithm.name,
      "hparams": dataclasses.asdict(algorithm.hparams),
      "model": fingerprint.function_digest(algorithm.model),
      "arrays": [
        array_cache.array_digest(np.asarray(array))
        for array in tf.nest.flatten(arrays)
      ],
      **arguments,
    }
  )


def arrays_of(deployment: adaptation.Deployment) -> list[Any]:
  """Returns the arrays of a deployment, for `key`."""
  return [
    deployment.confusion,
    *deployment.initial,
    *(deployment.held_out or ()),
  ]


def with_examples(deployment: adaptation.Deployment) -> adaptation.Deployment:
  """Returns a deployment with `Examples` instead of pairs (x, y).

  Raises:
    ValueError: If an entry is no pair of arrays; one line.
  """

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
      examples_lib.as_array(x, f"x of {what}"),
      examples_lib.as_array(y, f"y of {what}"),
    )

  return adaptation.Deployment(
    [
      converted(pair, f"deployment.initial of client {client}")
      for client, pair in enumerate(deployment.initial)
    ],
    deployment.confusion,
    converted(getattr(deployment, "held_out", None), "deployment.held_out"),
  )
