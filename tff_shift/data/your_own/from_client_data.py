"""TFF's `ClientData` as what the drivers of the scenarios take.

A function for each scenario; they have the arguments of `read`, and beside them
those of the function of `from_arrays` of the same name, which says what is
checked. Clients count in the order of `client_ids`, and messages call them by
these.

A pipeline that repeats its examples puts none of them in training and test:
copies stay together, and one without an end is refused.
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

# Elements that are read at a time.
_BATCH_SIZE = 1024


class ClientArrays(NamedTuple):
  """All examples of a client that are used.

  Attributes:
    client_id: Its name.
    x: The examples, `[n, ...]`.
    y: Their classes, `[n]`.
    domain: `[n]` integers, the domain, time step or period of each; None where
      nothing tells.
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
    x_key: Of a dictionary, the key of x.
    y_key: Of a dictionary, the key of y.
    domain_key: Of a dictionary, the key of the domain, an integer.
    domain_of: Instead, a function of the client's id and the element.
    client_ids: The clients, in this order. None: all.
    max_examples_per_client: Keeps at most so many random examples of a client,
      in their order.
    seed: Seed of that draw.

  Returns:
    The examples of each client.

  Raises:
    ValueError: A client or a key is not there, a client has no example or no
      last one, its examples differ in their shapes, or one of its arrays is
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
      f" the first of which is {known[0]!r}"
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
    client_data: See `read`, and there `domain_key` and `domain_of`.
    num_classes: See `from_arrays.evolving`.
    test_fraction: See `from_arrays.evolving`.
    seed: Seed of all draws.
    **reading: What else `read` takes.

  Returns:
    The clients, by id.

  Raises:
    ValueError: See `read`; or there are fewer than 2 domains.
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
    client_data: See `read`, and there `domain_key` and `domain_of`.
    class_names: See `from_arrays.evolving_domains`.
    name: See `from_arrays.evolving_domains`.
    **reading: What else `read` takes.

  Returns:
    The domains, for `evolving.assemble_clients` to deal to other clients.
    Copies of an example of the domain are left out, which a warning tells:
    they could not be kept together.

  Raises:
    ValueError: See `read`.
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
  """Makes what clients train on and are asked, see `from_arrays.guidance`.

  Args:
    client_data: See `read`.
    test: Likewise, of the same clients, what they are asked. None: a part of
      `client_data`.
    num_classes: See `from_arrays.guidance`.
    test_fraction: See `from_arrays.guidance`.
    seed: Seed of all draws.
    **reading: What else `read` takes.

  Returns:
    The examples of each client.

  Raises:
    ValueError: See `read`; or domains are told, which nothing here looks at.
  """
  for key in ("domain_key", "domain_of"):
    if reading.get(key) is not None:
      raise ValueError(
        f"{key}: guidance has no domains and would ignore it; evolving has"
      )
  clients = read(client_data, seed=seed, **reading)
  asked = None
  if test is not None:
    ids = [each.client_id for each in clients]
    reading = reading | {"client_ids": ids}
    asked = [each[1:3] for each in read(test, seed=seed, **reading)]
  return from_arrays.guidance(
    [each[1:3] for each in clients],
    asked,
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
      first of them is before deployment.
    omega: See `from_arrays.online_adaptation`.
    num_classes: See `from_arrays.online_adaptation`.
    **reading: What else `read` takes.

  Returns:
    Both.

  Raises:
    ValueError: See `read`; or a client lacks a time step.
  """
  clients = read(client_data, **reading)
  _, by_domain = _by_domain(clients, "time step")
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
    client_data: See `read`; the domain of an example is its period.
    drifted: See `from_arrays.dynamic_personalization`.
    num_classes: See `from_arrays.dynamic_personalization`.
    **reading: What else `read` takes.

  Returns:
    The periods.

  Raises:
    ValueError: See `read`; or a client lacks a period.
  """
  clients = read(client_data, **reading)
  _, by_domain = _by_domain(clients, "period")
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

  TensorFlow takes what lies below a mask for the value, and no element of a
  dataset tells. Where these arrays are is private to TFF.
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
  # Here, so that who reads other data need not wait for TensorFlow.
  import tensorflow as tf

  try:
    # What makes a client's data is called here, and may be the user's.
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
    # What is no array, such as a dictionary of its own, cannot be used.
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
  """Returns what the user's function tells of elements, `[len(kept)]`."""
  try:
    return np.array(
      [domain_of(client_id, _element(elements, place)) for place in kept]
    )
  # Whatever the user's function raises.
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
  """Returns what stacked elements have under a key."""
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
      "domain_key or domain_of must tell the domain, time step or period of an"
      " example"
    )


def _by_domain(
  clients: Sequence[ClientArrays], required: str | None = None
) -> tuple[list[str], list[list[from_arrays.Pair]]]:
  """Groups each client's examples by domain, in the order of the numbers.

  Args:
    clients: The clients.
    required: What messages call a domain of which each client must have an
      example. None: a client may lack domains.

  Returns:
    The domains' names, and for each client and domain (x, y).

  Raises:
    ValueError: A client lacks what it must have, or nothing tells the domain.
  """
  _check_domains(clients)
  values = np.unique(np.concatenate([each.domain for each in clients]))
  grouped = []
  for each in clients:
    grouped.append([])
    for value in values:
      is_here = each.domain == value
      if required and not is_here.any():
        raise ValueError(
          f"client {each.client_id!r} has no example of {required} {value},"
          " which others have; leave it out by client_ids"
        )
      grouped[-1].append((each.x[is_here], each.y[is_here]))
  return list(map(str, values)), grouped
