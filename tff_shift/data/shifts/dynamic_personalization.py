"""Periods of a client's data with randomly drawn label distributions.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.3 and Figure 3. Time is divided into periods of
equal size. The data of a period have one of eight distributions: `iid` is a
random sample of the pool; in `0.5` half of the examples have one label and the
rest are random; in `0.1+0.8` a tenth have label A and eight tenths label B. A
and B differ and are drawn at random. Labels with a fraction in the name are
called heavy here.

Choices:
  - The rest excludes the heavy labels (`rest="others"`): only then does a label
    have exactly the fraction in the name. With `rest="any"` and ten classes,
    55 % of the examples of a period of `0.5` have the label.
  - The rest is a random sample of its sources, as iid is of the pool.
  - Examples of a period are different; two periods may share examples.
  - Every client draws its own distributions and heavy labels.
  - The caller chooses how long a distribution lasts; one period by default:
    "we randomize the distribution in each training period".

Your own data with domains have their own periods, which are not drawn: each
domain is a period. The first ones are for training, the others are the stream.
"""

import fractions
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tff_shift._util import arguments
from tff_shift.data import datasets
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data.shifts import fixed_batches
from tff_shift.data.shifts import own_drift

SCENARIO = "dynamic_personalization"

# A name is `iid`, or the fraction of each heavy label.
DISTRIBUTIONS = (
  "iid",
  "0.5",
  "0.7",
  "0.8",
  "0.9",
  "0.4+0.4",
  "0.5+0.5",
  "0.1+0.8",
)

RESTS = ("others", "any")

_TEST_FRACTION = 0.2
# The parts that are not for the test.
_LABELLED = "train", "validation", "public"


class OwnPeriods(NamedTuple):
  """The periods of data with domains.

  Attributes:
    train: The training periods, which repeat: each client's examples of the
      part `train`.
    stream: The stream. Its period 0 has all examples of the last training
      period, and its other periods are the other domains.
    period_size: The median number of examples of a client in a training period,
      at most half of all training examples, for IID periods.
  """

  train: fixed_batches.Periods
  stream: fixed_batches.Periods
  period_size: int


class DynamicPersonalizationDataset(NamedTuple):
  """A data set in four disjoint parts.

  Attributes:
    name: Its name, see `datasets.get`.
    train: The pool of the training periods.
    validation: The pool for the validation accuracy of a model.
    test: The pool of the inference periods.
    public: The server's data, for fitting representations and thresholds.
    schema: The names of classes, clients, times and features.
    clients: For each part by its name, `[n]` integers, the client that holds an
      example. None: all clients draw from all examples.
    periods: The periods of data with domains; `test` has all examples of their
      stream. None: periods are drawn.
    groups: The groups of `train`, `validation` and `public`, and those of the
      evaluated periods. None: examples are independent.
  """

  name: str
  train: examples.Examples
  validation: examples.Examples
  test: examples.Examples
  public: examples.Examples
  schema: table.Schema
  clients: Mapping[str, np.ndarray] | None = None
  periods: OwnPeriods | None = None
  groups: table.Sides | None = None


def deal(
  content: table.Table,
  *,
  drifted: npt.ArrayLike | None = None,
  repeats: bool = False,
) -> fixed_batches.Periods:
  """Divides the examples of clients by time, for `dynamic_personalization`.

  Args:
    content: The examples, with clients and times: the periods, for training,
      validation or a stream. A client without examples in a period is absent.
    drifted: For each client and period, whether its distribution differs from
      the previous period; ignored for period 0. It is used to evaluate drift
      detection, and clients do not see it. None: not known.
    repeats: Whether the periods repeat from period 0 after the last one. A
      round of training uses one period.

  Returns:
    The periods.

  Raises:
    ValueError: If `drifted` does not fit.
  """
  has_drifted = None
  if drifted is not None:
    shape = content.schema.num_clients, len(content.schema.times)
    has_drifted = examples.as_array(drifted, "drifted")
    if has_drifted.shape != shape or has_drifted.dtype != bool:
      raise ValueError(
        f"drifted: {list(shape)} bools wanted, one for each client and period,"
        f" got {has_drifted.dtype} {list(has_drifted.shape)}"
      )
  _, batches = table.take_groups(content, table.positions(content))
  return fixed_batches.Periods(
    batches, has_drifted, len(content.schema.classes), repeats=repeats
  )


def load_dynamic_personalization(
  dataset: str,
  *,
  seed: int,
  data_dir: str | os.PathLike[str] | None = None,
  max_examples: int | None = None,
  public_fraction: float = 0.1,
  validation_fraction: float = 0.1,
  test_fraction: float | None = None,
  train_periods: int | None = None,
  num_clients: int | None = None,
) -> DynamicPersonalizationDataset:
  """Loads a data set and splits it into its four parts.

  If examples belong to clients, the examples of each client are split. If they
  belong to domains, the examples of the training periods are split into
  training, validation and public part.

  Args:
    dataset: The name of the data set, see `datasets.get`.
    seed: Seed of the split.
    data_dir: The folder of all data sets, see `dataset`.
    max_examples: The maximum number of examples, drawn at random from the whole
      data set before the split. None: all.
    public_fraction: Fraction of the public part in the examples that are not
      for the test.
    validation_fraction: Fraction of the validation part in the same examples.
    test_fraction: Fraction of the test part if the archive has no test part of
      its own (digits); otherwise the archive's test part is used. None: 0.2.
      Not for data with domains.
    train_periods: The number of leading domains that are training periods.
      None: half of them, rounded up. Only for data with domains; at least one
      domain must remain.
    num_clients: The number of clients to which examples with domains and
      without clients are dealt, IID. None: the data assign clients, or have no
      domains.

  Returns:
    The data set; the rest is the training part.

  Raises:
    ValueError: If a value is not allowed, or a part would be empty.
    DatasetNotFoundError: If the data set is not on the disk.

  Examples:
    >>> dataset = ts.load_dynamic_personalization(
    ...   "digits", seed=0, max_examples=100
    ... )
    >>> len(dataset.train.y), len(dataset.validation.y), len(dataset.test.y)
    (64, 8, 20)
  """
  # Refuses data sets that the scenario cannot use.
  time_names = own_drift.time_names(dataset, SCENARIO, data_dir)
  if time_names and test_fraction is not None:
    raise ValueError(
      f"test_fraction does not apply to {dataset}, whose last domains are the"
      " stream"
    )
  if not time_names and train_periods is not None:
    raise ValueError(
      f"train_periods does not apply to {dataset}, which has no domains"
    )
  if not time_names and num_clients is not None:
    raise ValueError(
      f"num_clients does not apply to {dataset}, which has no domains to deal"
    )
  part_fractions = {
    "public_fraction": public_fraction,
    "validation_fraction": validation_fraction,
    "test_fraction": _TEST_FRACTION if test_fraction is None else test_fraction,
  }
  for name, fraction in part_fractions.items():
    if not 0 < fraction < 1:  # Also refuses NaN.
      raise ValueError(
        f"{name} must lie between 0 and 1, both excluded, got {fraction}"
      )
  if public_fraction + validation_fraction >= 1:
    raise ValueError(
      "public_fraction and validation_fraction must leave a part for"
      f" training, got the sum {public_fraction + validation_fraction:g}"
    )
  source = datasets.load(dataset, data_dir=data_dir)
  order = partition.generator("dynamic parts", seed).permutation(len(source.y))
  if max_examples is not None:
    partition.check_positive_integer("max_examples", max_examples)
    order = order[:max_examples]
  if time_names:
    return _load_with_times(
      dataset,
      source,
      time_names,
      order,
      part_fractions | {"test_fraction": 0.0},
      train_periods,
      num_clients,
      seed,
    )
  groups = {"": order}
  if source.client is not None:
    groups = {
      f" for client {client}": order[source.client[order] == client]
      for client in range(source.client.max() + 1)
    }
  sides = partition.no_sides(source.group)
  cuts = []
  for whose, group in groups.items():
    cuts.append(_cut(source, group, part_fractions, sides))
    for name, positions in cuts[-1].items():
      if not len(positions):
        raise ValueError(
          f"the {name} part of {dataset} would be empty{whose}; use a larger"
          f" max_examples or fraction, got {table.size_of(source, group)}"
        )
  parts = {
    name: np.sort(np.concatenate([cut[name] for cut in cuts]))
    for name in cuts[0]
  }
  clients = None
  if source.client is not None:
    clients = {name: source.client[rows] for name, rows in parts.items()}
  taken: dict[str, Any] = {
    name: examples.take(source, rows) for name, rows in parts.items()
  }
  partitioned = DynamicPersonalizationDataset(
    name=dataset,
    schema=source.schema,
    clients=clients,
    groups=table.sides_of(
      source, [parts[part] for part in _LABELLED], parts["test"]
    ),
    **taken,
  )
  return preparation.prepared(partitioned, [partitioned.train.x])


def _load_with_times(
  name: str,
  source: table.Table,
  time_names: Sequence[str],
  order: np.ndarray,
  part_fractions: Mapping[str, float],
  train_periods: int | None,
  num_clients: int | None,
  seed: int,
) -> DynamicPersonalizationDataset:
  """Splits the training periods of a data set; the others are its stream.

  Args:
    name: The name of the data set.
    source: The data set.
    time_names: The names of its domains.
    order: The indices of the examples to use, shuffled.
    part_fractions: The fractions of the parts, by name.
    train_periods: The number of training periods. None: half, rounded up.
    num_clients: The number of clients. None: the data set's.
    seed: Seed of the deal to clients.
  """
  if train_periods is None:
    train_periods = (len(time_names) + 1) // 2
  most = len(time_names) - 1
  if not isinstance(train_periods, int | np.integer) or not (
    1 <= train_periods <= most
  ):
    raise ValueError(
      f"train_periods must lie in 1..{most}, so that {name}, which has"
      f" {len(time_names)} periods, has one for the stream; got"
      f" {train_periods!r}"
    )
  is_used = np.zeros(len(source.y), bool)
  is_used[order] = True
  source = own_drift.with_clients(source, num_clients, seed, name)
  groups = [
    [rows[is_used[rows]] for rows in client_rows]
    for client_rows in table.positions(source)
  ]
  for time_name, at_once in zip(
    time_names, zip(*groups, strict=True), strict=True
  ):
    if not any(map(len, at_once)):
      raise ValueError(
        f"period {time_name!r} of {name} would be empty; use a larger"
        f" max_examples, got {len(order)} examples"
      )
  client = np.empty(len(source.y), np.int32)
  period = np.full(len(source.y), len(time_names))
  for client_id, client_rows in enumerate(groups):
    for at, positions in enumerate(client_rows):
      client[positions], period[positions] = client_id, at
  of_training = order[period[order] < train_periods]
  sides = partition.no_sides(source.group)
  cuts = [
    _cut(
      source,
      of_training[client[of_training] == client_id],
      part_fractions,
      sides,
    )
    for client_id in range(len(groups))
  ]
  parts = {
    part: np.sort(np.concatenate([cut[part] for cut in cuts]))
    for part in _LABELLED
  }
  for part, positions in parts.items():
    if not len(positions):
      raise ValueError(
        f"the {part} part of {name} would be empty, because each of"
        f" {len(groups)} clients gives a fraction of its examples of the"
        f" {train_periods} training periods; use a larger fraction or fewer"
        f" clients, got {table.size_of(source, of_training)}"
      )
  is_train = np.zeros(len(source.y), bool)
  is_train[parts["train"]] = True
  train, batches = table.take_groups(
    source,
    [
      [rows[is_train[rows]] for rows in client_rows[:train_periods]]
      for client_rows in groups
    ],
  )
  sizes = [
    len(batch.y)
    for client_batches in batches
    for batch in client_batches
    if len(batch.y)
  ]
  for at, at_once in enumerate(zip(*batches, strict=True)):
    if not any(len(batch.y) for batch in at_once):
      raise ValueError(
        f"period {time_names[at]!r} of {name} has no example for training,"
        " beside the public and the validation part"
      )
  # The stream starts from the last training period.
  test, stream = table.take_groups(
    source, [client_rows[train_periods - 1 :] for client_rows in groups]
  )
  num_classes = len(source.schema.classes)
  partitioned = DynamicPersonalizationDataset(
    name=name,
    train=train,
    validation=examples.take(source, parts["validation"]),
    test=test,
    public=examples.take(source, parts["public"]),
    schema=source.schema,
    clients={part: client[parts[part]] for part in ("validation", "public")},
    periods=OwnPeriods(
      fixed_batches.Periods(batches, None, num_classes, repeats=True),
      fixed_batches.Periods(stream, None, num_classes),
      min(int(np.median(sizes)), len(train.y) // 2),
    ),
    groups=table.sides_of(
      source,
      [parts[part] for part in _LABELLED],
      np.flatnonzero((period >= train_periods) & is_used),
    ),
  )
  return preparation.prepared(partitioned, [partitioned.train.x])


def _cut(
  source: table.Table,
  order: np.ndarray,
  part_fractions: Mapping[str, float],
  sides: np.ndarray | None,
) -> dict[str, np.ndarray]:
  """Splits shuffled indices into the four parts, by name.

  Args:
    source: The data set.
    order: The indices.
    part_fractions: The fractions of the parts, by name.
    sides: The parts of groups in earlier splits, see `partition.cut`.
  """
  fixed_test, remaining = order[:0], order
  num_test = round(part_fractions["test_fraction"] * len(order))
  if source.num_train is not None:
    is_test = order >= source.num_train
    fixed_test, remaining, num_test = order[is_test], order[~is_test], 0
  ends = np.rint(
    np.cumsum(
      [part_fractions["public_fraction"], part_fractions["validation_fraction"]]
    )
    * (len(remaining) - num_test)
  ).astype(int)
  test, public, validation, train = partition.cut(
    remaining,
    [num_test, *np.diff(ends, prepend=0)],
    source.group,
    sides,
  )
  return {
    "train": train,
    "validation": validation,
    "test": np.concatenate([fixed_test, test]),
    "public": public,
  }


class Periods:
  """Draws the examples of each client and period.

  All methods are pure functions of (seed, client, period). Clients and periods
  count from 0. The distribution and the heavy labels of a period do not depend
  on the examples of the pool or the period's size (only on the classes in the
  pool): with the same seed, the periods of two pools correspond.
  """

  def __init__(
    self,
    pool: examples.Examples,
    num_classes: int,
    distribution: str | Sequence[str],
    *,
    num_clients: int,
    period_size: int,
    seed: int,
    rest: str = "others",
    periods_per_distribution: int = 1,
    pool_client: np.ndarray | None = None,
    may_lack: bool = False,
  ):
    """Sorts the pool by class.

    Args:
      pool: The examples to draw from, x [N, ...] and y [N] integers.
      num_classes: The number of classes.
      distribution: One of `DISTRIBUTIONS`, or several, of which a client draws
        one with equal probabilities.
      num_clients: The number of clients.
      period_size: The number of examples in a period.
      seed: Seed of all draws.
      rest: `others`: the rest excludes the heavy labels. `any`: it is drawn
        from all remaining examples.
      periods_per_distribution: The number of consecutive periods with the same
        distribution and heavy labels; afterwards both are drawn again and may
        be the same.
      pool_client: `[N]` integers, the client that holds an example of the pool
        and alone draws it. None: all clients draw from all examples.
      may_lack: Whether a client may hold no examples; its periods are empty.

    Raises:
      ValueError: If a value is not allowed, or the examples of a client have
        fewer classes than the distributions need.
    """
    names = (
      (distribution,) if isinstance(distribution, str) else tuple(distribution)
    )
    for name in names or ("",):
      arguments.choice("distribution", name, DISTRIBUTIONS)
    arguments.choice("rest", rest, RESTS)
    for name, value in (
      ("num_classes", num_classes),
      ("num_clients", num_clients),
      ("period_size", period_size),
      ("periods_per_distribution", periods_per_distribution),
    ):
      partition.check_positive_integer(name, value)
    self.num_clients = num_clients
    self.period_size = period_size
    self._names = names
    self._pool = pool
    self._rest = rest
    self._periods_per_distribution = periods_per_distribution
    self._seed = seed
    examples.check_pool(pool)
    by_class = [np.flatnonzero(pool.y == label) for label in range(num_classes)]
    if sum(map(len, by_class)) != len(pool.y):
      raise ValueError(f"labels of the pool must lie in 0..{num_classes - 1}")
    # Each client's indices by class; a single entry is for all clients.
    self._by_class = [by_class]
    if pool_client is not None:
      self._by_class = [
        [rows[pool_client[rows] == client] for rows in by_class]
        for client in range(num_clients)
      ]
    # A class without examples cannot be heavy.
    self._classes = [
      np.flatnonzero([len(rows) for rows in by_label])
      for by_label in self._by_class
    ]
    num_heavy = max(len(_heavy_fractions(name)) for name in names)
    num_needed = max(1, num_heavy + (num_heavy > 0 and rest == "others"))
    for client, classes in enumerate(self._classes):
      if len(classes) < num_needed and (len(classes) or not may_lack):
        owner = "the pool" if pool_client is None else f"client {client}"
        raise ValueError(
          f"{owner} must have examples of at least {num_needed} classes for"
          f" distribution {', '.join(names)} and rest={rest}, got"
          f" {len(classes)}"
        )

  def distribution(self, client: int, period: int) -> str:
    """Returns the name of a period's distribution, one of `DISTRIBUTIONS`."""
    name, _ = self._choice(client, period)
    return name

  def heavy_labels(self, client: int, period: int) -> tuple[int, ...]:
    """Returns the heavy labels, in the order of the name; iid: ()."""
    _, labels = self._choice(client, period)
    return labels

  def is_drift(self, client: int, period: int) -> bool:
    """Returns whether a period's distribution differs from the previous one.

    Two distributions are equal if each label has the same fraction: iid after
    iid is not a drift, and neither is `0.4+0.4` of labels 5 and 2 after
    `0.4+0.4` of labels 2 and 5. For a client with two labels, `0.5` is the same
    for either heavy label.

    Args:
      client: The client.
      period: The period, from 1.

    Returns:
      True if the fraction of a label differs.

    Raises:
      ValueError: If there is no previous period.
    """
    partition.check_positive_integer("period", period)
    return self._label_fractions(client, period - 1) != self._label_fractions(
      client, period
    )

  def batch(self, client: int, period: int) -> examples.Examples:
    """Draws the examples of a period.

    Each heavy label has round(fraction * period_size) examples (halves to
    even); the second one has at most the remaining number (`0.5+0.5` of three
    examples: two and one). Examples differ unless the pool has too few: a heavy
    label, or the rest, is then drawn with replacement.

    Returns:
      `period_size` examples, in random order; none if the client holds none.

    Raises:
      ValueError: If there is no such client or period.
    """
    if client < len(self._classes) and not len(self._classes[client]):
      return examples.take(self._pool, np.empty(0, np.int64))
    name, labels = self._choice(client, period)
    rng = partition.generator(
      "examples of a period", [self._seed, client, period]
    )
    left = self.period_size
    drawn = [np.empty(0, np.int64)]
    for label, share in zip(labels, _heavy_fractions(name), strict=True):
      count = min(round(share * self.period_size), left)
      drawn.append(_draw(self._of(client, self._by_class)[label], count, rng))
      left -= count
    others = self._rest_positions(client, labels, drawn, left)
    drawn.append(_draw(others, left, rng))
    positions = rng.permutation(np.concatenate(drawn))
    return examples.take(self._pool, positions)

  def _choice(self, client, period) -> tuple[str, tuple[int, ...]]:
    """Draws a period's distribution and heavy labels."""
    for name, value in (("client", client), ("period", period)):
      if not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(
          f"{name} must be an integer of at least 0, got {value!r}"
        )
    if client >= self.num_clients:
      raise ValueError(
        f"client must be below num_clients={self.num_clients}, got {client}"
      )
    rng = partition.generator(
      "distribution of a period",
      [self._seed, client, period // self._periods_per_distribution],
    )
    name = self._names[rng.integers(len(self._names))]
    labels = rng.choice(
      self._of(client, self._classes),
      len(_heavy_fractions(name)),
      replace=False,
    )
    return name, tuple(int(label) for label in labels)

  def _label_fractions(
    self, client: int, period: int
  ) -> dict[int, fractions.Fraction]:
    """Returns the fraction of each label in a period, heavy or not."""
    name, labels = self._choice(client, period)
    label_fractions = dict(zip(labels, _heavy_fractions(name), strict=True))
    remainder = 1 - sum(label_fractions.values())
    counts = {
      label: len(positions)
      for label, positions in enumerate(self._of(client, self._by_class))
      if self._rest == "any" or label not in label_fractions
    }
    if remainder:
      total = sum(counts.values())
      for label, count in counts.items():
        if count:
          added = remainder * fractions.Fraction(count, total)
          label_fractions[label] = label_fractions.get(label, 0) + added
    return label_fractions

  def _of(self, client: int, entries: list[Any]) -> Any:
    """Returns a client's entry; a single entry is for all clients."""
    return entries[client % len(entries)]

  def _rest_positions(self, client, labels, drawn, count) -> np.ndarray:
    """Returns the indices from which the `count` other examples are drawn."""
    by_class = self._of(client, self._by_class)
    if self._rest == "others":
      return np.concatenate(
        [
          positions
          for label, positions in enumerate(by_class)
          if label not in labels
        ]
      )
    everything = np.sort(np.concatenate(by_class))
    left = np.setdiff1d(everything, np.concatenate(drawn))
    return left if len(left) >= count else everything


def _heavy_fractions(name: str) -> tuple[fractions.Fraction, ...]:
  """Returns the fraction of each heavy label; iid: ()."""
  # Exact: as a float, 0.7 * 45 is below 31.5.
  if name == "iid":
    return ()
  return tuple(fractions.Fraction(part) for part in name.split("+"))


def _draw(positions, count, rng) -> np.ndarray:
  """Draws `count` positions, with replacement only if there are fewer."""
  return rng.choice(positions, count, replace=count > len(positions))
