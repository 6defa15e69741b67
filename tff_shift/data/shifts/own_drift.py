"""Examples whose drift is their own: domains of a file, time of a table.

A client holds examples in some of the domains, in the order of time. Examples
without clients are dealt to clients IID, domain by domain.

Choices:
  * If examples have a client, the parts of streams and periods are split client
    by client, and a client draws from its own examples; the distributions are
    the same as without.
  * The deal of rows without clients and the split follow `--pretraining_seed`
    and `--public_seed`, not `--seeds`: all seeds have the same streams, which
    are data.
"""

import os
from collections.abc import Sequence

import numpy as np

from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data.your_own import own_datasets

# More times, or fewer examples of a target, are rarely intended.
_MANY_TIMES = 50
_FEW_EXAMPLES = 20
# The name of the only stream in rows and figures.
STREAM = "own"


def time_names(
  name: str,
  scenario: str,
  data_dir: str | os.PathLike[str] | None = None,
) -> tuple[str, ...]:
  """Returns the names of the domains of a data set; empty if it has none.

  Args:
    name: The name of the data set, see `datasets.get`.
    scenario: The scenario that uses it.
    data_dir: The folder of all data sets, see `dataset`.

  Raises:
    ValueError: If the scenario cannot use the data set.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  entry = datasets.get(name, scenario, data_dir=data_dir)
  if not own_datasets.is_own(name) or entry.evolution is None:
    return ()
  return entry.evolution.time_names


def warn_of_times(
  names: Sequence[str],
  sizes: Sequence[int],
  what: str,
  which: str,
  position: int,
) -> None:
  """Warns of too many times in a column, and of a time with too few examples.

  Args:
    names: The names of the times, in order.
    sizes: The number of examples of each time.
    what: What a time is in the scenario, in the plural.
    which: What the checked time is.
    position: Its position.
  """
  if len(names) > _MANY_TIMES:
    examples_lib.warn(
      f"time has {len(names)} values, and therefore there are"
      f" {len(names)} {what}: join dates to longer periods, such as months"
    )
  if sizes[position] < _FEW_EXAMPLES:
    examples_lib.warn(
      f"{names[position]!r}, {which}, has only {sizes[position]} examples, so"
      f" that one of them is {100 / max(1, sizes[position]):.0f} % of accuracy"
    )


def by_client_and_time(
  source: dataset_lib.Dataset,
  names: Sequence[str],
  num_clients: int | None,
  seed: int,
  what: str,
) -> list[list[np.ndarray]]:
  """Groups examples by client and domain.

  Args:
    source: The data set, with the number of the domain of each example as time.
    names: The names of the domains.
    num_clients: The number of clients. None: the data set's.
    seed: Seed of the IID deal of examples without clients.
    what: The name of the data set in messages.

  Returns:
    For each client and domain its indices, in the order of the rows; may be
    empty.

  Raises:
    ValueError: If the data set has a test split, the number of clients is
      missing or another one than in the data, or a domain has fewer examples
      than clients to deal them to.
  """
  if source.num_train is not None:
    raise ValueError(
      f"num_train of {what}: it does not apply to data with domains, whose"
      " order separates training from testing; leave it out of the file"
    )
  held = None if source.client is None else int(source.client.max()) + 1
  if num_clients is None:
    num_clients = held
  if num_clients is None:
    raise ValueError(
      f"num_clients must be given: {what} does not assign its examples to"
      " clients"
    )
  partition.check_positive_integer("num_clients", num_clients)
  if held not in (None, num_clients):
    raise ValueError(
      f"num_clients must be {held}, the number of clients that hold the"
      f" examples of {what}, got {num_clients}"
    )
  found = [[] for _ in range(num_clients)]
  for domain, name in enumerate(names):
    positions = np.flatnonzero(source.time == domain)
    if held is not None:
      parts = partition.by_client(source.client[positions], num_clients)
    else:
      if len(positions) < num_clients:
        raise ValueError(
          f"domain {name!r} of {what} has {len(positions)} examples, too few"
          f" for {num_clients} clients; use fewer clients"
        )
      # Equal proportions of each class, as an IID deal of `evolving`.
      even = np.ones([num_clients, len(source.class_names)])
      parts = partition.partition_by_class(
        source.y[positions], even, [seed, domain]
      )
    for own, part in zip(found, parts, strict=True):
      own.append(positions[part])
  return found


def grouped(
  source: dataset_lib.Dataset, groups: Sequence[Sequence[np.ndarray]]
) -> tuple[examples_lib.Examples, list[list[examples_lib.Examples]]]:
  """Copies examples of clients and times.

  Args:
    source: The data set.
    groups: For each client and time the indices of its examples.

  Returns:
    All of them, sorted by client and time, and for each client and time its
    part, without another copy.
  """
  flat = [each for own in groups for each in own]
  pool = examples_lib.take(source, np.concatenate(flat))
  pool = pool._replace(y=examples_lib.read_only(pool.y))
  ends = np.cumsum([len(each) for each in flat])
  parts = [
    examples_lib.Examples(
      pool.x[end - len(each) : end], pool.y[end - len(each) : end]
    )
    for each, end in zip(flat, ends, strict=True)
  ]
  size = len(groups[0])
  return pool, [
    parts[start : start + size] for start in range(0, len(parts), size)
  ]
