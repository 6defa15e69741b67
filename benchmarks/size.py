"""Counts the tokens of each room, a folder of Python files: does it grow?

  python -m benchmarks.size            prints the counts
  python -m benchmarks.size --check    fails if a room has grown
  python -m benchmarks.size --write    writes the counts to benchmarks/size.json

A token is one of the language: a name, number, string or operator. Comments,
docstrings, line ends and indents do not count, so that formatters change
nothing; an f-string is one token with every version of Python.

The check fails if a room has over 2 % more tokens than size.json says. Raise
the number in a commit that also changes CHANGELOG.md, which says who uses the
new ability: the check fails, too, if the last commit that raised a number, or
the changes that are not committed, did not. That needs Git, and is left out
where there is none, or too little history.

Needs Python's standard library only.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tokenize
from collections.abc import Mapping

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = ("tff_shift", "tests", "benchmarks", "experiments", "examples")
_FILE, _CHANGELOG = "benchmarks/size.json", "CHANGELOG.md"
_GROWTH = 1.02
_SKIPPED = {
  *(tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT),
  *(tokenize.ENDMARKER, tokenize.ENCODING),
}
# From Python 3.12 on; f-strings nest.
_STARTS = {getattr(tokenize, "FSTRING_START", None)}
_ENDS = {getattr(tokenize, "FSTRING_END", None)}


def num_tokens(path: pathlib.Path) -> int:
  """Returns the number of tokens of a Python file."""
  total, depth, statement = 0, 0, []
  with tokenize.open(path) as file:
    for token in tokenize.generate_tokens(file.readline):
      if token.type in _ENDS:
        depth -= 1
      elif token.type in _STARTS:
        statement += [tokenize.OP] * (depth == 0)
        depth += 1
      elif token.type == tokenize.NEWLINE:
        # A statement of strings alone is a docstring.
        total += len(statement) * (set(statement) != {tokenize.STRING})
        statement = []
      elif depth == 0 and token.type not in _SKIPPED:
        statement.append(token.type)
  return total


def rooms(root: pathlib.Path) -> dict[str, int]:
  """Returns the number of tokens by room, such as "tff_shift/models"."""
  counts: dict[str, int] = {}
  for folder in _FOLDERS:
    for path in sorted((root / folder).rglob("*.py")):
      parts = path.relative_to(root).parts
      room = "/".join(parts[: min(2, len(parts) - 1)])
      counts[room] = counts.get(room, 0) + num_tokens(path)
  return counts


def grown(old: Mapping[str, int], new: Mapping[str, int], by: float) -> list:
  """Returns lines about the rooms of more than `by` times as many tokens."""
  return [
    f"{room}: {old.get(room, 0)} -> {number} tokens"
    for room, number in new.items()
    if number > by * old.get(room, 0)
  ]


def _git(*arguments: str) -> str:
  command = ["git", "-C", str(_ROOT), *arguments]
  return subprocess.run(
    command, check=True, capture_output=True, text=True
  ).stdout


def raised_without_reason() -> list[str]:
  """Returns lines about the numbers raised last if CHANGELOG.md is as it was.

  Returns:
    The lines; none where Git or its history is missing.
  """
  try:
    changed = _git("diff", "--name-only", "HEAD").split()
    if _FILE in changed:
      old, new = _git("show", f"HEAD:{_FILE}"), (_ROOT / _FILE).read_text()
    else:
      commit = _git("log", "-1", "--format=%H", "--", _FILE).strip()
      changed = _git("show", "--format=", "--name-only", commit).split()
      old, new = (_git("show", f"{c}:{_FILE}") for c in (f"{commit}^", commit))
  except (OSError, subprocess.CalledProcessError):
    return []
  if _CHANGELOG in changed:
    return []
  return grown(json.loads(old), json.loads(new), 1)


def check() -> list[str]:
  """Returns what is wrong, one line each."""
  numbers = json.loads((_ROOT / _FILE).read_text(encoding="utf-8"))
  lines = [
    f"{line}: over 2 % more than in {_FILE}; make it smaller, or run"
    f" python -m benchmarks.size --write and say in {_CHANGELOG} who uses it"
    for line in grown(numbers, rooms(_ROOT), _GROWTH)
  ]
  return lines + [
    f"{line} in {_FILE}, without a line of {_CHANGELOG} in the same commit"
    for line in raised_without_reason()
  ]


def main() -> None:
  """Prints, checks or writes the counts."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--check", action="store_true", help="fail on growth")
  parser.add_argument("--write", action="store_true", help=f"write {_FILE}")
  given = parser.parse_args()
  numbers = rooms(_ROOT)
  if given.write:
    text = json.dumps(numbers, indent=2, sort_keys=True)
    (_ROOT / _FILE).write_text(f"{text}\n", encoding="utf-8")
  for room, number in numbers.items():
    print(f"{number:8} {room}")
  for folder in _FOLDERS:
    total = sum(v for k, v in numbers.items() if k.split("/")[0] == folder)
    print(f"{total:8} {folder} in all")
  if given.check and (lines := check()):
    sys.exit("\n".join(lines))


if __name__ == "__main__":
  main()
