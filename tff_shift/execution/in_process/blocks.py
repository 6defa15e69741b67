"""The clients of each batch: clients of equal shapes, as many as fit."""

from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np


class Blocks(NamedTuple):
  """The clients of each batch; arrays, or tensors in a graph.

  Attributes:
    ends: The number of clients before each block, and of all, [blocks + 1]
      int32.
    places: The place of each client among those of all blocks, [clients] int32.
  """

  ends: Any
  places: Any


def most_clients(memory: int, bytes_per_client: int) -> int:
  """Returns the largest power of two of clients that fit; at least 1."""
  return 1 << (max(memory // max(bytes_per_client, 1), 1).bit_length() - 1)


def plan(shapes: Sequence[Hashable], most: int) -> tuple[list[int], Blocks]:
  """Returns blocks of clients of equal shapes, in the order of the clients.

  Args:
    shapes: The shapes of each client's values.
    most: The number of clients of a block at most; 0: no limit.

  Returns:
    The clients of the first block, then those of the next one; and the blocks.

  Examples:
    >>> plan([5, 7, 5, 5], most=2)[0]
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
  places = np.argsort(order).astype(np.int32)
  return order, Blocks(np.cumsum(sizes, dtype=np.int32), places)
