"""Baselines without federated learning: floors of accuracy in tables.

A model below the floor of the most frequent class has learned less than class
frequencies. A model that predicts one class for all examples is at the floor,
not above it. For tables, logistic regressions on standardized features tell a
method that adapts from one that only repairs a weak model: scikit-learn's,
with its default regularization.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_shift.data import examples

# The name of the floor in tables.
MAJORITY_CLASS = "majority_class"
# The name of the ceiling in tables: training with all clients' data in one.
POOLED = "pooled"

# Maps x [n, ...] to predicted classes [n].
Predictor = Callable[[np.ndarray], np.ndarray]
Training = Iterable[Iterable[examples.Examples]]


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


class Baseline(NamedTuple):
  """Fitted predictors.

  Attributes:
    clients: That of each client; the shared one for a client without training
      examples.
    server: The shared one. None: the baseline has none.
  """

  clients: Sequence[Predictor]
  server: Predictor | None


def _constant(label: int) -> Predictor:
  return lambda x: np.full(len(x), label)


def majority_class(train: Training) -> Baseline:
  """Predicts the most frequent class; of equally frequent ones the smallest.

  Args:
    train: For each client, parts of its training examples.

  Raises:
    ValueError: If there are no training examples.
  """
  counts = []
  for parts in train:
    count = np.zeros(0, np.int64)
    for part in parts:
      more = np.bincount(part.y, minlength=len(count))
      more[: len(count)] += count
      count = more
    counts.append(count)
  num_classes = max(map(len, counts), default=0)
  table = np.array(
    [np.pad(count, (0, num_classes - len(count))) for count in counts]
  )
  if not table.sum():
    raise ValueError("train must have an example, got none")
  shared = int(np.argmax(table.sum(axis=0)))
  labels = np.where(table.sum(axis=1) > 0, np.argmax(table, axis=1), shared)
  return Baseline(list(map(_constant, labels)), _constant(shared))


def local_logistic_regression(train: Training) -> Baseline:
  """Fits each client's logistic regression to its training examples."""
  clients = _joined(train)
  shared = _logistic_regression(clients)
  predictors = [
    _logistic_regression([part]) if len(part.y) else shared for part in clients
  ]
  return Baseline(predictors, None)


def pooled_logistic_regression(train: Training) -> Baseline:
  """Fits one logistic regression to the training examples of all clients."""
  clients = _joined(train)
  shared = _logistic_regression(clients)
  return Baseline([shared] * len(clients), shared)


# By name; all but the first one for tables alone.
BASELINES: dict[str, Callable[[Training], Baseline]] = {
  MAJORITY_CLASS: majority_class,
  "local_logistic_regression": local_logistic_regression,
  "pooled_logistic_regression": pooled_logistic_regression,
}


def _joined(train: Training) -> list[examples.Examples]:
  """Joins the parts of each client."""
  return [
    examples.Examples(*map(np.concatenate, zip(*parts, strict=True)))
    for parts in map(list, train)
  ]


def _logistic_regression(parts: Sequence[examples.Examples]) -> Predictor:
  """Fits a logistic regression on standardized features, [n, features]."""
  from sklearn import linear_model
  from sklearn import pipeline
  from sklearn import preprocessing

  x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
  if not len(y):
    raise ValueError("train must have an example, got none")
  if len(np.unique(y)) == 1:
    return _constant(y[0])
  model = pipeline.make_pipeline(
    preprocessing.StandardScaler(),
    linear_model.LogisticRegression(max_iter=1000),
  )
  return model.fit(x, y).predict


def accuracy(
  predictors: Iterable[Predictor], test: Sequence[examples.Pool]
) -> np.ndarray:
  """Returns the accuracy of each client's predictor, in percent.

  Args:
    predictors: The predictor of each client.
    test: The test examples of each client.

  Returns:
    [num_clients] float64; NaN for a client without test examples.
  """
  return np.array(
    [
      100.0 * np.mean(predict(part.x) == part.y) if len(part.y) else np.nan
      for predict, part in zip(predictors, test, strict=True)
    ]
  )


def shared_accuracy(predict: Predictor, test: Sequence[examples.Pool]) -> float:
  """Returns the accuracy of one predictor on all test examples, in percent."""
  right = [predict(part.x) == part.y for part in test if len(part.y)]
  return 100.0 * float(np.mean(np.concatenate(right)))
