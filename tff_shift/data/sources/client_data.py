"""TFF's `ClientData` as a table.

Clients are numbered in the order of `client_ids`, and messages use these names.
Infinite pipelines are refused.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from tff_shift.data import array_files
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.sources import pairs

if TYPE_CHECKING:
  import tensorflow_federated as tff

# Number of elements that are read at a time.
_BATCH_SIZE = 1024


def read(
  client_data: "tff.simulation.datasets.ClientData",
  *,
  x_key: str | None = None,
  y_key: str | None = None,
  domain_key: str | None = None,
  domain_of: Callable[[str, Any], int] | None = None,
  client_ids: Sequence[str] | None = None,
  max_examples_per_client: int | None = None,
  num_classes: int | None = None,
  seed: int = 0,
) -> table.Table:
  """Reads the examples of clients.

  Args:
    client_data: Its elements, one example each, are `(x, y)` or dictionaries.
    x_key: The key of x in a dictionary.
    y_key: The key of y in a dictionary.
    domain_key: The key of the domain, time step or period, an integer, in a
      dictionary.
    domain_of: Instead, a function of the client's id and the element.
    client_ids: The clients, in this order. None: all.
    max_examples_per_client: Keeps at most this number of random examples of a
      client, in order.
    num_classes: The number of classes. None: inferred.
    seed: Seed of this draw.

  Returns:
    The table, client by client.

  Raises:
    ValueError: If a client or a key does not exist, a client has no examples or
      infinitely many, its examples differ in shape, or an array is masked or
      not valid.
  """
  if None not in (domain_key, domain_of):
    raise ValueError("domain_key and domain_of: give one of them")
  if max_examples_per_client is not None:
    partition.check_positive_integer(
      "max_examples_per_client", max_examples_per_client
    )
  known = client_data.client_ids
  ids = tuple(known if client_ids is None else client_ids)
  unknown = sorted(set(ids) - set(known))
  if unknown:
    raise ValueError(
      f"client_ids: there is no client {unknown[0]!r}; there are {len(known)},"
      f" the first is {known[0]!r}"
    )
  if not ids:
    raise ValueError("client_ids: there must be at least one client")
  examples_lib.check_names(ids, "client_ids", lambda client: f"client {client}")
  arrays, domains = [], []
  for client, client_id in enumerate(ids):
    _check_masks(client_data, client_id)
    elements = _elements(client_data, client_id)
    x, y = _examples(elements, x_key, y_key, client_id)
    rows = np.arange(len(y))
    if max_examples_per_client is not None:
      rng = partition.generator("examples of a client", [seed, client])
      rows = np.sort(rng.permutation(rows)[:max_examples_per_client])
    arrays.append([(x[rows], y[rows])])
    if (domain_key, domain_of) == (None, None):
      continue
    if domain_of is None:
      domain = _field(elements, domain_key, "domain_key", client_id)[rows]
    else:
      domain = _domains_of(domain_of, client_id, elements, rows)
    if domain.dtype.kind not in "iu" or domain.shape != rows.shape:
      raise ValueError(
        f"domain of client {client_id!r}: integers wanted, got {domain.dtype}"
        f" {list(domain.shape)} of {len(rows)} examples"
      )
    domains.append(domain)
  content = pairs.read(
    arrays, lambda client, _: f"client {ids[client]!r}", num_classes=num_classes
  )
  schema = content.schema.replace(clients=ids, times=())
  if not domains:
    return content._replace(schema=schema, time=None)
  values, times = np.unique(np.concatenate(domains), return_inverse=True)
  return content._replace(
    schema=schema.replace(times=tuple(map(str, values))),
    time=times.astype(np.int32),
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
      key: np.concatenate([batch[key] for batch in batches])
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
  rows: np.ndarray,
) -> np.ndarray:
  """Returns the results of the user's function for elements, `[len(rows)]`."""
  try:
    return np.array(
      [domain_of(client_id, _element(elements, row)) for row in rows]
    )
  # Any error of the user's function.
  except Exception as error:
    raise ValueError(
      f"domain_of of client {client_id!r}: {type(error).__name__}"
      f" ({array_files.first_line(error)})"
    ) from error


def _element(elements: Any, row: int) -> Any:
  """Returns one of stacked elements."""
  if isinstance(elements, Mapping):
    return {key: values[row] for key, values in elements.items()}
  return tuple(values[row] for values in elements)


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
