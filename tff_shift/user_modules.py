"""Modules of a user, by the path of a file or by a dotted name."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types

# Files are kept apart from the modules that Python finds by their names.
_PREFIX = "tff_shift_user_modules"
_LONGEST_REASON = 200

# By path and digest: a file that has not changed is imported once.
_loaded: dict[tuple[pathlib.Path, str], types.ModuleType] = {}


def is_file(name: str) -> bool:
  """Whether a name is the path of a file, and not a dotted one."""
  return name.endswith(".py")


def load(name: str | os.PathLike[str]) -> types.ModuleType:
  """Imports a module; a file that has changed since is imported again.

  Args:
    name: The path of a Python file, which ends in `.py`, or a dotted name of
      what Python can import from here. The file's folder is not searched for
      what it imports itself.

  Returns:
    The module.

  Raises:
    ValueError: If there is no such module, or it cannot be imported; one line.
  """
  name = os.fspath(name)
  try:
    if is_file(name):
      return _load_file(pathlib.Path(name))
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name and f"{name}.".startswith(f"{error.name}."):
      raise ValueError(
        f"{name}: there is no module {error.name!r}; give the path of a file"
        " that ends in .py, or a dotted name that can be imported from here"
      ) from error
    raise ValueError(f"{name}: {describe(error)}") from error
  except FileNotFoundError as error:
    if error.filename != str(pathlib.Path(name)):
      raise ValueError(f"{name}: {describe(error)}") from error
    raise ValueError(f"{name}: there is no such file") from error
  except SyntaxError as error:
    raise ValueError(f"{name}: line {error.lineno}: {error.msg}") from error
  except Exception as error:
    raise ValueError(f"{name}: {describe(error)}") from error


class _SourceLoader(importlib.machinery.SourceFileLoader):
  """Reads the source each time, and leaves no `__pycache__` beside it.

  Python would take the bytecode of before for a file that was changed within
  the same second and has kept its size.
  """

  def path_stats(self, path):
    raise OSError("bytecode is neither read nor written")


def _load_file(path: pathlib.Path) -> types.ModuleType:
  key = path.resolve(), _digest(path)
  if key in _loaded:
    return _loaded[key]
  name = f"{_PREFIX}.{path.stem}"
  spec = importlib.util.spec_from_file_location(
    name, path, loader=_SourceLoader(name, os.fspath(path))
  )
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look their module up.
  before = sys.modules.get(name)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    if before is not None:
      sys.modules[name] = before
    raise
  _loaded[key] = module
  return module


def _digest(path: str | os.PathLike[str]) -> str:
  return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def digest(module: types.ModuleType) -> str:
  """Returns the SHA-256 of a module's file, 64 hexadecimal digits."""
  for (_, known), loaded in _loaded.items():
    # Of what was imported, whatever the file holds by now.
    if loaded is module:
      return known
  return _digest(module.__file__)


def describe(error: BaseException) -> str:
  """Returns the kind of an error and what it says, in one line."""
  said = " ".join(str(error).split())[:_LONGEST_REASON]
  return f"{type(error).__name__}: {said}" if said else type(error).__name__
