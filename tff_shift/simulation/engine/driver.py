"""The one loop of all drivers: steps, callbacks and checkpoints.

A scenario defines the steps of a run and their measurements (`Steps`). `run`
performs them, tells callbacks what happens (`callbacks.Callback`), and saves
and resumes the run.
"""

import abc
import contextlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tff_shift._util import signals
from tff_shift.simulation.engine import callbacks as callbacks_lib
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import checks
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import rounds


class _Callbacks(callbacks_lib.Callback):
  """Calls several callbacks in order."""

  def __init__(self, callbacks: Sequence[callbacks_lib.Callback]):
    self._callbacks = callbacks

  def on_start(self, *args):
    for each in self._callbacks:
      each.on_start(*args)

  def on_loss(self, *args):
    for each in self._callbacks:
      each.on_loss(*args)

  def on_step(self, *args):
    for each in self._callbacks:
      each.on_step(*args)

  def on_period(self, *args):
    for each in self._callbacks:
      each.on_period(*args)

  def should_stop(self):
    return any(each.should_stop() for each in self._callbacks)

  def last_step(self):
    found = [each.last_step() for each in self._callbacks]
    return min((each for each in found if each is not None), default=None)

  def on_end(self, *args):
    for each in self._callbacks:
      each.on_end(*args)


class Steps(abc.ABC):
  """The steps of a run, as a scenario defines them.

  Attributes:
    num_steps: The number of steps.
    client_names: The names of the clients, for readers of the values of
      clients. None: unknown.
  """

  num_steps: int
  client_names: Sequence[str] | None = None

  @abc.abstractmethod
  def start(
    self,
    storage: client_states.Storage | None,
    callback: callbacks_lib.Callback,
  ) -> rounds.Rounds:
    """Returns the rounds in their initial state.

    Args:
      storage: The storage of client states, for `rounds.Rounds`.
      callback: Its `on_loss` is for `rounds.Rounds`, `on_period` for streams.
    """

  @abc.abstractmethod
  def step(
    self, running: rounds.Rounds, step: int, measured: list[Any]
  ) -> float | None:
    """Performs a step.

    Args:
      running: The rounds.
      step: The step, from 1.
      measured: The earlier measurements. Those of the step, if there are any,
        are appended: a named tuple, see `checkpoints.steps`.

    Returns:
      The training loss of the step; None if it has none.
    """

  @abc.abstractmethod
  def make(self, **fields: Any) -> Any:
    """Makes measurements from their fields in a checkpoint."""

  @abc.abstractmethod
  def told(self, measured: Any) -> tuple[int, float | None, Any]:
    """Returns the arguments of `Callback.on_step` for measurements."""

  def revise(
    self, running: rounds.Rounds, measured: list[Any], done: int
  ) -> int:
    """Changes measurements to those of a run of this length.

    Args:
      running: The restored rounds.
      measured: The measurements of the checkpoint.
      done: The completed steps of the checkpoint, whose run may have had fewer
        steps.

    Returns:
      The number of steps that remain completed.
    """
    del running, measured
    return done

  def end(self, running: rounds.Rounds, measured: list[Any]) -> None:
    """Completes the last step; also called for a finished run."""
    del running, measured


class Result(NamedTuple):
  """What the results of all drivers have.

  Attributes:
    measured: The measurements, in the order of steps.
    seconds_per_round: The mean duration of a round; 0 without rounds.
    num_diverged: The number of diverged client updates, see `phases`.
    server_state: The server's state at the end; None if it was not kept.
    client_states: The clients' states at the end, by client: a sequence that
      draws the first state of clients without a round on request. None if they
      are in a file of a storage, or not those of the results.
  """

  measured: tuple[Any, ...]
  seconds_per_round: float
  num_diverged: int
  server_state: Any
  client_states: Sequence[Any] | None


def check(checkpoint: Any, callbacks: Any) -> None:
  """Raises a ValueError for arguments that `run` does not take."""
  checks.checkpoint(checkpoint)
  if not isinstance(callbacks, list | tuple) or not all(
    isinstance(each, callbacks_lib.Callback) for each in callbacks
  ):
    raise ValueError(
      f"callbacks={callbacks!r:.50} is not allowed: it must be a list of"
      " Callback objects"
    )


def run(
  steps: Steps,
  callbacks: Sequence[callbacks_lib.Callback],
  checkpoint: checkpoints.Run | None,
) -> Result:
  """Performs the steps of a run that remain.

  Args:
    steps: The steps.
    callbacks: They follow the run, in this order.
    checkpoint: Saves the run, and resumes it if it was interrupted or had fewer
      steps. None: nothing is saved.

  Returns:
    The measurements, and what all results have beside them.

  Raises:
    ValueError: If the checkpoint has more steps.
  """
  callback = _Callbacks(callbacks)
  measured = []
  storage = None if checkpoint is None else checkpoint.storage
  running = steps.start(storage, callback)
  running.client_names = steps.client_names
  with contextlib.closing(running):
    callback.on_start(running)
    for step in checkpoints.steps(
      checkpoint,
      steps.num_steps,
      running,
      measured,
      make=steps.make,
      replay=lambda each: callback.on_step(*steps.told(each)),
      revise=lambda done: steps.revise(running, measured, done),
      is_over=callback.should_stop,
      client_names=steps.client_names,
    ):
      signals.check()
      num_measured = len(measured)
      loss = steps.step(running, step, measured)
      if len(measured) > num_measured:
        callback.on_step(*steps.told(measured[-1]))
      else:
        callback.on_step(step, loss, None)
    steps.end(running, measured)
    callback.on_end(running)
  last, states = callback.last_step(), running.kept_states()
  if last is not None:
    kept = [each for each in measured if steps.told(each)[0] <= last]
    if len(kept) < len(measured):
      measured, states = kept, (None, None)
  return Result(
    tuple(measured), running.seconds_per_round, running.num_diverged, *states
  )
