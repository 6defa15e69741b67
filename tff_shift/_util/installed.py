"""Checks for packages, with installation instructions."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import types


def version(package: str) -> str | None:
  """Returns the version of a package; None if it is not installed.

  TensorFlow without kernels for GPUs is the package tensorflow-cpu, whose
  kernels for the CPU are the same.
  """
  for name in (package, f"{package}-cpu"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      return importlib.metadata.version(name)
  return None


def require_tff() -> None:
  """Raises an ImportError of one line if TFF is missing.

  This package cannot require TFF, because TFF requires an older Python and
  older releases of what it needs, which this package requires itself.
  """
  if importlib.util.find_spec("tensorflow_federated") is None:
    raise ImportError(
      "tff_shift: TensorFlow Federated is missing; install it with `python -m"
      " tff_shift.install_tff`"
    )


def require_keras_2() -> None:
  """Raises an ImportError of one line if `tf.keras` is Keras 3.

  It is if a program used `tf.keras` before `tff_shift` was imported and without
  TF_USE_LEGACY_KERAS=1.
  """
  import tensorflow as tf

  if tf.keras.Model.__module__.startswith("keras.src.models"):
    raise ImportError(
      "tff_shift: tf.keras is Keras 3 here; import tff_shift before tf.keras is"
      " used, or set TF_USE_LEGACY_KERAS=1 before Python starts"
    )


def require_text(name: str) -> types.ModuleType:
  """Imports a module of the optional extra `text`.

  Returns:
    The module.

  Raises:
    ValueError: If it is missing; one line with the command to install it.
  """
  return _require(name, "text", "--no-deps tokenizers safetensors")


def require_huggingface() -> types.ModuleType:
  """Imports `datasets`, the extra `huggingface`, as `require_text` does."""
  return _require("datasets", "huggingface", '"datasets>=5,<6"')


def require_skops() -> types.ModuleType:
  """Imports `skops.io`, the extra `skops`, as `require_text` does."""
  return _require("skops.io", "skops", '"skops>=0.14"')


def _require(name: str, extra: str, packages: str) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f"the package {name.partition('.')[0]} is missing; install the extra"
      f' `{extra}`: pip install "tff_shift[{extra}]", or pip install {packages}'
    ) from error
