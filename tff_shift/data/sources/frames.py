"""A pandas DataFrame as a table, a row for each example."""

import decimal
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import examples
from tff_shift.data import preparation as preparation_lib
from tff_shift.data import table
from tff_shift.data import transformers
from tff_shift.data.sources import source

if TYPE_CHECKING:
  import pandas

# Integers and decimal fractions as texts.
_NUMBER = re.compile(
  r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\s*"
)
# pandas' names of columns without a name, such as a stored index.
_UNNAMED = re.compile(r"(Unnamed: \d+)?")
_ROLE_VALUES = "integers, texts or dates"
# Fewer rows can have different integers by chance.
_MANY_ROWS = 50


def row_name(row: int) -> str:
  """Returns the name of a row of a frame in messages, counted from 0."""
  return f"row {row}"


def read(
  frame: "pandas.DataFrame",
  label: str,
  client: str | None = None,
  time: str | None = None,
  features: Sequence[str] | None = None,
  *,
  group: str | None = None,
  drop: Sequence[str] = (),
  time_unit: str | None = None,
  missing: str = "error",
  categories: str = "error",
  unseen_categories: str = "error",
  preprocessing: Any = None,
  image: str | None = None,
  read_images: Callable[["pandas.Series"], np.ndarray] | None = None,
  domain_order: Sequence[str] | None = None,
  keep_empty_classes: bool = False,
  where: Callable[[int], str] = row_name,
) -> table.Table:
  """Reads a frame.

  Args:
    frame: The examples.
    label: The column of the class. Values become classes in sorted order, or in
      the order of the categories of a categorical column.
    client: The column of the client. None: no column.
    time: The column of the time. None: no column.
    features: The columns of x: numbers, or vectors of one length. None: all
      others.
    group: The column of the group, such as the patient, which a split into
      training and test part does not divide. None: no column.
    drop: Columns that are left out.
    time_unit: The calendar unit of the times, of dates: `day`, `week` (ISO),
      `month`, `quarter` or `year`, of the local time as written. None: each
      value is a time.
    missing: The replacement of missing numbers, see `preparation`.
    categories: The features of texts.
    unseen_categories: What happens to categories without a training example.
    preprocessing: A transformer of scikit-learn, not fitted, that makes the
      features of numbers and texts, see `preparation`. None: none.
    image: The column of the images. None: no column. Other columns are then not
      read.
    read_images: Reads the column of the images as x.
    domain_order: The values of the time column, as texts, in order. None: they
      have an order.
    keep_empty_classes: Whether a category of the label without an example is a
      class too.
    where: Returns the name of a row in messages by its index.

  Returns:
    The table. Features have the name of their column; elements of a column of
    vectors also their index (`name[0]`, `name[1]`).

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
  examples.check_names(
    frame.columns, "columns", lambda column: f"column {column + 1}"
  )
  roles = {"label": label, "client": client, "time": time, "group": group}
  roles["image"] = image
  used = check_roles(roles, frame.columns)
  for column in drop:
    if column in used or column in (features or ()):
      raise ValueError(f"drop={column!r} has another role too")
    if column not in frame.columns:
      raise ValueError(_unknown_column("drop", column, frame.columns))
  y, classes = _codes(
    frame[label], f"label {label!r}", where, keep_empty_classes
  )
  schema = table.Schema(
    classes=classes, label=label, client=client, time=time, group=group
  )
  clients = times = groups = None
  if group is not None:
    groups, _ = _codes(frame[group], f"group {group!r}", where)
  if client is not None:
    clients, names = _codes(frame[client], f"client {client!r}", where)
    schema = schema.replace(clients=names, num_clients=len(names))
  if time is not None:
    values = frame[time]
    if domain_order is not None:
      values = _ordered(values, time, domain_order, where)
    values = _with_fractions(_inferred(values))
    _check_values(values, f"time {time!r}", where)
    if time_unit is not None:
      values = _calendar_units(values, time, time_unit)
    _check_order(values, time, where)
    times, names = _codes(values, f"time {time!r}", where)
    schema = schema.replace(times=names)
  elif domain_order is not None or time_unit is not None:
    option = "time_unit" if domain_order is None else "domain_order"
    raise ValueError(f"{option}: there are no domains to order")
  if image is not None:
    for option, is_set in (
      ("features", features is not None),
      ("missing", missing != "error"),
      ("categories", categories != "error"),
      ("preprocessing", preprocessing is not None),
    ):
      if is_set:
        raise ValueError(f"{option}: image={image!r} is the only input")
    schema = _with_dropped(schema, frame, used)
    x = read_images(frame[image])
    return table.Table(x, y, schema, clients, times, group=groups)
  if features is None:
    features = _other_columns(frame, {*used, *drop})
  for role in ("label", "group"):
    if roles[role] in features:
      raise ValueError(f"features: {roles[role]!r} is the {role}")
  schema = _with_dropped(schema, frame, {*used, *features})
  preparation = _preparation(
    frame, features, missing, categories, unseen_categories, preprocessing
  )
  x, features = numbers(frame, features, where, preparation)
  if preparation is not None:
    by_name = {column.name: column for column in preparation.columns}
    # Elements of vectors are columns of numbers.
    columns = [
      by_name.get(name, preparation_lib.Column(name=name)) for name in features
    ]
    preparation = preparation.replace(columns=tuple(columns))
  schema = schema.replace(features=features, preparation=preparation)
  return table.Table(x, y, schema, clients, times, group=groups)


def _with_dropped(
  schema: table.Schema, frame: "pandas.DataFrame", used: Collection[str]
) -> table.Schema:
  columns = [str(name) for name in frame.columns if name not in used]
  return schema.replace(dropped=tuple(columns))


def _other_columns(
  frame: "pandas.DataFrame", used: Collection[str]
) -> list[str]:
  """Returns the columns without a role; warns of those that may be ids."""
  columns = []
  for column in frame.columns:
    if column in used:
      continue
    if _UNNAMED.fullmatch(str(column)):
      examples.warn(
        f"column {column!r} has no name, like a stored index, and is left out"
      )
      continue
    columns.append(column)
    values = frame[column]
    if values.dtype.kind == "M":
      examples.warn(
        f"column {column!r} has dates, which become days since 1970; if it is"
        " the time of the examples, name it (--time, time=)"
      )
    if (
      len(frame) >= _MANY_ROWS
      and values.dtype.kind in "iu"
      and values.is_unique
    ):
      examples.warn(
        f"column {column!r} has another value in each of the {len(frame)} rows,"
        " like an id; if it is one, drop it (--drop, drop=[...])"
      )
  return columns


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
      raise ValueError(_unknown_column(role, column, columns))
    if used.count(column) > 1:
      raise ValueError(f"{role}={column!r} has another role too")
  return used


def _unknown_column(role: str, column: str, columns: Collection[str]) -> str:
  names = ", ".join(map(str, columns))
  return f"{role}={column!r} is not a column; there are {names}"


def numbers(
  frame: "pandas.DataFrame",
  features: Sequence[str],
  where: Callable[[int], str] = row_name,
  preparation: preparation_lib.Preparation | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns columns as x, [n, features] float32, and the names of its columns.

  Args:
    frame: The examples.
    features: Columns of numbers, or of vectors of one length.
    where: Returns the name of a row in messages by its position.
    preparation: The preparation of these columns, which x is for. None: columns
      of numbers without missing values.

  Raises:
    ValueError: If a column does not exist or has other or missing values; one
      line that names it.
  """
  import pandas

  if not len(features):
    raise ValueError("features: there must be at least one column of x")
  missing_allowed = preparation is not None and (
    preparation.missing != "error" or preparation.transformer != b""
  )
  categories = {
    column.name: column.categories
    for column in (preparation.columns if preparation else ())
    if column.categories is not None
  }
  frame = frame.copy(deep=False)
  vectors, others, incomplete = {}, [], []
  for column in features:
    if column not in frame.columns:
      raise ValueError(f"features: {column!r} is not a column")
    if pandas.api.types.is_datetime64_any_dtype(frame[column]):
      frame[column] = _days(frame[column])
    values = frame[column]
    if str(column) in categories:
      codes = _category_codes(
        values, column, categories[str(column)], preparation.unseen, where
      )
      frame[column] = codes
      if np.isnan(codes).any() and not missing_allowed:
        incomplete.append(column)
    elif len(values) and isinstance(values.iloc[0], (list, np.ndarray)):
      vectors[column] = _vectors(values, column, where)
    elif not _is_number(values):
      others.append(column)
    elif values.isna().any() and not missing_allowed:
      incomplete.append(column)
    else:
      _check_numbers(values.dropna(), column, where)
  if others:
    raise ValueError(
      f"features: column {others[0]!r} has {_other(frame[others[0]], where)}"
      f"{_and_others(others)}; --categories=one_hot encodes texts, and"
      " --features and --drop choose columns"
    )
  if incomplete:
    is_missing = frame[incomplete[0]].isna().to_numpy()
    raise ValueError(
      f"features: column {incomplete[0]!r} has {is_missing.sum()} missing"
      f" values, the first in {where(int(np.argmax(is_missing)))}"
      f"{_and_others(incomplete)}; leave out these rows or columns, or fill the"
      " values (--missing=median)"
    )
  names: list[str] = []
  for column in features:
    if column in vectors:
      size = vectors[column].shape[1]
      names += [f"{column}[{index}]" for index in range(size)]
    else:
      names.append(str(column))
  # Column by column: a frame of some columns is a copy, and so are its numbers.
  x, start = np.empty([len(frame), len(names)], np.float32), 0
  for column in features:
    if column in vectors:
      end = start + vectors[column].shape[1]
      x[:, start:end] = vectors[column]
    else:
      end = start + 1
      x[:, start] = frame[column].to_numpy(np.float32, na_value=np.nan)
    start = end
  return x, tuple(names)


def _is_number(values: "pandas.Series") -> bool:
  import pandas

  types = pandas.api.types
  return types.is_any_real_numeric_dtype(values) or types.is_bool_dtype(values)


def _preparation(
  frame: "pandas.DataFrame",
  features: Sequence[str],
  missing: Any,
  categories: Any,
  unseen_categories: Any,
  preprocessing: Any,
) -> preparation_lib.Preparation | None:
  """Returns the preparation of columns, not fitted; None without need."""
  import pandas

  for option, value, allowed in (
    ("missing", missing, preparation_lib.MISSING),
    ("categories", categories, preparation_lib.CATEGORIES),
    ("unseen_categories", unseen_categories, preparation_lib.UNSEEN),
  ):
    arguments.choice(option, value, allowed)
  if preprocessing is not None and not missing == categories == "error":
    raise ValueError(
      "preprocessing: it fills missing values and encodes categories; leave out"
      " missing and categories"
    )
  encodes = categories != "error" or preprocessing is not None
  if not encodes and missing == "error":
    return None
  columns = []
  for column in features:
    if column not in frame.columns:
      raise ValueError(f"features: {column!r} is not a column")
    values = frame[column]
    names = None
    is_text = (
      isinstance(values.dtype, pandas.CategoricalDtype)
      or pandas.api.types.is_string_dtype(values)
      or pandas.api.types.is_object_dtype(values)
    )
    first = values.iloc[0]
    if encodes and is_text and not isinstance(first, list | np.ndarray):
      texts = values.dropna().map(str).unique().tolist()
      names = tuple(sorted(texts))
      examples.check_names(
        names, f"categories of {column!r}", lambda code: f"category {code}"
      )
    lacks_some = names is None and bool(values.isna().any())
    columns.append(
      preparation_lib.Column(
        name=str(column),
        categories=names,
        has_indicator=missing == "indicator" and lacks_some,
      )
    )
  needs_fill = missing != "error" and any(
    frame[column].isna().any() for column in features
  )
  has_texts = any(column.categories is not None for column in columns)
  if not (needs_fill or has_texts or preprocessing is not None):
    return None
  return preparation_lib.Preparation(
    columns=tuple(columns),
    missing=missing,
    categories=categories,
    unseen=unseen_categories,
    transformer=(
      b"" if preprocessing is None else transformers.dumped(preprocessing)
    ),
  )


def _category_codes(
  values: "pandas.Series",
  column: str,
  names: Sequence[str],
  unseen: str,
  where: Callable[[int], str],
) -> np.ndarray:
  """Returns the number of each category, float64; NaN if it is missing.

  A category that is not among the names has their number.
  """
  texts = values.map(str, na_action="ignore")
  codes = texts.map({name: code for code, name in enumerate(names)})
  is_new = (codes.isna() & texts.notna()).to_numpy()
  if is_new.any() and unseen == "error":
    row = int(np.argmax(is_new))
    raise ValueError(
      f"column {column!r} has {texts.iloc[row]!r} in {where(row)}, a category"
      " that training did not have"
    )
  codes = codes.to_numpy(np.float64, copy=True, na_value=np.nan)
  codes[is_new] = len(names)
  return codes


def _days(dates: "pandas.Series") -> "pandas.Series":
  """Returns dates as days since 1970 in UTC, with fractions; NaN if missing."""
  import pandas

  dates = pandas.to_datetime(dates, utc=True)
  return (dates - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)


def _check_numbers(
  values: "pandas.Series", column: str, where: Callable[[int], str]
) -> None:
  """Refuses numbers that float32 cannot represent."""
  numbers = values.to_numpy(np.float64)
  largest = examples.largest_root(np.float32)
  index = examples.first_beyond(numbers, largest)
  if index is not None:
    raise ValueError(
      f"features: column {column!r} has {numbers[index]:g} in"
      f" {where(index[0])}; numbers must lie between -{largest:.2g} and"
      f" {largest:.2g}"
    )
  examples.check_precision([numbers], "features", [column])


def _other(values: "pandas.Series", where: Callable[[int], str]) -> str:
  """Describes the first value of a column that is not a number."""
  import pandas

  if not pandas.api.types.is_object_dtype(
    values
  ) and not pandas.api.types.is_string_dtype(values):
    return f"values of type {values.dtype}, not numbers"
  is_other = pandas.to_numeric(values, errors="coerce").isna() & values.notna()
  row = int(np.argmax(is_other.to_numpy()))
  return f"{_shown(values.iloc[row])} in {where(row)}, not a number"


def _shown(value: object) -> str:
  return arguments.shown(arguments.as_python(value))


def _and_others(columns: Sequence[str]) -> str:
  """Returns the columns after the first one, for a message."""
  return f" (and {', '.join(map(repr, columns[1:]))})" if columns[1:] else ""


def _vectors(
  values: "pandas.Series", column: str, where: Callable[[int], str]
) -> np.ndarray:
  """Returns a column of vectors, [n, length] float32."""
  rows = [np.asarray(value) for value in values]
  for index, row in enumerate(rows):
    if row.ndim != 1 or row.dtype.kind not in "iuf" or len(row) != len(rows[0]):
      raise ValueError(
        f"features: column {column!r} must have vectors of one length, got"
        f" {row.dtype} {list(row.shape)} in {where(index)} beside"
        f" {rows[0].dtype} {list(rows[0].shape)} in {where(0)}"
      )
  vectors = np.array(rows)
  position = examples.first_beyond(vectors, examples.largest_root(np.float32))
  if position is not None:
    raise ValueError(
      f"features: column {column!r} has {vectors[position]:g} in"
      f" {where(position[0])}, not a finite number with a finite square"
    )
  names = [f"{column}[{element}]" for element in range(vectors.shape[1])]
  examples.check_precision([vectors], "features", names)
  return vectors.astype(np.float32)


def _inferred(column: "pandas.Series") -> "pandas.Series":
  """Returns a column of Python objects as integers or dates, if all are."""
  import pandas

  column = column.infer_objects()
  if pandas.api.types.infer_dtype(column, skipna=True) == "date":
    return pandas.to_datetime(column)
  return column


def _with_fractions(column: "pandas.Series") -> "pandas.Series":
  """Returns times that are numbers with fractions as names with their order."""
  import pandas

  is_float = pandas.api.types.is_float_dtype(column)
  if not is_float or not (np.isfinite(column).all() and (column % 1).any()):
    return column
  names = pandas.unique(column.sort_values()).astype(str)
  return column.astype(str).astype(pandas.CategoricalDtype(names, ordered=True))


def _calendar_units(
  column: "pandas.Series", name: str, unit: str
) -> "pandas.Series":
  """Returns the calendar units of dates, as names that have an order."""
  import pandas

  arguments.choice("time_unit", unit, source.TIME_UNITS)
  if not pandas.api.types.is_datetime64_any_dtype(column):
    raise ValueError(
      f"time_unit={unit}: time {name!r} has no dates, such as 2024-01-31"
    )
  if column.dt.tz is not None:
    examples.warn(
      f"time {name!r} has the time zone {column.dt.tz}; time_unit={unit} counts"
      " its local time"
    )
  dates = column.dt.tz_localize(None)
  if unit == "week":
    iso = dates.dt.isocalendar()
    names = iso.year.astype(str) + "-W" + iso.week.astype(str).str.zfill(2)
  elif unit == "quarter":
    names = dates.dt.year.astype(str) + "-Q" + dates.dt.quarter.astype(str)
  else:
    form = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}[unit]
    names = dates.dt.strftime(form)
  return pandas.Series(
    pandas.Categorical(names, sorted(names.unique()), ordered=True),
    column.index,
  )


def _codes(
  column: "pandas.Series",
  what: str,
  where: Callable[[int], str],
  keep_empty: bool = False,
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns the place of each value in the sorted values, and their names.

  Texts are sorted by value if all are numbers.
  """
  import pandas

  column = _inferred(column)
  _check_values(column, what, where)
  if isinstance(column.dtype, pandas.CategoricalDtype):
    if not keep_empty:
      column = column.cat.remove_unused_categories()
    codes = column.cat.codes.to_numpy(np.int32)
    names = tuple(map(str, column.cat.categories))
  else:
    try:
      codes, values = pandas.factorize(column, sort=True)
    except TypeError as error:
      raise ValueError(
        f"{what} has values of types that have no common order; they must all"
        f" be {_ROLE_VALUES}"
      ) from error
    if (
      isinstance(values, pandas.DatetimeIndex)
      and (values == values.normalize()).all()
    ):
      # Dates without a time of day.
      values = values.strftime("%Y-%m-%d")
    order = _by_value(list(values))
    codes = np.argsort(order)[codes].astype(np.int32)
    names = tuple(str(values[code]) for code in order)
  examples.check_names(
    names,
    what,
    lambda code: (
      where(int(np.argmax(codes == code)))
      if (codes == code).any()
      else f"category {code}"
    ),
    warns_of_case=True,
  )
  return codes, names


def are_numbers(texts: Iterable[str]) -> bool:
  """Returns whether all texts are numbers."""
  return all(map(_NUMBER.fullmatch, texts))


def number_of(text: str) -> decimal.Decimal:
  """Returns the exact number of a text, see `are_numbers`."""
  return decimal.Decimal(text.strip())


def _by_value(values: Sequence[object]) -> list[int]:
  """Returns the order of sorted values: of numbers as texts, by number."""
  order = list(range(len(values)))
  texts = [value for value in values if isinstance(value, str)]
  if len(texts) == len(values) and are_numbers(texts):
    order.sort(key=lambda code: number_of(texts[code]))
  return order


def _check_values(
  column: "pandas.Series", what: str, where: Callable[[int], str]
) -> None:
  """Refuses values that cannot be names: missing ones, fractions and lists."""
  import pandas

  def refuse(are_wrong, problem):
    if are_wrong.any():
      row = int(np.argmax(are_wrong))
      value = _shown(column.iloc[row])
      raise ValueError(f"{what} {problem.format(value, where(row))}")

  refuse(column.isna().to_numpy(), "has missing values, the first in {1}")
  wanted = f"; its values must be {_ROLE_VALUES}"
  if pandas.api.types.is_float_dtype(column):
    are_fractions = (column % 1 != 0).to_numpy()
    refuse(are_fractions, f"has fractions, such as {{0}} in {{1}}{wanted}")
  elif pandas.api.types.is_complex_dtype(column):
    everything = np.ones(len(column), bool)
    refuse(everything, f"has complex numbers, such as {{0}} in {{1}}{wanted}")
  elif pandas.api.types.is_object_dtype(column):
    are_wrong = np.array([not _is_name(value) for value in column])
    refuse(are_wrong, f"has {{0}} in {{1}}{wanted}")


def _is_name(value: object) -> bool:
  if isinstance(value, float | np.floating | decimal.Decimal):
    return value % 1 == 0
  return not isinstance(
    value, list | dict | set | tuple | bytes | np.ndarray | complex
  )


def _ordered(
  column: "pandas.Series",
  name: str,
  order: Sequence[str],
  where: Callable[[int], str],
) -> "pandas.Series":
  """Returns a column with the order of its values, given as texts."""
  import pandas

  _check_values(column, f"time {name!r}", where)
  values = column.map(str)
  present, listed = sorted(set(values)), sorted(order)
  if present != listed:
    raise ValueError(
      f"domain_order={','.join(order)}: it must have each value of {name!r}"
      f" once: {', '.join(present)}"
    )
  return pandas.Series(pandas.Categorical(values, order, ordered=True))


def _check_order(
  column: "pandas.Series", name: str, where: Callable[[int], str]
) -> None:
  """Refuses times without an order."""
  import pandas

  if isinstance(column.dtype, pandas.CategoricalDtype):
    is_ordered, example = column.cat.ordered, ""
  else:
    texts = np.array([isinstance(value, str) for value in column])
    is_ordered = not pandas.api.types.is_object_dtype(
      column
    ) and not pandas.api.types.is_string_dtype(column)
    row = int(np.argmax(texts))
    example = f", such as {_shown(column.iloc[row])} in {where(row)}"
  if not is_ordered:
    raise ValueError(
      f"time {name!r}: texts have no order{example}; use numbers,"
      " pandas.to_datetime or pandas.Categorical(values, categories,"
      " ordered=True)"
    )
