"""Streams and periods that are given, in the place of those that are drawn."""

from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.data import partition


class Streams:
  """Streams that are given, as `online_adaptation.Streams` draws them.

  Attributes:
    omega: A number for each of the time steps 0..T, `[T + 1]`; results show it,
      and nothing depends on it.
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
    """Keeps what `from_arrays.online_adaptation` has checked.

    Args:
      batches: The examples by client and time step.
      omega: See above.
      num_classes: The number of classes.
    """
    self._batches = batches
    self.omega = omega
    self.num_classes = num_classes
    self.num_clients = len(batches)
    self.num_timesteps = len(batches[0])

  def batch(self, client: int, timestep: int) -> examples_lib.Examples:
    """Returns what a client meets at a time step, from 1."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("timestep", timestep, 1, self.num_timesteps)
    return self._batches[client][timestep - 1]


class Periods:
  """Periods that are given, as `periods.Periods` draws them.

  Attributes:
    num_classes: The number of classes.
    num_clients: The number of clients.
    num_periods: The number of periods of each.
  """

  def __init__(
    self,
    batches: Sequence[Sequence[examples_lib.Examples]],
    drifted: np.ndarray,
    num_classes: int,
  ):
    """Keeps what `from_arrays.dynamic_personalization` has checked.

    Args:
      batches: The examples by client and period.
      drifted: `[num_clients, num_periods]` bool, see
        `from_arrays.dynamic_personalization`.
      num_classes: The number of classes.
    """
    self._batches = batches
    self._drifted = drifted
    self.num_classes = num_classes
    self.num_clients, self.num_periods = drifted.shape

  def batch(self, client: int, period: int) -> examples_lib.Examples:
    """Returns what a client holds in a period, from 0.

    Args:
      client: The client.
      period: The period.

    Returns:
      The examples.

    Raises:
      ValueError: If there is no such client or period.
    """
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("period", period, 0, self.num_periods - 1)
    return self._batches[client][period]

  def is_drift(self, client: int, period: int) -> bool:
    """Returns whether a period, from 1, differs from the one before."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("period", period, 1, self.num_periods - 1)
    return bool(self._drifted[client, period])
