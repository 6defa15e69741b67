"""Selections of a model's weights: to train, send or mix them."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def take(weights: Any, chosen: Any) -> tuple[Any, ...]:
  """Returns the chosen weights.

  Args:
    weights: A nested structure.
    chosen: Python bools in the same structure.

  Returns:
    The weights whose bool is True, in order.
  """
  return tuple(itertools.compress(*map(tf.nest.flatten, (weights, chosen))))


def put(weights: Any, chosen: Any, values: Sequence[Any]) -> Any:
  """Returns weights with the chosen ones replaced.

  Args:
    weights: A nested structure.
    chosen: Python bools in the same structure.
    values: The values for the chosen weights, in order.
  """
  supply = iter(values)
  flat = zip(*map(tf.nest.flatten, (weights, chosen)), strict=True)
  return tf.nest.pack_sequence_as(
    weights, [next(supply) if is_in else weight for weight, is_in in flat]
  )
