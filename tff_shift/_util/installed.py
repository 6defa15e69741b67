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
  return _require(
    name, "text", "--no-deps tokenizers==0.19.1 safetensors==0.5.3"
  )


def require_huggingface() -> types.ModuleType:
  """Imports `datasets`, the extra `huggingface`, as `require_text` does."""
  return _require(
    "datasets", "huggingface", '"datasets>=5,<6" "huggingface-hub<1"'
  )


def _require(name: str, extra: str, packages: str) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f"the package {name.partition('.')[0]} is missing; install the extra"
      f' `{extra}`: pip install "tff_shift[{extra}]", or pip install {packages}'
    ) from error
