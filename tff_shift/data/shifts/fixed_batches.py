"""Streams and periods of given batches, instead of batches from a pool."""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data import preparation


class Streams:
  """Given streams, with the interface of `online_adaptation.Streams`.

  A client without examples at a time step is absent.

  Attributes:
    omega: A number for each of the time steps 0..T, `[T + 1]`, for reports
      only. None: not known.
    num_classes: The number of classes.
    num_clients: The number of clients.
    num_timesteps: T.
  """

  def __init__(
    self,
    batches: Sequence[Sequence[examples_lib.Examples]],
    omega: np.ndarray | None,
    num_classes: int,
    first: Sequence[np.ndarray] | None = None,
  ):
    """Stores arguments that `from_arrays.online_adaptation` has validated.

    Args:
      batches: The examples by client and time step.
      omega: A number for each of the time steps 0..T. None: not known.
      num_classes: The number of classes.
      first: The classes of each client's examples before time step 1, for the
        true shift. None: not known.
    """
    self._batches = batches
    self._first = first
    self.omega = omega
    self.num_classes = num_classes
    self.num_clients = len(batches)
    self.num_timesteps = len(batches[0])

  def batch(self, client: int, timestep: int) -> examples_lib.Examples:
    """Returns a client's examples at a time step, from 1."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("timestep", timestep, 1, self.num_timesteps)
    return self._batches[client][timestep - 1]

  def until(self, num_timesteps: int) -> "Streams":
    """Returns the first time steps."""
    partition.check_position(
      "num_timesteps", num_timesteps, 1, self.num_timesteps
    )
    return Streams(
      [client_batches[:num_timesteps] for client_batches in self._batches],
      None if self.omega is None else self.omega[: num_timesteps + 1],
      self.num_classes,
      self._first,
    )

  def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "Streams":
    """Returns the streams with a function of x applied."""
    return Streams(
      preparation.mapped(self._batches, function),
      self.omega,
      self.num_classes,
      self._first,
    )

  def class_distribution(self, client: int, timestep: int) -> np.ndarray:
    """Returns the label distribution of a client's examples.

    Args:
      client: The client.
      timestep: The time step; 0: before time step 1.

    Returns:
      `[num_classes]` float64; NaN if the client has no examples.

    Raises:
      ValueError: If there is no such client or time step.
    """
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("timestep", timestep, 0, self.num_timesteps)
    y = np.empty(0, np.int32)
    if timestep:
      y = self._batches[client][timestep - 1].y
    elif self._first is not None:
      y = self._first[client]
    if not len(y):
      return np.full(self.num_classes, np.nan)
    return np.bincount(y, minlength=self.num_classes) / len(y)

  def shift(self, client: int, timestep: int) -> float:
    """Returns the shift of a client's labels since its previous examples.

    Args:
      client: The client.
      timestep: The time step, from 1.

    Returns:
      The L1 distance of the label distributions at the time step and at the
      last one before it at which the client has examples. NaN if the client has
      no examples at either.

    Raises:
      ValueError: If there is no such client or time step.
    """
    partition.check_position("timestep", timestep, 1, self.num_timesteps)
    now = self.class_distribution(client, timestep)
    for earlier in range(timestep - 1, -1, -1):
      before = self.class_distribution(client, earlier)
      if not np.isnan(before).any():
        return float(np.abs(now - before).sum())
    return float("nan")


class Periods:
  """Given periods, with the interface of `dynamic_personalization.Periods`.

  A client without examples in a period is absent.

  Attributes:
    num_classes: The number of classes.
    num_clients: The number of clients.
    num_periods: The number of periods of each client.
  """

  def __init__(
    self,
    batches: Sequence[Sequence[examples_lib.Examples]],
    drifted: np.ndarray | None,
    num_classes: int,
    *,
    repeats: bool = False,
  ):
    """Stores validated arguments of `from_arrays.dynamic_personalization`.

    Args:
      batches: The examples by client and period.
      drifted: `[num_clients, num_periods]` bool: whether a period's
        distribution differs from the previous one. None: not known.
      num_classes: The number of classes.
      repeats: Whether the periods repeat from period 0 after the last one.
    """
    self._batches = batches
    self._drifted = drifted
    self._repeats = repeats
    self.num_classes = num_classes
    self.num_clients, self.num_periods = len(batches), len(batches[0])

  def batch(self, client: int, period: int) -> examples_lib.Examples:
    """Returns a client's examples in a period, from 0.

    Raises:
      ValueError: If there is no such client or period.
    """
    partition.check_position("client", client, 0, self.num_clients - 1)
    if self._repeats and period >= 0:
      period %= self.num_periods
    partition.check_position("period", period, 0, self.num_periods - 1)
    return self._batches[client][period]

  def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "Periods":
    """Returns the periods with a function of x applied."""
    return Periods(
      preparation.mapped(self._batches, function),
      self._drifted,
      self.num_classes,
      repeats=self._repeats,
    )

  def is_drift(self, client: int, period: int) -> bool | None:
    """Returns whether a period, from 1, differs from the previous one.

    None if it is not known.
    """
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("period", period, 1, self.num_periods - 1)
    return (
      None if self._drifted is None else bool(self._drifted[client, period])
    )
