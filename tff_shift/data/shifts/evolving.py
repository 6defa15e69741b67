"""Evolving domains, and clients with a part of each domain.

"Federated Learning under Evolving Distribution Shifts", section 5.1 and
Appendix C: a data set is an ordered sequence of domains. The last one is the
target, on which no client trains. A domain is a rotation of its images by k
times an angle, a range of years or hours, or a position on a half circle. Every
example belongs to exactly one domain.

Your own data can have a split into training and test; clients then train on one
part and are tested on the other, also in the target. The training and test
splits of the package's data sets are pooled, as in the paper. If examples
belong to clients, a client may lack domains.

Choices:
  * Images are assigned to the domains of a rotation at random and in equal
    numbers (which differ by at most one). Rotations are counter-clockwise,
    bilinear, and 0 outside of the image.
  * The last range of years has 13 years, so that it ends with the data, in
    2013.
  * A client has the same label distribution in all domains: the examples of a
    class are divided over the clients in proportion to it.
  * A client is tested on its own part of the target domain, with its own label
    distribution.
  * Source domains are split into training and test, 80 : 20
    (`--test_fraction`). The target is all test data.
  * The Dirichlet distributions are over the classes that occur in any domain:
    clients with much weight on a class that never occurs would get few
    examples. A class that occurs only in the target therefore changes the
    partition of the other domains when the target is held out.
  * Numbers of domains are only compared. With fewer `--num_domains` than there
    are, neighbours are merged. Your own images without domains become 8 domains
    by default.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_shift.data import client_dataset
from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data import sources
from tff_shift.data import table
from tff_shift.data.images import transforms
from tff_shift.data.shifts import concepts as concepts_lib
from tff_shift.data.texts import text

SCENARIO = "evolving"

# The default number of domains for rotated images without published settings.
_NUM_ROTATIONS = 8

# The test fraction of a client's examples of a source domain.
_TEST_FRACTION = 0.2


class Domain(NamedTuple):
  """One domain.

  Attributes:
    x: `[n, height, width, channels]` uint8 images, `[n, length]` int32 titles
      (ids of words), or `[n, features]` float32.
    y: `[n]` int32 labels.
    name: Its name in a figure, such as "15 deg" or "1905-1916".
    client: `[n]` integers from 0, the client that holds an example. None: the
      examples are not yet partitioned.
    is_test: `[n]` bool, whether an example is only for testing; the others are
      only for training. None: clients split their examples.
    group: `[n]` integers from 0, the group of an example, see `Table`.
  """

  x: np.ndarray
  y: np.ndarray
  name: str
  client: np.ndarray | None = None
  is_test: np.ndarray | None = None
  group: np.ndarray | None = None


class EvolvingDataset(NamedTuple):
  """Domains in order; the last one is the target.

  `without_target` holds out the last source domain instead.

  Attributes:
    name: Its name in figures and messages.
    domains: At least two domains.
    schema: The names of classes, clients and features.
    vocabulary: The word of each id, for titles, without words that occur only
      in the target. None: not titles.
  """

  name: str
  domains: tuple[Domain, ...]
  schema: table.Schema
  vocabulary: tuple[str, ...] | None = None

  @property
  def class_names(self) -> tuple[str, ...]:
    """The name of each class."""
    return self.schema.classes

  @property
  def client_names(self) -> tuple[str, ...] | None:
    """The name of each client that holds examples. None: their numbers."""
    return self.schema.clients

  @property
  def has_own_split(self) -> bool:
    """Whether the data have their own test split."""
    return any(domain.is_test is not None for domain in self.domains)


def up_to(dataset: EvolvingDataset, target: int) -> EvolvingDataset:
  """Removes the domains after one, from 1, which becomes the target."""
  return dataset._replace(domains=dataset.domains[: target + 1])


def without_target(dataset: EvolvingDataset) -> EvolvingDataset:
  """Removes the last domain, so that the previous one becomes the target.

  Selection on it uses no test examples: if this domain has a split, its
  training examples are predicted.
  """
  *others, last = dataset.domains[:-1]
  if last.is_test is not None:
    train_rows = np.flatnonzero(~last.is_test)
    last = last._replace(
      x=last.x[train_rows],
      y=last.y[train_rows],
      client=None if last.client is None else last.client[train_rows],
      group=None if last.group is None else last.group[train_rows],
      is_test=np.ones(len(train_rows), bool),
    )
  return dataset._replace(domains=(*others, last))


class Client(NamedTuple):
  """The data of one client.

  Attributes:
    client_id: Its position among the clients.
    train: Training examples, none of the target domain.
    test: Test examples of every domain, including all examples of the target.
    name: Its name in the data. None: its position.
    groups: The groups of its training and of its test examples. None: they are
      independent.
  """

  client_id: int
  train: client_dataset.ClientDataset
  test: client_dataset.ClientDataset
  name: str | None = None
  groups: tuple[np.ndarray, np.ndarray] | None = None


def load_evolving(
  name: str,
  *,
  num_domains: int | None = None,
  angle_step: float | None = None,
  first_angle: float = 0.0,
  target_extra_angle: float = 0.0,
  max_examples_per_domain: int | None = None,
  data_dir: str | os.PathLike[str] | None = None,
  seed: int = 0,
  counted: Callable[[EvolvingDataset], Iterable[np.ndarray]] | None = None,
) -> EvolvingDataset:
  """Loads a data set and makes its domains.

  Args:
    name: The name of the data set, see `datasets.get`. Its entry has the
      defaults.
    num_domains: Number of domains, including the target.
    angle_step: Degrees between two domains of a rotated data set; it also turns
      images without domains into a rotated data set. 0: domains of equal
      distribution, also of other data without domains.
    first_angle: Degrees of the first domain of a rotated data set (Table 5 has
      7 domains from 75 and 10 domains from 30 degrees).
    target_extra_angle: Additional rotation of the target alone, in degrees
      (Table 12).
    max_examples_per_domain: Keeps at most this number of random examples per
      domain.
    data_dir: The folder of all data sets, see `dataset`.
    seed: Seed of the assignment of images to domains, of the examples kept by
      `max_examples_per_domain`, and of the points of circle.
    counted: Takes the data set with the ids of all words, returns the titles
      whose words count in the vocabulary, such as the training examples of
      `assemble_clients`, arrays [n, length]. None: those of all source domains,
      with the test examples that a later partition takes from them.

  Returns:
    The domains in order. Titles have the vocabulary of the most frequent words
    that count.

  Raises:
    ValueError: If a name, number or angle is not allowed or does not apply to
      the data set, or there are more domains than the data can fill.
    DatasetNotFoundError: If the data set is not on the disk.

  Examples:
    >>> dataset = ts.load_evolving(
    ...   "circle", num_domains=3, max_examples_per_domain=40
    ... )
    >>> [domain.x.shape for domain in dataset.domains]
    [(40, 2), (40, 2), (40, 2)]
  """
  evolution = evolution_of(name, angle_step, data_dir=data_dir)
  if num_domains is None:
    num_domains = evolution.num_domains
  _check_num_domains(name, evolution, num_domains)
  _check_angles(name, evolution, angle_step, first_angle, target_extra_angle)
  if max_examples_per_domain is not None:
    partition.check_positive_integer(
      "max_examples_per_domain", max_examples_per_domain
    )

  source = datasets.load(
    name, data_dir=data_dir, seed=seed, num_domains=num_domains
  )
  if not datasets.is_own(name):
    # The splits of an archive are pooled.
    source = source._replace(num_train=None)
  angles = [0.0] * num_domains
  if evolution.angle_step is not None:
    members = _random_groups(name, source, num_domains, seed)
    angles = [
      first_angle + evolution.angle_step * m for m in range(num_domains)
    ]
    angles[-1] += target_extra_angle
    domain_names = [f"{angle:g} deg" for angle in angles]
    if len(set(domain_names)) < num_domains:
      # Without rotation, domains are time steps.
      domain_names = [
        f"step {m + 1}" + (f", {angle:g} deg" if angle else "")
        for m, angle in enumerate(angles)
      ]
  else:
    members, domain_names = _time_groups(
      name, evolution, source.time, num_domains
    )
  if max_examples_per_domain is not None:
    members = [
      np.sort(
        partition.generator("examples of a domain", [seed, m]).permutation(
          rows
        )[:max_examples_per_domain]
      )
      for m, rows in enumerate(members)
    ]
  dataset = _dataset(
    sources.short_name(name), source, members, domain_names, angles
  )
  if dataset.vocabulary is None:
    return dataset
  ids, vocabulary = text.keep_frequent(
    [domain.x for domain in dataset.domains],
    dataset.vocabulary,
    datasets.get(name, data_dir=data_dir).vocabulary_size,
    [domain.x for domain in dataset.domains[:-1]]
    if counted is None
    else counted(dataset),
  )
  return dataset._replace(
    domains=tuple(
      domain._replace(x=x)
      for domain, x in zip(dataset.domains, ids, strict=True)
    ),
    vocabulary=vocabulary,
  )


def _dataset(
  name: str,
  source: table.Table,
  members: Sequence[np.ndarray],
  domain_names: Sequence[str],
  angles: Sequence[float],
) -> EvolvingDataset:
  """Copies the examples of each domain, rotated by its angle."""
  is_test = None
  if source.num_train is not None:
    is_test = np.arange(len(source.y)) >= source.num_train
  domains = []
  for rows, domain_name, angle in zip(
    members, domain_names, angles, strict=True
  ):
    x = source.x[rows]
    if angle:
      x = transforms.rotate(x, angle)
    others = (
      None if values is None else values[rows]
      for values in (source.client, is_test, source.group)
    )
    domains.append(Domain(x, source.y[rows], domain_name, *others))
  return EvolvingDataset(name, tuple(domains), source.schema, source.vocabulary)


def domains_of(content: table.Table, name: str = "own data") -> EvolvingDataset:
  """Returns a table with times as domains, for `assemble_clients`."""
  times = content.schema.times
  return _dataset(
    name,
    content,
    partition.split_by(content.time, len(times)),
    times,
    [0.0] * len(times),
  )


def deal(
  content: table.Table,
  *,
  test_fraction: float = _TEST_FRACTION,
  seed: int = 0,
  keep_copies_together: bool = False,
) -> tuple[Client, ...]:
  """Splits the examples of clients in domains, for `ts.run_evolving`.

  Args:
    content: The examples, with clients and times. The last domain is the
      target, on which no client trains.
    test_fraction: Test fraction of a client's examples of a source domain.
    seed: Seed of the split.
    keep_copies_together: Whether examples of a client and domain that are equal
      bit for bit are all for training or all for testing.

  Returns:
    The clients, by id.

  Raises:
    ValueError: If there are fewer than 2 domains, or `test_fraction` is not
      between 0 and 1.
  """
  return assemble_clients(
    domains_of(content),
    num_clients=content.schema.num_clients,
    test_fraction=test_fraction,
    seed=seed,
    keep_copies_together=keep_copies_together,
  )


def evolution_of(
  name: str,
  angle_step: float | None = None,
  *,
  data_dir: str | os.PathLike[str] | None = None,
) -> dataset_lib.Evolution:
  """Returns how a data set evolves.

  Args:
    name: The data set, see `datasets.get`.
    angle_step: Degrees between two domains of a rotated data set.
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    The entry's evolution; for a rotation, with the given step.

  Raises:
    ValueError: If the data set has no domains and cannot be rotated.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  entry = datasets.get(name, SCENARIO, data_dir=data_dir)
  evolution = entry.evolution
  if evolution is None:
    if entry.dtype != np.uint8 and angle_step != 0:
      raise ValueError(
        f"{name} has no domains: it needs the array domain; its examples are"
        " not images, which angle_step could rotate; angle_step=0 makes domains"
        " of equal distribution"
      )
    if angle_step is None:
      raise ValueError(
        f"{name} has no domains: give angle_step, the rotation of its images"
        " between domains, or a file with the array domain"
      )
    return dataset_lib.Evolution(_NUM_ROTATIONS, angle_step=angle_step)
  if evolution.angle_step is None or angle_step is None:
    return evolution
  return dataclasses.replace(evolution, angle_step=angle_step)


def assemble_clients(
  dataset: EvolvingDataset,
  *,
  num_clients: int,
  dirichlet: float = math.inf,
  test_fraction: float | None = None,
  concepts: concepts_lib.Concepts | None = None,
  seed: int = 0,
  keep_copies_together: bool = False,
) -> tuple[Client, ...]:
  """Partitions every domain over clients and splits each part into train/test.

  Examples that already belong to a client or to a split keep them. The
  partition and split of domain m depend on (seed, m) and the classes that occur
  in any domain. A data set without its last domain therefore gives every client
  the same examples in the remaining domains, unless a class occurs only in the
  last one; only the new last domain changes from train and test to test only.
  A group is in the training or in the test part of all clients and source
  domains; the first domain and client that has it decides. The target may have
  groups of either part.

  Args:
    dataset: The domains; the last one is used for testing only. Its training
      examples, if it has a split, are dropped.
    num_clients: Number of clients.
    dirichlet: Dirichlet concentration of the clients' label distributions,
      which are the same in all domains; `math.inf`: IID. Ignored for examples
      that belong to clients.
    test_fraction: Test fraction of a client's examples of a source domain.
      None: 0.2, unless the data have their own split.
    concepts: The concepts of clients, in these domains and maybe later ones.
      The examples are partitioned by the labels of concept 0 and then
      relabeled. None: all have the labels of the data set.
    seed: Seed of all draws.
    keep_copies_together: Whether examples of a domain that are equal bit for
      bit are all for training or all for testing of a client.

  Returns:
    The clients, by id. If domains are partitioned here, each client has at
    least one training example in every source domain and one test example in
    the target domain. If examples belong to clients or have groups, at least
    one client has such an example in each domain.

  Raises:
    ValueError: If a number is out of range or does not apply, or clients or
      domains would have no examples.

  Examples:
    >>> dataset = ts.load_evolving(
    ...   "circle", num_domains=3, max_examples_per_domain=40
    ... )
    >>> clients = ts.assemble_clients(dataset, num_clients=2)
    >>> [len(client.train.y) for client in clients]
    [32, 32]
    >>> clients[0].test.domain_sizes.tolist()
    [4, 4, 20]
  """
  if len(dataset.domains) < 2:
    raise ValueError(
      f"{dataset.name} needs at least 2 domains (a source and a target), got"
      f" {len(dataset.domains)}"
    )
  if test_fraction is None:
    test_fraction = _TEST_FRACTION
  elif dataset.has_own_split:
    raise ValueError(
      f"test_fraction does not apply to {dataset.name}, whose test examples are"
      " given by num_train"
    )
  partition.check_positive_integer("num_clients", num_clients)
  _check_num_clients(dataset, num_clients)
  num_classes = len(dataset.schema.classes)
  if concepts is not None:
    concepts_lib.check(concepts, num_clients, len(dataset.domains), num_classes)
  occurring = np.unique(
    np.concatenate([domain.y for domain in dataset.domains])
  )
  proportions = partition.dirichlet_over_classes(
    [occurring] * num_clients, num_classes, dirichlet, seed
  )
  groups = [domain.group for domain in dataset.domains]
  sides = partition.no_sides(*groups)
  if sides is not None:
    partition.check_groups(dataset.schema.group, keep_copies_together)
  target = len(dataset.domains) - 1
  train_parts, test_parts = [], []  # [domain][client] -> positions
  for m, domain in enumerate(dataset.domains):
    examples_lib.check_pool(domain, f"domain {domain.name!r}")

    def partitioned(positions, what, *part, m=m, domain=domain):
      if domain.client is not None:
        parts = partition.by_client(domain.client[positions], num_clients)
      else:
        parts = _client_parts(
          domain, positions, what, proportions, dirichlet, [seed, m, *part]
        )
      return [positions[part_rows] for part_rows in parts]

    everything = np.arange(len(domain.y))
    nothing = [everything[:0]] * num_clients
    if domain.is_test is None:
      everyone = partitioned(everything, "")
      together = domain.group
      if keep_copies_together:
        together = examples_lib.copies(domain.x)
      train, test = zip(
        *(
          partition.split_train_test(
            part, test_fraction, [seed, m, client], together, sides
          )
          for client, part in enumerate(everyone)
        ),
        strict=True,
      )
      if m == target:
        train, test = nothing, everyone
    else:
      train = test = nothing
      if m != target:
        train = partitioned(np.flatnonzero(~domain.is_test), "training ")
      # A source domain may have no test examples.
      if m == target or domain.is_test.any():
        test = partitioned(np.flatnonzero(domain.is_test), "test ", 1)
    _check_domain(dataset, m, test if m == target else train)
    train_parts.append(train)
    test_parts.append(test)
  is_drawn = sides is not None and not dataset.has_own_split
  if is_drawn and not any(len(p) for test in test_parts[:-1] for p in test):
    raise ValueError(
      f"group {dataset.schema.group!r} of {dataset.name}: no client has a test"
      " example in a source domain, because no domain of a client has two"
      " groups; use fewer clients or fewer domains"
    )
  names = dataset.schema.clients or (None,) * num_clients
  return tuple(
    Client(
      client,
      _gather(dataset.domains, train_parts, client, concepts),
      _gather(dataset.domains, test_parts, client, concepts),
      names[client],
      None
      if sides is None
      else (
        _groups(groups, train_parts, client),
        _groups(groups, test_parts, client),
      ),
    )
    for client in range(num_clients)
  )


def target_line(dataset: EvolvingDataset, first: int) -> str:
  """Returns the names of the targets from one on, and their rows, as a line."""
  targets = dataset.domains[first:]
  num_rows = sum(len(target.y) for target in targets)
  names = f"target: {targets[-1].name}"
  if len(targets) > 1:
    names = f"targets ({len(targets)}): {targets[0].name} to {targets[-1].name}"
  line = f"{names}, {num_rows:,} rows"
  return line + "; metrics are means over targets" * (len(targets) > 1)


def groups_of(clients: Sequence[Client]) -> table.Sides | None:
  """Returns the groups of all clients' training and test examples."""
  if clients[0].groups is None:
    return None
  return table.Sides(*zip(*(client.groups for client in clients), strict=True))


def _groups(
  groups: Sequence[np.ndarray], parts: list[Sequence[np.ndarray]], client: int
) -> np.ndarray:
  """Returns the groups of a client's examples, see `_gather`."""
  pairs = zip(groups, parts, strict=True)
  return np.concatenate([group[part[client]] for group, part in pairs])


def _check_num_clients(dataset: EvolvingDataset, num_clients: int) -> None:
  """Refuses more clients than examples, or another number than in the data."""
  num_owners = dataset.schema.num_clients
  if num_owners is None:
    # Before distributions are drawn for all of them.
    for domain in dataset.domains:
      _check_enough(domain, len(domain.y), "", num_clients)
  elif num_clients != num_owners:
    raise ValueError(
      f"num_clients must be {num_owners}, the number of clients that hold the"
      f" examples of {dataset.name}, got {num_clients}"
    )


def _check_domain(
  dataset: EvolvingDataset, m: int, parts: Sequence[np.ndarray]
) -> None:
  """Refuses a domain without training examples, or a target without test."""
  if any(map(len, parts)):
    return
  is_target = m == len(dataset.domains) - 1
  if dataset.domains[m].is_test is None:
    raise ValueError(
      f"domain {dataset.domains[m].name!r} of {dataset.name}, a source, has no"
      f" training example: all its groups of {dataset.schema.group!r} are for"
      " testing; join domains (num_domains), or use another seed"
    )
  use, other_use = ("test", "training") if is_target else ("training", "test")
  raise ValueError(
    f"domain {dataset.domains[m].name!r} of {dataset.name},"
    f" {'the target' if is_target else 'a source'}, has no {use} example: by"
    f" num_train all are {other_use} examples; leave num_train out, or join"
    " domains (num_domains)"
  )


def _check_enough(
  domain: Domain, num_examples: int, what: str, num_clients: int
) -> None:
  """Refuses a domain with fewer examples than clients."""
  if num_examples < num_clients:
    raise ValueError(
      f"client {num_examples} would have no {what}example in domain"
      f" {domain.name!r}, whose {num_examples} {what}examples are too few for"
      f" {num_clients} clients; use fewer clients or fewer domains"
    )


def _client_parts(
  domain: Domain,
  positions: np.ndarray,
  what: str,
  proportions: np.ndarray,
  dirichlet: float,
  seed: partition.Seed,
) -> list[np.ndarray]:
  """Partitions some of a domain's examples over the clients.

  Args:
    domain: The domain.
    positions: The indices of the examples.
    what: Their name in messages.
    proportions: The clients' label distributions, [num_clients, num_classes].
    dirichlet: The concentration, for messages.
    seed: Seed of the partition.

  Returns:
    For each client indices of `positions`, at least one.

  Raises:
    ValueError: If a client would have none.
  """
  num_clients = len(proportions)
  _check_enough(domain, len(positions), what, num_clients)
  parts = partition.partition_by_class(domain.y[positions], proportions, seed)
  for client, part in enumerate(parts):
    if not len(part):
      raise ValueError(
        f"client {client} would have no {what}example in domain"
        f" {domain.name!r} ({len(positions)} {what}examples for"
        f" {num_clients} clients, dirichlet {dirichlet:g}); use fewer clients,"
        " fewer domains, a larger dirichlet or another seed"
      )
  return parts


def _gather(
  domains: tuple[Domain, ...],
  parts: list[Sequence[np.ndarray]],
  client: int,
  concepts: concepts_lib.Concepts | None,
) -> client_dataset.ClientDataset:
  """Copies the examples of a client in every domain into its arrays.

  Args:
    domains: The domains.
    parts: For each domain and client the indices of its examples.
    client: The client.
    concepts: The concepts that relabel its examples. None: none.
  """
  pairs = [
    (d, client_parts[client])
    for d, client_parts in zip(domains, parts, strict=True)
  ]
  y = [d.y[positions] for d, positions in pairs]
  if concepts is not None:
    labels = concepts.labels[concepts.of_domain[client]].astype(np.int32)
    y = [labels[m][classes] for m, classes in enumerate(y)]
  return client_dataset.ClientDataset.from_arrays(
    examples_lib.read_only(np.concatenate([d.x[p] for d, p in pairs])),
    np.concatenate(y),
    [len(positions) for _, positions in pairs],
  )


def _check_num_domains(
  name: str, evolution: dataset_lib.Evolution, num_domains: int
) -> None:
  """Raises ValueError for a number of domains that the data set cannot have."""
  partition.check_positive_integer("num_domains", num_domains)
  if num_domains < 2:
    raise ValueError(
      "num_domains must be at least 2 (a source and a target), got"
      f" {num_domains}"
    )
  if evolution.time_range is not None:
    first, last = evolution.time_range
    if num_domains > last - first + 1:
      raise ValueError(
        f"num_domains of {name} must be at most {last - first + 1}, one for"
        f" each of {first}..{last}, got {num_domains}"
      )


def _check_angles(
  name: str,
  evolution: dataset_lib.Evolution,
  angle_step: float | None,
  first_angle: float,
  target_extra_angle: float,
) -> None:
  """Raises ValueError for an angle that is not finite or does not apply."""
  angles = {
    "angle_step": angle_step,
    "first_angle": first_angle or None,
    "target_extra_angle": target_extra_angle or None,
  }
  for option, angle in angles.items():
    if angle is None:
      continue
    if evolution.angle_step is None:
      rotated = [
        dataset
        for dataset in datasets.names(SCENARIO)
        if datasets.get(dataset).evolution.angle_step is not None
      ]
      raise ValueError(
        f"{option} does not apply to {name}, which is not rotated; it applies"
        f" to {', '.join(rotated)}"
      )
    if not math.isfinite(angle):
      raise ValueError(f"{option} must be a finite number, got {angle}")


def _random_groups(
  name: str, source: table.Table, num_domains: int, seed: int
) -> list[np.ndarray]:
  """Assigns all indices to domains at random and in equal numbers.

  A group is in one domain; numbers then differ by the sizes of groups.
  """
  num_examples = len(source.y)
  if num_domains > num_examples:
    raise ValueError(
      f"num_domains of {name} must be at most {num_examples}, one for each"
      f" example, got {num_domains}"
    )
  order = partition.generator("domains", seed).permutation(num_examples)
  sizes = [len(part) for part in np.array_split(order, num_domains)]
  members = list(map(np.sort, partition.cut(order, sizes[:-1], source.group)))
  if not all(map(len, members)):
    raise ValueError(
      f"group {source.schema.group!r} of {name}: its groups are too few, or too"
      f" large, for {num_domains} domains; use fewer domains"
    )
  return members


def _time_groups(
  name: str,
  evolution: dataset_lib.Evolution,
  time: np.ndarray,
  num_domains: int,
) -> tuple[list[np.ndarray], list[str]]:
  """Groups indices by equal ranges of the data set's times.

  Args:
    name: The data set, for messages.
    evolution: Its evolution; not a rotation.
    time: `[N]` integers, the time of each example, such as its year.
    num_domains: Number of ranges.

  Returns:
    For each range the indices of its examples, and its name.

  Raises:
    ValueError: If a range has no examples, or an example is in no range.
  """
  first, last = evolution.time_range or (1, num_domains)
  # The 109 years of Portraits give eight ranges of 12, and a last one of 13.
  edges = first + np.arange(num_domains + 1) * (last - first + 1) // num_domains
  groups = np.searchsorted(edges, time, side="right") - 1
  outside = time[(groups < 0) | (groups >= num_domains)]
  if outside.size:
    raise ValueError(
      f"{name} holds an example of {outside[0]}; all must lie in"
      f" {first}..{last}"
    )
  range_names = [
    evolution.range_name(start, end - 1)
    for start, end in itertools.pairwise(edges)
  ]
  members = [np.flatnonzero(groups == m) for m in range(num_domains)]
  for range_name, indices in zip(range_names, members, strict=True):
    if not indices.size:
      raise ValueError(
        f"num_domains {num_domains} is too many for {name}: it has no example"
        f" in {range_name}"
      )
  return members, range_names
