"""A pandas DataFrame as arrays, a row for each example."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import pandas


class Table:
  """A frame's examples as arrays, and the names of their numbers.

  Attributes:
    x: [n, features] float32; images, [n, height, width, channels] uint8.
    y: The classes, [n] int32.
    clients: The client of each example, [n] int32; None without a column.
    times: The number of the time of each example, [n] int32; None without a
      column.
    features: The columns of x; none for images.
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
    *,
    image: str | None = None,
    read_images: Callable[["pandas.Series"], np.ndarray] | None = None,
    domain_order: Sequence[str] | None = None,
    keep_empty_classes: bool = False,
  ):
    """Reads a frame.

    Args:
      frame: The examples.
      label: The column of the class.
      client: The column of the client. None: no column.
      time: The column of the time. None: no column.
      features: The columns of x: numbers, or vectors of one length. None: all
        others.
      image: The column of the images. None: no column. Other columns are then
        not read.
      read_images: Reads the column of the images as x.
      domain_order: The values of the time column, as texts, in order. None:
        they have an order.
      keep_empty_classes: Whether a category of the label without an example is
        a class too.

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
    roles = {"label": label, "client": client, "time": time, "image": image}
    used = check_roles(roles, frame.columns)
    self.y, self.class_names = _codes(
      frame[label], f"label {label!r}", keep_empty_classes
    )
    self.clients: np.ndarray | None = None
    self.client_names: tuple[str, ...] = ()
    if client is not None:
      self.clients, self.client_names = _codes(
        frame[client], f"client {client!r}"
      )
    self.times: np.ndarray | None = None
    self.time_names: tuple[str, ...] = ()
    if time is not None:
      values = frame[time]
      if domain_order is not None:
        values = _ordered(values, time, domain_order)
      _check_order(values, time)
      self.times, self.time_names = _codes(values, f"time {time!r}")
    elif domain_order is not None:
      raise ValueError("domain_order: there are no domains to order")
    self.features: tuple[str, ...] = ()
    if image is not None:
      if features is not None:
        raise ValueError(f"features: image={image!r} is the only input")
      self.x = read_images(frame[image])
      return
    if features is None:
      features = [each for each in frame.columns if each not in used]
    if label in features:
      raise ValueError(f"features: {label!r} is the label")
    self.features = tuple(map(str, features))
    self.x = _numbers(frame, features)

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


def check_roles(
  roles: Mapping[str, str | None], columns: Collection[str]
) -> list[str]:
  """Returns the columns that have a role, which exist and differ.

  Args:
    roles: The column of each role, or None.
    columns: All columns.

  Raises:
    ValueError: If a column does not exist or has two roles.
  """
  used = [column for column in roles.values() if column is not None]
  for role, column in roles.items():
    if column is not None and column not in columns:
      raise ValueError(
        f"{role}={column!r} is not a column; there are"
        f" {', '.join(map(str, columns))}"
      )
    if used.count(column) > 1:
      raise ValueError(f"{role}={column!r} has another role too")
  return used


def _numbers(frame: "pandas.DataFrame", features: Sequence[str]) -> np.ndarray:
  """Returns columns as x, [n, features] float32."""
  import pandas

  if not len(features):
    raise ValueError("features: there must be at least one column of x")
  vectors, others, incomplete = {}, [], []
  for column in features:
    if column not in frame.columns:
      raise ValueError(f"features: {column!r} is not a column")
    values = frame[column]
    if isinstance(values.iloc[0], (list, np.ndarray)):
      vectors[column] = _vectors(values, column)
    elif not pandas.api.types.is_numeric_dtype(values):
      others.append(column)
    elif values.isna().any():
      incomplete.append(column)
  if others:
    raise ValueError(
      f"features: column {others[0]!r} has values of type"
      f" {frame[others[0]].dtype}, not numbers{_and_others(others)}; encode"
      " them, or name the columns to use by features"
    )
  if incomplete:
    raise ValueError(
      f"features: column {incomplete[0]!r} has missing values"
      f"{_and_others(incomplete)}; leave out these rows or columns, or fill the"
      " values"
    )
  if not vectors:
    return frame[list(features)].to_numpy(np.float32)
  return np.concatenate(
    [
      vectors[column]
      if column in vectors
      else frame[[column]].to_numpy(np.float32)
      for column in features
    ],
    axis=1,
  )


def _and_others(columns: Sequence[str]) -> str:
  """Returns the columns after the first one, for a message."""
  return f" (and {', '.join(map(repr, columns[1:]))})" if columns[1:] else ""


def _vectors(values: "pandas.Series", column: str) -> np.ndarray:
  """Returns a column of vectors, [n, length] float32."""
  rows = [np.asarray(value) for value in values]
  for row in rows:
    if row.ndim != 1 or row.dtype.kind not in "iuf" or len(row) != len(rows[0]):
      raise ValueError(
        f"features: column {column!r} must have vectors of one length, got"
        f" {row.dtype} {list(row.shape)} beside {rows[0].dtype}"
        f" {list(rows[0].shape)}"
      )
  return np.array(rows, np.float32)


def _codes(
  column: "pandas.Series", what: str, keep_empty: bool = False
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
    if not keep_empty:
      column = column.cat.remove_unused_categories()
    return column.cat.codes.to_numpy(np.int32), tuple(
      map(str, column.cat.categories)
    )
  codes, values = pandas.factorize(column, sort=True)
  if (
    isinstance(values, pandas.DatetimeIndex)
    and (values == values.normalize()).all()
  ):
    # Dates without a time of day.
    values = values.strftime("%Y-%m-%d")
  return codes.astype(np.int32), tuple(map(str, values))


def _ordered(
  column: "pandas.Series", name: str, order: Sequence[str]
) -> "pandas.Series":
  """Returns a column with the order of its values, given as texts."""
  import pandas

  if column.isna().any():
    raise ValueError(f"time {name!r} has missing values")
  values = column.map(str)
  found, listed = sorted(set(values)), sorted(order)
  if found != listed:
    raise ValueError(
      f"domain_order={','.join(order)}: it must have each value of {name!r}"
      f" once: {', '.join(found)}"
    )
  return pandas.Series(pandas.Categorical(values, order, ordered=True))


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
