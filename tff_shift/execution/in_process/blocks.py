"""The clients of each batch: clients of equal shapes, as many as fit."""

from collections.abc import Hashable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Blocks(NamedTuple):
  """A partition of clients into blocks.

  Attributes:
    order: The clients of the first block, then those of the next one.
    ends: The number of clients before each block, and of all, [blocks + 1]
      int32.
    places: The position of each client in `order`, [clients] int32.
  """

  order: list[int]
  ends: np.ndarray
  places: np.ndarray


def plan(shapes: Sequence[Hashable], most: int) -> Blocks:
  """Returns blocks of clients of equal shapes, in the order of the clients.

  Args:
    shapes: The shapes of each client's values.
    most: The number of clients of a block at most; 0: no limit.

  Examples:
    >>> plan([5, 7, 5, 5], most=2)._asdict()["order"]
    [0, 2, 3, 1]
  """
  by_shape: dict[Hashable, list[int]] = {}
  for client, shape in enumerate(shapes):
    by_shape.setdefault(shape, []).append(client)
  order = [client for group in by_shape.values() for client in group]
  sizes = [0]
  for group in by_shape.values():
    full, rest = divmod(len(group), most) if most else (0, len(group))
    sizes += [most] * full + [rest] * (rest > 0)
  return Blocks(
    order, np.cumsum(sizes, dtype=np.int32), np.argsort(order).astype(np.int32)
  )
