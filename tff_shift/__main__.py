"""The installed command: tff-shift BINARY [flags], or python -m tff_shift."""

import ast
import importlib
import pathlib
import sys

from tff_shift._util import arguments
from tff_shift._util import installed

_FOLDER = pathlib.Path(__file__).parent / "binaries"


def _help() -> str:
  """Returns a line for each binary, of its docstring."""
  lines = [
    f"  {_shown(path.stem):25}"
    f"{ast.get_docstring(ast.parse(path.read_text('utf-8'))).splitlines()[0]}"
    for path in sorted(_FOLDER.glob("[a-z]*.py"))
  ]
  return "\n".join(
    ["tff-shift BINARY [flags]; tff-shift BINARY --help", "", *lines]
  )


def _shown(name: str) -> str:
  return name.replace("_", "-")


def main() -> None:
  """Runs the binary that the first argument names, and ends the process."""
  name, *rest = sys.argv[1:] or ["--help"]
  if name in ("-h", "--help", "help"):
    print(_help())
    sys.exit(0)
  if name == "--version":
    print(f"tff_shift {installed.version('tff_shift')}")
    sys.exit(0)
  known = [_shown(path.stem) for path in _FOLDER.glob("[a-z]*.py")]
  if _shown(name) not in known:
    print(
      f"tff-shift: {name!r} must be one of"
      f" {', '.join(sorted(known))}{arguments.did_you_mean(name, known)}",
      file=sys.stderr,
    )
    sys.exit(2)
  binary = _shown(name).replace("-", "_")
  sys.argv = [binary, *rest]
  importlib.import_module(f"tff_shift.binaries.{binary}").run()


if __name__ == "__main__":
  main()
