"""A pandas DataFrame as data for the drivers of the scenarios."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift.data.shifts import own_drift
from tff_shift.data.your_own import frames
from tff_shift.data.your_own import from_arrays

if TYPE_CHECKING:
  import pandas


# What a time is in a scenario, and which one must not be too short.
_TIMES = {
  "evolving": ("domains", "the target", -1),
  "online_adaptation": ("time steps", "before deployment", 0),
  "dynamic_personalization": ("periods", "the last one", -1),
}


class Named(NamedTuple):
  """The data of a scenario, and the names of its numbers.

  Attributes:
    data: What `run_<scenario>` takes, see the function of this name in
      `from_arrays`.
    class_names: The value of the label by class.
    client_names: The value of the client column by client.
    time_names: The value of the time column by domain, time step or period;
      empty without time.
    features: The columns of x.
  """

  data: Any
  class_names: tuple[str, ...]
  client_names: tuple[str, ...]
  time_names: tuple[str, ...]
  features: tuple[str, ...]


def read(
  scenario: str,
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  time: str | None = None,
  features: Sequence[str] | None = None,
  **options: Any,
) -> Named:
  """Reads a frame, a row for each example, as the client data of a scenario.

  Args:
    scenario: The scenario, a function of `from_arrays`.
    frame: The examples.
    label: The column of the class. Values become classes in sorted order, or in
      the order of the categories of a categorical column.
    client: The column of the client; clients are sorted.
    time: The column of the domain, time step or period: numbers, dates or an
      ordered categorical. Clients may lack some of them. `evolving`: the last
      one is the target. `online_adaptation`: the first one is before
      deployment, and its examples are labelled. `guidance`: None.
    features: The columns of x: numbers, or vectors of one length. None: all
      others.
    **options: Further arguments of the function in `from_arrays`.

  Returns:
    The data and the names.

  Raises:
    ValueError: If a column does not exist or has values that are not allowed,
      or the data are not valid; one line that names it.
  """
  check(scenario, time, options)
  table = frames.Table(frame, label, client, time, features)
  return named(scenario, table, options)


def check(scenario: str, time: str | None, options: Mapping[str, Any]) -> None:
  """Checks that a scenario can use a time, and that no names are given.

  Raises:
    ValueError: If not; one line.
  """
  if (time is None) != (scenario == "guidance"):
    raise ValueError(
      f"time={time!r} is not allowed for {scenario}: it must be"
      f" {'a column' if time is None else 'left out, since it has no time'}"
    )
  for name in ("client_names", "domain_names"):
    if name in options:
      raise ValueError(f"{name}: the names are those of the frame")


def named(
  scenario: str, table: frames.Table, options: Mapping[str, Any]
) -> Named:
  """Makes the client data of a scenario from a table with clients.

  Args:
    scenario: The scenario.
    table: The examples.
    options: Further arguments of the function in `from_arrays`.

  Returns:
    The data and the names.

  Raises:
    ValueError: If the data are not valid; one line.
  """
  options = {
    "num_classes": max(2, len(table.class_names)),
    "client_names": table.client_names,
    "feature_names": table.features,
    **options,
  }
  arrays: list[Any]
  if table.times is None:
    arrays = [table.by_client()]
  else:
    own_drift.warn_of_times(
      table.time_names,
      np.bincount(table.times).tolist(),
      *_TIMES[scenario],
    )
    grouped = table.by_client_and_time()
    arrays = [grouped]
    if scenario == "online_adaptation":
      arrays = [[own[0] for own in grouped], [own[1:] for own in grouped]]
  if scenario == "evolving":
    options = {**options, "domain_names": table.time_names}
  return Named(
    getattr(from_arrays, scenario)(*arrays, **options),
    table.class_names,
    table.client_names,
    table.time_names,
    table.features,
  )
