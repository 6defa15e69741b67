"""Missing values and categories: features that are fitted on training examples.

A reader stores missing numbers as NaN and categories as their numbers
(`frames.read`). After the split, `fitted` computes what replaces them from the
training examples alone, and `Preparation.apply` makes the features of all
examples, also at prediction.

Choices:
  * A missing number becomes the mean or the median of the training examples;
    with `indicator`, their mean, and where the table lacks some, a further
    feature is 1 for missing ones.
  * A category becomes an indicator feature for each category of the table, so
    that all seeds have the same features; a missing one has only zeros. With
    `embedding_index` its number remains; a missing one has the next number
    after the last category, so that an embedding has one row more than there
    are categories.
  * A category without a training example is refused, or treated as missing.
  * A user's transformer gets numbers as float64, texts as categories, and NaN
    for missing values. It decides about categories without a training example;
    at prediction, one that the table did not have is refused, or missing.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import records
from tff_shift.data import transformers

if TYPE_CHECKING:
  import pandas

  from tff_shift.data import table

Missing = Literal["error", "mean", "median", "indicator"]
Categories = Literal["error", "one_hot", "embedding_index"]
Unseen = Literal["error", "ignore"]
MISSING = Missing.__args__  # type: ignore[attr-defined]
CATEGORIES = Categories.__args__  # type: ignore[attr-defined]
UNSEEN = Unseen.__args__  # type: ignore[attr-defined]


class Column(records.Record, omit_defaults=True):
  """A column before its preparation.

  Attributes:
    name: Its name.
    categories: The categories in the order of their numbers. None: numbers.
    trained: Which of them have a training example; empty before fitting.
    fill: What replaces missing numbers. None: nothing is missing, or not yet
      fitted.
    has_indicator: Whether a further feature is 1 for missing numbers.
  """

  name: str
  categories: tuple[str, ...] | None = None
  trained: tuple[bool, ...] = ()
  fill: float | None = None
  has_indicator: bool = False


class Preparation(records.Record, omit_defaults=True):
  """The preparation of a table.

  Attributes:
    columns: The columns in the order of the unprepared x.
    missing: The replacement of missing numbers.
    categories: The features of categories.
    unseen: What happens to categories without a training example.
    transformer: A user's transformer in place of the above, see
      `transformers.dumped`. Empty: there is none.
    outputs: The names of its features; empty before fitting.
  """

  columns: tuple[Column, ...]
  missing: Missing = "error"
  categories: Categories = "error"
  unseen: Unseen = "error"
  transformer: bytes = b""
  outputs: tuple[str, ...] = ()

  @property
  def features(self) -> tuple[str, ...]:
    """The names of the prepared features."""
    if self.transformer:
      return self.outputs
    names = []
    for column in self.columns:
      if column.categories is None or self.categories == "embedding_index":
        names.append(column.name)
        if column.has_indicator:
          names.append(f"{column.name} is missing")
      else:
        names += [f"{column.name}={name}" for name in column.categories]
    return tuple(names)

  def fit(self, parts: Sequence[np.ndarray]) -> "Preparation":
    """Returns the preparation that is fitted to training examples.

    Args:
      parts: Their unprepared x, each [n, columns].

    Raises:
      ValueError: If a column of numbers has no training example.
    """
    x = np.concatenate(parts)
    if self.transformer:
      content, names = transformers.fitted(self.transformer, self._frame(x))
      return self.replace(transformer=content, outputs=names)
    average: Any = np.median if self.missing == "median" else np.mean
    columns = []
    for column, values in zip(self.columns, x.T, strict=True):
      present = values[~np.isnan(values)]
      if column.categories is not None:
        counts = np.bincount(
          present.astype(int), minlength=len(column.categories)
        )
        column = column.replace(trained=tuple((counts > 0).tolist()))
      elif self.missing != "error":
        if not len(present):
          raise ValueError(
            f"column {column.name!r} has no value in the training examples;"
            " drop it (--drop)"
          )
        column = column.replace(fill=float(average(present.astype(float))))
      columns.append(column)
    return self.replace(columns=tuple(columns))

  def apply(self, x: np.ndarray) -> np.ndarray:
    """Returns the features of examples.

    Args:
      x: [n, columns], NaN for missing values; a category that the table did not
        have is the number of categories.

    Returns:
      [n, features] float32.

    Raises:
      ValueError: If a category has no training example, with `unseen` of
        `error`; one line.
    """
    if self.transformer:
      return transformers.features(
        self.transformer, self._frame(x), self.outputs
      )
    features = []
    for column, values in zip(self.columns, x.T, strict=True):
      if column.categories is None:
        is_missing = np.isnan(values)
        if column.fill is not None:
          values = np.where(is_missing, np.float32(column.fill), values)
        features.append(values)
        if column.has_indicator:
          features.append(is_missing)
        continue
      self._check_seen(column, values)
      if self.categories == "embedding_index":
        is_trained = np.array([*column.trained, False])
        last = len(column.trained)
        numbers = np.where(np.isnan(values), last, values).astype(int)
        features.append(np.where(is_trained[numbers], numbers, last))
      else:
        features += [
          (values == number) & is_trained
          for number, is_trained in enumerate(column.trained)
        ]
    return np.stack(features, axis=1).astype(np.float32)

  def _frame(self, x: np.ndarray) -> "pandas.DataFrame":
    """Returns the columns of examples, with their categories as texts."""
    import pandas

    columns = {}
    for column, values in zip(self.columns, x.T, strict=True):
      columns[column.name] = values.astype(np.float64)
      if column.categories is not None:
        number = len(column.categories)
        codes = np.where(np.isnan(values), number, values).astype(int)
        texts = np.array([*column.categories, np.nan], object)
        columns[column.name] = texts[codes]
    return pandas.DataFrame(columns)

  def _check_seen(self, column: Column, values: np.ndarray) -> None:
    """Refuses categories without a training example."""
    if self.unseen == "ignore":
      return
    names = (*column.categories, "another")
    is_trained = np.array([*column.trained, False])
    present = ~np.isnan(values)
    is_new = np.zeros(len(values), bool)
    is_new[present] = ~is_trained[values[present].astype(int)]
    if is_new.any():
      first = int(np.argmax(is_new))
      raise ValueError(
        f"column {column.name!r}: the category {names[int(values[first])]!r} of"
        f" {is_new.sum()} examples has no training example;"
        " --unseen_categories=ignore makes all its indicators 0"
      )


def fitted(
  schema: "table.Schema", parts: Sequence[np.ndarray]
) -> "table.Schema":
  """Returns a schema whose preparation is fitted, with its features.

  Args:
    schema: The schema of unprepared examples.
    parts: The unprepared x of the training examples.
  """
  if schema.preparation is None:
    return schema
  preparation = schema.preparation.fit(parts)
  return schema.replace(preparation=preparation, features=preparation.features)


def prepared(dataset: Any, parts: Sequence[np.ndarray]) -> Any:
  """Returns a data set with prepared features.

  Args:
    dataset: A named tuple with a `schema`.
    parts: The unprepared x of the training examples.
  """
  schema = fitted(dataset.schema, parts)
  if schema.preparation is None:
    return dataset
  return applied(dataset, schema)._replace(schema=schema)


def applied(data: Any, schema: "table.Schema") -> Any:
  """Returns data with prepared features.

  Args:
    data: Examples, client data, or nested tuples and lists of them; objects
      with a method `mapped`, such as streams.
    schema: The fitted schema.
  """
  if schema.preparation is None:
    return data
  return mapped(data, schema.preparation.apply)


def mapped(data: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
  """Returns data, see `applied`, with a function of x applied."""
  if hasattr(data, "mapped"):
    return data.mapped(function)
  fields = getattr(data, "_fields", ())
  if {"x", "y"} <= {*fields}:
    return data._replace(x=function(data.x))
  if fields:
    return data._make(mapped(value, function) for value in data)
  if isinstance(data, tuple | list):
    return type(data)(mapped(value, function) for value in data)
  return data
