"""A data source of clients' pipelines for TFF's programs.

`tff.learning.programs.train_model` copies the iterator of its data source in
each round. With `tff.program.DatasetDataSource` this fails, since TensorFlow
cannot copy a pipeline that contains a function or was made by a
`tff.simulation.datasets.ClientData`. That class also samples clients with
Python's global random numbers. Here the copies share the pipelines, which never
change, and the cohort of a round is a pure function of (seed, round): resumed
programs sample the same cohorts as uninterrupted ones.
"""

import copy
import struct
from collections.abc import Sequence
from typing import Any
from typing import Self

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.learning import randomness

# The seed, and the number of completed selections.
_HEADER = struct.Struct("<QQ")


class ClientSource(tff.program.DatasetDataSource):
  """Samples the clients of a round without replacement, sorted by index."""

  def __init__(self, pipelines: Sequence[tf.data.Dataset], seed: int = 0):
    """Makes a data source.

    Args:
      pipelines: One for each client; all have the same `element_spec`.
      seed: The run's seed, from 0 to 2**32 - 1.

    Raises:
      ValueError: If there is no pipeline, or they differ.
    """
    super().__init__(pipelines)
    self._pipelines = tuple(pipelines)
    self._seed = seed

  def iterator(self) -> "ClientSourceIterator":
    """Returns an iterator that starts with the first round."""
    return ClientSourceIterator(
      self._pipelines, self.federated_type, self._seed, num_selections=0
    )


class ClientSourceIterator(tff.program.DatasetDataSourceIterator):
  """Selects the cohorts of consecutive rounds.

  Like TFF's own iterator, it is saved in each program state together with the
  pipelines and all data that they contain.
  """

  def __init__(
    self,
    pipelines: Sequence[tf.data.Dataset],
    federated_type: tff.FederatedType,
    seed: int,
    num_selections: int,
  ):
    """Makes an iterator.

    Args:
      pipelines: One for each client.
      federated_type: The type of a selection.
      seed: The run's seed.
      num_selections: The number of earlier selections.
    """
    super().__init__(pipelines, federated_type)
    self._seed = seed
    self._num_selections = num_selections

  @classmethod
  def from_bytes(cls, buffer: bytes) -> Self:
    """Restores an iterator from the result of `to_bytes`."""
    stock = tff.program.DatasetDataSourceIterator.from_bytes(
      buffer[_HEADER.size :]
    )
    return cls(
      stock._datasets,
      stock.federated_type,
      *_HEADER.unpack_from(buffer),
    )

  def to_bytes(self) -> bytes:
    """Returns the iterator, with the pipelines, as bytes."""
    header = _HEADER.pack(self._seed, self._num_selections)
    return header + super().to_bytes()

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    """Returns a new iterator that shares the pipelines."""
    return copy.copy(self)

  def select(self, k: int | None = None) -> list[tf.data.Dataset]:
    """Selects clients.

    Args:
      k: The number of clients, from 1 to all of them.

    Returns:
      Their pipelines, in the order of the source.

    Raises:
      ValueError: If k is outside of this range.
    """
    num_clients = len(self._datasets)
    if k is None or not 1 <= k <= num_clients:
      raise ValueError(
        f"the number of clients of a round must lie in 1..{num_clients}, got"
        f" {k}"
      )
    # The same draw as in `simulation.engine.rounds`.
    words = randomness.derive(
      self._seed, randomness.Purpose.SAMPLE_CLIENTS, self._num_selections
    )
    generator = np.random.default_rng(words.view(np.uint32))
    self._num_selections += 1
    chosen = generator.choice(num_clients, k, replace=False)
    # The order of clients changes the last bits of a mean.
    return [self._datasets[client] for client in sorted(chosen)]
