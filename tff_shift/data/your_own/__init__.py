"""Client data from a user's arrays, files and functions."""

from typing import Any

from tff_shift.data.your_own import from_arrays
from tff_shift.data.your_own import from_client_data
from tff_shift.data.your_own import from_dataframe
from tff_shift.data.your_own import from_huggingface

_SCENARIOS = (
  "dynamic_personalization",
  "evolving",
  "guidance",
  "online_adaptation",
)


def _check(scenario: str) -> None:
  if scenario not in _SCENARIOS:
    raise ValueError(
      f"scenario={scenario!r} is not allowed: it must be one of"
      f" {', '.join(_SCENARIOS)}"
    )


def _of(module: Any, scenario: str) -> Any:
  _check(scenario)
  return getattr(module, scenario)


def from_arrays_of(scenario: str, *arrays: Any, **options: Any) -> Any:
  """Validates arrays of examples as the client data of a scenario.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    *arrays: The arrays that the function of this name in `from_arrays` takes:
      for `evolving`, `(x, y)` for each client and domain; for
      `online_adaptation`, the labelled examples of each client, and its stream
      for each time step; for `guidance`, training and test examples of each
      client; for `dynamic_personalization`, `(x, y)` for each client and
      period.
    **options: Further arguments of that function, such as `num_classes` and
      `client_names`.

  Returns:
    What `run_<scenario>` takes.

  Raises:
    ValueError: If the scenario is unknown or an array does not fit, in one
      line.

  Examples:
    >>> x, y = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 2
    >>> clients = ts.from_arrays("evolving", [[(x, y), (x + 1, y)]])
    >>> len(clients[0].train.y), clients[0].test.domain_sizes.tolist()
    (8, [2, 10])
  """
  return _of(from_arrays, scenario)(*arrays, **options)


def from_client_data_of(scenario: str, client_data: Any, **options: Any) -> Any:
  """Reads a `tff.simulation.datasets.ClientData` as a scenario's client data.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    client_data: The data; its elements, one example each, are `(x, y)` or
      dictionaries.
    **options: Further arguments of the function of this name in
      `from_client_data`, such as `x_key`, `y_key` and `domain_key`.

  Returns:
    What `run_<scenario>` takes.

  Raises:
    ValueError: If the scenario is unknown or the data do not fit, in one line.

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
  return _of(from_client_data, scenario)(client_data, **options)


def from_dataframe_of(scenario: str, frame: Any, **columns: Any) -> Any:
  """Reads a pandas DataFrame as a scenario's data, see `from_dataframe.read`.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    frame: The examples.
    **columns: `label`, `client`, `time`, `features` and further arguments of
      `from_dataframe.read`.

  Returns:
    A `from_dataframe.Named`; its `data` is what `run_<scenario>` takes.

  Raises:
    ValueError: If the scenario is unknown or the data do not fit, in one line.

  Examples:
    >>> frame = pd.DataFrame({
    ...   "site": ["north", "south"] * 200,
    ...   "year": [2007] * 200 + [2008] * 200,
    ...   "sex": ["f", "f", "m", "m"] * 100,
    ...   "mass": np.linspace(3, 5, 400),
    ... })
    >>> named = ts.from_dataframe(
    ...   "evolving", frame, label="sex", client="site", time="year"
    ... )
    >>> named.client_names, named.time_names, named.features
    (('north', 'south'), ('2007', '2008'), ('mass',))
  """
  _check(scenario)
  return from_dataframe.read(scenario, frame, **columns)


def from_huggingface_of(scenario: str, dataset: Any, **columns: Any) -> Any:
  """Reads a `datasets.Dataset` of Hugging Face as a scenario's data.

  Needs the extra `huggingface`. Nothing is downloaded.

  Args:
    scenario: `evolving`, `online_adaptation`, `guidance` or
      `dynamic_personalization`.
    dataset: The examples, one split.
    **columns: `label`, `client`, `time`, `image`, `features` and further
      arguments of `from_huggingface.read`.

  Returns:
    A `from_dataframe.Named`; its `data` is what `run_<scenario>` takes.

  Raises:
    ValueError: If the scenario is unknown or the data do not fit, in one line.

  Examples:
    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({
    ...   "site": ["north", "south"] * 10, "sex": ["f", "f", "m", "m"] * 5,
    ...   "mass": np.linspace(3, 5, 20),
    ... })
    >>> named = ts.from_huggingface(
    ...   "guidance", dataset, label="sex", client="site"
    ... )
    >>> named.client_names, named.class_names
    (('north', 'south'), ('f', 'm'))
  """
  _check(scenario)
  return from_huggingface.read(scenario, dataset, **columns)
