"""Modules of a user, by the path of a file or by a dotted name.

Whatever their code raises, ending the process included, is told in one line
that names them: on import (`load`), and whenever they are called (`blame`).
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

from tff_shift import files

# Files are kept apart from the modules that Python finds by their names.
_PREFIX = "tff_shift_user_modules"
_LONGEST_REASON = 200

# By path and digest: a file that has not changed is imported once.
_loaded: dict[tuple[pathlib.Path, str], types.ModuleType] = {}
# By what Python calls a module, the name that it was asked for by.
_asked: dict[str, str] = {}


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
    KeyboardInterrupt: As it comes.
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
    _asked[name] = name
    return importlib.import_module(name)
  except KeyboardInterrupt:
    raise
  except BaseException as error:
    told = blame(error)
    if told is not None:
      pass
    elif isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(
      f"{error.name}."
    ):
      told = (
        f"{name}: there is no module {error.name!r}; give the path of a file"
        " that ends in .py, or a dotted name that can be imported from here"
      )
    elif isinstance(error, SyntaxError) and error.lineno is not None:
      told = f"{name}: line {error.lineno}: {error.msg}"
    else:
      told = f"{name}: {describe(error)}"
    raise ValueError(told) from error


class _SourceLoader(importlib.machinery.SourceFileLoader):
  """Reads the source each time, and leaves no `__pycache__` beside it.

  Python would take the bytecode of before for a file that was changed within
  the same second and has kept its size.
  """

  def __init__(self, name: str, path: str, content: bytes):
    super().__init__(name, path)
    self._content = content

  def get_data(self, path):
    return self._content

  def path_stats(self, path):
    raise OSError("bytecode is neither read nor written")


def _load_file(asked: str, content: bytes) -> types.ModuleType:
  path = pathlib.Path(asked).absolute()
  key = path.resolve(), _digest(content)
  if key in _loaded:
    return _loaded[key]
  name = f"{_PREFIX}.{path.stem}"
  spec = importlib.util.spec_from_file_location(
    name, path, loader=_SourceLoader(name, os.fspath(path), content)
  )
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look their module up.
  before = sys.modules.get(name)
  sys.modules[name] = module
  _asked[name] = asked
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
    # Of what was imported, whatever the file holds by now.
    if loaded is module:
      return known
  return _digest(files.read_bytes(module.__file__))


def asked(module: types.ModuleType) -> str | None:
  """Returns the name that a module was asked for by; None of one of ours."""
  return _asked.get(module.__name__)


def blame(error: BaseException) -> str | None:
  """Tells of an error that a module of the user has raised, in one line.

  Args:
    error: The error, with its traceback.

  Returns:
    The module's name as it was asked for, the line where it can be told, and
    what happened. None: no such module was at work, or the error names it.
  """
  told, cause = _said(error), error
  while cause is not None:
    for frame, line in reversed([*traceback.walk_tb(cause.__traceback__)]):
      name = _asked.get(frame.f_globals.get("__name__"))
      if name is not None:
        if f"{name}: " in told:
          return None
        # Not so of code that TensorFlow has made of the module's.
        is_own = frame.f_code.co_filename == frame.f_globals.get("__file__")
        where = f"line {line}: " if is_own else ""
        return f"{name}: {where}{describe(cause)}"
    cause = cause.__cause__
  return None


def describe(error: BaseException) -> str:
  """Returns the kind of an error and what it says, in one line."""
  if isinstance(error, KeyboardInterrupt):
    return "interrupted"
  if isinstance(error, SystemExit):
    return "it ends the process (sys.exit), and must not"
  said = _said(error)[:_LONGEST_REASON]
  return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _said(error: BaseException) -> str:
  try:
    return " ".join(str(error).split())
  except Exception:  # Errors of the user have methods of the user's.
    return ""
