"""Models as pure functions of their weights, found by file name.

Every module of `networks` with a function `build` is a family of models: to add
one, add a file. Models defined elsewhere are named by their function,
`my_package.my_model:build`.

Importing this package is cheap: the names of the models come from `index`, and
a model's file is imported when it is built.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

from tff_shift._util import arguments
from tff_shift._util import index
from tff_shift._util import installed

# Checked here, because saved models work without TFF and models do not.
installed.require_tff()

from tff_shift.models import networks  # noqa: E402

if TYPE_CHECKING:
  from tff_shift.models import input_scaling as scaling_lib
  from tff_shift.models import split_model
  from tff_shift.models.keras.keras_models import from_keras as from_keras
  from tff_shift.models.keras.keras_models import (
    with_batch_normalization as with_batch_normalization,
  )
  from tff_shift.models.keras.keras_models import (
    with_group_normalization as with_group_normalization,
  )

_OF_KERAS_MODELS = (
  "from_keras",
  "with_batch_normalization",
  "with_group_normalization",
)


def __getattr__(name: str) -> Any:
  """Imports `keras_models` when one of its functions is accessed."""
  if name not in _OF_KERAS_MODELS:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  from tff_shift.models.keras import keras_models

  return getattr(keras_models, name)


def _module(name: str) -> types.ModuleType:
  return importlib.import_module(f"{networks.__name__}.{name}")


def names() -> tuple[str, ...]:
  """Returns the names that `build` accepts, in alphabetical order.

  Examples:
    >>> {"cnn", "mlp", "resnet"} <= set(ts.model_names())
    True
  """
  return _names(tuple(networks.__path__))


# The folder is listed once per path: a package can be given further folders.
@functools.cache
def _names(path: tuple[str, ...]) -> tuple[str, ...]:
  found = (module.name for module in pkgutil.iter_modules(path))
  return tuple(sorted(filter(_is_model, found)))


def _is_model(name: str) -> bool:
  known = index.is_model(name)
  return hasattr(_module(name), "build") if known is None else known


def is_user_model(name: str) -> bool:
  """Whether a name is `<module>:<function>` or a `.keras` file, see `build`."""
  return ":" in name or name.lower().endswith(".keras")


def check_name(name: str) -> None:
  """Raises a ValueError unless `build` accepts this name."""
  if is_user_model(name):
    _builder(name)
  elif name not in names():
    raise ValueError(
      f"unknown model {name!r}; known models: {', '.join(names())}, <module or"
      " file.py>:<function>, or a .keras file"
      f"{arguments.did_you_mean(name, names())}"
    )


def digest(name: str) -> str:
  """Returns the SHA-256 of the file of a user's model, see `build`."""
  from tff_shift.models import user_models

  return user_models.digest(name)


def _builder(name: str) -> Callable[..., Any]:
  """Returns the function that builds the model of a name."""
  if is_user_model(name):
    from tff_shift.models import user_models

    return user_models.find(name)
  check_name(name)
  return _module(name).build


def options(name: str) -> frozenset[str]:
  """Returns the options of a model in `build`.

  Args:
    name: The name of the model, as for `build`.

  Returns:
    The names of the further arguments of the module's `build`, or of the
    user's function.

  Raises:
    ValueError: If there is no such model.
  """
  parameters = inspect.signature(_builder(name)).parameters
  return frozenset(parameters) - {"input_shape", "num_classes"}


def build(
  name: str,
  *,
  input_shape: tuple[int, ...],
  num_classes: int,
  input_scaling: scaling_lib.InputScaling | None = None,
  **chosen: Any,
) -> split_model.SplitModel:
  """Builds a model by name.

  Args:
    name: The file of the model without `.py`, one of `names()`. Or your own
      function, `my_package.my_model:build` or `path/to/file.py:build`: it takes
      `input_shape`, `num_classes` and any options, and returns a `SplitModel`
      or a Keras model (see `from_keras`). Or a whole model that Keras 3 or
      `tf.keras` has saved, `path/to/model.keras`, with its weights.
    input_shape: The shape of one example, without the batch.
    num_classes: The number of classes.
    input_scaling: The scaling of pixels or features. None: pixels are divided
      by 255, and features are not scaled.
    **chosen: Options, see `options`. `input_dtype` is the type of the examples,
      and need not be an option of your own function.

  Returns:
    The `SplitModel`.

  Raises:
    ValueError: If there is no such model or option, if its `build` refuses a
      value or returns another type, if the model cannot fit in memory, or if
      the scaling does not fit its input.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> weights = model.initial_weights(np.int32([0, 1]))
    >>> model.predict(weights, np.zeros((3, 2), np.float32)).shape.as_list()
    [3, 2]
  """
  from tff_shift.models import model_size
  from tff_shift.models import split_model

  builder = _builder(name)
  option_text = "".join(
    f", {option}={value}"
    for option, value in chosen.items()
    if isinstance(value, int | tuple)
  )
  model = model_size.build_within_memory(
    functools.partial(_build, name, builder, input_shape, num_classes, chosen),
    f"model {name!r} for examples {list(input_shape)} of {num_classes} classes"
    f"{option_text}",
  )
  options = {key: each for key, each in chosen.items() if key != "input_dtype"}
  if not is_user_model(name) and all(map(_is_json, options.values())):
    origin = split_model.Origin(name, options)
    model = dataclasses.replace(model, origin=origin)
  if input_scaling is None:
    return model
  return split_model.with_input_scaling(model, input_scaling)


def _is_json(option: Any) -> bool:
  if isinstance(option, tuple):
    return all(map(_is_json, option))
  return isinstance(option, bool | int | float | str)


def _build(
  name: str,
  builder: Callable[..., Any],
  input_shape: tuple[int, ...],
  num_classes: int,
  chosen: Mapping[str, Any],
) -> split_model.SplitModel:
  """Calls the builder of a model."""
  if is_user_model(name):
    from tff_shift.models import user_models

    return user_models.from_function(
      name,
      builder,
      input_shape=tuple(input_shape),
      num_classes=num_classes,
      options=chosen,
    )
  known = options(name)
  unknown = sorted(set(chosen) - known)
  if unknown:
    raise ValueError(
      f"model {name!r} has no option {unknown[0]!r}; its options:"
      f" {', '.join(sorted(known))}"
    )
  return builder(input_shape=input_shape, num_classes=num_classes, **chosen)
