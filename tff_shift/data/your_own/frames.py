"""A pandas DataFrame as arrays, a row for each example."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import pandas


class Table:
  """A frame's examples as arrays, and the names of their numbers.

  Attributes:
    x: [n, features] float32.
    y: The classes, [n] int32.
    clients: The client of each example, [n] int32; None without a column.
    times: The number of the time of each example, [n] int32; None without a
      column.
    features: The columns of x.
    class_names: The value of the label by class.
    client_names: The value of the client column by client.
    time_names: The value of the time column by number.
  """

  def __init__(
    self,
    frame: "pandas.DataFrame",
    label: str,
    client: str | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
  ):
    """Reads a frame.

    Args:
      frame: The examples.
      label: The column of the class.
      client: The column of the client. None: no column.
      time: The column of the time. None: no column.
      features: The columns of x. None: all others.

    Raises:
      ValueError: If a column does not exist or has values that are not allowed;
        one line that names it.
    """
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
    self.x = _numbers(frame, features)
    self.y, self.class_names = _codes(frame[label], f"label {label!r}")
    self.clients, self.client_names = None, ()
    if client is not None:
      self.clients, self.client_names = _codes(
        frame[client], f"client {client!r}"
      )
    self.times, self.time_names = None, ()
    if time is not None:
      _check_order(frame[time], time)
      self.times, self.time_names = _codes(frame[time], f"time {time!r}")

  def by_client(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (x, y) of each client, in the order of the rows."""
    return [
      self._rows(self.clients == number)
      for number in range(len(self.client_names))
    ]

  def by_client_and_time(self) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Returns (x, y) of each client and time."""
    return [
      [
        self._rows((self.clients == number) & (self.times == at))
        for at in range(len(self.time_names))
      ]
      for number in range(len(self.client_names))
    ]

  def _rows(self, are_chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return self.x[are_chosen], self.y[are_chosen]


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
