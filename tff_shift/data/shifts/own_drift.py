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

from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data import table

# More times, or fewer examples of a target, are rarely intended.
_MANY_TIMES = 50
_FEW_EXAMPLES = 20
# The name of the only stream in rows and figures.
STREAM = "own"
# The times of a scenario, and the one that must not be too short.
TIMES = {
  "evolving": ("domains", "the target", -1),
  "online_adaptation": ("time steps", "before deployment", 0),
  "dynamic_personalization": ("periods", "the last one", -1),
}


def time_names(
  name: str,
  scenario: str,
  data_dir: str | os.PathLike[str] | None = None,
) -> tuple[str, ...]:
  """Returns the names of the times of a user's data; empty without times.

  Args:
    name: The name of the data set, see `datasets.get`.
    scenario: The scenario that uses it.
    data_dir: The folder of all data sets, see `dataset`.

  Raises:
    ValueError: If the scenario cannot use the data set.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  datasets.get(name, scenario, data_dir=data_dir)
  schema = datasets.schema(name, data_dir)
  return () if schema is None else schema.times


def warn_of_times(
  names: Sequence[str], sizes: Sequence[int], scenario: str
) -> None:
  """Warns of too many times in a column, and of a time with too few examples.

  Args:
    names: The names of the times, in order.
    sizes: The number of examples of each time.
    scenario: The scenario.
  """
  times, checked, position = TIMES[scenario]
  if len(names) > _MANY_TIMES:
    examples_lib.warn(
      f"time has {len(names)} values, and therefore there are"
      f" {len(names)} {times}: join dates to longer periods, such as months"
    )
  if sizes[position] < _FEW_EXAMPLES:
    examples_lib.warn(
      f"{names[position]!r}, {checked}, has only {sizes[position]} examples, so"
      f" that one of them is {100 / max(1, sizes[position]):.0f} % of accuracy"
    )


def with_clients(
  content: table.Table, num_clients: int | None, seed: int, name: str
) -> table.Table:
  """Returns a table with times whose examples belong to clients.

  Args:
    content: The table.
    num_clients: The number of clients. None: the table's.
    seed: Seed of the IID partition of examples without clients.
    name: The name of the data in messages.

  Raises:
    ValueError: If the table has a test split, the number of clients is missing
      or another one than in the table, or a domain has fewer examples than
      clients.
  """
  if content.num_train is not None:
    raise ValueError(
      f"num_train of {name}: it does not apply to data with domains, whose"
      " order separates training from testing; leave it out of the file"
    )
  held = content.schema.num_clients
  if num_clients is None:
    num_clients = held
  if num_clients is None:
    raise ValueError(
      f"num_clients must be given: {name} does not assign its examples to"
      " clients"
    )
  partition.check_positive_integer("num_clients", num_clients)
  if held is not None:
    if held != num_clients:
      raise ValueError(
        f"num_clients must be {held}, the number of clients that hold the"
        f" examples of {name}, got {num_clients}"
      )
    return content
  clients = np.empty(len(content.y), np.int32)
  # Equal proportions of each class, as an IID partition of `evolving`.
  even = np.ones([num_clients, len(content.schema.classes)])
  rows_of = partition.split_by(content.time, len(content.schema.times))
  for domain, (domain_name, rows) in enumerate(
    zip(content.schema.times, rows_of, strict=True)
  ):
    if len(rows) < num_clients:
      raise ValueError(
        f"domain {domain_name!r} of {name} has {len(rows)} examples, too few"
        f" for {num_clients} clients; use fewer clients"
      )
    parts = partition.partition_by_class(content.y[rows], even, [seed, domain])
    for client, part in enumerate(parts):
      clients[rows[part]] = client
  return content._replace(
    client=clients, schema=content.schema.replace(num_clients=num_clients)
  )
