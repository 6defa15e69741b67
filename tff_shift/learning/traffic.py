"""Bytes that a client receives and sends in a round, from types.

The computations of a round say what travels: the argument of each broadcast
goes to every client, and each client sends its part of the argument of each
aggregation. The personal state of a client has no such operation, so it does
not travel. Evaluations, requests and the first state of a client are not parts
of a round.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights


class Traffic(NamedTuple):
  """Bytes per client and round; None if a size is only known when it runs.

  Attributes:
    down: What a client receives. A model's frozen weights do not count, because
      they never change and clients have them.
    up: What a client sends. Secure aggregation adds what its protocol needs.
  """

  down: int | None
  up: int | None


def of_round(algorithm: algorithm_lib.FederatedAlgorithm) -> Traffic:
  """Returns the bytes of a client in a round of an algorithm."""
  down, up = [], []
  for phase in algorithm.phases:
    computation = phase
    if isinstance(phase, frozen_weights.WithFrozen):
      computation = phase.computation
      down.append(-frozen_weights.num_bytes(algorithm.model))
    for at_server, each in _travelling(computation):
      (down if at_server else up).append(_num_bytes(each))
  return Traffic(_sum(down), _sum(up))


def _travelling(
  computation: tff.Computation,
) -> Iterator[tuple[bool, tff.Type]]:
  """Yields the types that travel, and whether they come from the server."""
  found = []

  def visit(block):
    function = getattr(block, "function", None)
    if isinstance(function, tff.framework.Intrinsic):
      takes = _placed(function.type_signature.parameter)
      gives = _placed(function.type_signature.result)
      if function.uri == "federated_broadcast":
        found.append((True, function.type_signature.parameter.member))
      elif tff.SERVER in {each.placement for each in gives}:
        found.extend(
          (False, each.member)
          for each in takes
          if each.placement == tff.CLIENTS
        )
    return block, False

  # A function that is called twice travels twice: calls are written out.
  tff.framework.transform_postorder(
    tff.framework.to_call_dominant(computation.to_building_block()), visit
  )
  yield from found


def _placed(value: tff.Type | None) -> list[tff.FederatedType]:
  """Returns the placed types in an argument or a result."""
  if isinstance(value, tff.FederatedType):
    return [value]
  if isinstance(value, tff.StructType):
    return [placed for each in value for placed in _placed(each)]
  return []


def _num_bytes(value: tff.Type) -> int | None:
  """Returns the size of a value; None if a dimension is not known."""
  if isinstance(value, tff.StructType):
    return _sum([_num_bytes(each) for each in value])
  if value.shape is None or None in value.shape:
    return None
  return math.prod(value.shape) * np.dtype(value.dtype).itemsize


def _sum(numbers: list[int | None]) -> int | None:
  return None if None in numbers else sum(numbers)
