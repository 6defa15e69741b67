"""Drawing examples by class: the class distribution of a batch is prescribed.

The label shift of Fed-ADE ("Fed-ADE: Adaptive Learning Rate for Federated
Post-adaptation under Distribution Shift", Section 3 and Appendix G) moves the
class distribution of what a client sees, and its model is pre-trained on
examples of a chosen class distribution. Both draw from a pool of examples that
has a distribution of its own; a `ClassPool` knows which example is of which
class.
"""

from collections.abc import Callable

import numpy as np

from tff_shift.data import examples
from tff_shift.data import partition

# Quotas are computed in floating point: two that differ by less are one.
_QUOTA_DECIMALS = 9

# How far the sum of a distribution may be from one (float32 arithmetic).
_SUM_TOLERANCE = 1e-4


class ClassPool:
  """Examples that are drawn by class.

  Attributes:
    counts: `[num_classes]` int64, how many examples a class has.
  """

  def __init__(self, labels: np.ndarray, num_classes: int):
    """Sorts the examples by class.

    Args:
      labels: `[N]` integers, each below `num_classes`.
      num_classes: Number of classes; some may have no example.

    Raises:
      ValueError: A label is not an integer in 0..num_classes - 1, or
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
      distribution: `[num_classes]`, non-negative with the sum 1; 0 for every
        class without an example.
      size: Number of examples to draw, 0 or more.
      generator: What draws.

    Returns:
      `[size]` int64 positions in `labels`, in random order.

    Raises:
      ValueError: `distribution` is not one, `size` is negative, or a class that
        has a probability is without examples.
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
    """Draws different examples, as near `distribution` as the pool allows.

    Class c receives min(counts[c], lambda distribution[c]) examples, with the
    one lambda for which that gives `size`: a class that has too few gives all,
    and the others share the rest in proportion. The numbers become whole by
    largest remainder; among equal remainders lots decide.

    Args:
      distribution: `[num_classes]`, non-negative with the sum 1.
      size: Number of examples to draw, 0 or more.
      generator: What draws.

    Returns:
      `[size]` int64 positions in `labels`, all different, in random order.

    Raises:
      ValueError: `distribution` is not one, `size` is negative, or the classes
        that have a probability have fewer than `size` examples.
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
    # Typed: without any class, NumPy would make it float64.
    positions = np.concatenate([np.empty(0, np.int64), *drawn])
    return generator.permutation(positions)

  def _check(self, distribution: np.ndarray, size: int) -> np.ndarray:
    """Returns `distribution` as float64; raises ValueError where it is none."""
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
    """Splits `size` over the classes, none of which gives more than it has.

    Args:
      probabilities: `[num_classes]` float64.
      size: At most what the classes with a probability have.
      generator: Draws the lots.

    Returns:
      `[num_classes]` int64 with the sum `size`.
    """
    result = np.zeros_like(self.counts)
    is_open = (probabilities > 0) & (self.counts > 0)
    while size > 0:
      shares = np.where(is_open, probabilities, 0)
      quotas = np.round(size * (shares / shares.sum()), _QUOTA_DECIMALS)
      is_exhausted = is_open & (quotas > self.counts)
      if not is_exhausted.any():
        # Quotas are at most whole capacities: rounding up stays within them.
        whole = np.floor(quotas).astype(np.int64)
        lots = generator.permutation(len(quotas))
        # np.lexsort sorts by its last key first.
        order = np.lexsort((lots, np.round(whole - quotas, _QUOTA_DECIMALS)))
        whole[order[: size - whole.sum()]] += 1
        return result + whole
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
  """Returns the classes of which a client has an example.

  Args:
    labels: `[N]` integers, each below `num_classes`.
    num_classes: Number of classes; some may have no example.
    client: `[N]` integers from 0 to `num_clients` - 1, who holds an example.
      None: everybody holds all.
    num_clients: Number of clients.

  Returns:
    For each client its classes, ascending; it may have none.

  Raises:
    ValueError: See `ClassPool`.
  """
  labels = _checked_labels(labels, num_classes)
  if client is None:
    return [np.unique(labels)] * num_clients
  is_held = np.zeros([num_clients, num_classes], bool)
  is_held[client, labels] = True
  return [np.flatnonzero(each) for each in is_held]


def _checked_labels(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns labels as an array; refuses those that are none of the classes."""
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
  """Deals classes to clients, each to one.

  Source: Fed-ADE, Appendix G.1, of LAMA: "we assign disjoint subsets of tasks
  to different clients".

  Args:
    num_classes: The number of classes.
    num_clients: The number of clients.
    seed: Seed of the draw.

  Returns:
    For each client its classes, ascending; the numbers differ by at most one.

  Raises:
    ValueError: If a client would have fewer than two classes.
  """
  partition.check_positive_integer("num_clients", num_clients)
  if num_classes < 2 * num_clients:
    raise ValueError(
      f"{num_classes} classes cannot be dealt to {num_clients} clients so that"
      f" each has two; num_clients must be at most {num_classes // 2}"
    )
  order = partition.generator("client classes", seed).permutation(num_classes)
  return tuple(map(np.sort, np.array_split(order, num_clients)))


def pretraining_distribution(name: str, num_classes: int) -> np.ndarray:
  """Returns a class distribution for pre-training.

  Fed-ADE, Tables 1, 2, 9 and 10, names three and states no parameter of any;
  these are the ones here, with I classes, i = 0..I - 1, before normalisation:

    uniform            p_i = 1
    gaussian           p_i = exp(-(i - (I - 1) / 2)^2 / (2 (I / 4)^2))
    exponential_decay  p_i = 10^(-i / (I - 1))

  Gaussian: classes in the middle are the most frequent ones. Exponential decay:
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
    ValueError: The name is unknown, or `num_classes` is below 1.
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
  # A single class has nothing to decay to, and no division by zero.
  return 10.0 ** (-i / max(len(i) - 1, 1))


# Name -> weights of the classes 0..I - 1, before normalisation.
PRETRAINING_DISTRIBUTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  "uniform": np.ones_like,
  "gaussian": _gaussian,
  "exponential_decay": _exponential_decay,
}
