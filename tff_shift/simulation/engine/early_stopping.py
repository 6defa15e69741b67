"""Early stopping, and the best evaluation of a run, by a validation metric."""

import math

from tff_shift._util import arguments
from tff_shift.learning import metrics
from tff_shift.simulation.engine import callbacks


class EarlyStopping(callbacks.Callback):
  """Ends a run when a metric has stopped improving.

  Attributes:
    keeps_best: Whether the results are those of the best evaluation.
    best_step: The step of the evaluation with the best value, the earliest one
      of several; None before the first evaluation.
    is_best: Whether the last evaluation is the best one so far.

  Examples:
    >>> import types
    >>> stop = ts.EarlyStopping("validation_accuracy", stop_after=2)
    >>> for step, accuracy in enumerate([70.0, 80.0, 75.0, 79.0], start=1):
    ...   rows = [({"round": step}, {"validation_accuracy": accuracy})]
    ...   stop.on_step(step, None, types.SimpleNamespace(rows=lambda _: rows))
    >>> stop.best_step, stop.should_stop()
    (2, True)
  """

  def __init__(
    self,
    metric: str,
    stop_after: int | None = None,
    *,
    keeps_best: bool = False,
    higher_is_better: bool | None = None,
  ):
    """Stores the arguments.

    Args:
      metric: The metric. It must not be measured on test data.
      stop_after: The number of evaluations in a row without a new best value,
        at least 1, after which the run ends. None: it never ends early.
      keeps_best: Whether the results are those of the best evaluation, as if
        the run had ended there. The result of the driver then has no states;
        save them when `is_best`.
      higher_is_better: Whether higher values are better. None: as the metric
        declares.

    Raises:
      ValueError: If the number is not allowed, or if the direction is neither
        declared nor passed.
    """
    if higher_is_better is None:
      higher_is_better = metrics.higher_is_better(metric)
    if stop_after is not None:
      stop_after = arguments.integer("stop_after", stop_after)
    self.keeps_best = keeps_best
    self.best_step: int | None = None
    self.is_best = False
    self._metric = metric
    self._sign = 1 if higher_is_better else -1
    self._stop_after = stop_after
    self._best: float | None = None
    self._num_without = 0

  def on_step(
    self,
    step: int,
    loss: float | None,
    measured: callbacks.Measurements | None,
  ) -> None:
    """Compares the value of an evaluation with the best one."""
    self.is_best = False
    if measured is None:
      return
    for _, values in measured.rows(step):
      # Better is higher from here on.
      value = self._sign * values[self._metric]
      self.is_best = not math.isnan(value) and (
        self._best is None or value > self._best
      )
      self._num_without += 1
      if self.is_best:
        self._best, self.best_step, self._num_without = value, step, 0

  def should_stop(self) -> bool:
    """Returns whether there was no new best value for too long."""
    return self._stop_after is not None and (
      self._num_without >= self._stop_after
    )

  def last_step(self) -> int | None:
    """Returns the best step, if it is kept."""
    return self.best_step if self.keeps_best else None
