"""A pandas DataFrame as data for the drivers of the scenarios.

A row is an example. Columns give its class, its client and, where the scenario
has time, its domain, time step or period. The other columns are features.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

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
  table = _Table(frame, label, client, time, features)
  return table.named(
    from_arrays.evolving(
      table.by_client_and_time(),
      client_names=table.client_names,
      domain_names=table.time_names,
      **table.options(options),
    )
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
  table = _Table(frame, label, client, None, features)
  return table.named(
    from_arrays.guidance(
      table.by_client(),
      client_names=table.client_names,
      **table.options(options),
    )
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
  table = _Table(frame, label, client, time, features)
  grouped = table.by_client_and_time()
  return table.named(
    from_arrays.online_adaptation(
      [own[0] for own in grouped],
      [own[1:] for own in grouped],
      client_names=table.client_names,
      **table.options(options),
    )
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
  table = _Table(frame, label, client, time, features)
  return table.named(
    from_arrays.dynamic_personalization(
      table.by_client_and_time(),
      client_names=table.client_names,
      **table.options(options),
    )
  )


class _Table:
  """A frame's examples as arrays, and the names of their numbers."""

  def __init__(
    self,
    frame: "pandas.DataFrame",
    label: str,
    client: str,
    time: str | None,
    features: Sequence[str] | None,
  ):
    import pandas

    if not isinstance(frame, pandas.DataFrame):
      raise ValueError(
        f"a pandas.DataFrame is wanted, got {type(frame).__name__}"
      )
    if not len(frame):
      raise ValueError("the frame has no rows")
    roles = {"label": label, "client": client, "time": time}
    used = [column for column in roles.values() if column is not None]
    for role, column in roles.items():
      if column is not None and column not in frame.columns:
        raise ValueError(
          f"{role}={column!r} is not a column; there are"
          f" {', '.join(map(str, frame.columns))}"
        )
      if used.count(column) > 1:
        raise ValueError(f"{role}={column!r} has another role too")
    if features is None:
      features = [each for each in frame.columns if each not in used]
    self.features = tuple(map(str, features))
    self._x = _numbers(frame, features)
    self._y, self.class_names = _codes(frame[label], f"label {label!r}")
    self._clients, self.client_names = _codes(
      frame[client], f"client {client!r}"
    )
    self._times, self.time_names = None, ()
    if time is not None:
      _check_order(frame[time], time)
      self._times, self.time_names = _codes(frame[time], f"time {time!r}")

  def options(self, given: dict[str, Any]) -> dict[str, Any]:
    """Returns further arguments; names of columns cannot be replaced."""
    for name in ("client_names", "domain_names"):
      if name in given:
        raise ValueError(f"{name}: the names are those of the frame")
    return {"num_classes": max(2, len(self.class_names))} | given

  def by_client(self) -> list[from_arrays.Pair]:
    """Returns (x, y) of each client, in the order of the rows."""
    return [
      self._rows(self._clients == number)
      for number in range(len(self.client_names))
    ]

  def by_client_and_time(self) -> list[list[from_arrays.Pair]]:
    """Returns (x, y) of each client and time."""
    return [
      [
        self._rows((self._clients == number) & (self._times == at))
        for at in range(len(self.time_names))
      ]
      for number in range(len(self.client_names))
    ]

  def named(self, data: Any) -> Named:
    """Returns the data with the names."""
    return Named(
      data,
      self.class_names,
      self.client_names,
      self.time_names,
      self.features,
    )

  def _rows(self, are_chosen: np.ndarray) -> from_arrays.Pair:
    return self._x[are_chosen], self._y[are_chosen]


def _numbers(frame: "pandas.DataFrame", features: Sequence[str]) -> np.ndarray:
  """Returns columns as x, [n, features] float32."""
  import pandas

  if not len(features):
    raise ValueError("features: there must be at least one column of x")
  for column in features:
    if column not in frame.columns:
      raise ValueError(f"features: {column!r} is not a column")
    values = frame[column]
    if not pandas.api.types.is_numeric_dtype(values):
      raise ValueError(
        f"features: column {column!r} has values of type {values.dtype}, not"
        " numbers; encode it, or name the columns to use by features"
      )
    if values.isna().any():
      raise ValueError(f"features: column {column!r} has missing values")
  return frame[list(features)].to_numpy(np.float32)


def _codes(
  column: "pandas.Series", what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns the place of each value in the sorted values, and their names."""
  import pandas

  if column.isna().any():
    raise ValueError(f"{what} has missing values")
  if pandas.api.types.is_float_dtype(column) and (column % 1 != 0).any():
    raise ValueError(
      f"{what} has fractions, such as {column[column % 1 != 0].iloc[0]}; its"
      " values must be integers, texts or dates"
    )
  if isinstance(column.dtype, pandas.CategoricalDtype):
    column = column.cat.remove_unused_categories()
    return column.cat.codes.to_numpy(np.int32), tuple(
      map(str, column.cat.categories)
    )
  codes, values = pandas.factorize(column, sort=True)
  return codes.astype(np.int32), tuple(map(str, values))


def _check_order(column: "pandas.Series", name: str) -> None:
  """Refuses times without an order."""
  import pandas

  is_ordered = (
    column.cat.ordered
    if isinstance(column.dtype, pandas.CategoricalDtype)
    else not pandas.api.types.is_object_dtype(column)
    and not pandas.api.types.is_string_dtype(column)
  )
  if not is_ordered:
    raise ValueError(
      f"time {name!r}: texts have no order; use numbers, pandas.to_datetime or"
      " pandas.Categorical(values, categories, ordered=True)"
    )
