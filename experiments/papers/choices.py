"""The choices of files: the section "Choices:" of their docstrings.

A section begins with a line "Choices:", or "Choices, and ...:", and is a list,
indented by two spaces.
"""

import ast
import functools
import pathlib
import re
import textwrap
from collections.abc import Mapping

from tff_shift._util import files

ROOT = pathlib.Path(__file__).parents[2]
_SECTION = re.compile(r"^Choices([^:]*:)\n((?:  .*\n?)+)", re.M)


def of(path: str) -> str:
  """Returns the choices of a file as Markdown, empty without any.

  Args:
    path: The file's path relative to the repository's root.
  """
  docstring = ast.get_docstring(ast.parse(files.read_text(ROOT / path)))
  section = _SECTION.search(docstring or "")
  if not section:
    return ""
  heading = section[1].removeprefix(", and ")
  heading = "" if heading == ":" else f"{heading.capitalize()}\n\n"
  return heading + textwrap.dedent(section[2]).strip()


@functools.cache
def of_all() -> Mapping[str, str]:
  """Returns the choices of all files that have any, by path."""
  paths = [
    path.relative_to(ROOT).as_posix()
    for folder in ("tff_shift", "experiments")
    for path in (ROOT / folder).rglob("*.py")
  ]
  # The methods come first.
  paths.sort(key=lambda path: ("/algorithms/" not in path, path))
  texts = ((path, of(path)) for path in paths)
  return {path: text for path, text in texts if text}
