"""Partitions of examples over clients: Dirichlet, label shards, train and test.

All functions return indices into the caller's arrays and never the examples, so
that one partition serves images, features and labels. Every draw is a pure
function of its arguments and of a seed; a seed is one non-negative integer or a
sequence of them, such as `(run seed, domain)`.
"""

import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift.data import examples

Seed = int | Sequence[int]

# Outside of these, NumPy's sampler does not end (1e-12) or overflows (1e308).
_SMALLEST_ALPHA, _LARGEST_ALPHA = 1e-6, 1e6

# Quotas are computed in floating point: smaller differences are ignored.
_QUOTA_TOLERANCE = 1e-9

# Attempts of `dirichlet_over_clients` to give every client enough examples.
_MAX_TRIES = 1000


def generator(purpose: str, seed: Seed) -> np.random.Generator:
  """Makes a random generator for one purpose.

  Args:
    purpose: The purpose of the draws. Different purposes with the same seed are
      independent.
    seed: One non-negative integer, or a sequence of them.

  Returns:
    A new generator, the same one for the same arguments.

  Raises:
    ValueError: If a part of the seed is not a non-negative integer.
  """
  parts: tuple[Any, ...] = (seed,)
  if not isinstance(seed, int) and np.ndim(seed):
    parts = tuple(seed)
  for part in parts:
    if not isinstance(part, int | np.integer) or part < 0:
      shown = int(part) if isinstance(part, np.integer) else part
      raise ValueError(f"seed must be a non-negative integer, got {shown!r}")
  # The purpose comes first: NumPy pads a short seed with zeros, so that [s] and
  # [s, 0] are the same stream, and a trailing purpose would be ambiguous.
  return np.random.default_rng([zlib.crc32(purpose.encode()), *parts])


def check_positive_integer(name: str, value: int) -> None:
  """Raises ValueError unless `value` is an integer of at least 1.

  Args:
    name: The name of the value in the message.
    value: The value to check.

  Raises:
    ValueError: If it is not an integer, or is below 1.
  """
  if not isinstance(value, int | np.integer) or value < 1:
    raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def check_position(name: str, value: int, first: int, last: int) -> None:
  """Raises ValueError for a client, time step or period that does not exist.

  Args:
    name: Its name in the message.
    value: Its number.
    first: The first number.
    last: The last number.

  Raises:
    ValueError: If it is not an integer from `first` to `last`.
  """
  if not isinstance(value, int | np.integer) or not first <= value <= last:
    raise ValueError(
      f"{name} {value} does not exist: it must lie in {first}..{last}"
    )


def by_client(client: np.ndarray, num_clients: int) -> list[np.ndarray]:
  """Groups examples by client.

  Args:
    client: `[N]` integers from 0 to `num_clients` - 1, the client of each.
    num_clients: Number of clients.

  Returns:
    For each client its indices, ascending int64; may be empty.

  Raises:
    ValueError: If there are other clients, or one is masked.
  """
  client = examples.as_array(client, "client")
  if client.size and client.max() >= num_clients:
    raise ValueError(
      f"num_clients must be at least {client.max() + 1}, the number of clients"
      f" that hold the examples, got {num_clients}"
    )
  return split_by(client, num_clients)


def split_by(keys: np.ndarray, num_keys: int) -> list[np.ndarray]:
  """Returns for each key from 0 to `num_keys` - 1 its indices, ascending."""
  order = np.argsort(keys, kind="stable")
  ends = np.searchsorted(keys[order], np.arange(num_keys + 1))
  return [order[start:end] for start, end in itertools.pairwise(ends)]


def dirichlet_proportions(
  num_clients: int, num_classes: int, alpha: float, seed: Seed
) -> np.ndarray:
  """Draws each client's label distribution, p_k ~ Dir(alpha 1_C).

  Args:
    num_clients: Number of clients K.
    num_classes: Number of classes C.
    alpha: Dirichlet concentration. The smaller, the fewer classes a client has;
      `math.inf` is the limit in which all distributions are uniform.
    seed: Seed of the draw.

  Returns:
    `[num_clients, num_classes]` float64; every row sums to one.

  Raises:
    ValueError: If `alpha` is not positive or too extreme, or a count is below
      1.
  """
  check_positive_integer("num_clients", num_clients)
  check_positive_integer("num_classes", num_classes)
  if alpha == math.inf:
    return np.full((num_clients, num_classes), 1 / num_classes)
  _check_concentration("dirichlet", alpha)
  rng = generator("dirichlet proportions", seed)
  return rng.dirichlet(np.full(num_classes, alpha), size=num_clients)


def dirichlet_over_classes(
  classes: Sequence[np.ndarray], num_classes: int, alpha: float, seed: Seed
) -> np.ndarray:
  """Draws each client's label distribution over its own classes.

  It is a Dirichlet draw over all classes, restricted to the client's classes
  and rescaled.

  Args:
    classes: For each client its different classes, at least one.
    num_classes: Number of classes.
    alpha: Dirichlet concentration. For clients with all classes, the draw is
      the one of `dirichlet_proportions`.
    seed: Seed of the draw.

  Returns:
    `[num_clients, num_classes]` float64; every row sums to one and is 0 for
    classes that are not the client's.

  Raises:
    ValueError: If `alpha` is not positive or too extreme, or a count is below
      1.
  """
  drawn = {
    size: dirichlet_proportions(len(classes), size, alpha, seed)
    for size in set(map(len, classes))
  }
  proportions = np.zeros([len(classes), num_classes])
  for client, client_classes in enumerate(classes):
    proportions[client, client_classes] = drawn[len(client_classes)][client]
  return proportions


def _check_concentration(name: str, alpha: float) -> None:
  """Raises ValueError for a finite concentration that cannot be drawn from."""
  if not _SMALLEST_ALPHA <= alpha <= _LARGEST_ALPHA:  # Also refuses NaN.
    raise ValueError(
      f"{name} must lie between {_SMALLEST_ALPHA:g} and"
      f" {_LARGEST_ALPHA:g}, or be inf for iid, got {alpha}"
    )


def partition_by_class(
  labels: np.ndarray, proportions: np.ndarray, seed: Seed
) -> list[np.ndarray]:
  """Partitions the examples of every class by the clients' label distributions.

  Client k receives the fraction p_k[c] / sum_j p_j[c] of the examples of class
  c. Fractions become whole numbers by largest remainder. Equal remainders go to
  the clients with the fewest examples so far. (They always occur if all clients
  have the same distribution; sizes then differ by at most one, per class and in
  total.) A class with zero probability for all clients is split evenly, so that
  every example belongs to exactly one client.

  Args:
    labels: `[N]` integers, each below the number of classes.
    proportions: `[num_clients, num_classes]` as drawn by
      `dirichlet_proportions`.
    seed: Seed of the shuffle within every class and of tie-breaks.

  Returns:
    For each client its indices in `labels`, ascending int64.

  Raises:
    ValueError: If there are more clients than examples, or a label has no
      column in `proportions`.
  """
  labels = examples.as_array(labels, "labels")
  num_clients, num_classes = proportions.shape
  if num_clients > len(labels):
    raise ValueError(
      f"{num_clients} clients cannot share {len(labels)} examples; use at"
      f" most {len(labels)} clients"
    )
  if labels.min() < 0 or labels.max() >= num_classes:
    raise ValueError(
      f"labels must lie in 0..{num_classes - 1}, got"
      f" {labels.min()}..{labels.max()}"
    )
  rng = generator("partition by class", seed)
  owners = np.empty(len(labels), np.int64)
  totals = np.zeros(num_clients, np.int64)
  for label in range(num_classes):
    members = rng.permutation(np.flatnonzero(labels == label))
    wanted = proportions[:, label]
    if not wanted.any():
      wanted = np.ones(num_clients)
    sizes = _whole_counts(len(members), wanted / wanted.sum(), totals, rng)
    owners[members] = np.repeat(np.arange(num_clients), sizes)
    totals += sizes
  return [np.flatnonzero(owners == client) for client in range(num_clients)]


def _whole_counts(
  total: int,
  fractions: np.ndarray,
  held: np.ndarray,
  rng: np.random.Generator,
) -> np.ndarray:
  """Splits `total` by `fractions` into whole numbers (largest remainder).

  Args:
    total: The number to split.
    fractions: `[num_clients]` float64 that sum to one.
    held: `[num_clients]` int64, the number of examples of each client so far;
      among equal remainders, clients with fewer examples come first.
    rng: Breaks the remaining ties.

  Returns:
    `[num_clients]` int64 that sum to `total`.
  """
  quotas = total * fractions
  # Slightly below the quota: rounding must never exceed `total`.
  sizes = np.floor(quotas - _QUOTA_TOLERANCE).clip(min=0).astype(np.int64)
  remainders = (quotas - sizes) / _QUOTA_TOLERANCE
  lots = rng.permutation(len(fractions))
  # np.lexsort sorts by its last key first.
  order = np.lexsort((lots, held + sizes, -np.round(remainders)))
  sizes[order[: total - sizes.sum()]] += 1
  return sizes


def dirichlet_over_clients(
  labels: np.ndarray,
  num_clients: int,
  alpha: float,
  seed: Seed,
  min_examples: int | None = None,
) -> list[np.ndarray]:
  """Partitions every class by a draw p ~ Dir(alpha 1_m) over the clients.

  Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural
  Networks" (ICML 2019), which the FedDRM paper follows; the details follow the
  program of FedDRM's authors. Classes are processed in the order of their
  labels. A client that already holds N / m or more examples receives nothing
  from further classes, and the other clients' fractions are rescaled to sum to
  one. Fractions become whole numbers by rounding down their running sums. The
  whole draw is repeated until every client has `min_examples`.

  Client sizes differ strongly here. `partition_by_class` instead draws a label
  distribution for each client.

  Args:
    labels: `[N]` integers.
    num_clients: Number of clients m.
    alpha: Dirichlet concentration. The smaller, the fewer clients share a
      class; `math.inf` is the limit, an even split: sizes differ by at most
      one, per class and in total.
    seed: Seed of all draws.
    min_examples: Minimum number of examples of a client. None: the number of
      different labels, as in the program.

  Returns:
    For each client its indices in `labels`, ascending int64; every example
    belongs to exactly one client.

  Raises:
    ValueError: If a number is out of range, there are too few examples, or no
      draw gave every client enough.
  """
  check_positive_integer("num_clients", num_clients)
  classes, columns = np.unique(labels, return_inverse=True)
  advice = "fewer clients (num_clients) or more examples (max_examples)"
  if min_examples is None:
    min_examples = len(classes)
  else:
    # Only advise to change it if the caller has set it.
    advice = f"a smaller min_examples, {advice}"
  check_positive_integer("min_examples", min_examples)
  if num_clients * min_examples > len(columns):
    raise ValueError(
      f"{num_clients} clients of at least {min_examples} examples need"
      f" {num_clients * min_examples}, got {len(columns)}; use {advice}"
    )
  if alpha == math.inf:
    even = np.ones((num_clients, len(classes)))
    return partition_by_class(columns, even, seed)
  _check_concentration("alpha", alpha)
  rng = generator("dirichlet over clients", seed)
  class_sizes = np.bincount(columns)
  for _ in range(_MAX_TRIES):
    sizes = _sizes_over_clients(class_sizes, num_clients, alpha, rng)
    if sizes.sum(axis=0).min() >= min_examples:
      break
  else:
    raise ValueError(
      f"none of {_MAX_TRIES} draws with alpha {alpha:g} gave each of"
      f" {num_clients} clients {min_examples} of {len(columns)} examples; use"
      f" a larger alpha (dirichlet_<alpha>), {advice}"
    )
  owners = np.empty(len(columns), np.int64)
  for column, row in enumerate(sizes):
    members = rng.permutation(np.flatnonzero(columns == column))
    owners[members] = np.repeat(np.arange(num_clients), row)
  return [np.flatnonzero(owners == client) for client in range(num_clients)]


def _sizes_over_clients(
  class_sizes: np.ndarray,
  num_clients: int,
  alpha: float,
  rng: np.random.Generator,
) -> np.ndarray:
  """Draws the number of examples of each class for each client, once.

  Args:
    class_sizes: `[num_classes]` int64.
    num_clients: Number of clients.
    alpha: Dirichlet concentration, finite.
    rng: The random generator.

  Returns:
    `[num_classes, num_clients]` int64; the rows sum to `class_sizes`.
  """
  sizes = np.zeros((len(class_sizes), num_clients), np.int64)
  for column, total in enumerate(class_sizes):
    # There is always such a client: not all examples are assigned yet.
    is_open = sizes.sum(axis=0) * num_clients < class_sizes.sum()
    # A part of a Dirichlet draw, rescaled, is a Dirichlet draw of that part.
    # Drawing it directly avoids a division by a sum that is 0 for small alpha.
    drawn = rng.dirichlet(np.full(is_open.sum(), alpha))
    ends = np.floor(np.cumsum(drawn) * total + _QUOTA_TOLERANCE)
    ends[-1] = total
    sizes[column, is_open] = np.diff(ends, prepend=0)
  return sizes


def shards(
  labels: np.ndarray, num_clients: int, shards_per_client: int, seed: Seed
) -> list[np.ndarray]:
  """Sorts by label, cuts into equal shards, and assigns them at random.

  McMahan et al., "Communication-Efficient Learning of Deep Networks from
  Decentralized Data" (AISTATS 2017), section 3. Shards differ in size by at
  most one example; examples of a class are shuffled before the cut.

  Args:
    labels: `[N]` integers.
    num_clients: Number of clients.
    shards_per_client: Number of shards per client.
    seed: Seed of the order within a class and of the assignment.

  Returns:
    For each client its indices in `labels`, ascending int64; every example
    belongs to exactly one client.

  Raises:
    ValueError: If a count is below 1, or there are more shards than examples.
  """
  check_positive_integer("num_clients", num_clients)
  check_positive_integer("shards_per_client", shards_per_client)
  labels = examples.as_array(labels, "labels")
  num_shards = num_clients * shards_per_client
  if num_shards > len(labels):
    raise ValueError(
      f"{num_clients} clients of {shards_per_client} shards need at least"
      f" {num_shards} examples, got {len(labels)}"
    )
  rng = generator("shards", seed)
  mixed = rng.permutation(len(labels))
  by_label = mixed[np.argsort(labels[mixed], kind="stable")]
  pieces = np.array_split(by_label, num_shards)
  assigned = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
  return [
    np.sort(np.concatenate([pieces[shard] for shard in hand]))
    for hand in assigned
  ]


def split_train_test(
  indices: np.ndarray,
  test_fraction: float,
  seed: Seed,
  groups: np.ndarray | None = None,
  sides: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Splits indices at random into a training and a test part.

  Args:
    indices: `[n]` integers.
    test_fraction: Fraction of the test part. Its size is rounded, but training
      keeps at least one example.
    seed: Seed of the draw.
    groups: The groups that stay in one part, see `cut`; the test part may then
      be larger by the rest of a group. None: all indices are independent.
    sides: The parts of groups in earlier splits, see `cut`.

  Returns:
    The training indices and the test indices, both ascending.

  Raises:
    ValueError: If `test_fraction` is not strictly between 0 and 1.
  """
  if not 0 < test_fraction < 1:
    raise ValueError(
      "test_fraction must lie between 0 and 1, both excluded, got"
      f" {test_fraction}"
    )
  indices = np.asarray(indices)
  num_test = max(0, min(round(test_fraction * len(indices)), len(indices) - 1))
  order = generator("split train test", seed).permutation(indices)
  test, train = cut(order, [num_test], groups, sides)
  return np.sort(train), np.sort(test)


def check_groups(group: str | None, keep_copies_together: bool) -> None:
  """Refuses to keep copies of examples together as well as groups."""
  if keep_copies_together:
    raise ValueError(
      f"keep_copies_together does not apply to group={group!r}, which keeps"
      " examples together; leave it out"
    )


def no_sides(*groups: np.ndarray | None) -> np.ndarray | None:
  """Returns the sides of groups before the first cut; None without groups."""
  if groups[0] is None:
    return None
  return np.full(1 + max(part.max(initial=-1) for part in groups), -1)


def cut(
  order: np.ndarray,
  sizes: Sequence[int],
  groups: np.ndarray | None = None,
  sides: np.ndarray | None = None,
) -> list[np.ndarray]:
  """Cuts indices in random order into parts.

  Groups fill the parts in the order of their first indices. A group that would
  begin in a part is in it as a whole. The last part has at least one group.

  Args:
    order: `[n]` integers.
    sizes: The sizes of all parts except the last.
    groups: `[N]` integers from 0, equal for indices that must stay in the same
      part, such as `examples.copies`. None: all indices are independent.
    sides: `[num_groups]` integers, the part of each group in earlier cuts of
      other indices, which it keeps; -1 without one. Updated. None: there are no
      earlier cuts.

  Returns:
    The parts.
  """
  if groups is None:
    return np.split(order, np.cumsum(sizes))
  present, firsts, inverse, counts = np.unique(
    groups[order], return_index=True, return_inverse=True, return_counts=True
  )
  last = len(sizes)
  part_of = np.full(len(present), -1) if sides is None else sides[present]
  is_new = part_of < 0
  filled = np.bincount(part_of[~is_new], counts[~is_new], minlength=last + 1)
  ends = np.cumsum(np.maximum(0, sizes - filled[:-1]))
  by_order = np.argsort(firsts)
  by_order = by_order[is_new[by_order]]
  num_before = np.cumsum(counts[by_order]) - counts[by_order]
  part_of[by_order] = np.searchsorted(ends, num_before, side="right")
  if not filled[-1]:
    part_of[by_order[-1:]] = last
  if sides is not None:
    sides[present] = part_of
  return [order[part_of[inverse] == part] for part in range(last + 1)]
