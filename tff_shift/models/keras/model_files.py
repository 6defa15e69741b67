"""Whole Keras models in `.keras` files, loaded by the Keras that wrote them."""

import importlib
import json
import os
import pathlib
import zipfile
from typing import Any

import tensorflow as tf

from tff_shift._util import installed
from tff_shift._util import memory

SUFFIX = ".keras"

_LONGEST_REASON = 160


def check_exists(path: str | os.PathLike[str]) -> None:
  """Raises a ValueError if there is no such file."""
  if not pathlib.Path(path).is_file():
    raise ValueError(f"{path}: there is no such file")


def load(path: str | os.PathLike[str]) -> Any:
  """Loads a model by Keras's own `load_model`, in its safe mode.

  Args:
    path: A file of `model.save` of Keras 3 or of `tf.keras`.

  Returns:
    The model, of Keras 3 or of `tf.keras`.

  Raises:
    ValueError: If there is no such file, if it is another one, if it has a
      Lambda layer, or if the Keras of its generation is not installed or cannot
      load it; one line.
  """
  check_exists(path)
  try:
    with zipfile.ZipFile(path) as archive:
      members = {member.filename: member for member in archive.infolist()}
      size = sum(member.file_size for member in members.values())
      memory.check(2 * size, f"{path}: it is too large")
      version = json.loads(archive.read("metadata.json"))["keras_version"]
      config = archive.read("config.json").decode()
  except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
    if isinstance(error, memory.TooLargeError):
      raise
    raise ValueError(
      f"{path}: it is not a .keras file, which model.save writes"
    ) from error
  if '"class_name": "Lambda"' in config:
    raise ValueError(
      f"{path}: it has a Lambda layer, whose Python code is not run; build the"
      " model by a function (--model=file.py:build)"
    )
  keras, known = _keras(version)
  written = f"{path}: it was written by Keras {version}"
  if keras is None:
    raise ValueError(
      f"{written}, and here is {known}; load it with TensorFlow 2.21, or build"
      " the model by a function (--model=file.py:build)"
    )
  try:
    return keras.models.load_model(path, compile=False, safe_mode=True)
  # Keras raises errors of many types.
  except Exception as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise ValueError(
      f"{written}, and {known} cannot load it; build the model by a function"
      " (--model=file.py:build) and give the file as --weights_file"
      f" ({reason[:_LONGEST_REASON]})"
    ) from error


def _keras(version: str) -> tuple[Any, str]:
  """Returns the Keras of a file, if it is here, and the name of that here."""
  installed.require_keras_2()
  name = f"tf.keras of TensorFlow {tf.__version__}"
  if int(version.partition(".")[0]) < 3:
    return tf.keras, name
  keras = importlib.import_module("keras")
  if keras.Model is tf.keras.Model:
    return None, name
  return keras, f"Keras {keras.__version__}"
