"""Callbacks: what a run tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Protocol
from typing import TYPE_CHECKING

from tff_shift._util import arguments

if TYPE_CHECKING:
  import numpy as np

  from tff_shift.simulation.engine import rounds


class Measurements(Protocol):
  """The measurements of a step; each driver has its own type."""

  def rows(
    self, step: int
  ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, float | None]]]:
    """Yields what a table shows of the step, for each row.

    Args:
      step: The step.

    Yields:
      The columns that identify the row within the run, the number of the step
      or period last; and the metrics by name. None: there is no such value.
    """


class Callback:
  """Follows a run; subclasses override some of the methods.

  A resumed run first calls `on_loss` and `on_step` for earlier rounds and
  measurements, so a callback has the same knowledge as if the run had never
  stopped.

  Examples:
    >>> class Show(ts.Callback):
    ...   def on_step(self, step, loss, measured):
    ...     print(f"step {step}: loss {loss}")
    >>> callbacks = [Show()]  # For a driver, which calls the methods.
    >>> callbacks[0].on_step(1, 0.5, None)
    step 1: loss 0.5
  """

  def on_start(self, running: rounds.Rounds) -> None:
    """Called once, before everything else.

    Args:
      running: The rounds, in their initial state. The object is the same at
        every step, and its states change.
    """

  def on_loss(self, round_num: int, loss: float) -> None:
    """Called after each round.

    Args:
      round_num: The number of completed rounds.
      loss: The mean training loss of the clients of the round.
    """

  def on_step(
    self, step: int, loss: float | None, measured: Measurements | None
  ) -> None:
    """Called after each step.

    Args:
      step: The number of completed steps: rounds, or time steps.
      loss: The training loss of the step; None if it has none.
      measured: The measurements, of a type that the driver defines. None if the
        step was not evaluated.
    """

  def on_period(
    self, step: int, stream: str, period: int, accuracy: np.ndarray
  ) -> None:
    """Called after each period of a stream, for progress.

    Args:
      step: The step of the stream, not completed yet.
      stream: The name of the stream.
      period: The period, from 1.
      accuracy: The accuracy of each client in percent, [num_clients]; NaN for
        a client without examples in the period.
    """

  def should_stop(self) -> bool:
    """Returns whether the run ends after this step, asked after `on_step`.

    The answer must be a pure function of what `on_step` told, so that a resumed
    run stops at the same step.
    """
    return False

  def last_step(self) -> int | None:
    """Returns the last step of the results, asked at the end; None: all."""
    return None

  def on_end(self, running: rounds.Rounds) -> None:
    """Called once, at the end; resuming a finished run calls it again.

    Args:
      running: The rounds, from which the states of server and clients can be
        read, also from a file.
    """


class LambdaCallback(Callback):
  """A callback made of functions, as in Keras.

  Examples:
    >>> show = ts.LambdaCallback(
    ...   on_loss=lambda round_num, loss: print(f"round {round_num}: {loss}")
    ... )
    >>> show.on_loss(1, 0.5)  # The driver's call.
    round 1: 0.5
  """

  def __init__(self, **methods: Callable[..., Any]):
    """Replaces methods.

    Args:
      **methods: Functions by the names of the methods of `Callback`.

    Raises:
      ValueError: If there is no such method, or a value is not a function.
    """
    arguments.functions(**methods)
    for name, function in methods.items():
      if name not in vars(Callback):
        raise ValueError(
          f"{name} is not a method of Callback; it must be one of"
          f" {', '.join(each for each in vars(Callback) if each[0] != '_')}"
        )
      setattr(self, name, function)
