"""Imports run in the order of the layout; `make test` runs each file once."""

import ast
import graphlib
import pathlib
import re
import shlex
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


def test_no_modules_import_in_a_circle():
  def name(path):
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(
      ".__init__"
    )

  modules = {name(path): path for path in (_ROOT / "tff_shift").rglob("*.py")}
  imports = {
    module: {
      target if target in modules else node.module
      for node in ast.parse(path.read_text()).body
      if isinstance(node, ast.ImportFrom) and node.module in modules
      for target in (f"{node.module}.{alias.name}" for alias in node.names)
    }
    - {module}
    for module, path in modules.items()
  }
  assert "tff_shift.data.table" in imports["tff_shift.data.sources.frames"]
  assert len([*graphlib.TopologicalSorter(imports).static_order()]) == len(
    modules
  )


def holds(part, path):
  within = path.is_relative_to
  ignored = re.findall(r"--ignore=(\S+)", part)
  paths = re.findall(r"(?<!\S)tests\S*", part) or ["tests"]
  return any(path.match(name) or within(name) for name in paths) and not any(
    map(within, ignored)
  )


def test_each_file_is_in_one_part():
  printed = subprocess.check_output(
    ["make", "-n", "test"], cwd=_ROOT, text=True
  )
  parts = shlex.split(re.search(r"printf '%s\\0' (.*) \| xargs", printed)[1])
  for path in (_ROOT / "tests").rglob("*_test.py"):
    path = path.relative_to(_ROOT)
    assert [holds(part, path) for part in parts].count(True) == 1, path
