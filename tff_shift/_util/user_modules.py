"""Imports modules of the user, by file path or by dotted name.

Errors that their code raises, including the end of the process, are reported in
one line that names the module: on import by `load`, in calls by `blame`.

Choices:
  * A user's files (`--import`, `--model=file.py:function`) are imported under a
    separate name, so that they hide no module; their folder is not searched for
    their imports. The digests in `config.json` cover these files only.
  * Any error of their code is reported with file and line, without a traceback;
    the frames of the traceback show whose code is at fault. In Python the
    chained errors have the whole traceback, and so has `tff_shift.testing`.
    `sys.exit` in them is an error even with code 0, because a run would end as
    if it were done.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from tff_shift._util import files

# The prefix separates files from modules that Python finds by name.
_PREFIX = "tff_shift_user_modules"
_LONGEST_REASON = 200

# Modules by path and digest: an unchanged file is imported once.
_loaded: dict[tuple[pathlib.Path, str], types.ModuleType] = {}
# Maps the name of a module in Python to the name in the request.
_requested: dict[str, str] = {}


def is_file(name: str) -> bool:
  """Returns whether a name is a file path, and not a dotted name."""
  return name.endswith(".py")


def load(name: str | os.PathLike[str]) -> types.ModuleType:
  """Imports a module; imports a changed file again.

  Args:
    name: The path of a Python file, which ends in `.py`, or a dotted name that
      Python can import. The folder of a file is not searched for its own
      imports.

  Returns:
    The module.

  Raises:
    ValueError: If the module does not exist or cannot be imported; one line.
    KeyboardInterrupt: After Ctrl-C.
  """
  name = os.fspath(name)
  if is_file(name):
    try:
      content = files.read_bytes(name)
    except FileNotFoundError as error:
      raise ValueError(f"{name}: there is no such file") from error
  try:
    if is_file(name):
      return _load_file(name, content)
    _requested[name] = name
    return importlib.import_module(name)
  except KeyboardInterrupt:
    raise
  except BaseException as error:
    message = blame(error)
    if message is not None:
      pass
    elif isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(
      f"{error.name}."
    ):
      message = (
        f"{name}: there is no module {error.name!r}; pass the path of a file"
        " that ends in .py, or a dotted name that can be imported from here"
      )
    elif isinstance(error, SyntaxError) and error.lineno is not None:
      message = f"{name}: line {error.lineno}: {error.msg}"
    else:
      message = f"{name}: {describe(error)}"
    raise ValueError(message) from error


class _SourceLoader(importlib.machinery.SourceFileLoader):
  """Always reads the source, and writes no `__pycache__`.

  Python would use outdated bytecode for a file that changed within the same
  second without changing its size.
  """

  def __init__(self, name: str, path: str, content: bytes):
    super().__init__(name, path)
    self._content = content

  def get_data(self, path):
    return self._content

  def path_stats(self, path):
    raise OSError("bytecode is neither read nor written")


def load_and_register(
  name: str | os.PathLike[str], register: Callable[[types.ModuleType], Any]
) -> types.ModuleType:
  """Imports a file and registers it; an error of `register` names the file.

  Args:
    name: As for `load`.
    register: Raises a ValueError if the module is not what is wanted.

  Returns:
    The module.

  Raises:
    ValueError: If it cannot be imported or registered.
  """
  module = load(name)
  try:
    register(module)
  except ValueError as error:
    raise ValueError(f"{os.fspath(name)}: {error}") from error
  return module


def _load_file(requested: str, content: bytes) -> types.ModuleType:
  path = pathlib.Path(requested).absolute()
  key = path.resolve(), _digest(content)
  if key in _loaded:
    return _loaded[key]
  name = f"{_PREFIX}.{path.stem}"
  spec = importlib.util.spec_from_file_location(
    name, path, loader=_SourceLoader(name, os.fspath(path), content)
  )
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look up their module.
  before = sys.modules.get(name)
  sys.modules[name] = module
  _requested[name] = requested
  try:
    spec.loader.exec_module(module)
  except BaseException:
    sys.modules.pop(name, None)
    if before is not None:
      sys.modules[name] = before
    raise
  _loaded[key] = module
  return module


def _digest(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def digest(module: types.ModuleType) -> str:
  """Returns the SHA-256 of a module's file, 64 hexadecimal digits."""
  for (_, known), loaded in _loaded.items():
    # The digest of the imported content; the file may have changed.
    if loaded is module:
      return known
  return _digest(files.read_bytes(module.__file__))


def asked(module: types.ModuleType) -> str | None:
  """Returns the name with which the user requested a module, or None."""
  return _requested.get(module.__name__)


def blame(error: BaseException) -> str | None:
  """Describes an error that a module of the user has raised, in one line.

  Args:
    error: The error, with its traceback.

  Returns:
    The requested name of the module, the line if known, and the error. None if
    no module of the user is in the traceback, or if the error already names it.
  """
  message, cause = _message(error), error
  while cause is not None:
    for frame, line in reversed([*traceback.walk_tb(cause.__traceback__)]):
      name = _requested.get(frame.f_globals.get("__name__"))
      if name is not None:
        if f"{name}: " in message:
          return None
        # Code that TensorFlow generated from the module has other lines.
        is_own = frame.f_code.co_filename == frame.f_globals.get("__file__")
        where = f"line {line}: " if is_own else ""
        return f"{name}: {where}{describe(cause)}"
    cause = cause.__cause__
  return None


def describe(error: BaseException) -> str:
  """Returns the type and message of an error, in one line."""
  if isinstance(error, KeyboardInterrupt):
    return "interrupted"
  if isinstance(error, SystemExit):
    return "it ends the process (sys.exit), which is not allowed"
  message = _message(error)[:_LONGEST_REASON]
  kind = type(error).__name__
  return f"{kind}: {message}" if message else kind


def _message(error: BaseException) -> str:
  try:
    return " ".join(str(error).split())
  except Exception:  # Errors of the user may have broken methods.
    return ""
