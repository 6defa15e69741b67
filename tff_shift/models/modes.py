"""Whether a model is in training, and what its layers need to know then.

A model is a function of weights and examples, and its calls stand in the losses
of all algorithms. In training some layers draw random numbers (dropout, noise,
augmentation), and some weights have a penalty of their own (regularizers). So
the local loop opens a scope around the loss of a step, and the parts of a model
look which scope they are called in. Outside of all, a model evaluates.

Batch normalisation has running statistics beside its weights. They belong to a
scope of their own, in which training moves them; outside of it they are those
that the model came with.
"""

import contextlib
import contextvars
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class Training:
  """The training step that a model is called in."""

  def __init__(self, seed: Callable[[], tf.Tensor]):
    """Begins a step.

    Args:
      seed: Gives the seed of the step's random layers, int32 [2]. A function,
        so that a model without such layers leaves nothing in a graph.
    """
    self._seed = seed
    self._num_calls = 0
    self._penalties: dict[Any, Callable[[], tf.Tensor]] = {}

  def seed_of_call(self) -> Callable[[], tf.Tensor]:
    """Returns what gives the seed of the next call of a part in this step."""
    number = self._num_calls
    self._num_calls += 1
    return lambda: tf.random.experimental.stateless_fold_in(
      self._seed(), number
    )

  def penalize(
    self, part: Any, weights: tuple[tf.Tensor, ...], penalty: Callable
  ) -> None:
    """Adds the penalty of weights to the step's loss, once.

    Args:
      part: Whose weights they are.
      weights: The weights, which may see several batches in a step.
      penalty: `() -> a float32 scalar`.
    """
    self._penalties.setdefault((part, *map(id, weights)), (weights, penalty))

  def penalty(self) -> tf.Tensor | None:
    """Returns the sum of the penalties of the step, None if there is none."""
    values = [penalty() for _, penalty in self._penalties.values()]
    return tf.add_n(values) if values else None


_current: contextvars.ContextVar[Training | None] = contextvars.ContextVar(
  "training", default=None
)


def current() -> Training | None:
  """Returns the training step that is traced, None in evaluation."""
  return _current.get()


@contextlib.contextmanager
def _scope(mode: Training | None) -> Iterator[Training | None]:
  token = _current.set(mode)
  try:
    yield mode
  finally:
    _current.reset(token)


def training(
  seed: Callable[[], tf.Tensor],
) -> contextlib.AbstractContextManager[Training]:
  """Opens the scope of a training step, see `Training`."""
  return _scope(Training(seed))


_statistics: contextvars.ContextVar[dict[str, tf.Tensor] | None] = (
  contextvars.ContextVar("statistics", default=None)
)


def statistics() -> dict[str, tf.Tensor] | None:
  """Returns the running statistics of the scope, which training replaces."""
  return _statistics.get()


@contextlib.contextmanager
def with_statistics(
  values: Mapping[str, tf.Tensor],
) -> Iterator[dict[str, tf.Tensor]]:
  """Opens a scope in which models have these running statistics.

  Args:
    values: Mean and variance of each batch normalisation by their names, see
      `parts.Part`.

  Yields:
    The statistics of the moment: those of after the training in the scope.
  """
  token = _statistics.set(dict(values))
  try:
    yield _statistics.get()
  finally:
    _statistics.reset(token)


def evaluation() -> contextlib.AbstractContextManager[None]:
  """Opens a scope of evaluation, for a teacher within a training step."""
  return _scope(None)
