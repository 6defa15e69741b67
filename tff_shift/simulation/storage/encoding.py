"""Nested structures of arrays in the formats in which they are saved.

The formats are bytes and JSON. Both preserve every bit, including NaN and
negative zero.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tff_shift._util import records
from tff_shift.simulation.storage import array_cache
from tff_shift.simulation.storage import client_values

_FLOAT = "float"
_CLIENTS = "values_of_clients"


def structure(states: Any) -> str:
  """Returns a digest of the names, types and shapes of a structure's leaves."""
  described = [
    [*map(str, path), f"{np.asarray(leaf).dtype}{np.shape(leaf)}"]
    for path, leaf in tree.flatten_with_path(states)
  ]
  return array_cache.key({"structure": described})


def to_bytes(states: Any, template: Any) -> bytes:
  """Returns the leaves of a structure as concatenated bytes.

  Args:
    states: The structure.
    template: A structure whose leaves have the same types and shapes.

  Raises:
    ValueError: If the leaves have other types or shapes.
  """
  leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(states)]
  found, wanted = (
    [(leaf.dtype, leaf.shape) for leaf in each]
    for each in (leaves, map(np.asarray, tf.nest.flatten(template)))
  )
  if found != wanted:
    raise ValueError(f"states must be of one kind, {wanted}, got {found}")
  if any(leaf.dtype.hasobject for leaf in leaves):
    raise ValueError(f"states must be numbers, got {found}")
  return b"".join(leaf.tobytes() for leaf in leaves)


def from_bytes(content: bytes, template: Any) -> Any:
  """Inverts `to_bytes`."""
  start = 0

  def take(leaf):
    nonlocal start
    leaf = np.asarray(leaf)
    values = np.frombuffer(content, leaf.dtype, leaf.size, start)
    start += leaf.nbytes
    # A copy is writable; [()] converts arrays without shape to scalars.
    return values.reshape(leaf.shape).copy()[()]

  return tf.nest.pack_sequence_as(
    template, [take(leaf) for leaf in tf.nest.flatten(template)]
  )


def to_json(value: Any) -> Any:
  """Converts a value to JSON types such that `from_json` restores every bit.

  Args:
    value: Numbers, strings, None, arrays, and named tuples or dictionaries of
      these by name. Of values of clients, only the digests are in the JSON.

  Raises:
    TypeError: If it contains another type.
  """
  if isinstance(value, client_values.ClientValues):
    return {
      _CLIENTS: {
        "step": value.step,
        "places": list(value.places),
        "digests": dict(value.digests),
      }
    }
  if isinstance(value, np.ndarray | np.generic):
    array = np.ascontiguousarray(value)
    return {
      "dtype": array.dtype.str,
      "shape": np.shape(value),
      "bytes": base64.b64encode(array.tobytes()).decode(),
    }
  if hasattr(value, "_asdict"):
    value = value._asdict()
  if isinstance(value, Mapping):
    return {name: to_json(each) for name, each in value.items()}
  if isinstance(value, float) and not math.isfinite(value):
    # JSON does not have such numbers.
    return {_FLOAT: records.exact(value)}
  if value is None or isinstance(value, bool | int | float | str):
    return value
  raise TypeError(
    f"a {type(value).__name__} cannot be saved; measurements consist of"
    " numbers, strings, None, arrays, named tuples and dictionaries"
  )


def from_json(value: Any, contents: Mapping[str, bytes] | None = None) -> Any:
  """Inverts `to_json`, except that named tuples become dictionaries.

  Args:
    value: A result of `to_json`.
    contents: The values of clients by digest.

  Raises:
    ValueError: If its values are not valid, or values of clients are missing.
    TypeError: If its types are not valid.
  """
  if not isinstance(value, dict):
    return value
  if value.keys() == {_FLOAT}:
    return records.to_float(value[_FLOAT])
  if value.keys() == {_CLIENTS}:
    return _clients_from_json(contents or {}, **value[_CLIENTS])
  if value.keys() == {"dtype", "shape", "bytes"}:
    content = base64.b64decode(value["bytes"])
    array = np.frombuffer(content, np.dtype(value["dtype"]))
    return array.reshape(value["shape"]).copy()[()]
  return {name: from_json(each, contents) for name, each in value.items()}


def _clients_from_json(contents, step, places, digests):
  """Returns the values of clients at an evaluation."""
  missing = [name for name, each in digests.items() if each not in contents]
  if missing:
    raise ValueError(
      f"values of clients are damaged or missing: {missing[0]} of step {step}"
    )
  return client_values.ClientValues(
    step,
    places,
    {
      name: np.frombuffer(contents[each], "<f4").reshape(len(places), -1)
      for name, each in digests.items()
    },
  )
