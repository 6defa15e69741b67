"""The examples of one client, from the data to the federated computation.

Choices:
  * There is one type for a client's data, from the data set to the TFF
    computation. Seed and id are fields, None and 0 until a run sets them:
    beside the data, they would be one more argument of every function of an
    algorithm. The number of examples is a field and not the length of `y`, so
    that data can be padded later; it is checked on entry.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np


class ClientDataset(NamedTuple):
  """The examples of one client, sorted by domain.

  In a TFF computation, the fields are tensors.

  Attributes:
    x: The examples, [num_examples, ...] uint8, int32 or float32; all examples
      of domain 0 before those of domain 1, and so on.
    y: The classes, [num_examples] int32.
    domain_sizes: The number of examples of each domain, in order,
      [num_domains] int32. Data without domains have one domain.
    num_examples: The number of examples, an int32 scalar.
    seed: The client's seed, [2] int32 (`randomness.client_seed`). None: not
      yet part of a run.
    client_id: The client's id, an int32 scalar, for algorithms that distinguish
      clients.

  Examples:
    >>> x, y = np.zeros((5, 2), np.float32), np.int32([0, 1, 0, 1, 1])
    >>> data = ts.ClientDataset.from_arrays(x, y, domain_sizes=[3, 2])
    >>> int(data.num_examples), data.domain_sizes.tolist()
    (5, [3, 2])
  """

  x: Any
  y: Any
  domain_sizes: Any
  num_examples: Any
  seed: Any = None
  client_id: Any = np.int32(0)

  @staticmethod
  def fields_of_shapes() -> tuple[str, ...]:
    """Returns the fields that are equal for the clients of a batch."""
    return "domain_sizes", "num_examples"

  @classmethod
  def from_arrays(
    cls,
    x: np.ndarray,
    y: np.ndarray,
    domain_sizes: np.ndarray | Sequence[int] | None = None,
    seed: np.ndarray | None = None,
    client_id: int | np.integer = 0,
  ) -> "ClientDataset":
    """Returns a data set of arrays; `domain_sizes=None`: one domain."""
    num_examples = len(y)
    if domain_sizes is None:
      domain_sizes = [num_examples]
    return cls(
      x,
      y,
      np.asarray(domain_sizes, np.int32),
      np.int32(num_examples),
      seed,
      np.int32(client_id),
    )


class PaddedDataset(ClientDataset):
  """A `ClientDataset` with rows that are no examples, after the examples.

  A computation of this type has declared that it does not read them, see
  `local_training.allows_padding`. Clients of unequal numbers of examples can
  then be in one batch.
  """

  __slots__ = ()

  @staticmethod
  def fields_of_shapes() -> tuple[str, ...]:
    """Returns none: clients of a batch may differ in their numbers."""
    return ()

  @staticmethod
  def fields_of_zeros() -> tuple[str, ...]:
    """Returns the fields that are 0 at the same places in a batch."""
    return ("domain_sizes",)

  @staticmethod
  def padded_fields() -> tuple[str, ...]:
    """Returns the fields that may have more rows than examples."""
    return "x", "y"
