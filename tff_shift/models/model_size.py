"""Refuses models that cannot fit in memory while they are built."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tff_shift._util import memory
from tff_shift.models import split_model

# Training holds the weights, their gradients and the weights after a step.
_BYTES_OF_WEIGHT = 3 * tf.float32.size

# The size of a weight that is drawn in less than a second.
_MANY = 2**24


class _ManyError(Exception):
  """A weight is too large to be drawn quickly."""


def build_within_memory(
  build: Callable[[], split_model.SplitModel], what: str
) -> split_model.SplitModel:
  """Builds a model, or refuses it before its weights take memory.

  Args:
    build: Builds it; called twice if there is a large weight.
    what: The model, for the message.

  Returns:
    The model.

  Raises:
    memory.TooLargeError: If it cannot fit in memory.
  """
  try:
    with _counting(what, _MANY):
      model = build()
  except _ManyError:
    _check_undrawn(build, what)
    with _counting(what):
      model = build()
  # Some weights are not Keras's.
  _check(model.num_parameters, what)
  return model


def _check_undrawn(build: Callable[[], Any], what: str) -> None:
  """Counts weights in a graph, without drawing them, if possible."""
  with tf.Graph().as_default(), _counting(what):
    try:
      build()
    except memory.TooLargeError:
      raise
    except Exception:
      pass  # The model needs values, which a graph does not have.


@contextlib.contextmanager
def _counting(what: str, most: int | None = None) -> Iterator[None]:
  """Refuses Keras weights before they are drawn, if they are too many.

  Args:
    what: The model, for the message.
    most: The maximum size of a weight. None: any.

  Raises:
    _ManyError: In the block, if a weight has more than `most` numbers.
    memory.TooLargeError: In the block, if they cannot fit in memory.
  """
  num_weights = 0

  def create(next_creator, **options):
    nonlocal num_weights
    shape = tf.TensorShape(options.get("shape"))
    if options.get("trainable") and shape.is_fully_defined():
      num_weights += shape.num_elements()
      _check(num_weights, what)
      if most is not None and shape.num_elements() > most:
        raise _ManyError
    return next_creator(**options)

  with tf.variable_creator_scope(create):
    yield


def _check(num_weights: int, what: str) -> None:
  memory.check(num_weights * _BYTES_OF_WEIGHT, what)
