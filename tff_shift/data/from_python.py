"""Arrays, TFF client data, data frames and Hugging Face data as client data.

Each function reads a table and partitions it for a scenario. Invalid data are
refused in one line that names them. x becomes uint8 or float32, y int32; the
result is read-only.

Choices:
  * A period's drift is a change of the label fractions, not of the
    distribution's name: a client with two labels has the same `0.5` whichever
    is heavy.
  * The drift of a user's periods is unknown without `drifted`, and so is
    `omega` of a user's streams: their columns and rates are left out.
"""

import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.shifts import own_drift
from tff_shift.data.sources import client_data as client_data_lib
from tff_shift.data.sources import frames
from tff_shift.data.sources import huggingface
from tff_shift.data.sources import pairs
from tff_shift.data.sources import source

if TYPE_CHECKING:
  import pandas
  import tensorflow_federated as tff
  from sklearn import base

_SCENARIOS = {
  module.SCENARIO: module
  for module in (
    dynamic_personalization,
    evolving,
    guidance,
    online_adaptation,
  )
}
# The name of the second index of arrays, and the least number of them.
_TIMES = {
  "dynamic_personalization": ("period", 1),
  "evolving": ("domain", 2),
  "online_adaptation": ("time step", 1),
}


class Named(NamedTuple):
  """The data of a scenario, and their names.

  Attributes:
    data: The argument of `run_<scenario>`.
    schema: The names of classes, clients, times and features.
  """

  data: Any
  schema: table.Schema


def from_arrays(
  scenario: str,
  *arrays: Any,
  num_classes: int | None = None,
  client_names: Sequence[str] | None = None,
  feature_names: Sequence[str] = (),
  domain_names: Sequence[str] | None = None,
  **options: Any,
) -> Any:
  """Partitions arrays of examples for a scenario.

  Examples are a pair: x `[n, ...]`, uint8 images or floating-point numbers, and
  y `[n]` integers, the classes from 0.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    *arrays: `evolving`: `(x, y)` for each client and domain, in the order of
      time; the last domain is the target. `online_adaptation`: the labelled
      examples `(x, y)` of each client, and its stream, `(x, y)` for each time
      step. `guidance`: `(x, y)` of each client, and optionally test examples,
      the queries, of each client. `dynamic_personalization`: `(x, y)` for each
      client and period. Apart from `guidance`, a pair may have no examples: the
      client is absent then.
    num_classes: The number of classes. None: the largest class that occurs plus
      one, see `table.num_classes_of`.
    client_names: The names of the clients. None: their numbers.
    feature_names: The names of the columns of x, for a warning of features that
      need scaling. Empty: their numbers.
    domain_names: `evolving`: the names of the domains. None: their numbers.
    **options: Further arguments of `deal` of the scenario, such as `seed`.

  Returns:
    The argument of `run_<scenario>`, see `deal` of the scenario.

  Raises:
    ValueError: If the scenario is unknown or an array is not valid, in one
      line.

  Examples:
    >>> x, y = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 2
    >>> clients = ts.from_arrays("evolving", [[(x, y), (x + 1, y)]])
    >>> len(clients[0].train.y), clients[0].test.domain_sizes.tolist()
    (8, [2, 10])
  """
  _check_scenario(scenario)
  if domain_names is not None and scenario != "evolving":
    raise ValueError(f"domain_names: {scenario} has no domains")
  groups, first = _groups(scenario, arrays)
  client_of = _names(client_names, len(groups), "client")
  time_kind, least = _TIMES.get(scenario, ("", 1))
  _check_lengths(
    [pairs[first:] for pairs in groups], time_kind, least, client_of
  )
  num_times = len(groups[0]) if groups else 0
  called = _names(domain_names, num_times, time_kind)

  def time_of(time):
    return "initial" if first and not time else called(time)

  def name_of(client, time):
    if scenario == "guidance":
      uses = ", train", ", test"
      return client_of(client) + (uses[time] if num_times > 1 else "")
    return f"{client_of(client)}, {time_of(time)}"

  content = pairs.read(
    groups,
    name_of,
    num_classes=num_classes,
    feature_names=feature_names,
    allow_empty=scenario != "guidance",
  )
  schema = content.schema
  if client_names is not None:
    schema = schema.replace(clients=tuple(map(str, client_names)))
  if domain_names is not None:
    schema = schema.replace(times=tuple(map(str, domain_names)))
  content = content._replace(schema=schema)
  if scenario == "guidance":
    content = _with_split(content)
  else:
    _check_present(content, num_times, time_of)
  return _partitioned(scenario, content, options)


def from_client_data(
  scenario: str,
  client_data: "tff.simulation.datasets.ClientData",
  test: "tff.simulation.datasets.ClientData | None" = None,
  **options: Any,
) -> Any:
  """Partitions a `tff.simulation.datasets.ClientData` for a scenario.

  Copies of an example that a pipeline repeats stay together in training or
  test.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    client_data: The data; its elements, one example each, are `(x, y)` or
      dictionaries.
    test: `guidance`: the queries of the same clients. None: a part of
      `client_data`.
    **options: Arguments of `sources.client_data.read`, such as `x_key`, `y_key`
      and `domain_key`, and of `deal` of the scenario.

  Returns:
    The argument of `run_<scenario>`.

  Raises:
    ValueError: If the scenario is unknown or the data are not valid, in one
      line.

  Examples:
    >>> import tensorflow_federated as tff
    >>> x, y = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 2
    >>> client_data = tff.simulation.datasets.TestClientData(
    ...   {"north": (x, y), "south": (x + 1, y)}
    ... )
    >>> data = ts.from_client_data("guidance", client_data)
    >>> [len(client.y) for client in data.train]
    [7, 7]
  """
  _check_scenario(scenario)
  reading = {
    name: options.pop(name)
    for name in tuple(options)
    if name in _READING_CLIENT_DATA
  }
  has_times = not {"domain_key", "domain_of"}.isdisjoint(reading)
  if has_times == (scenario == "guidance"):
    raise ValueError(
      f"domain_key and domain_of: {scenario}"
      f" {'has no domains' if has_times else 'needs one of them'}"
    )
  seed = options.get("seed", 0)
  content = client_data_lib.read(client_data, seed=seed, **reading)
  if test is not None:
    if scenario != "guidance":
      raise ValueError(f"test: {scenario} has no queries")
    reading["client_ids"] = content.schema.clients
    content = _joined(content, client_data_lib.read(test, seed=seed, **reading))
  if scenario in ("evolving", "guidance"):
    options["keep_copies_together"] = True
  return _partitioned(scenario, content, options)


_READING_CLIENT_DATA = (
  *("x_key", "y_key", "domain_key", "domain_of", "client_ids"),
  *("max_examples_per_client", "num_classes"),
)


def from_dataframe(
  scenario: str,
  frame: "pandas.DataFrame",
  *,
  label: str,
  client: str,
  time: str | None = None,
  features: Sequence[str] | None = None,
  group: str | None = None,
  drop: Sequence[str] = (),
  time_unit: str | None = None,
  missing: str = "error",
  categories: str = "error",
  unseen_categories: str = "error",
  preprocessing: "base.TransformerMixin | None" = None,
  **options: Any,
) -> Named:
  """Partitions a pandas DataFrame, a row for each example, for a scenario.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
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
    group: The column of the group, such as the patient, whose rows stay in one
      part where examples are split into training and test. Times separate
      examples whatever their group. None: examples are independent.
    drop: Columns that are left out.
    time_unit: The calendar unit of dates, such as `month`, see `frames.read`.
    missing: Missing numbers: `error`, `mean`, `median` or `indicator`, of the
      training examples.
    categories: Texts: `error`, `one_hot` or `embedding_index`.
    unseen_categories: Categories without a training example: `error` or
      `ignore`.
    preprocessing: A `ColumnTransformer` or `Pipeline` of scikit-learn, not
      fitted, in place of `missing` and `categories`. It is fitted to training
      examples and stored with the model. Needs the extra `skops`.
    **options: Further arguments of `deal` of the scenario.

  Returns:
    The data and their names.

  Raises:
    ValueError: If a column does not exist or has values that are not allowed,
      or the data are not valid; one line that names it.

  Examples:
    >>> frame = pd.DataFrame({
    ...   "site": ["north", "south"] * 200,
    ...   "year": [2007] * 200 + [2008] * 200,
    ...   "sex": ["f", "f", "m", "m"] * 100,
    ...   "mass": np.linspace(3, 5, 400),
    ... })
    >>> data, schema = ts.from_dataframe(
    ...   "evolving", frame, label="sex", client="site", time="year"
    ... )
    >>> schema.clients, schema.times, schema.features
    (('north', 'south'), ('2007', '2008'), ('mass',))
  """
  _check_time(scenario, time)
  content = frames.read(
    frame,
    label,
    client,
    time,
    features,
    group=group,
    drop=drop,
    time_unit=time_unit,
    missing=missing,
    categories=categories,
    unseen_categories=unseen_categories,
    preprocessing=preprocessing,
  )
  return _named(scenario, content, options)


def from_huggingface(
  scenario: str,
  dataset: Any,
  *,
  label: str,
  client: str,
  time: str | None = None,
  **options: Any,
) -> Named:
  """Partitions a `datasets.Dataset` of Hugging Face for a scenario.

  Needs the extra `huggingface`. Nothing is downloaded.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    dataset: The examples, one split.
    label: The column of the class. A `ClassLabel` keeps all of its classes.
    client: The column of the client.
    time: The column of the time, see `from_dataframe`.
    **options: Further arguments of `sources.huggingface.read`, such as `image`
      and `image_size`, of `from_dataframe`, and of `deal` of the scenario.

  Returns:
    The data and their names.

  Raises:
    ValueError: If the scenario is unknown or the data are not valid, in one
      line.

  Examples:
    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({
    ...   "site": ["north", "south"] * 10, "sex": ["f", "f", "m", "m"] * 5,
    ...   "mass": np.linspace(3, 5, 20),
    ... })
    >>> data, schema = ts.from_huggingface(
    ...   "guidance", dataset, label="sex", client="site"
    ... )
    >>> schema.clients, schema.classes
    (('north', 'south'), ('f', 'm'))
  """
  _check_time(scenario, time)
  columns = {
    name: options.pop(name)
    for name in (*source.COLUMNS, "preprocessing")
    if name in options
  }
  content = huggingface.read(dataset, label, client, time, **columns)
  return _named(scenario, content, options)


def domains(
  arrays: Sequence[pairs.Pair],
  *,
  names: Sequence[str] | None = None,
  num_classes: int | None = None,
) -> evolving.EvolvingDataset:
  """Returns the domains of arrays, for `ts.assemble_clients`.

  Args:
    arrays: For each domain, in the order of time, `(x, y)`; the last one is the
      target.
    names: The names of the domains. None: their numbers.
    num_classes: The number of classes. None: inferred.

  Raises:
    ValueError: If an array is not valid, or there are fewer than 2 domains.
  """
  _check_lengths([arrays], "domain", 2, lambda _: "arrays")
  name_of = _names(names, len(arrays), "domain")
  content = pairs.read(
    [arrays], lambda _, domain: name_of(domain), num_classes=num_classes
  )
  schema = content.schema.replace(num_clients=None)
  if names is not None:
    schema = schema.replace(times=tuple(map(str, names)))
  return evolving.domains_of(content._replace(schema=schema, client=None))


def split(
  x: np.ndarray,
  y: np.ndarray,
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  keep_copies_together: bool = False,
) -> guidance.Parts:
  """Splits labelled examples, for example for `ts.pretrain`.

  Args:
    x: The examples, `[n, ...]`.
    y: Their classes, `[n]` integers.
    num_classes: The number of classes. None: inferred.
    test_fraction: Fraction of the held-out examples.
    seed: Seed of the split.
    keep_copies_together: Whether examples that are equal bit for bit are all in
      one part.

  Returns:
    The training examples and the held-out examples.

  Raises:
    ValueError: If an array is not valid, or there are too few examples.
  """
  content = pairs.read(
    [[(x, y)]], lambda *_: "the examples", num_classes=num_classes
  )
  copies = examples.copies(content.x) if keep_copies_together else None
  rows = partition.split_train_test(
    np.arange(len(y)), test_fraction, seed, copies
  )
  if not len(rows[1]):
    of_one = copies is not None and not copies.any()
    raise ValueError(
      f"the examples: test_fraction {test_fraction:g} of {len(y)} examples"
      f"{', all copies of one,' if of_one else ''} leaves none to test"
    )
  parts = guidance.Parts(*(examples.take(content, part) for part in rows))
  _warn_of_copies([parts.train], [parts.test])
  return parts


def _check_scenario(scenario: str) -> None:
  if scenario not in _SCENARIOS:
    raise ValueError(
      f"scenario={scenario!r} is not allowed: it must be one of"
      f" {', '.join(_SCENARIOS)}"
    )


def _check_time(scenario: str, time: str | None) -> None:
  _check_scenario(scenario)
  if (time is None) != (scenario == "guidance"):
    raise ValueError(
      f"time={time!r} is not allowed for {scenario}: it must be"
      f" {'a column' if time is None else 'left out, since it has no time'}"
    )


def _named(
  scenario: str, content: table.Table, options: Mapping[str, Any]
) -> Named:
  """Partitions a table of named columns; warns of its times and features."""
  if content.time is not None:
    own_drift.warn_of_times(
      content.schema.times, np.bincount(content.time).tolist(), scenario
    )
  data = _partitioned(scenario, content, options)
  schema = preparation.fitted(
    content.schema, _training_parts(scenario, content, data)
  )
  data = preparation.applied(data, schema)
  examples.warn_of_unscaled(
    [preparation.applied(content, schema).x], schema.features or ()
  )
  return Named(data, schema)


def _training_parts(
  scenario: str, content: table.Table, data: Any
) -> list[np.ndarray]:
  """Returns the x of the training examples of client data."""
  if scenario == "evolving":
    return [client.train.x for client in data]
  if scenario == "guidance":
    return [part.x for part in data.train]
  if scenario == "online_adaptation":
    return [part.x for part in data.initial]
  return [content.x]  # Periods may be for training, validation or a stream.


def _partitioned(
  scenario: str, content: table.Table, options: Mapping[str, Any]
) -> Any:
  """Partitions a table; warns of test examples that are in training too."""
  data = _SCENARIOS[scenario].deal(content, **options)
  if scenario == "evolving":
    _warn_of_copies(
      [client.train for client in data], [client.test for client in data]
    )
  elif scenario == "guidance":
    _warn_of_copies(*data)
  return data


def _warn_of_copies(train: Sequence[Any], test: Sequence[Any]) -> None:
  num_copies = examples.num_trained_on(
    (part.x for part in train), (part.x for part in test)
  )
  if num_copies:
    size = sum(len(part.y) for part in test)
    warnings.warn(
      f"{num_copies} of {size} test examples are also training examples, bit"
      " for bit",
      stacklevel=4,
    )


def _groups(
  scenario: str, arrays: Sequence[Any]
) -> tuple[Sequence[Sequence[pairs.Pair]], int]:
  """Returns pairs by client and time, and the number of the first time."""
  if scenario == "online_adaptation":
    initial, stream = arrays
    if len(initial) != len(stream):
      raise ValueError(
        f"initial: there must be {len(stream)} clients, as in stream, got"
        f" {len(initial)}"
      )
    return [
      [first, *others] for first, others in zip(initial, stream, strict=True)
    ], 1
  if scenario == "guidance":
    train, *test = arrays
    if test and len(train) != len(test[0]):
      raise ValueError(
        f"test: there must be {len(train)} clients, as in train, got"
        f" {len(test[0])}"
      )
    return list(zip(train, *test, strict=True)), 0
  (groups,) = arrays
  return groups, 0


def _names(names: Sequence[str] | None, size: int, kind: str) -> Any:
  """Returns a function from a number to the name in messages.

  Raises:
    ValueError: If the number of names differs, or two are equal.
  """
  if names is None:
    return lambda index: f"{kind} {index}"
  if len(names) != size:
    raise ValueError(
      f"{kind}_names: there must be {size}, one for each {kind}, got"
      f" {len(names)}"
    )
  examples.check_names(names, f"{kind}_names", lambda index: f"{kind} {index}")
  return lambda index: f"{kind} {names[index]!r}"


def _check_lengths(
  groups: Sequence[Sequence[Any]], kind: str, least: int, client_of: Any
) -> None:
  """Refuses clients that differ in the number of their times."""
  if not groups:
    raise ValueError("there must be at least one client")
  for client, pairs_of_client in enumerate(groups):
    num_times = len(pairs_of_client)
    if num_times < least:
      raise ValueError(
        f"{client_of(client)}: there must be at least {least} {kind}s, got"
        f" {num_times}"
      )
    if num_times != len(groups[0]):
      raise ValueError(
        f"{client_of(client)}: there must be {len(groups[0])} {kind}s, as of"
        f" {client_of(0)}, got {num_times}"
      )


def _check_present(content: table.Table, num_times: int, time_of: Any) -> None:
  """Refuses times at which no client has examples."""
  absent = np.setdiff1d(np.arange(num_times), content.time)
  if len(absent):
    name = time_of(absent[0])
    if name.startswith("domain") and absent[0] == num_times - 1:
      name += ", the target"
    raise ValueError(f"{name}: no client has an example of it")


def _with_split(content: table.Table) -> table.Table:
  """Makes the second of two pairs of a client the test split of the table."""
  if not content.time.any():
    schema = content.schema.replace(times=())
    return content._replace(schema=schema, time=None)
  is_test = content.time == 1
  parts = (
    content._replace(
      x=content.x[rows], y=content.y[rows], client=content.client[rows]
    )
    for rows in (~is_test, is_test)
  )
  return _joined(*parts)


def _joined(train: table.Table, test: table.Table) -> table.Table:
  """Returns a table whose second part is its test split."""
  x, y, client = (
    np.concatenate(arrays)
    for arrays in (
      (train.x, test.x),
      (train.y, test.y),
      (train.client, test.client),
    )
  )
  classes = max(train.schema.classes, test.schema.classes, key=len)
  return table.Table(
    x,
    y,
    train.schema.replace(classes=classes, times=()),
    client,
    num_train=len(train.y),
  )
