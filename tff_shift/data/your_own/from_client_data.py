"""TFF's `ClientData` as data for the drivers of the scenarios.

There is a function for each scenario. It takes the arguments of `read` and of
the function of the same name in `from_arrays`, which documents the validation.
Clients are numbered in the order of `client_ids`, and messages use these names.

Copies of an example that a pipeline repeats stay together in training or test;
infinite pipelines are refused.
"""

import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from tff_shift.data import array_files
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data.shifts import evolving as domains_lib
from tff_shift.data.shifts import fixed_batches
from tff_shift.data.your_own import from_arrays

if TYPE_CHECKING:
  import tensorflow_federated as tff

# Number of elements that are read at a time.
_BATCH_SIZE = 1024


class ClientArrays(NamedTuple):
  """All used examples of a client.

  Attributes:
    client_id: Its name.
    x: The examples, `[n, ...]`.
    y: Their classes, `[n]`.
    domain: `[n]` integers, the domain, time step or period of each; None if
      not given.
  """

  client_id: str
  x: np.ndarray
  y: np.ndarray
  domain: np.ndarray | None


def read(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  x_key: str | None = None,
  y_key: str | None = None,
  domain_key: str | None = None,
  domain_of: Callable[[str, Any], int] | None = None,
  client_ids: Sequence[str] | None = None,
  max_examples_per_client: int | None = None,
  seed: int = 0,
) -> list[ClientArrays]:
  """Reads the examples of clients.

  Args:
    client_data: Its elements, one example each, are `(x, y)` or dictionaries.
    x_key: The key of x in a dictionary.
    y_key: The key of y in a dictionary.
    domain_key: The key of the domain, an integer, in a dictionary.
    domain_of: Instead, a function of the client's id and the element.
    client_ids: The clients, in this order. None: all.
    max_examples_per_client: Keeps at most this number of random examples of a
      client, in order.
    seed: Seed of this draw.

  Returns:
    The examples of each client.

  Raises:
    ValueError: If a client or a key does not exist, a client has no examples or
      infinitely many, its examples differ in shape, or one of its arrays is
      masked.
  """
  if None not in (domain_key, domain_of):
    raise ValueError("domain_key and domain_of: give one of them")
  if max_examples_per_client is not None:
    partition.check_positive_integer(
      "max_examples_per_client", max_examples_per_client
    )
  known = client_data.client_ids
  chosen = known if client_ids is None else client_ids
  unknown = sorted(set(chosen) - set(known))
  if unknown:
    raise ValueError(
      f"client_ids: there is no client {unknown[0]!r}; there are {len(known)},"
      f" the first is {known[0]!r}"
    )
  examples_lib.check_names(
    chosen, "client_ids", lambda number: f"client {number}"
  )
  found = []
  for number, client_id in enumerate(chosen):
    _check_masks(client_data, client_id)
    elements = _elements(client_data, client_id)
    x, y = _examples(elements, x_key, y_key, client_id)
    kept = np.arange(len(y))
    if max_examples_per_client is not None:
      rng = partition.generator("examples of a client", [seed, number])
      kept = np.sort(rng.permutation(kept)[:max_examples_per_client])
    domain = None
    if domain_key is not None:
      domain = _field(elements, domain_key, "domain_key", client_id)[kept]
    elif domain_of is not None:
      domain = _domains_of(domain_of, client_id, elements, kept)
    if domain is not None and (
      domain.dtype.kind not in "iu" or domain.shape != kept.shape
    ):
      raise ValueError(
        f"domain of client {client_id!r}: integers wanted, got {domain.dtype}"
        f" {list(domain.shape)} of {len(kept)} examples"
      )
    found.append(ClientArrays(client_id, x[kept], y[kept], domain))
  return found


def evolving(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  **reading: Any,
) -> tuple[domains_lib.Client, ...]:
  """Makes clients with examples in some domains, see `from_arrays.evolving`.

  Args:
    client_data: The client data; give `domain_key` or `domain_of`, see `read`.
    num_classes: The number of classes. None: inferred.
    test_fraction: Test fraction of a client's examples of a source domain.
    seed: Seed of all draws.
    **reading: Other arguments of `read`.

  Returns:
    The clients, by id.

  Raises:
    ValueError: If the examples cannot be read (see `read`) or are not valid, or
      there are fewer than 2 domains.
  """
  clients = read(client_data, seed=seed, **reading)
  values, by_domain = _by_domain(clients)
  return from_arrays.evolving(
    by_domain,
    num_classes=num_classes,
    test_fraction=test_fraction,
    seed=seed,
    client_names=_ids(clients),
    domain_names=values,
    keep_copies_together=True,
  )


def evolving_domains(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  class_names: Sequence[str] | None = None,
  name: str = "own data",
  **reading: Any,
) -> domains_lib.EvolvingDataset:
  """Pools the clients' examples by domain, see `from_arrays.evolving_domains`.

  Args:
    client_data: The client data; give `domain_key` or `domain_of`, see `read`.
    class_names: The names of the classes, see `from_arrays.evolving_domains`.
    name: The name of the data set.
    **reading: Other arguments of `read`.

  Returns:
    The domains, for `evolving.assemble_clients` with other clients. Copies of
    an example of the domain are dropped with a warning: they could not be kept
    together.

  Raises:
    ValueError: If the examples cannot be read (see `read`) or are not valid.
  """
  clients = read(client_data, **reading)
  _check_domains(clients)
  x, y, domain = (
    np.concatenate(arrays)
    for arrays in zip(*(each[1:] for each in clients), strict=True)
  )
  _, firsts = np.unique(examples_lib.copies(x, y, domain), return_index=True)
  if len(firsts) < len(y):
    warnings.warn(
      f"{len(y) - len(firsts)} of {len(y)} examples are copies of others in"
      " their domain, and are left out",
      stacklevel=2,
    )
    kept = np.sort(firsts)
    x, y, domain = x[kept], y[kept], domain[kept]
  values = np.unique(domain)
  return from_arrays.evolving_domains(
    [(x[domain == value], y[domain == value]) for value in values],
    names=[str(value) for value in values],
    class_names=class_names,
    name=name,
  )


def guidance(
  client_data: "tff.simulation.datasets.ClientData",
  test: "tff.simulation.datasets.ClientData | None" = None,
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.3,
  seed: int = 0,
  **reading: Any,
) -> from_arrays.Parts:
  """Makes training and test examples, see `from_arrays.guidance`.

  Args:
    client_data: The training data, see `read`.
    test: The test data of the same clients. None: a part of `client_data`.
    num_classes: The number of classes. None: inferred.
    test_fraction: Without `test`, the test fraction of a client's examples.
    seed: Seed of all draws.
    **reading: Other arguments of `read`.

  Returns:
    The examples of each client.

  Raises:
    ValueError: If the examples cannot be read (see `read`) or are not valid, or
      domains are given, which would be ignored.
  """
  for key in ("domain_key", "domain_of"):
    if reading.get(key) is not None:
      raise ValueError(
        f"{key}: guidance has no domains and would ignore it; evolving has"
      )
  clients = read(client_data, seed=seed, **reading)
  queries = None
  if test is not None:
    ids = [each.client_id for each in clients]
    reading = reading | {"client_ids": ids}
    queries = [each[1:3] for each in read(test, seed=seed, **reading)]
  return from_arrays.guidance(
    [each[1:3] for each in clients],
    queries,
    num_classes=num_classes,
    test_fraction=test_fraction,
    seed=seed,
    client_names=_ids(clients),
    keep_copies_together=True,
  )


def online_adaptation(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  omega: Sequence[float] | None = None,
  num_classes: int | None = None,
  **reading: Any,
) -> from_arrays.Online:
  """Makes labelled examples and streams, see `from_arrays.online_adaptation`.

  Args:
    client_data: See `read`; the domain of an example is its time step, and the
      first time step is before deployment. A client may lack time steps.
    omega: A number for each time step, see `from_arrays.online_adaptation`.
    num_classes: The number of classes. None: inferred.
    **reading: Other arguments of `read`.

  Returns:
    The labelled examples and the streams.

  Raises:
    ValueError: If the examples cannot be read (see `read`) or are not valid.
  """
  clients = read(client_data, **reading)
  _, by_domain = _by_domain(clients)
  return from_arrays.online_adaptation(
    [own[0] for own in by_domain],
    [own[1:] for own in by_domain],
    omega=omega,
    num_classes=num_classes,
    client_names=_ids(clients),
  )


def dynamic_personalization(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  drifted: Sequence[Sequence[bool]] | None = None,
  num_classes: int | None = None,
  **reading: Any,
) -> fixed_batches.Periods:
  """Makes periods of the clients, see `from_arrays.dynamic_personalization`.

  Args:
    client_data: See `read`; the domain of an example is its period. A client
      may lack periods.
    drifted: For each client and period, whether its distribution differs from
      the previous period, see `from_arrays.dynamic_personalization`.
    num_classes: The number of classes. None: inferred.
    **reading: Other arguments of `read`.

  Returns:
    The periods.

  Raises:
    ValueError: If the examples cannot be read (see `read`) or are not valid.
  """
  clients = read(client_data, **reading)
  _, by_domain = _by_domain(clients)
  return from_arrays.dynamic_personalization(
    by_domain,
    drifted=drifted,
    num_classes=num_classes,
    client_names=_ids(clients),
  )


def _check_masks(
  client_data: "tff.simulation.datasets.ClientData", client_id: str
) -> None:
  """Refuses masked arrays of a client of TFF's `TestClientData`.

  TensorFlow uses the value below a mask, and elements of a dataset have no
  masks. The arrays are in a private attribute of TFF.
  """
  fields = getattr(client_data, "_tensor_slices_dict", {}).get(client_id, ())
  if not isinstance(fields, Mapping):
    fields = dict(zip("xy", fields, strict=False))
  for name, array in fields.items():
    if isinstance(array, np.ma.MaskedArray):
      examples_lib.as_array(array, f"{name} of client {client_id!r}")


def _ids(clients: Sequence[ClientArrays]) -> list[str]:
  return [each.client_id for each in clients]


def _elements(
  client_data: "tff.simulation.datasets.ClientData", client_id: str
) -> Any:
  """Returns all elements of a client, their arrays stacked."""
  # Here, so that other data do not import TensorFlow.
  import tensorflow as tf

  try:
    # Calls the function that builds a client's data, which may be user code.
    data = client_data.create_tf_dataset_for_client(client_id)
    has_end = data.cardinality() != tf.data.INFINITE_CARDINALITY
    batches = list(
      data.batch(_BATCH_SIZE).as_numpy_iterator() if has_end else ()
    )
  # Errors of many types; most often examples differ in shape.
  except Exception as error:
    raise ValueError(
      f"client {client_id!r}: its examples cannot be read together"
      f" ({array_files.first_line(error)})"
    ) from error
  if not has_end:
    raise ValueError(
      f"client {client_id!r}: its pipeline has no end; leave repeat() out"
    )
  if not batches:
    raise ValueError(f"client {client_id!r} has no example")
  first = batches[0]
  if isinstance(first, Mapping):
    # Other values, such as nested dictionaries, cannot be used.
    return {
      key: np.concatenate([each[key] for each in batches])
      for key, value in first.items()
      if isinstance(value, np.ndarray)
    }
  if not isinstance(first, tuple) or len(first) != 2:
    raise ValueError(
      f"client {client_id!r}: its elements must be (x, y) or dictionaries, got"
      f" {type(first).__name__}"
    )
  for part in first:
    if not isinstance(part, np.ndarray):
      raise ValueError(
        f"client {client_id!r}: x and y of its elements must be arrays, got"
        f" {type(part).__name__}"
      )
  return tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))


def _domains_of(
  domain_of: Callable[[str, Any], int],
  client_id: str,
  elements: Any,
  kept: np.ndarray,
) -> np.ndarray:
  """Returns the results of the user's function for elements, `[len(kept)]`."""
  try:
    return np.array(
      [domain_of(client_id, _element(elements, place)) for place in kept]
    )
  # Any error of the user's function.
  except Exception as error:
    raise ValueError(
      f"domain_of of client {client_id!r}: {type(error).__name__}"
      f" ({array_files.first_line(error)})"
    ) from error


def _element(elements: Any, place: int) -> Any:
  """Returns one of stacked elements."""
  if isinstance(elements, Mapping):
    return {key: values[place] for key, values in elements.items()}
  return tuple(values[place] for values in elements)


def _examples(
  elements: Any, x_key: str | None, y_key: str | None, client_id: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the x and y of stacked elements."""
  keys = {"x_key": x_key, "y_key": y_key}
  if isinstance(elements, Mapping):
    x, y = (
      _field(elements, key, argument, client_id)
      for argument, key in keys.items()
    )
    return x, y
  for argument, key in keys.items():
    if key is not None:
      raise ValueError(
        f"{argument} {key!r}: elements are (x, y), which have no keys"
      )
  return elements


def _field(
  elements: Any, key: str | None, argument: str, client_id: str
) -> np.ndarray:
  """Returns the values of stacked elements under a key."""
  if not isinstance(elements, Mapping):
    raise ValueError(
      f"{argument} {key!r}: elements are (x, y), which have no keys"
    )
  if key not in elements:
    raise ValueError(
      f"{argument} {key!r}: it must be one of {', '.join(elements)}, the keys"
      f" of client {client_id!r}"
    )
  return elements[key]


def _check_domains(clients: Sequence[ClientArrays]) -> None:
  """Refuses clients without domains."""
  if not clients:
    raise ValueError("client_ids: there must be at least one client")
  if clients[0].domain is None:
    raise ValueError(
      "domain_key or domain_of must give the domain, time step or period of an"
      " example"
    )


def _by_domain(
  clients: Sequence[ClientArrays],
) -> tuple[list[str], list[list[from_arrays.Pair]]]:
  """Groups each client's examples by domain, in the order of the numbers.

  Args:
    clients: The clients.

  Returns:
    The domains' names, and for each client and domain (x, y), possibly without
    examples.

  Raises:
    ValueError: If domains are not given.
  """
  _check_domains(clients)
  values = np.unique(np.concatenate([each.domain for each in clients]))
  grouped = []
  for each in clients:
    grouped.append([])
    for value in values:
      is_here = each.domain == value
      grouped[-1].append((each.x[is_here], each.y[is_here]))
  return list(map(str, values)), grouped
