"""Checks for packages, with installation instructions."""

import importlib
import importlib.util
import types


def require_tff() -> None:
  """Raises an ImportError of one line if TFF is missing.

  This package cannot require TFF, because TFF requires a release of jaxlib that
  is no longer available. It requires the other dependencies of TFF itself.
  """
  if importlib.util.find_spec("tensorflow_federated") is None:
    raise ImportError(
      "tff_shift: TensorFlow Federated is missing; install it with `pip install"
      " --no-deps tensorflow-federated==0.87.0` (without --no-deps, pip needs a"
      " release of jaxlib that is no longer available)"
    )


def require_text(name: str) -> types.ModuleType:
  """Imports a module of the optional extra `text`.

  Returns:
    The module.

  Raises:
    ValueError: If it is missing; one line with the command to install it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f"the package {name.partition('.')[0]} is missing; install the extra"
      ' `text`: pip install "tff_shift[text]", or pip install --no-deps'
      " tokenizers==0.19.1 safetensors==0.5.3"
    ) from error
