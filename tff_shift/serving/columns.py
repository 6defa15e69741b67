"""The columns of a data frame in the order in which a model learned them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_shift.data import table
from tff_shift.data.sources import frames

# The maximum number of names in a message.
_MOST_NAMES = 10


def matched(x: Any, schema: table.Schema, what: str = "x") -> Any:
  """Returns the columns of a data frame by their names, in a model's order.

  Args:
    x: Examples. A `pandas.DataFrame`, or what `to_pandas` makes one, such as a
      table of pyarrow, has names; all else, such as an array, has positions and
      is returned as it is.
    schema: The names of the model's data. The columns of its label, client,
      time and group, and those that were left out, may be in x. Without names
      of features, the columns of x count by position.
    what: The name of x in messages.

  Returns:
    Of a data frame, its columns, [n, features] float32.

  Raises:
    ValueError: If the data frame lacks a column or has another one, or a column
      has no numbers; one line that names it.
  """
  # Without an import of pandas, which an array does not need.
  if hasattr(x, "to_pandas"):
    x = x.to_pandas()
  feature_names = schema.features
  if schema.preparation is not None:
    feature_names = tuple(column.name for column in schema.preparation.columns)
  if feature_names is None or not (
    hasattr(x, "columns") and hasattr(x, "iloc")
  ):
    return x
  x = x.set_axis(list(map(str, x.columns)), axis=1)
  # An element of a column of vectors has the name of the column and a number.
  column_of = {
    name: name if name in x.columns else name.rpartition("[")[0] or name
    for name in feature_names
  }
  missing = [name for name, each in column_of.items() if each not in x.columns]
  known = {*column_of.values(), schema.label, schema.client, schema.time}
  known.update((schema.group, *schema.dropped))
  others = [name for name in x.columns if name not in known]
  if missing or others:
    raise ValueError(
      f"{what}: "
      + ", and ".join(
        f"{_shown(names)} {problem}"
        for names, problem in (
          (missing, "missing"),
          (others, "unknown to the model; leave out such columns"),
        )
        if names
      )
      + f"; the model's columns are {listed(feature_names)}"
    )
  if not x.columns.is_unique:
    twice = x.columns[x.columns.duplicated()][0]
    raise ValueError(f"{what}: {twice!r} is the name of two columns")
  try:
    found, names = frames.numbers(
      x, list(dict.fromkeys(column_of.values())), preparation=schema.preparation
    )
  except ValueError as error:
    raise ValueError(f"{what}: {error}") from error
  if sorted(names) != sorted(feature_names):
    raise ValueError(
      f"{what}: its vectors make the columns {listed(names)}; the model's"
      f" columns are {listed(feature_names)}"
    )
  position = {name: at for at, name in enumerate(names)}
  found = np.take(found, [position[name] for name in feature_names], axis=1)
  if schema.preparation is None:
    return found
  return schema.preparation.apply(found)


def _shown(names: Sequence[str]) -> str:
  quoted = listed([repr(name) for name in names])
  return f"column {quoted} is" if len(names) == 1 else f"columns {quoted} are"


def listed(names: Sequence[str]) -> str:
  """Joins the first ten names."""
  more = ", ..." if len(names) > _MOST_NAMES else ""
  return ", ".join(names[:_MOST_NAMES]) + more
