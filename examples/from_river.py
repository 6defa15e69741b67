"""Turns streams of river into tables, for clients with your own drift.

A stream of river is iterable and gives `(x, y)`: a dictionary of features, and
the class. Its synthetic generators (`river.datasets.synth`) have concepts that
change abruptly, gradually or again and again; its data sets have real series,
such as `Elec2` and `Insects`, which river downloads by itself. The package
river is the extra `river`; nothing of it is imported here.

`table` deals the examples to clients and time steps, in their order: a drift in
the stream is a drift over time steps.
"""

import itertools
import math
import numbers
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas

# The columns beside the features.
CLIENT, TIME, LABEL = "client", "time", "label"

Stream = Iterable[tuple[Mapping[str, Any], Any]]


def table(
  streams: Stream | Mapping[str, Stream],
  *,
  num_steps: int,
  examples_per_step: int,
  labelled_examples: int | None = None,
  num_clients: int | None = None,
) -> pandas.DataFrame:
  """Deals the examples of streams to clients and time steps.

  Args:
    streams: One stream, whose examples are dealt to `num_clients` in turn, so
      that all clients have the same drift; or the stream of each client by its
      name, such as generators with other seeds or other times of drifts.
    num_steps: The number of time steps after deployment (`online_adaptation`),
      or of domains or periods after the first one.
    examples_per_step: The number of examples of a client in each of them.
    labelled_examples: The number of examples of a client before them, at time
      0. None: `examples_per_step`.
    num_clients: The number of clients of one stream. None: each stream has its
      client.

  Returns:
    A frame with the columns `client`, `time` from 0 to `num_steps`, `label` and
    a column of each feature; a row for each example. It is for
    `ts.from_dataframe` and, as a .csv file, for `--dataset` with `--label=label
    --client=client --time=time`.

  Raises:
    ValueError: If a number is not allowed, a stream is too short, or an example
      has other features than the first one, a feature that is no number or a
      class that is one with decimals; one line.
  """
  if labelled_examples is None:
    labelled_examples = examples_per_step
  if isinstance(streams, Mapping) != (num_clients is None):
    raise ValueError(
      f"num_clients={num_clients} is not allowed: it must be the number of"
      " clients of one stream, and None for a stream of each client by name"
    )
  sizes = [labelled_examples, *[examples_per_step] * num_steps]
  if isinstance(streams, Mapping):
    dealt = [
      (name, row)
      for name, stream in streams.items()
      for row in _timed(stream, sizes, f"the stream of {name!r}")
    ]
  else:
    rows = _timed(streams, [num_clients * size for size in sizes], "the stream")
    dealt = [(number % num_clients, row) for number, row in enumerate(rows)]
  if not dealt:
    raise ValueError("streams must have a client, got none")
  features = tuple(dealt[0][1][1])
  for taken in {CLIENT, TIME, LABEL} & set(features):
    raise ValueError(
      f"a feature of the stream is called {taken!r}, which is a column of the"
      " table; rename it"
    )
  records = []
  for place, (client, (time, x, y)) in enumerate(dealt):
    _check(x, y, features, place)
    records.append((client, time, y, *(float(x[name]) for name in features)))
  return pandas.DataFrame(records, columns=[CLIENT, TIME, LABEL, *features])


def _timed(
  stream: Stream, sizes: list[int], name: str
) -> Iterator[tuple[int, Mapping[str, Any], Any]]:
  """Yields `(time, x, y)`, with a number of examples for each time."""
  examples = iter(stream)
  for time, size in enumerate(sizes):
    taken = list(itertools.islice(examples, size))
    if len(taken) < size:
      found = sum(sizes[:time]) + len(taken)
      raise ValueError(
        f"{name} has {found} examples, and {sum(sizes)} are needed"
      )
    for x, y in taken:
      yield time, x, y


def _check(x: Any, y: Any, features: tuple[str, ...], place: int) -> None:
  """Refuses an example that does not fit the table."""
  found = tuple(x) if isinstance(x, Mapping) else (repr(x),)
  if set(found) != set(features):
    raise ValueError(
      f"example {place} of the table must have the features of the first one,"
      f" {', '.join(map(str, features))}; it has {', '.join(map(str, found))}"
    )
  for name in features:
    value = x[name]
    if not isinstance(value, numbers.Real | np.bool_) or not math.isfinite(
      value
    ):
      raise ValueError(
        f"feature {name!r} of example {place} is {value!r}; features must be"
        " finite numbers, so encode it first"
      )
  if isinstance(y, float | np.floating) and not float(y).is_integer():
    raise ValueError(
      f"the label of example {place} is {y!r}; it must be a class"
    )
