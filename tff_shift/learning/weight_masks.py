"""Some of a model's weights: those that are trained, sent or mixed."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def take(weights: Any, chosen: Any) -> tuple[Any, ...]:
  """Returns the chosen weights alone.

  Args:
    weights: A nested structure.
    chosen: A structure like it of Python bools.

  Returns:
    The weights whose bool is True, in order.
  """
  return tuple(itertools.compress(*map(tf.nest.flatten, (weights, chosen))))


def put(weights: Any, chosen: Any, values: Sequence[Any]) -> Any:
  """Returns weights of which the chosen ones are replaced.

  Args:
    weights: A nested structure.
    chosen: A structure like it of Python bools.
    values: What stands in the place of each chosen weight, in order.

  Returns:
    The structure.
  """
  supply = iter(values)
  flat = zip(*map(tf.nest.flatten, (weights, chosen)), strict=True)
  return tf.nest.pack_sequence_as(
    weights, [next(supply) if is_in else weight for weight, is_in in flat]
  )
