"""Streams and periods of given batches, instead of batches from a pool."""

from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.data import partition


class Streams:
  """Given streams, with the interface of `online_adaptation.Streams`.

  Attributes:
    omega: A number for each of the time steps 0..T, `[T + 1]`, for reports
      only.
    num_classes: The number of classes.
    num_clients: The number of clients.
    num_timesteps: T.
  """

  def __init__(
    self,
    batches: Sequence[Sequence[examples_lib.Examples]],
    omega: np.ndarray,
    num_classes: int,
  ):
    """Stores arguments that `from_arrays.online_adaptation` has validated.

    Args:
      batches: The examples by client and time step.
      omega: A number for each of the time steps 0..T.
      num_classes: The number of classes.
    """
    self._batches = batches
    self.omega = omega
    self.num_classes = num_classes
    self.num_clients = len(batches)
    self.num_timesteps = len(batches[0])

  def batch(self, client: int, timestep: int) -> examples_lib.Examples:
    """Returns a client's examples at a time step, from 1."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("timestep", timestep, 1, self.num_timesteps)
    return self._batches[client][timestep - 1]


class Periods:
  """Given periods, with the interface of `dynamic_personalization.Periods`.

  Attributes:
    num_classes: The number of classes.
    num_clients: The number of clients.
    num_periods: The number of periods of each client.
  """

  def __init__(
    self,
    batches: Sequence[Sequence[examples_lib.Examples]],
    drifted: np.ndarray,
    num_classes: int,
  ):
    """Stores validated arguments of `from_arrays.dynamic_personalization`.

    Args:
      batches: The examples by client and period.
      drifted: `[num_clients, num_periods]` bool: whether a period's
        distribution differs from the previous one.
      num_classes: The number of classes.
    """
    self._batches = batches
    self._drifted = drifted
    self.num_classes = num_classes
    self.num_clients, self.num_periods = drifted.shape

  def batch(self, client: int, period: int) -> examples_lib.Examples:
    """Returns a client's examples in a period, from 0.

    Raises:
      ValueError: If there is no such client or period.
    """
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("period", period, 0, self.num_periods - 1)
    return self._batches[client][period]

  def is_drift(self, client: int, period: int) -> bool:
    """Returns whether a period, from 1, differs from the previous one."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("period", period, 1, self.num_periods - 1)
    return bool(self._drifted[client, period])
