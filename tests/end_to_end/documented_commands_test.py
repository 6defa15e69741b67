"""The commands of the documentation have flags that their binaries know."""

import importlib
import pathlib
import re
import shlex

import pytest

from tff_shift.command_line.flags import preset_flag

_ROOT = pathlib.Path(__file__).parents[2]
_COMMAND = re.compile(r"^ *(?:\.venv/bin/)?python -m experiments\.(\w+) (.+)$")


def _commands():
  for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*/*.md"))):
    if (_ROOT / "docs/results") in page.parents:
      continue  # Commands of earlier versions.
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
      found = _COMMAND.match(line)
      # Of a file that the reader writes.
      if "--import=" in line:
        continue
      if (
        found
        and (
          _ROOT / f"tff_shift/scenarios/{found[1]}/configuration.py"
        ).exists()
      ):
        yield pytest.param(*found.groups(), id=f"{page.stem}-{found[1]}")


def test_commands_are_found():
  pages = {parameters.id.partition("-")[0] for parameters in _commands()}
  assert {"walks", "images", "evolving"} <= pages


@pytest.mark.parametrize("binary, arguments", _commands())
def test_flags_are_known(binary, arguments, planned, monkeypatch):
  given = preset_flag.expand([binary, *shlex.split(arguments)], binary)[1:]
  # Paths of presets are relative.
  monkeypatch.chdir(_ROOT)
  module = importlib.import_module(f"tff_shift.binaries.{binary}")
  assert planned(module, given, ask=lambda: "parsed")
