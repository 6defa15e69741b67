"""A table: examples with their classes, clients and times, and their schema.

Every source of examples becomes a table, and every scenario partitions one
(`deal` of the files in `shifts`). A table is validated once, where it is made:
`validate` for arrays, `sources.frames` for data frames.

Choices:
  * Labels without class names: if fewer than half of the classes up to the
    largest label occur, labels are refused as identifiers; otherwise a warning
    names the missing ones. One half accepts labels from 1 and small samples of
    many classes, and bounds allocations to twice the number of classes that
    occur. Names for all classes are an explicit statement by the user, and
    there is no check.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tff_shift._util import records
from tff_shift.data import array_files
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data import preparation as preparation_lib

# What `validate` accepts as x.
FORM = "uint8 images [n, height, width, 1 or 3], or floats [n, features]"
# Number of absent classes that a message names.
_NUM_LISTED = 5


class Schema(records.Record, omit_defaults=True):
  """The names of a table: of its columns, classes, clients and times.

  Attributes:
    classes: The name of each class, by its number in y.
    features: The name of each column of x, all different. None: images, texts,
      or columns without names.
    num_clients: The number of clients. None: the examples are not yet
      partitioned over clients.
    clients: The name of each client. None: their numbers.
    times: The name of each time in order: the domains, time steps or periods of
      a user's data. Empty: the data have no times, or `Evolution` names them.
    label: The column of the classes in the source. None: it has no columns.
    client: The column of the clients.
    time: The column of the times.
    group: The column of the groups, such as patients.
    dropped: The other columns of the source, which were left out.
    preparation: What makes the features of the columns. None: they are the
      columns.
  """

  classes: tuple[str, ...] = ()
  features: tuple[str, ...] | None = None
  num_clients: records.PositiveInt | None = None
  clients: tuple[str, ...] | None = None
  times: tuple[str, ...] = ()
  label: str | None = None
  client: str | None = None
  time: str | None = None
  group: str | None = None
  dropped: tuple[str, ...] = ()
  preparation: preparation_lib.Preparation | None = None

  def client_name(self, client: int) -> str:
    """Returns the name of a client in messages."""
    return str(client) if self.clients is None else repr(self.clients[client])

  def comparable(self) -> dict[str, Any]:
    """Returns the fields in JSON types, equal for equal data.

    Without a user's transformer: skops writes other bytes for an equal one.
    """
    preparation = self.preparation
    if preparation is not None:
      preparation = preparation.replace(transformer=b"")
    return self.replace(preparation=preparation).to_fields()


class Table(NamedTuple):
  """Examples, a row each.

  Attributes:
    x: `[N, height, width, channels]` uint8 images, `[N, ..., features]`
      float32, or `[N, length]` int32: titles (ids of words, see `text`), or
      tokens.
    y: `[N]` int32 labels, which count from 0.
    schema: The names.
    client: `[N]` int32, the client that holds an example. None: the examples
      are not yet partitioned.
    time: `[N]` integers, when an example was taken: the number of a name in
      `Schema.times`; or the year, hour or number that an `Evolution` names.
      None: the examples have no times.
    num_train: The number of leading examples that are the data's own training
      split; its test or validation split follows. None: it has no such split.
    vocabulary: The word of each id, for titles. None: not titles.
    group: `[N]` integers from 0, the group of an example, such as a patient,
      which a split into training and test part does not divide. None: examples
      are independent.
  """

  x: np.ndarray
  y: np.ndarray
  schema: Schema
  client: np.ndarray | None = None
  time: np.ndarray | None = None
  num_train: int | None = None
  vocabulary: tuple[str, ...] | None = None
  group: np.ndarray | None = None


class Sides(NamedTuple):
  """The groups of training and of test examples.

  Attributes:
    train: Those of each client's training examples, or of all clients'.
    test: Those of the test examples.
  """

  train: Sequence[np.ndarray]
  test: Sequence[np.ndarray]


def sides_of(
  content: Table, train: Sequence[np.ndarray], test: np.ndarray
) -> Sides | None:
  """Returns the groups of rows for training and for testing, if any."""
  if content.group is None:
    return None
  return Sides([content.group[rows] for rows in train], [content.group[test]])


def size_of(content: Table, rows: np.ndarray) -> str:
  """Returns the number of some examples, and of their groups, for messages."""
  size = f"{len(rows)} examples"
  if content.group is None:
    return size
  num_groups = len(np.unique(content.group[rows]))
  return f"{size} in {num_groups} groups of {content.schema.group!r}"


def of_classes(
  x: np.ndarray,
  y: np.ndarray,
  classes: Sequence[str],
  time: np.ndarray | None = None,
  **fields: Any,
) -> Table:
  """Returns a table of named classes.

  Args:
    x: The examples.
    y: Their classes.
    classes: The names of the classes.
    time: The time of each example.
    **fields: Further fields of `Table`.
  """
  return Table(x, y, Schema(classes=tuple(classes)), time=time, **fields)


def validate(table: Table, name: str) -> Table:
  """Validates and casts the arrays of a source.

  Args:
    table: The table. Without names of classes, their number is inferred and
      they are named by their numbers.
    name: The name of the source in messages.

  Returns:
    The table: x uint8 if it had integers, otherwise float32, finite, with
    finite squares.

  Raises:
    ValueError: If x is neither images nor vectors, or an array is not valid;
      one line that names it.
  """
  schema = table.schema
  x = table.x
  if schema.preparation is not None:  # Its columns may lack values.
    x = np.where(np.isnan(x), 0, x)
  _check_form(x, name)
  classes = schema.classes
  if not classes:
    num_classes = num_classes_of(table.y, lambda row: (f"y of {name}", row))
    classes = tuple(map(str, range(num_classes)))
  if len(classes) < 2:
    raise ValueError(f"y of {name}: there must be at least 2 classes")
  if schema.features is not None:
    examples.check_feature_names(
      schema.features, x.shape, f"feature_names of {name}"
    )
  values, y = examples.checked(
    x,
    table.y,
    name,
    shape=x.shape[1:],
    dtype=examples.input_type(x.dtype.kind in "iu"),
    num_classes=len(classes),
  )
  examples.check_precision([x], f"x of {name}")
  check_num_train(table, name)
  client, schema = _validate_codes(table, "client", schema, name)
  time, schema = _validate_codes(table, "time", schema, name)
  group = table.group
  if group is not None:
    group = examples.checked_array(
      group, f"group of {name}", shape=table.y.shape, dtype=np.int64
    )
    group = np.unique(group, return_inverse=True)[1]
    schema = schema.replace(group=schema.group or "group")
  if schema.preparation is not None:
    values = table.x.astype(values.dtype, copy=False)
  return Table(
    values,
    y,
    schema.replace(classes=classes),
    client,
    time,
    table.num_train,
    table.vocabulary,
    group,
  )


def _check_form(x: np.ndarray, name: str) -> None:
  """Refuses examples that are neither images nor vectors."""
  is_image = x.ndim == 4 and x.shape[-1] in (1, 3) and x.dtype.kind in "iu"
  if is_image or (x.ndim == 2 and x.dtype.kind == "f" and x.shape[1]):
    return
  advice = ""
  if x.ndim > 2 and x.dtype.kind == "f":
    advice = "; of pixels from 0 to 1, np.rint(255 * x).astype(np.uint8)"
  raise ValueError(
    f"x of {name}: {FORM} wanted, got {x.dtype} {list(x.shape)}{advice}"
  )


def _validate_codes(
  table: Table, field: str, schema: Schema, name: str
) -> tuple[np.ndarray | None, Schema]:
  """Returns the clients or times as int32, and the schema with their number."""
  codes = getattr(table, field)
  if codes is None:
    return None, schema
  codes = examples.checked_array(
    codes, f"{field} of {name}", shape=(len(table.y),), dtype=np.int32
  )
  names = getattr(schema, f"{field}s")
  num_codes = schema.num_clients if field == "client" else None
  if num_codes is None:
    num_codes = len(names or ()) or int(codes.max()) + 1
  if codes.min() < 0 or codes.max() >= num_codes:
    raise ValueError(
      f"{field} of {name}: numbers from 0 to {num_codes - 1} wanted, got"
      f" {codes.min()}..{codes.max()}"
    )
  if field == "client":
    return codes, schema.replace(num_clients=num_codes)
  return codes, schema.replace(times=names or tuple(map(str, range(num_codes))))


def digest(content: Table) -> str:
  """Returns the SHA-256 of the arrays and names of a table."""
  fields: dict[str, Any] = {"schema": content.schema.comparable()}
  for name in ("x", "y", "client", "time", "group"):
    array = getattr(content, name)
    fields[name] = None if array is None else array_files.digest(array)
  return records.digest(
    records.to_json(fields | {"num_train": content.num_train})
  )


def check_num_train(table: Table, name: str) -> None:
  """Refuses a training split without examples, or with all of them."""
  num_train, size = table.num_train, len(table.y)
  if num_train is not None and not 0 < num_train < size:
    raise ValueError(
      f"num_train of {name}: it must lie in 1..{size - 1}, so that both splits"
      f" have an example, got {num_train}"
    )


def num_classes_of(
  y: np.ndarray, place_of: Callable[[int], tuple[str, int]]
) -> int:
  """Infers the number of classes: the largest label plus one.

  Args:
    y: `[n]` integers.
    place_of: Maps an index to the name of the labels, and the index in them,
      for messages.

  Raises:
    ValueError: If labels are not a vector of integers, one is negative, or
      fewer than half of the classes occur.
  """
  # Identifiers may be larger than an int32.
  y = examples.checked_array(y, place_of(0)[0], shape=(None,), dtype=np.int64)
  occurring, firsts = np.unique(y, return_index=True)
  if not len(occurring):
    return 1
  if occurring[0] < 0:
    row = int(np.argmax(y < 0))
    name, example = place_of(row)
    raise ValueError(
      f"{name}: classes must count from 0, got {y[row]} for example {example}"
    )
  num_classes = int(occurring[-1]) + 1
  num_absent = num_classes - len(occurring)
  if not num_absent:
    return num_classes
  name, _ = place_of(int(firsts[-1]))
  problem = (
    f"{name}: the greatest label is {num_classes - 1}, and {len(occurring)}"
    f" of the {num_classes} classes 0..{num_classes - 1} occur"
  )
  if 2 * len(occurring) < num_classes:
    raise ValueError(
      f"{problem}; if labels are identifiers, number them from 0 to"
      f" {len(occurring) - 1} (y = numpy.unique(y, return_inverse=True)[1]),"
      f" and if there are {num_classes} classes, give their number (class_names"
      " of a file, num_classes in Python)"
    )
  # At most as long as the labels themselves.
  absent = np.setdiff1d(np.arange(num_classes), occurring)[:_NUM_LISTED]
  examples.warn(
    f"{problem}; classes without an example:"
    f" {', '.join(map(str, absent))}{', ...' * (num_absent > len(absent))}"
  )
  return num_classes


def positions(table: Table) -> list[list[np.ndarray]]:
  """Groups the rows of a table with clients, in one sort.

  Returns:
    For each client and time (or for each client, in a list of one) the indices
    of its rows, ascending; may be empty.
  """
  num_times = max(1, len(table.schema.times))
  keys = np.asarray(table.client, np.int64) * num_times
  if table.schema.times:
    keys += table.time
  groups = partition.split_by(keys, table.schema.num_clients * num_times)
  return [
    groups[start : start + num_times]
    for start in range(0, len(groups), num_times)
  ]


def take_groups(
  source: examples.Pool, groups: Sequence[Sequence[np.ndarray]]
) -> tuple[examples.Examples, list[list[examples.Examples]]]:
  """Copies the examples of clients and times.

  Args:
    source: The examples.
    groups: For each client and time the indices of its examples.

  Returns:
    All of them, sorted by client and time, and for each client and time its
    part, without another copy; read-only.
  """
  flat = [rows for client in groups for rows in client]
  pool = examples.take(source, np.concatenate(flat))
  pool = pool._replace(y=examples.read_only(pool.y))
  ends = np.cumsum([len(rows) for rows in flat])
  parts = [
    examples.Examples(
      pool.x[end - len(rows) : end], pool.y[end - len(rows) : end]
    )
    for rows, end in zip(flat, ends, strict=True)
  ]
  size = len(groups[0])
  return pool, [
    parts[start : start + size] for start in range(0, len(parts), size)
  ]
