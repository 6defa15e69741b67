"""An `.npz` file of arrays."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_shift._util import shown_names
from tff_shift.data import array_files
from tff_shift.data import examples
from tff_shift.data import table
from tff_shift.data.sources import source

FORM = "path/to/data.npz"
OPTIONS = ()

# The arrays of a file and their descriptions.
KEYS = {
  "x": table.FORM,
  "y": "[n] integers from 0, the class of each example",
  "domain": "[n] integers, ordered by time",
  "client": "[n] integers or texts, the client that holds each example",
  "class_names": "[classes] texts",
  "feature_names": "[features] texts, the name of each column of x",
  "num_train": "number of leading examples that are for training",
}
_REQUIRED = ("x", "y")


def takes(name: str) -> bool:
  """Returns whether a data set of this name is such a file."""
  return name.endswith(".npz")


def load(
  name: str, options: Mapping[str, str], folder: pathlib.Path
) -> source.Content:
  """Reads a file.

  Args:
    name: The path of the file, which has the arrays of `KEYS`.
    options: None.
    folder: Not used.

  Raises:
    OSError: If it cannot be read.
    ValueError: If its content is not valid; one line that names the file.
  """
  del options, folder
  try:
    arrays = array_files.read_npz(name)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from error
  for key in _REQUIRED:
    if key not in arrays:
      raise ValueError(f"{name}: it has no {key}, {KEYS[key]}")
  for key in arrays:
    if key not in KEYS:
      raise ValueError(
        f"{name}: unknown array {key!r}; its arrays may be {', '.join(KEYS)}"
      )
  size = len(arrays["x"]) if arrays["x"].ndim else 0
  schema = table.Schema(
    classes=texts(arrays, "class_names", name),
    features=texts(arrays, "feature_names", name) or None,
  )
  columns: dict[str, Any] = {}
  if "domain" in arrays:
    times, columns["time"] = _codes(arrays, "domain", "iu", size, name)
    schema = schema.replace(times=tuple(map(str, times)))
  if "client" in arrays:
    clients, columns["client"] = _codes(arrays, "client", "iuU", size, name)
    schema = schema.replace(
      clients=tuple(map(str, clients)), num_clients=max(1, len(clients))
    )
  num_train = None
  if "num_train" in arrays:
    scalar = arrays["num_train"]
    if scalar.shape != () or scalar.dtype.kind not in "iu":
      raise ValueError(
        f"num_train of {name}: an integer wanted, got {scalar.dtype}"
        f" {list(scalar.shape)}"
      )
    num_train = int(scalar)
  return source.Content(
    table.validate(
      table.Table(
        arrays["x"], arrays["y"], schema, num_train=num_train, **columns
      ),
      name,
    )
  )


def texts(
  arrays: Mapping[str, np.ndarray], key: str, name: str
) -> tuple[str, ...]:
  """Returns the texts of an array of a file; empty without the array.

  Args:
    arrays: The arrays of the file.
    key: The key of the array, `class_names` or `feature_names`.
    name: The name of the file in messages.

  Raises:
    ValueError: If it has no texts, or two are equal; one line.
  """
  array, what = arrays.get(key), f"{key} of {name}"
  if array is None:
    return ()
  if array.ndim != 1 or array.dtype.kind != "U":
    raise ValueError(
      f"{what}: {KEYS[key]} wanted, got {array.dtype} {list(array.shape)}"
    )
  _check_encodable(array, what)
  names = tuple(array.tolist())
  examples.check_names(
    names,
    what,
    lambda index: f"{key.removesuffix('_names')} {index}",
    warns_of_case=True,
  )
  return names


def _check_encodable(array: np.ndarray, what: str) -> None:
  for text in array.tolist():
    if not shown_names.is_encodable(text):
      raise ValueError(
        f"{what}: UTF-8 cannot encode half of a surrogate pair, got {text!r}"
      )


def _codes(
  arrays: Mapping[str, np.ndarray], key: str, kinds: str, size: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the values of an array in order, and the number of each example.

  Args:
    arrays: The arrays of the file.
    key: The key of the array.
    kinds: NumPy's letters of the allowed types.
    size: The number of examples.
    name: The file's name in messages.

  Returns:
    The values, and `[size]` int32.
  """
  array, what = arrays[key], f"{key} of {name}"
  if array.shape != (size,) or array.dtype.kind not in kinds:
    raise ValueError(
      f"{what}: {KEYS[key]} wanted, and there are {size} examples, got"
      f" {array.dtype} {list(array.shape)}"
    )
  values, codes = np.unique(array, return_inverse=True)
  if values.dtype.kind == "U":
    _check_encodable(values, what)
    examples.check_names(
      values,
      what,
      lambda code: f"example {np.argmax(codes == code)}",
      warns_of_case=True,
    )
  return values, codes.astype(np.int32)
