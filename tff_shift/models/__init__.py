"""Models as pure functions of their weights, found by the name of their file.

Every module of this folder that has a function `build` is a family of models: a
new one is a new file, and nothing else changes.
"""

import importlib
import inspect
import pkgutil

from tff_shift.models import input_scaling as scaling_lib
from tff_shift.models import split_model


def _builders():
  modules = (
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
  )
  return {
    module.__name__.rpartition(".")[2]: module.build
    for module in modules
    if hasattr(module, "build")
  }


def names() -> tuple[str, ...]:
  """Returns the names that `build` knows, in alphabetical order."""
  return tuple(sorted(_builders()))


def options(name: str) -> frozenset[str]:
  """Returns the options of a model, which `build` takes.

  Args:
    name: One of `names()`.

  Returns:
    The names of the further arguments of the module's `build`.

  Raises:
    ValueError: If no model has this name.
  """
  builders = _builders()
  if name not in builders:
    raise ValueError(
      f"unknown model {name!r}; known models: {', '.join(sorted(builders))}"
    )
  parameters = inspect.signature(builders[name]).parameters
  return frozenset(parameters) - {"input_shape", "num_classes"}


def build(
  name: str,
  *,
  input_shape: tuple[int, ...],
  num_classes: int,
  input_scaling: scaling_lib.InputScaling | None = None,
  **chosen,
) -> split_model.SplitModel:
  """Builds the model of a name.

  Args:
    name: The file of the model without `.py`, one of `names()`.
    input_shape: The shape of one example, without the batch.
    num_classes: The number of classes.
    input_scaling: What is done to the pixels of images. None: they are divided
      by 255.
    **chosen: Options, see `options`.

  Returns:
    The `SplitModel`.

  Raises:
    ValueError: If no model has this name, if it lacks an option, if its
      `build` refuses a value, or if the scaling does not fit its input.
  """
  known = options(name)
  unknown = sorted(set(chosen) - known)
  if unknown:
    raise ValueError(
      f"model {name!r} has no option {unknown[0]!r}; its options:"
      f" {', '.join(sorted(known))}"
    )
  model = _builders()[name](
    input_shape=input_shape, num_classes=num_classes, **chosen
  )
  if input_scaling is None:
    return model
  return split_model.with_input_scaling(model, input_scaling)
