"""Imports run in the order of the layout; `make test` runs each file once."""

import ast
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


def rooms_in_order():
  text = (_ROOT / "CONTRIBUTING.md").read_text()
  block = re.search(
    r"imports only from those before it:\n\n((?:    .*\n)+)", text
  )
  return re.findall(r"\w+", block[1])


def imported_rooms(path):
  """Yields the folders of the package that a file imports from."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom) and node.module:
      for each in node.names:
        parts = f"{node.module}.{each.name}".split(".")
        assert parts[0] != "experiments", path
        if parts[0] == "tff_shift" and len(parts) > 1:
          yield parts[1]


@pytest.mark.slow
def test_no_import_runs_back():
  rooms = rooms_in_order()
  folders = {
    path.parent.name for path in (_ROOT / "tff_shift").glob("*/__init__.py")
  }
  # What tests algorithms of a user, and what all share, stand beside the order.
  assert folders - set(rooms) == {"testing", "_util"}
  found = set()
  for place, room in enumerate(rooms):
    for path in (_ROOT / "tff_shift" / room).rglob("*.py"):
      for other in imported_rooms(path):
        if other in rooms[place + 1 :]:
          found.add(f"{path.relative_to(_ROOT)} imports from {other}")
  assert not found


def files_of(part):
  """Yields the files of a part of `make test`, which pytest is called with."""
  words = part.split()
  ignored = [word.removeprefix("--ignore=") for word in words if "=" in word]
  for pattern in [word for word in words if "=" not in word] or ["tests"]:
    for path in _ROOT.glob(pattern):
      for file in path.rglob("*_test.py") if path.is_dir() else [path]:
        name = file.relative_to(_ROOT).as_posix()
        if not any(name.startswith(f"{folder}/") for folder in ignored):
          yield name


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_each_file_is_in_one_part():
  recipe = subprocess.run(
    ["make", "-n", "test"],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  (parts,) = re.findall(r"^printf '%s\\0' (.*) \| xargs", recipe, re.MULTILINE)
  files = [name for part in shlex.split(parts) for name in files_of(part)]
  tests = (_ROOT / "tests").rglob("*_test.py")
  assert sorted(files) == sorted(
    path.relative_to(_ROOT).as_posix() for path in tests
  )
