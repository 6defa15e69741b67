"""Clients with different label distributions and different colours.

FedDRM, Section 3.1 and Appendix F: a data set is partitioned over the clients
by a Dirichlet distribution or by shards. Each client splits its part 70/30 into
training and test, and applies its own colour transform to all its images.

Your own data are not changed unless an intensity is given: they can be vectors,
and any number of clients can hold them. If they have a test split, clients
train on one part and are tested on the other.

Choices:
  * Training and test split of an archive are pooled (the paper counts 60,000
    images of CIFAR-10). `--max_examples` is stratified.
  * A Dirichlet draw is over clients for each class; clients with N / m examples
    receive no more. It is repeated until the smallest client has as many
    examples as there are classes, see `partition.dirichlet_over_clients`: the
    rule of the program of FedDRM's authors, whose three printed draws were
    reproduced to the digit with its generator.
  * CIFAR-100 with its 20 superclasses is partitioned by the 100 fine labels, as
    in the program.
  * Grey images are tinted first. Your own examples with clients are coloured
    too if an intensity is given: that is the scenario's shift.
"""

import os
import re
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition as partitions
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data.images import color_transforms
from tff_shift.data.shifts import class_pools

SCENARIO = "guidance"
# The test fraction of a client's examples.
_TEST_FRACTION = 0.3

_PARTITION = re.compile(r"dirichlet_(inf|\d*\.?\d+(?:e-?\d+)?)|(\d+)_spc")


class GuidanceDataset(NamedTuple):
  """The clients' data; the position in a tuple is the client's id.

  Attributes:
    train: Training examples of each client, after its transform: `x`
      `[n, height, width, 3]` uint8, or in the form of your own data, `y` `[n]`
      int32.
    test: Test examples of each client, after its transform.
    transforms: The colour transform of each client.
    schema: The names of classes, clients and features.
    sample: One example of the data set before any transform.
    groups: The groups of each client's examples. None: they are independent.
  """

  train: tuple[examples_lib.Examples, ...]
  test: tuple[examples_lib.Examples, ...]
  transforms: tuple[color_transforms.ColorTransform, ...]
  schema: table.Schema
  sample: np.ndarray
  groups: table.Sides | None = None


class Parts(NamedTuple):
  """Two disjoint parts.

  Attributes:
    train: The training examples of each client; of `from_python.split`, one
      `Examples`.
    test: The held-out examples, in the same form.
  """

  train: Any
  test: Any


def deal(
  content: table.Table,
  *,
  test_fraction: float = _TEST_FRACTION,
  seed: int = 0,
  keep_copies_together: bool = False,
) -> Parts:
  """Splits the examples of clients, for `ts.run_guidance`.

  Args:
    content: The examples, with clients and without times.
    test_fraction: Test fraction of a client's examples. Ignored if the table
      has a test split.
    seed: Seed of the split.
    keep_copies_together: Whether examples of a client that are equal bit for
      bit are all for training or all for testing.

  Returns:
    The training examples of each client, and its test examples, the queries.

  Raises:
    ValueError: If a client has too few examples for both parts.
  """
  if content.time is not None:
    raise ValueError("guidance has no times and would ignore them")
  together, sides = content.group, partitions.no_sides(content.group)
  if sides is not None:
    partitions.check_groups(content.schema.group, keep_copies_together)
  elif keep_copies_together:
    together = examples_lib.copies(content.x)
  clients: list[list[examples_lib.Examples]] = []
  for client, (rows,) in enumerate(table.positions(content)):
    if content.num_train is not None:
      parts = rows[rows < content.num_train], rows[rows >= content.num_train]
    else:
      parts = partitions.split_train_test(
        rows, test_fraction, [seed, client], together, sides
      )
      if not all(map(len, parts)):
        name = content.schema.client_name(client)
        of_one = keep_copies_together and len(set(together[rows])) == 1
        what = ", all copies of one," if of_one and len(rows) > 1 else ""
        raise ValueError(
          f"client {name}: test_fraction {test_fraction:g} of"
          f" {table.size_of(content, rows)}{what} leaves none to"
          f" {'test' if len(parts[0]) else 'train on'}"
        )
    clients.append([examples_lib.take(content, part) for part in parts])
  return Parts(*map(tuple, zip(*clients, strict=True)))


def default_intensity(dataset: str) -> str:
  """Returns the default intensity of colour changes.

  Own data and vectors have none.
  """
  has_colors = (
    not datasets.is_own(dataset) and datasets.get(dataset).dtype == np.uint8
  )
  return "high" if has_colors else color_transforms.NONE


def held_out_validation(
  dataset: GuidanceDataset, seed: int, validation_fraction: float = 0.2
) -> GuidanceDataset:
  """Replaces the test examples by a part of each client's training examples.

  Selection on this part uses no test examples.

  Args:
    dataset: The clients' data.
    seed: Seed of the draw.
    validation_fraction: Fraction of a client's training examples.

  Returns:
    The data set, with other `train` and `test`.

  Raises:
    ValueError: If a client has too few training examples; for clients that hold
      their own examples, if all have too few.
  """
  train, validation = [], []
  groups = (
    dataset.groups.train if dataset.groups else [None] * len(dataset.train)
  )
  sides = partitions.no_sides(*groups)
  for client, held in enumerate(dataset.train):
    parts = partitions.split_train_test(
      np.arange(len(held.y)),
      validation_fraction,
      [seed, client, 1],
      groups[client],
      sides,
    )
    for use, positions in zip(("training", "validation"), parts, strict=True):
      if not len(positions) and dataset.schema.clients is None:
        raise ValueError(
          f"client {client} would have no {use} example: it has"
          f" {len(held.y)} training examples; use fewer clients, more examples"
          " or another partition"
        )
    for part, positions in zip((train, validation), parts, strict=True):
      part.append(examples_lib.take(held, positions))
  if not any(len(part.y) for part in validation):
    raise ValueError(
      "no client would have a validation example: each has too few training"
      " examples"
    )
  return dataset._replace(train=tuple(train), test=tuple(validation))


def parse_partition(text: str) -> tuple[str, float | int]:
  """Parses the partition of a data set over the clients.

  Args:
    text: `dirichlet_<alpha>`, such as `dirichlet_0.3` (`dirichlet_inf` is an
      even split), or `<S>_spc`, such as `5_spc`, S shards per client.

  Returns:
    `("dirichlet", alpha)` or `("shards", S)`.

  Raises:
    ValueError: If the text is neither, or its number is not positive.
  """
  match = _PARTITION.fullmatch(text)
  if match:
    alpha, num_shards = match.groups()
    if alpha and float(alpha) > 0:
      return "dirichlet", float(alpha)
    if num_shards and int(num_shards) > 0:
      return "shards", int(num_shards)
  raise ValueError(
    "partition must be dirichlet_<alpha> or <S>_spc with a positive number,"
    f" such as dirichlet_0.3 or 5_spc, got {text!r}"
  )


def load_guidance(
  dataset: str,
  *,
  num_clients: int,
  partition: str | None,
  intensity: str | None = None,
  seed: int,
  max_examples: int | None = None,
  test_fraction: float | None = None,
  data_dir: str | os.PathLike[str] | None = None,
) -> GuidanceDataset:
  """Loads a data set, partitions it over clients, and transforms its colours.

  Args:
    dataset: The name of the data set, see `datasets.get`.
    num_clients: Number of clients, see `color_transforms.pool`.
    partition: The partition, see `parse_partition`. None: examples stay with
      the clients that hold them.
    intensity: The intensity of colour changes, see `color_transforms.pool`.
      None: `default_intensity`.
    seed: Seed of all draws. The partition does not depend on `intensity`.
    max_examples: The maximum number of examples to partition, drawn by class in
      the proportions of the data set. None: all.
    test_fraction: Test fraction of a client's examples. None: 0.3, unless your
      own data have a test split.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The clients' data. Each client has at least one training and one test
    example. If clients hold their own examples, at least one client has both.

  Raises:
    ValueError: If a name or number is wrong or does not apply, or a client
      would have too few examples.
    DatasetNotFoundError: If the data set is not on the disk.

  Examples:
    >>> dataset = ts.load_guidance(
    ...   "digits",
    ...   num_clients=2, partition="dirichlet_10", max_examples=40, seed=0,
    ... )
    >>> dataset.train[0].x.shape[1:]
    (28, 28, 3)
    >>> sum(len(client.y) for client in dataset.train + dataset.test)
    40
  """
  entry = datasets.get(dataset, SCENARIO, data_dir=data_dir)
  if (partition is None) != (entry.num_clients is not None):
    raise ValueError(
      f"partition {partition!r} does not go with {dataset}: it must be None if"
      " and only if the examples belong to clients"
    )
  # Validated before a large data set is read.
  parsed = None if partition is None else parse_partition(partition)
  if intensity is None:
    intensity = default_intensity(dataset)
  is_moved = intensity != color_transforms.NONE
  if is_moved and entry.dtype != np.uint8:
    raise ValueError(
      f"intensity {intensity!r} changes the colours of images, and {dataset}"
      f" has vectors of {entry.shape[0]} numbers; it must be"
      f" {color_transforms.NONE!r}"
    )
  if parsed is None and num_clients != entry.num_clients:
    raise ValueError(
      f"num_clients must be {entry.num_clients}, the number of clients that"
      f" hold the examples of {dataset}, got {num_clients}"
    )
  transforms = color_transforms.pool(num_clients, intensity)
  source = datasets.load(dataset, data_dir=data_dir)
  num_train = source.num_train if datasets.is_own(dataset) else None
  if test_fraction is None:
    test_fraction = _TEST_FRACTION
  elif num_train is not None:
    raise ValueError(
      f"test_fraction does not apply to {dataset}, whose test examples are"
      " given by num_train"
    )
  partition_labels = source.y
  if entry.fine_labels is not None:
    partition_labels = datasets.load(entry.fine_labels, data_dir=data_dir).y
  used = np.arange(len(source.y))
  if max_examples is not None:
    partitions.check_positive_integer("max_examples", max_examples)
    used = _stratified(partition_labels, min(max_examples, len(used)), seed)
  if parsed is not None and num_clients > len(used):
    raise ValueError(
      f"num_clients={num_clients}: there are {len(used)} examples, and each"
      " client must have some"
    )
  if parsed is None:
    parts = partitions.by_client(source.client[used], num_clients)
  else:
    kind, parameter = parsed
    functions: dict[str, Callable[..., list[np.ndarray]]] = {
      "shards": partitions.shards,
      "dirichlet": partitions.dirichlet_over_clients,
    }
    parts = functions[kind](
      partition_labels[used], num_clients, parameter, seed
    )
  train, test, groups = [], [], []
  sides = partitions.no_sides(source.group)
  for client, part in enumerate(parts):
    held = used[part]
    if num_train is None:
      splits = partitions.split_train_test(
        held, test_fraction, [seed, client], source.group, sides
      )
      reason = f"test_fraction is {test_fraction:g}"
      advice = "more examples, a larger test_fraction"
    else:
      splits = held[held < num_train], held[held >= num_train]
      reason = f"num_train is {num_train}"
      advice = "more examples"
    for use, positions in zip(("training", "test"), splits, strict=True):
      if parsed is not None and not len(positions):
        raise ValueError(
          f"client {client} would have no {use} example: it has"
          f" {table.size_of(source, held)}, and {reason}; use fewer clients,"
          f" {advice} or another partition"
        )
    for examples, positions in zip((train, test), splits, strict=True):
      if source.group is not None:
        groups.append(source.group[positions])
      x = source.x[positions]
      if is_moved:
        x = color_transforms.apply(_colored(x), transforms[client])
      examples.append(
        examples_lib.Examples(examples_lib.read_only(x), source.y[positions])
      )
  if not any(
    len(held.y) and len(queries.y)
    for held, queries in zip(train, test, strict=True)
  ):
    raise ValueError(
      f"{dataset}: no client has both a training and a test example; {advice}"
      f" may help: {reason}"
    )
  sample = source.x[used[:1]]
  partitioned = GuidanceDataset(
    train=tuple(train),
    test=tuple(test),
    transforms=transforms,
    schema=source.schema,
    sample=(_colored(sample) if is_moved else sample)[0],
    groups=table.Sides(groups[::2], groups[1::2]) if groups else None,
  )
  partitioned = preparation.prepared(partitioned, [part.x for part in train])
  if partitioned.schema.preparation is None:
    return partitioned
  return partitioned._replace(
    sample=partitioned.schema.preparation.apply(sample)[0]
  )


def _stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
  """Draws indices with the class frequencies of `labels`.

  Args:
    labels: `[N]` integers from 0.
    size: Number of indices, at most N.
    seed: Seed of the draw.

  Returns:
    `[size]` int64, ascending.
  """
  frequencies = np.bincount(labels) / len(labels)
  return np.sort(
    class_pools.ClassPool(labels, len(frequencies)).draw_without_replacement(
      frequencies, size, partitions.generator("max examples", seed)
    )
  )


def _colored(images: np.ndarray) -> np.ndarray:
  """Returns images with three channels; grey ones are tinted."""
  return color_transforms.tint(images) if images.shape[-1] == 1 else images
