"""Writes `index.json` from the files of algorithms and models.

Writes `__init__.pyi` too, which tells editors and type checkers where the
public names come from: the package imports them when they are first used.

Run `python -m tff_shift.command_line.write_index`, or `make index`.
"""

import ast
import dataclasses
import functools
import importlib
import pathlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import tff_shift
from tff_shift import algorithms
from tff_shift import execution  # noqa: F401  Lets TFF exit cleanly.
from tff_shift._util import index
from tff_shift._util import public_names
from tff_shift.models import networks

STUB = index.FOLDER / "__init__.pyi"

_PACKAGE = tff_shift.__name__
# The names that the index reads in the file of an algorithm.
_READ = ("HParams", "SCENARIOS", "MIN_SOURCE_DOMAINS")


class _Names:
  """The top-level names of a module.

  Attributes:
    imported: Maps each imported name to its module in this package and its name
      there. None instead of a name: the module itself.
    defined: Maps each defined name to the statements that define it.
  """

  def __init__(self, path: pathlib.Path):
    self.imported: dict[str, tuple[str, str | None]] = {}
    self.defined: dict[str, list[ast.AST]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
      if isinstance(node, ast.ImportFrom):
        for name in node.names:
          self._note_import(node.module or "", name)
      elif isinstance(node, ast.ClassDef | ast.FunctionDef):
        self.defined.setdefault(node.name, []).append(node)
      else:
        for each in ast.walk(node):
          if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            self.defined.setdefault(each.id, []).append(node)

  def _note_import(self, module: str, each: ast.alias) -> None:
    if f"{module}.".startswith(f"{_PACKAGE}."):
      whole = f"{module}.{each.name}"
      origin = (whole, None) if _path(whole) else (module, each.name)
      self.imported[each.asname or each.name] = origin


@functools.cache
def _path(module: str) -> pathlib.Path | None:
  """Returns the file of a module of this package; None if there is none."""
  path = index.FOLDER.joinpath(*module.split(".")[1:])
  for file in (path.with_suffix(".py"), path / "__init__.py"):
    if file.is_file():
      return file
  return None


@functools.cache
def _names(module: str) -> _Names:
  return _Names(_path(module))


def _used(node: ast.AST) -> Iterator[tuple[str, str | None]]:
  """Yields the names in a definition, each with its attribute or None.

  Skips the methods of a class, which do not define its fields.
  """
  parts = [node]
  if isinstance(node, ast.ClassDef):
    parts = [*node.bases, *node.decorator_list, *node.body]
    parts = [each for each in parts if not isinstance(each, ast.FunctionDef)]
  for each in (found for part in parts for found in ast.walk(part)):
    if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
      yield each.value.id, each.attr
    elif isinstance(each, ast.Name):
      yield each.id, None


def _reach(module: str, name: str, reached: set[tuple[str, str]]) -> None:
  """Adds a name of a module, and all names of the package it depends on."""
  if (module, name) in reached:
    return
  reached.add((module, name))
  names = _names(module)
  if name in names.imported:
    origin, original = names.imported[name]
    _reach(origin, original or "", reached)
  for node in names.defined.get(name, ()):
    for used, attribute in _used(node):
      origin, original = names.imported.get(used, (None, None))
      if origin is None:
        _reach(module, used, reached)
      elif original is None:
        _reach(origin, attribute or "", reached)
      else:
        _reach(origin, original, reached)


def sources(module: str) -> tuple[str, ...]:
  """Returns the files that the index entry of an algorithm depends on.

  Args:
    module: The name of the algorithm's module.

  Returns:
    Sorted paths relative to the package: the algorithm's own file, and each
    file that defines a base class of `HParams`, a function that declares a
    field, or a constant used in a field.
  """
  reached = {(module, "")}
  for name in _READ:
    _reach(module, name, reached)
  return tuple(
    sorted(
      {_path(each).relative_to(index.FOLDER).as_posix() for each, _ in reached}
    )
  )


def _algorithm(name: str) -> index.Algorithm:
  """Imports an algorithm and returns its entry."""
  module = algorithms.get(name)
  described = algorithms.describe_module(module)
  return index.Algorithm(
    sources=sources(module.__name__),
    summary=described.summary,
    scenarios=described.scenarios,
    min_source_domains=described.min_source_domains,
    hparams=tuple(map(_field, dataclasses.fields(described.hparams))),
  )


def _field(field: dataclasses.Field) -> index.Field:
  """Returns the entry of a hyper-parameter."""
  default: Any = field.default
  return index.Field(name=field.name, default=default, **field.metadata)


def make() -> index.Index:
  """Imports all algorithms and models and returns their index."""
  found = {name: _algorithm(name) for name in algorithms.names()}
  files = [module.name for module in pkgutil.iter_modules(networks.__path__)]
  recorded = {source for each in found.values() for source in each.sources}
  recorded |= {f"models/networks/{name}.py" for name in files}
  return index.Index(
    algorithms=found,
    models=tuple(
      name
      for name in sorted(files)
      if hasattr(
        importlib.import_module(f"{networks.__name__}.{name}"), "build"
      )
    ),
    digests={source: index.digest(source) for source in sorted(recorded)},
  )


def stub() -> str:
  """Returns the imports of all public names, as the text of a stub file."""
  lines = ["# `make index` writes this file.", "# ruff: noqa", "# fmt: off"]
  for name, (module, attribute) in sorted(
    public_names.NAMES.items(), key=lambda item: (item[1][0], item[1][1] or "")
  ):
    if attribute is None:
      module, _, attribute = module.rpartition(".")
    lines.append(f"from {module} import {attribute} as {name}")
  listed = "".join(f"  {name!r},\n" for name in sorted(public_names.NAMES))
  return "\n".join(lines) + f"\n\n__all__ = [\n{listed}]\n"


def main() -> None:
  """Writes the index file and the stub."""
  index.FILE.write_text(index.to_json(make()), encoding="utf-8")
  STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
  main()
