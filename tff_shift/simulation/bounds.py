"""Floors of accuracy: the most frequent class of the training examples.

A model below this floor has learned less than class frequencies. A model that
predicts one class for all examples is at the floor, not above it.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# The name of the floor in tables.
MAJORITY_CLASS = "majority_class"
# The name of the ceiling in tables: training with all clients' data in one.
POOLED = "pooled"


class Bound(NamedTuple):
  """A bound, in the form of a driver's result.

  Attributes:
    metrics: The final metrics, in percent.
    client_accuracy: The accuracy of each client, [num_clients] float64; NaN for
      a client without test examples.
    seconds_per_round: There are no rounds.
    num_diverged: There are no updates.
  """

  metrics: dict[str, float]
  client_accuracy: np.ndarray
  seconds_per_round: float = 0.0
  num_diverged: int = 0


class Majority(NamedTuple):
  """The most frequent classes of training examples.

  Attributes:
    own: That of each client, [num_clients]; the shared one for a client without
      training examples.
    shared: That of all clients' examples.
  """

  own: np.ndarray
  shared: int


def majority_of(train: Iterable[Iterable[np.ndarray]]) -> Majority:
  """Returns the most frequent classes; of equally frequent ones the smallest.

  Args:
    train: For each client, arrays of classes of its training examples.

  Raises:
    ValueError: If there are no training examples.
  """
  counts = []
  for parts in train:
    found = np.zeros(0, np.int64)
    for y in parts:
      more = np.bincount(y, minlength=len(found))
      more[: len(found)] += found
      found = more
    counts.append(found)
  num_classes = max(map(len, counts), default=0)
  table = np.array(
    [np.pad(each, (0, num_classes - len(each))) for each in counts]
  )
  if not table.sum():
    raise ValueError("train must have an example, got none")
  shared = int(np.argmax(table.sum(axis=0)))
  own = np.where(table.sum(axis=1) > 0, np.argmax(table, axis=1), shared)
  return Majority(own, shared)


def accuracy(classes: Iterable[int], test: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the accuracy of a constant prediction for each client, in percent.

  Args:
    classes: The prediction of each client.
    test: The classes of the test examples of each client.

  Returns:
    [num_clients] float64; NaN for a client without test examples.
  """
  return np.array(
    [
      100.0 * np.mean(y == predicted) if len(y) else np.nan
      for predicted, y in zip(classes, test, strict=True)
    ]
  )
