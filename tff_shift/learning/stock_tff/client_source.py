"""Clients' pipelines as a data source for the programs of TFF.

`tff.program.DatasetDataSource` is one, but `tff.learning.programs.train_model`
copies its iterator in each round, and TensorFlow cannot copy a pipeline that
has a function in it or was made by a `tff.simulation.datasets.ClientData`. It
also draws clients from Python's global random numbers. Here pipelines, which
never change, are shared by the copies, and who takes part in a round is a pure
function of (seed, round): a program that was stopped goes on as one that was
not.
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

# The seed, and the number of selections done.
_HEADER = struct.Struct("<QQ")


class ClientSource(tff.program.DatasetDataSource):
  """Draws clients without replacement in a round, in their order."""

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
  """Selects the clients of a round after those of the round before.

  As TFF's own, it is saved with the pipelines, and so with all data that they
  hold, in each program state.
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
      num_selections: How many selections were made before.
    """
    super().__init__(pipelines, federated_type)
    self._seed = seed
    self._num_selections = num_selections

  @classmethod
  def from_bytes(cls, buffer: bytes) -> Self:
    """Makes an iterator of what `to_bytes` gave."""
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
    """Returns an iterator of its own with the same pipelines."""
    return copy.copy(self)

  def select(self, k: int | None = None) -> list[tf.data.Dataset]:
    """Selects clients.

    Args:
      k: How many, from 1 to the number of clients.

    Returns:
      Their pipelines, in the order in which the source was given them.

    Raises:
      ValueError: If there are not so many clients.
    """
    num_clients = len(self._datasets)
    if k is None or not 1 <= k <= num_clients:
      raise ValueError(
        f"the number of clients of a round must lie in 1..{num_clients}, got"
        f" {k}"
      )
    # As `simulation.engine.rounds` draws them.
    words = randomness.derive(
      self._seed, randomness.Purpose.SAMPLE_CLIENTS, self._num_selections
    )
    generator = np.random.default_rng(words.view(np.uint32))
    self._num_selections += 1
    chosen = generator.choice(num_clients, k, replace=False)
    # The order of clients changes the last bits of a mean.
    return [self._datasets[client] for client in sorted(chosen)]
