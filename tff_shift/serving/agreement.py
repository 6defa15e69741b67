"""Checks that `model.json` matches the files beside it, before predicting."""

import pathlib
import re
import zipfile
from collections.abc import Sequence
from typing import Any
from typing import get_args

import tensorflow as tf

from tff_shift import files
from tff_shift.serving import description

_REMEDY = "export the model once more"


def check_files(
  folder: pathlib.Path, described: description.Description
) -> None:
  """Refuses files that cannot be opened, and weights of other clients.

  Args:
    folder: The folder of the model.
    described: The content of its `model.json`.

  Raises:
    ValueError: If a file does not match; one line that names the file.
  """
  for path in sorted(folder.rglob("*")):
    if not path.is_dir():
      files.check_regular(path)
  path = folder / description.WEIGHTS_FILE
  if not path.exists():
    # The model cannot predict.
    return
  try:
    with zipfile.ZipFile(path) as arrays:
      names = arrays.namelist()
  except (OSError, zipfile.BadZipFile) as error:
    raise ValueError(f"{path} is damaged; {_REMEDY}") from error
  own = (
    re.match(rf"{description.CLIENTS}/(\d{{1,9}})/", name) for name in names
  )
  # A client without a state has no weights.
  clients = sorted({int(each[1]) for each in own if each})
  if clients:
    _compare(folder, "clients", sorted(described.clients), clients, path.name)


def check_model(
  folder: pathlib.Path, described: description.Description, model: Any
) -> None:
  """Refuses a SavedModel that differs from `model.json`.

  Args:
    folder: The folder of the model.
    described: The content of its `model.json`.
    model: The SavedModel, loaded.

  Raises:
    ValueError: If a field differs; one line that names it.
  """
  try:
    _check_functions(folder, described, model)
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      f"{folder} contains the SavedModel of another program; {_REMEDY}"
    ) from error


def _check_functions(
  folder: pathlib.Path, described: description.Description, model: Any
) -> None:
  def compare(field, wanted, found):
    _compare(folder, field, wanted, found, "the SavedModel")

  functions = {}
  for name in get_args(description.Function):
    function = getattr(model, description.attribute(name), None)
    if getattr(function, "concrete_functions", None):
      functions[name] = function.concrete_functions[0]
  compare("functions", sorted(described.functions), sorted(functions))
  for name, function in functions.items():
    arguments, _ = function.structured_input_signature
    given = {spec.name: spec for spec in arguments}
    x, outputs = given["x"], function.structured_outputs
    compare("input_shape", list(described.input_shape), list(x.shape[1:]))
    compare("input_dtype", described.input_dtype, x.dtype.name)
    if name == "predict_for":
      shape = list(given["request"].shape)
      compare("request_shape", list(described.request_shape), shape)
    if name.startswith("predict"):
      # If the shape is unknown, the last size is None.
      size = outputs.shape[-1] or described.num_classes
      compare("num_classes", described.num_classes, size)
    if name == "predict_as":
      clients = _clients(function)
      if clients is not None:
        compare("clients", sorted(described.clients), sorted(clients))


def _clients(function: Any) -> Sequence[int] | None:
  """Returns the client ids that a graph compares its argument with, if any."""
  for operation in function.graph.get_operations():
    if operation.type == "Equal" and operation.inputs[1].op.name == "client":
      found = tf.get_static_value(operation.inputs[0])
      return None if found is None else found.tolist()
  return None


def _compare(
  folder: pathlib.Path, field: str, wanted: Any, found: Any, what: str
) -> None:
  if found != wanted:
    raise ValueError(
      f"{folder / description.FILE}: {field} is {_shown(wanted)}, but {what}"
      f" has {_shown(found)}; {_REMEDY}"
    )


def _shown(value: Any) -> str:
  text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
  return f"{text[:60]}..." if len(text) > 60 else text or "none"
