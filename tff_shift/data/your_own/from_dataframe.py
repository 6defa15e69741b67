"""A pandas DataFrame as data for the drivers of the scenarios.

A row is an example. Columns give its class, its client and, where the scenario
has time, its domain, time step or period. The other columns are features.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from tff_shift.data.your_own import frames
from tff_shift.data.your_own import from_arrays

if TYPE_CHECKING:
  import pandas


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


def evolving(
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  time: str,
  features: Sequence[str] | None = None,
  **options: Any,
) -> Named:
  """Makes clients with examples in some domains, see `from_arrays.evolving`.

  Args:
    frame: The examples.
    label: The column of the class. Values become classes in sorted order, or in
      the order of the categories of a categorical column.
    client: The column of the client; clients are sorted.
    time: The column of the domain: numbers, dates or an ordered categorical.
      The last value is the target. Clients may lack domains.
    features: The columns of x, numbers. None: all others.
    **options: Further arguments of `from_arrays.evolving`.

  Returns:
    The clients and the names.

  Raises:
    ValueError: If a column does not exist or has values that are not allowed,
      or the data are not valid; one line that names it.
  """
  table = frames.Table(frame, label, client, time, features)
  return _named(
    table,
    from_arrays.evolving(
      table.by_client_and_time(),
      client_names=table.client_names,
      domain_names=table.time_names,
      **table.options(options),
    ),
  )


def guidance(
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  features: Sequence[str] | None = None,
  **options: Any,
) -> Named:
  """Makes training and test examples, see `from_arrays.guidance`.

  Arguments are those of `evolving`, without time.
  """
  table = frames.Table(frame, label, client, None, features)
  return _named(
    table,
    from_arrays.guidance(
      table.by_client(),
      client_names=table.client_names,
      **table.options(options),
    ),
  )


def online_adaptation(
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  time: str,
  features: Sequence[str] | None = None,
  **options: Any,
) -> Named:
  """Makes labelled examples and streams, see `from_arrays.online_adaptation`.

  The first value of `time` is before deployment: its examples are labelled. The
  labels of later time steps are for evaluation only. Each client has examples
  at each time step. See `evolving`.
  """
  table = frames.Table(frame, label, client, time, features)
  grouped = table.by_client_and_time()
  return _named(
    table,
    from_arrays.online_adaptation(
      [own[0] for own in grouped],
      [own[1:] for own in grouped],
      client_names=table.client_names,
      **table.options(options),
    ),
  )


def dynamic_personalization(
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  time: str,
  features: Sequence[str] | None = None,
  **options: Any,
) -> Named:
  """Makes periods, see `evolving`, `from_arrays.dynamic_personalization`."""
  table = frames.Table(frame, label, client, time, features)
  return _named(
    table,
    from_arrays.dynamic_personalization(
      table.by_client_and_time(),
      client_names=table.client_names,
      **table.options(options),
    ),
  )


def _named(table: frames.Table, data: Any) -> Named:
  """Returns data with the names of their table."""
  return Named(
    data,
    table.class_names,
    table.client_names,
    table.time_names,
    table.features,
  )
