"""Training and evaluation mode of models, as scopes.

A model is a function of weights and examples, called in the losses of all
algorithms. In training some layers draw random numbers (dropout, noise,
augmentation), and some weights have a penalty (regularizers). The local loop
therefore opens a scope around the loss of a step, and the parts of a model look
up the scope in which they are called. Without a scope, a model evaluates.

Batch normalisation has running statistics beside its weights. They belong to a
separate scope, in which training updates them; without it they are the model's
own and do not change. If a client has two models of the same architecture, the
algorithm marks the calls of the second one by another scope.

Choices:
  * Training is a scope, not an argument of `predict`: a model is called in the
    losses of all algorithms, through cut heads, guides, adapters and user
    functions. Each would have to pass the argument on; one that forgets it
    silently trains without dropout.
  * Draws of random layers depend on (seed of the client's work, step, call,
    draw). The seed follows from the run, the client, the purpose and the round.
    Calls count the calls of model parts in a step (which may use two batches),
    draws the layers within a call, both in order. All are folded into a
    stateless seed, so nothing has to be stored to resume. Models without such
    layers have the same graph in training as in evaluation.
  * A penalty counts once per step and set of weights, however many batches a
    loss uses; a second set of weights in the same step, such as a personal
    model beside the shared one, has its own. It is part of the training loss.
    It adds to `weight_decay`: L2 of strength s moves weights as a decay of 2 s
    does.
"""

import contextlib
import contextvars
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws


class Training:
  """The training step in which a model is called."""

  def __init__(self, seed: Callable[[], tf.Tensor]):
    """Begins a step.

    Args:
      seed: Returns the seed of the step's random layers, int32 [2]. A function,
        so that a model without such layers adds nothing to a graph.
    """
    self._seed = seed
    self._num_calls = 0
    # The weights are kept so that no others get their ids.
    self._penalties: dict[Any, tuple[Any, Callable[[], tf.Tensor]]] = {}

  def seed_of_call(self) -> Callable[[], tf.Tensor]:
    """Returns a function that gives the seed of the next call of a part."""
    number = self._num_calls
    self._num_calls += 1
    return lambda: draws.fold_in(self._seed(), number)

  def penalize(
    self, part: Any, weights: tuple[tf.Tensor, ...], penalty: Callable
  ) -> None:
    """Adds the penalty of weights to the step's loss, once.

    Args:
      part: The part of the weights.
      weights: The weights, which may be used on several batches in a step.
      penalty: `() -> a float32 scalar`.
    """
    self._penalties.setdefault((part, *map(id, weights)), (weights, penalty))

  def penalty(self) -> tf.Tensor | None:
    """Returns the sum of the penalties of the step, None if there are none."""
    values = [penalty() for _, penalty in self._penalties.values()]
    return tf.add_n(values) if values else None


_current: contextvars.ContextVar[Training | None] = contextvars.ContextVar(
  "training", default=None
)


def current() -> Training | None:
  """Returns the current training step, None in evaluation."""
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


class Moments(NamedTuple):
  """Mean and variance of each channel, [num_channels] float32 each."""

  mean: Any
  variance: Any


class _Statistics(NamedTuple):
  """Running statistics by name, and whether training keeps them fixed."""

  values: dict[str, tf.Tensor]
  are_fixed: bool


_statistics: contextvars.ContextVar[_Statistics | None] = (
  contextvars.ContextVar("statistics", default=None)
)


class _Batch(NamedTuple):
  """How batches are normalised in evaluation, see `by_batch`."""

  mix: Callable[[Any, Moments, Moments], Moments] | None
  used: dict[str, tf.Tensor]


_by_batch: contextvars.ContextVar[_Batch | None] = contextvars.ContextVar(
  "by_batch", default=None
)
_observed: contextvars.ContextVar[dict[str, tf.Tensor] | None] = (
  contextvars.ContextVar("observed", default=None)
)


def statistics() -> dict[str, tf.Tensor] | None:
  """Returns the running statistics of the scope, which training replaces."""
  found = _statistics.get()
  return found and found.values


def moving_statistics() -> dict[str, tf.Tensor]:
  """Returns the running statistics that training would update now."""
  found = _statistics.get()
  return {} if found is None or found.are_fixed else found.values


@contextlib.contextmanager
def with_statistics(
  values: Mapping[str, tf.Tensor], *, are_fixed: bool = False
) -> Iterator[dict[str, tf.Tensor]]:
  """Opens a scope with running statistics for models.

  Args:
    values: Mean and variance of each batch normalisation by name, see
      `parts.Part`. Names for another model than the first have its name as a
      prefix, see `of_model`.
    are_fixed: Whether training normalises by them and does not change them.

  Yields:
    The current statistics; after training in the scope, the updated ones.
  """
  token = _statistics.set(_Statistics(dict(values), are_fixed))
  try:
    yield _statistics.get().values
  finally:
    _statistics.reset(token)


def name_for(model: str, statistic: str) -> str:
  """Returns the name of a statistic of another model than the first."""
  return f"{model}:{statistic}"


def _of_model(values: Mapping[str, tf.Tensor], model: str):
  prefix = name_for(model, "")
  return {
    name.removeprefix(prefix): value
    for name, value in values.items()
    if name.startswith(prefix)
  }


@contextlib.contextmanager
def of_model(model: str) -> Iterator[None]:
  """Opens a scope with the statistics of another model.

  For a client with two models of the same architecture, around the calls of the
  second. Without statistics, the scope has no effect.

  Args:
    model: The algorithm's name for it, see `batch_statistics.Kept`.
  """
  both = _statistics.get()
  if both is None or both.are_fixed:
    yield
    return
  with with_statistics(_of_model(both.values, model)) as moved:
    yield
  both.values.update(
    {name_for(model, name): value for name, value in moved.items()}
  )


def keep_as(model: str, condition: Any = True) -> None:
  """Copies the first model's statistics to another model.

  Args:
    model: The other model, see `of_model`.
    condition: A bool or a scalar tensor. If False, nothing is copied.
  """
  for name, old in _of_model(moving_statistics(), model).items():
    values = moving_statistics()
    new = values[name]
    values[name_for(model, name)] = (
      new if condition is True else tf.where(condition, new, old)
    )


@contextlib.contextmanager
def apart() -> Iterator[None]:
  """Opens a scope in which training does not update outer statistics."""
  found = _statistics.get()
  if found is None:
    yield
    return
  with with_statistics(found.values, are_fixed=found.are_fixed):
    yield


def cond(condition, true_fn: Callable, false_fn: Callable) -> Any:
  """Works like `tf.cond`, and returns the statistics from the branch."""
  moving = moving_statistics()
  if not moving:
    return tf.cond(condition, true_fn, false_fn)

  def branch(function):
    def call():
      with with_statistics(moving) as moved:
        return function(), {name: moved[name] for name in moving}

    return call

  result, moved = tf.cond(condition, branch(true_fn), branch(false_fn))
  moving.update(moved)
  return result


@contextlib.contextmanager
def by_batch(
  mix: Callable[[Any, Moments, Moments], Moments] | None = None,
) -> Iterator[dict[str, tf.Tensor]]:
  """Opens an evaluation scope in which batches are normalised by themselves.

  A model's prediction for an example then depends on the whole batch. Running
  statistics are not updated.

  Args:
    mix: `(number of examples, moments of the batch, running statistics) ->
      moments` to normalise by, for each batch normalisation. Variances are
      biased. None: the moments of the batch.

  Yields:
    The moments by which the model called last was normalised, by the names of
    its running statistics.
  """
  batch = _Batch(mix, {})
  token = _by_batch.set(batch)
  try:
    with evaluation():
      yield batch.used
  finally:
    _by_batch.reset(token)


def mixed(num_examples, batch: Moments, running: Moments) -> Moments:
  """Returns the moments by which a batch is normalised in evaluation."""
  mix = _by_batch.get().mix
  return batch if mix is None else mix(num_examples, batch, running)


def record_used(moments: Mapping[str, tf.Tensor]) -> None:
  """Stores the moments by which a part was normalised, for `by_batch`."""
  _by_batch.get().used.update(moments)


@contextlib.contextmanager
def observing_moments() -> Iterator[dict[str, tf.Tensor]]:
  """Opens an evaluation scope that collects the moments of batches.

  Models predict as in any evaluation: batch normalisation uses the running
  statistics.

  Yields:
    The mean and the unbiased variance of what each batch normalisation has
    normalised last, by the names of its running statistics.
  """
  found: dict[str, tf.Tensor] = {}
  tokens = _observed.set(found), _by_batch.set(None)
  try:
    with evaluation():
      yield found
  finally:
    _observed.reset(tokens[0])
    _by_batch.reset(tokens[1])


def observed_moments() -> dict[str, tf.Tensor] | None:
  """Returns the moments to which models add; None: they are not collected."""
  return _observed.get()


def normalizes_by_batch() -> bool:
  """Returns whether batch normalisation currently uses the batch's moments."""
  if current() is None:
    return _by_batch.get() is not None
  return bool(moving_statistics())


def evaluation() -> contextlib.AbstractContextManager[Training | None]:
  """Opens a scope of evaluation, for a teacher within a training step."""
  return _scope(None)
