"""Your own models: of a function, `<module>:<function>`, or a `.keras` file."""

import dataclasses
import inspect
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tff_shift._util import user_modules
from tff_shift.models import split_model
from tff_shift.models.keras import keras_3
from tff_shift.models.keras import keras_models
from tff_shift.models.keras import model_files

_ALWAYS_GIVEN = ("input_shape", "num_classes")


def is_file(name: str) -> bool:
  """Whether a name is that of a `.keras` file."""
  return name.lower().endswith(model_files.SUFFIX)


def find(name: str) -> Callable[..., Any]:
  """Returns the function of a name.

  Args:
    name: `my_package.my_model:build`, `path/to/file.py:build` or
      `path/to/model.keras`, whose function loads the model.

  Raises:
    ValueError: If there is no such file, module or function, or the function
      does not take the required arguments; one line.
  """
  if is_file(name):
    model_files.check_exists(name)
    return lambda input_shape, num_classes: model_files.load(name)
  where, _, function_name = name.rpartition(":")
  if not where or not function_name:
    raise ValueError(
      f"model {name!r}: <module or file.py>:<function> is wanted"
    )
  module = user_modules.load(where)
  function = getattr(module, function_name, None)
  if not callable(function):
    raise ValueError(f"{where}: there is no function {function_name!r}")
  parameters = inspect.signature(function).parameters
  if not set(_ALWAYS_GIVEN) <= set(parameters):
    raise ValueError(
      f"{name}: the function must take input_shape and num_classes; it takes"
      f" {', '.join(parameters) or 'nothing'}"
    )
  return function


def digest(name: str) -> str:
  """Returns the SHA-256 of the file of a name."""
  if is_file(name):
    return split_model.weights_digest(name)
  return user_modules.digest(user_modules.load(name.rpartition(":")[0]))


def from_function(
  name: str,
  function: Callable[..., Any],
  *,
  input_shape: tuple[int, ...],
  num_classes: int,
  options: Mapping[str, Any],
) -> split_model.SplitModel:
  """Calls a user's function and validates the result.

  Args:
    name: The name, as for `find`.
    function: The function.
    input_shape: The shape of one example, without the batch.
    num_classes: The number of classes.
    options: Further options. The type of the examples, `input_dtype`, is passed
      to the function if it takes it.

  Returns:
    The model; its name is made of the module and the function. The weights of a
    file are its initial weights.

  Raises:
    ValueError: If the function has no such option or raises, if a file cannot
      be loaded, or if the result is not a model of such examples; one line.
  """
  parameters = inspect.signature(function).parameters
  taken = {
    key: value
    for key, value in options.items()
    if key != "input_dtype" or key in parameters
  }
  unknown = sorted(set(taken) - set(parameters))
  if unknown and not _takes_any(parameters):
    others = sorted(set(parameters) - set(_ALWAYS_GIVEN))
    raise ValueError(
      f"model {name!r} has no option {unknown[0]!r}; its options:"
      f" {', '.join(others) or 'none'}"
    )
  try:
    result = function(input_shape=input_shape, num_classes=num_classes, **taken)
  except Exception as error:
    if is_file(name):
      raise
    raise ValueError(f"{name}: {user_modules.describe(error)}") from error
  shown = _shown(name)
  if isinstance(result, tf.keras.Model) or keras_3.is_keras_3(result):
    result = keras_models.from_keras(
      result,
      input_dtype=options.get("input_dtype"),
      name=shown,
      initial="given" if is_file(name) else "random",
    )
  if not isinstance(result, split_model.SplitModel):
    raise ValueError(
      f"{name}: the function must return a SplitModel or a Keras model; it"
      f" returned {type(result).__name__}"
    )
  wanted = {"input_shape": input_shape, "num_classes": num_classes}
  if "input_dtype" in options:
    wanted["input_dtype"] = tf.as_dtype(options["input_dtype"])
  for field, value in wanted.items():
    found = getattr(result, field)
    if found != value:
      raise ValueError(
        f"{name}: the model has {field} {_plain(found)}, and the data have"
        f" {_plain(value)}"
      )
  return dataclasses.replace(result, name=shown)


def _plain(value: Any) -> Any:
  return value.name if isinstance(value, tf.DType) else value


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
  return any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _shown(name: str) -> str:
  """Returns the name without the folders of a file."""
  if is_file(name):
    return pathlib.Path(name).name
  where, _, function_name = name.rpartition(":")
  if user_modules.is_file(where):
    where = pathlib.Path(where).stem
  return f"{where}:{function_name}"
