"""Drawing examples by class, with a given label distribution.

The label shift of Fed-ADE ("Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift", Section 3 and Appendix G) changes the
label distribution of a client's data, and its model is pre-trained on a chosen
label distribution. Both draw from a pool with another distribution; a
`ClassPool` indexes the pool by class.
"""

from collections.abc import Callable

import numpy as np

from tff_shift.data import examples
from tff_shift.data import partition

# Quotas are computed in floating point: smaller differences are ignored.
_QUOTA_DECIMALS = 9

# Tolerance for the sum of a distribution (float32 arithmetic).
_SUM_TOLERANCE = 1e-4


class ClassPool:
  """A pool of examples, drawn by class.

  Attributes:
    counts: `[num_classes]` int64, the number of examples of each class.
  """

  def __init__(self, labels: np.ndarray, num_classes: int):
    """Sorts the examples by class.

    Args:
      labels: `[N]` integers, each below `num_classes`.
      num_classes: Number of classes; some may have no examples.

    Raises:
      ValueError: If a label is not an integer in 0..num_classes - 1, or
        `num_classes` is below 1.
    """
    labels = _checked_labels(labels, num_classes)
    self.counts = np.bincount(labels, minlength=num_classes)
    # Class c is at _by_class[_starts[c] : _starts[c] + counts[c]].
    self._by_class = np.argsort(labels, kind="stable")
    self._starts = np.cumsum(self.counts) - self.counts

  def draw(
    self,
    distribution: np.ndarray,
    size: int,
    generator: np.random.Generator,
  ) -> np.ndarray:
    """Draws with replacement: every example's class is from `distribution`.

    The class counts are multinomial.

    Args:
      distribution: `[num_classes]`, non-negative with the sum 1; 0 for classes
        without examples.
      size: Number of examples to draw, 0 or more.
      generator: The random generator.

    Returns:
      `[size]` int64 indices of `labels`, in random order.

    Raises:
      ValueError: If `distribution` is not valid, `size` is negative, or a class
        with a probability has no examples.
    """
    probabilities = self._check(distribution, size)
    lacking = np.flatnonzero((probabilities > 0) & (self.counts == 0))
    if len(lacking):
      raise ValueError(
        f"there is no example of class {lacking[0]}, whose probability is"
        f" {probabilities[lacking[0]]:g}"
      )
    class_counts = generator.multinomial(
      size, probabilities / probabilities.sum()
    )
    classes = np.repeat(np.arange(len(self.counts)), class_counts)
    places = self._starts[classes] + generator.integers(self.counts[classes])
    return generator.permutation(self._by_class[places])

  def draw_without_replacement(
    self,
    distribution: np.ndarray,
    size: int,
    generator: np.random.Generator,
  ) -> np.ndarray:
    """Draws different examples, as close to `distribution` as possible.

    Class c receives min(counts[c], lambda distribution[c]) examples, where
    lambda is such that the sum is `size`: a class with too few examples gives
    all of them, and the others share the rest in proportion. Numbers are
    rounded by largest remainder, with random tie-breaks.

    Args:
      distribution: `[num_classes]`, non-negative with the sum 1.
      size: Number of examples to draw, 0 or more.
      generator: The random generator.

    Returns:
      `[size]` int64 indices of `labels`, all different, in random order.

    Raises:
      ValueError: If `distribution` is not valid, `size` is negative, or the
        classes with a probability have fewer than `size` examples.
    """
    probabilities = self._check(distribution, size)
    available = self.counts[probabilities > 0].sum()
    if size > available:
      raise ValueError(
        f"{size} examples cannot be drawn without replacement: the classes of"
        f" the distribution have {available}"
      )
    drawn = [
      generator.choice(
        self._by_class[start : start + held], count, replace=False
      )
      for start, held, count in zip(
        self._starts,
        self.counts,
        self._capped_counts(probabilities, size, generator),
        strict=True,
      )
      if count
    ]
    # Typed: without any classes, NumPy would return float64.
    positions = np.concatenate([np.empty(0, np.int64), *drawn])
    return generator.permutation(positions)

  def _check(self, distribution: np.ndarray, size: int) -> np.ndarray:
    """Returns `distribution` as float64; raises ValueError if not valid."""
    probabilities = np.asarray(distribution, np.float64)
    if probabilities.shape != self.counts.shape:
      raise ValueError(
        f"distribution must have the shape [{len(self.counts)}], one number"
        f" for each class, got {list(probabilities.shape)}"
      )
    # Written so that NaN is refused too.
    if not (
      np.all(probabilities >= 0)
      and abs(probabilities.sum() - 1) <= _SUM_TOLERANCE
    ):
      raise ValueError(
        "distribution must be non-negative with the sum 1, got the minimum"
        f" {probabilities.min():g} and the sum {probabilities.sum():g}"
      )
    if not isinstance(size, int | np.integer) or size < 0:
      raise ValueError(f"size must be an integer of at least 0, got {size!r}")
    return probabilities

  def _capped_counts(
    self,
    probabilities: np.ndarray,
    size: int,
    generator: np.random.Generator,
  ) -> np.ndarray:
    """Splits `size` over the classes, up to their numbers of examples.

    Args:
      probabilities: `[num_classes]` float64.
      size: At most the number of examples of classes with a probability.
      generator: Breaks ties.

    Returns:
      `[num_classes]` int64 with the sum `size`.
    """
    result = np.zeros_like(self.counts)
    is_open = (probabilities > 0) & (self.counts > 0)
    while size > 0:
      weights = np.where(is_open, probabilities, 0)
      quotas = np.round(size * (weights / weights.sum()), _QUOTA_DECIMALS)
      is_exhausted = is_open & (quotas > self.counts)
      if not is_exhausted.any():
        # Capacities are whole numbers, so rounding up a quota stays within.
        counts = np.floor(quotas).astype(np.int64)
        lots = generator.permutation(len(quotas))
        # np.lexsort sorts by its last key first.
        order = np.lexsort((lots, np.round(counts - quotas, _QUOTA_DECIMALS)))
        counts[order[: size - counts.sum()]] += 1
        return result + counts
      result[is_exhausted] = self.counts[is_exhausted]
      size -= self.counts[is_exhausted].sum()
      is_open &= ~is_exhausted
    return result


def held_classes(
  labels: np.ndarray,
  num_classes: int,
  client: np.ndarray | None,
  num_clients: int,
) -> list[np.ndarray]:
  """Returns the classes of each client's examples.

  Args:
    labels: `[N]` integers, each below `num_classes`.
    num_classes: Number of classes; some may have no examples.
    client: `[N]` integers from 0 to `num_clients` - 1, the client that holds an
      example. None: every client holds all examples.
    num_clients: Number of clients.

  Returns:
    For each client its classes, ascending; may be empty.

  Raises:
    ValueError: If a label is not an integer in 0..num_classes - 1, or
      `num_classes` is below 1.
  """
  labels = _checked_labels(labels, num_classes)
  if client is None:
    return [np.unique(labels)] * num_clients
  is_held = np.zeros([num_clients, num_classes], bool)
  is_held[client, labels] = True
  return [np.flatnonzero(is_held_by) for is_held_by in is_held]


def _checked_labels(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns labels as an array; refuses labels outside of the classes."""
  partition.check_positive_integer("num_classes", num_classes)
  labels = examples.as_array(labels, "labels")
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
      "labels must be a vector of integers, got"
      f" {labels.dtype} {list(labels.shape)}"
    )
  if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
    raise ValueError(
      f"labels must lie in 0..{num_classes - 1}, got"
      f" {labels.min()}..{labels.max()}"
    )
  return labels


def deal_classes(
  num_classes: int, num_clients: int, seed: int
) -> tuple[np.ndarray, ...]:
  """Assigns each class to one client.

  Source: Fed-ADE, Appendix G.1, of LAMA: "we assign disjoint subsets of tasks
  to different clients".

  Returns:
    For each client its classes, ascending; their numbers differ by at most one.

  Raises:
    ValueError: If a client would have fewer than two classes.
  """
  partition.check_positive_integer("num_clients", num_clients)
  if num_classes < 2 * num_clients:
    raise ValueError(
      f"{num_classes} classes are too few for {num_clients} clients with at"
      f" least two each; num_clients must be at most {num_classes // 2}"
    )
  order = partition.generator("client classes", seed).permutation(num_classes)
  return tuple(map(np.sort, np.array_split(order, num_clients)))


def pretraining_distribution(name: str, num_classes: int) -> np.ndarray:
  """Returns a label distribution for pre-training.

  Fed-ADE, Tables 1, 2, 9 and 10, names three distributions without their
  parameters. These are used here, with I classes, i = 0..I - 1, before
  normalisation:

    uniform            p_i = 1
    gaussian           p_i = exp(-(i - (I - 1) / 2)^2 / (2 (I / 4)^2))
    exponential_decay  p_i = 10^(-i / (I - 1))

  Gaussian: classes in the middle are the most frequent. Exponential decay:
  class 0 is 10 times as frequent as the last class (an imbalance factor of 10
  in the sense of Y. Cui et al., "Class-Balanced Loss Based on Effective Number
  of Samples", CVPR 2019). For I = 10 the rarest class has 3.3 % (gaussian) and
  2.4 % (exponential decay).

  Args:
    name: "uniform", "gaussian" or "exponential_decay".
    num_classes: Number of classes I.

  Returns:
    `[num_classes]` float64 with the sum 1.

  Raises:
    ValueError: If the name is unknown, or `num_classes` is below 1.
  """
  if name not in PRETRAINING_DISTRIBUTIONS:
    raise ValueError(
      f"unknown pre-training distribution {name!r}; known are"
      f" {', '.join(PRETRAINING_DISTRIBUTIONS)}"
    )
  partition.check_positive_integer("num_classes", num_classes)
  weights = PRETRAINING_DISTRIBUTIONS[name](
    np.arange(num_classes, dtype=np.float64)
  )
  return weights / weights.sum()


def _gaussian(i: np.ndarray) -> np.ndarray:
  """Weights of classes `i` `[I]` around the middle one."""
  deviations = (i - (len(i) - 1) / 2) / (len(i) / 4)
  return np.exp(-np.square(deviations) / 2)


def _exponential_decay(i: np.ndarray) -> np.ndarray:
  """Weights of classes `i` `[I]`, from 1 to 1 / 10."""
  # Avoids a division by zero for a single class.
  return 10.0 ** (-i / max(len(i) - 1, 1))


# Name -> weights of the classes 0..I - 1, before normalisation.
PRETRAINING_DISTRIBUTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  "uniform": np.ones_like,
  "gaussian": _gaussian,
  "exponential_decay": _exponential_decay,
}
