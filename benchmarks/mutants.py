"""Do the tests notice a wrong line? Changes lines of the core, and runs tests.

  python -m benchmarks.mutants --seed=0 --count=60 --output=before.json
  python -m benchmarks.mutants --seed=0 --count=60 --output=after.json \
    --against=COMMIT --before=before.json

The first draws mutants of the sources of HEAD and prints a table: which test
kills which mutant? The second is for another checkout, of changed tests:
`--against` takes the sources of COMMIT, and so the same mutants, beside the
tests of HEAD; `--before` lists those that survive now. An interrupted run
resumes from its file of results.

1. HEAD is unpacked into a temporary folder; uncommitted changes are not seen.
2. Kinds of mutants take turns in the draw; a line has one mutant at most.
3. The test files that name the module of a mutant run once, on sources with a
   mark before the statement of each mutant: which tests reach it, how long does
   each take? Marks are statements, since a trace of lines misses functions that
   AutoGraph converts: it executes a copy.
4. Each mutant is written into its file, which AutoGraph reads, and tests run
   until one fails: those of files that reach the mark or name the module, files
   named like the module first. A file counts as a whole, since its tests share
   fixtures and compiled functions; if it takes over `_LONG_FILE` seconds, only
   its tests that reach the mark run. No name of a test file is fixed. Tests
   that fail on marked sources, such as those of digests of files, kill nothing.

The tests of a mutant are limited to `--seconds` of processor time unchanged; a
mutant is killed by time if they take three times as long, and the start of a
process. Tests run in a child forked from a process that has imported TensorFlow
and TFF and computed nothing. Survivors may be equivalent: read them, and run
more tests on them with larger `--seconds`, `--only` and another `--output`.

Recording takes about a quarter of an hour of processor time, a mutant five
seconds if a test kills it, else up to `--seconds`.
"""

import argparse
import ast
import builtins
import collections
import compileall
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import py_compile
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import pytest

# How often a mutant is drawn from a folder of the package.
_CORE = {
  **{"algorithms": 3, "learning": 2, "data": 2},
  **{"shift": 1, "simulation": 1, "_util": 1},
}
_TESTS = (*(f"tests/{folder}" for folder in _CORE), "tests/scenarios")
_USUAL = "not long and not every_algorithm and not notebook"
_LONG_FILE = 30.0
# A child imports the package and the tests before it runs one, in seconds.
_START = 30
# Times the seconds of unchanged tests; elapsed time times processor time.
_SLOWER, _WAITING = 3, 5
_MARKS = "_reached_mutants"
_IMPORTED = (
  *("tff_shift", "tensorflow", "tensorflow_federated", "tf_keras"),
  *("hypothesis", "matplotlib", "scipy.stats", "sklearn", "PIL.Image"),
)

_OPERATORS = {
  **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/")},
  **{ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")},
  **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">=")},
  **{ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "==")},
  **{ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
  **{ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.In: ("in", "not in")},
  **{ast.NotIn: ("not in", "in")},  # codespell:ignore notin
}
_PAIRS = (
  *("minimum maximum", "argmin argmax", "floor ceil", "zeros ones", "min max"),
  *("reduce_sum reduce_mean", "reduce_min reduce_max", "any all"),
)
_CALLS = {
  name: other
  for pair in map(str.split, _PAIRS)
  for name, other in (pair, pair[::-1])
}
_CHECK = re.compile("_?(check|refuse|require|validate)")
# What is in messages and types is not of interest.
_SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert)
_SKIPPED_FIELDS = ("annotation", "returns", "decorator_list")


class Mutant(NamedTuple):
  """A change of a line: bytes from `start` to `end` become `text`.

  Its statement begins in line `mark`.
  """

  path: str
  line: int
  kind: str
  start: int
  end: int
  text: str
  mark: int

  def changed(self, source: bytes) -> bytes:
    """Returns the source of its file with the change."""
    return source[: self.start] + self.text.encode() + source[self.end :]

  def shown(self, source: bytes) -> str:
    """Returns its line, with the change in double brackets."""
    first = source.rfind(b"\n", 0, self.start) + 1
    original = source[self.start : self.end].decode()
    change = f"[[{original} -> {self.text}]]"
    rest = source[self.end :].split(b"\n")[0].decode()
    return " ".join(
      (source[first : self.start].decode() + change + rest).split()
    )


class _Source:
  """Where the nodes of a file are, in bytes."""

  def __init__(self, data: bytes):
    self.data = data
    lengths = map(len, data.splitlines(keepends=True))
    self._starts = [0, *itertools.accumulate(lengths)]

  def span(self, node) -> tuple[int, int]:
    return (
      self._starts[node.lineno - 1] + node.col_offset,
      self._starts[node.end_lineno - 1] + node.end_col_offset,
    )

  def text(self, node) -> str:
    """Returns an expression in brackets."""
    return f"({self.data[slice(*self.span(node))].decode()})"

  def between(self, left, right, symbol: str) -> Iterator[tuple[int, int]]:
    """Yields the place of an operator; a comment may have it, too."""
    start, end = self.span(left)[1], self.span(right)[0]
    gap = self.data[start:end].decode()
    if gap.count(symbol) == 1 and "#" not in gap:
      start += gap.index(symbol)
      yield start, start + len(symbol)


def _is_text(node) -> bool:
  is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
  return is_string or isinstance(node, ast.JoinedStr)


def _edits(node, parent, in_index: bool, source: _Source) -> Iterator[tuple]:
  """Yields (kind, (start, end), text)."""
  number = "index" if in_index else "off by one"
  match node:
    case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
      if not _is_text(left) and not _is_text(right):
        symbol, other = _OPERATORS[type(operator)]
        for span in source.between(left, right, symbol):
          yield "operator", span, other
        yield "dropped term", source.span(node), source.text(left)
    case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)):
      yield number, source.span(node), str(1 - value)
    case ast.UnaryOp(ast.USub() | ast.Not() as operator, operand):
      kind = "condition" if isinstance(operator, ast.Not) else "operator"
      yield kind, source.span(node), source.text(operand)
    case ast.BoolOp(operator, [left, right, *_]):
      symbol, other = _OPERATORS[type(operator)]
      for span in source.between(left, right, symbol):
        yield "condition", span, other
    case ast.Compare(left, [operator, *_], [right, *_]):
      symbol, other = _OPERATORS[type(operator)]
      for span in source.between(left, right, symbol):
        yield "comparison", span, other
    case ast.If(test, [*_, ast.Raise()], []):
      yield "dropped check", source.span(test), "False"
    case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(attr=name))) if (
      _CHECK.match(name)
    ):
      yield "dropped check", source.span(node), "pass"
    case ast.Call(ast.Name(name) | ast.Attribute(attr=name) as function) if (
      name in _CALLS
    ):
      end = source.span(function)[1]
      yield "call", (end - len(name), end), _CALLS[name]
    case ast.Constant(bool() as value):
      yield "constant", source.span(node), str(not value)
    case ast.Constant(int() as value) if not isinstance(parent, ast.UnaryOp):
      yield number, source.span(node), str(value + 1)
    case ast.Constant(float() as value):
      yield "constant", source.span(node), repr(2 * value if value else 1.0)


def mutants(path: str, data: bytes) -> list[Mutant]:
  """Returns the mutants of a file."""
  source = _Source(data)
  results = []

  def visit(node, parent, in_index, mark):
    if isinstance(node, _SKIPPED):
      return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
      return
    if isinstance(node, ast.stmt) and not source.data.startswith(
      b"elif", source.span(node)[0]
    ):
      decorators = getattr(node, "decorator_list", [])
      mark = min(part.lineno for part in [node, *decorators])
    for kind, (start, end), text in _edits(node, parent, in_index, source):
      line = data.count(b"\n", 0, start) + 1
      results.append(Mutant(path, line, kind, start, end, text, mark))
    for name, value in ast.iter_fields(node):
      is_index = isinstance(node, ast.Subscript) and name == "slice"
      is_axis = isinstance(node, ast.keyword) and node.arg == "axis"
      for child in value if isinstance(value, list) else [value]:
        if isinstance(child, ast.AST) and name not in _SKIPPED_FIELDS:
          visit(child, node, in_index or is_index or is_axis, mark)

  visit(ast.parse(data), None, False, 0)
  return results


def draw(candidates: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
  """Draws mutants, a kind at a time, of rooms by weight; at most one a line."""
  groups = collections.defaultdict(list)
  for mutant in sorted(candidates):
    groups[mutant.kind, mutant.path.split("/")[1]].append(mutant)
  generator = random.Random(seed)
  lines: dict[tuple[str, int], Mutant] = {}
  kinds = itertools.cycle(sorted({kind for kind, _ in groups}))
  while len(lines) < count:
    kind = next(kinds)
    rooms = {room: w for room, w in _CORE.items() if groups.get((kind, room))}
    (room,) = generator.choices(list(rooms), list(rooms.values()))
    mutant = generator.choice(groups[kind, room])
    lines.setdefault((mutant.path, mutant.line), mutant)
  return list(lines.values())


def marked(source: str, marks: dict[int, list[int]]) -> str:
  """Returns a source with a mark, of mutants' numbers, before some lines."""
  lines = source.splitlines(keepends=True)
  for line in sorted(marks, reverse=True):
    indent = re.match(r"\s*", lines[line - 1]).group()
    lines.insert(line - 1, f"{indent}{_MARKS}.update({(*marks[line],)})\n")
  return "".join(lines)


class Test(NamedTuple):
  """A test that passes unchanged: its processor seconds, and marks."""

  name: str
  seconds: float
  reached: list[int]

  @property
  def path(self) -> str:
    """Its file."""
    return self.name.split("::")[0]


def _stem(path: str) -> str:
  module = pathlib.PurePath(path)
  return module.parent.name if module.stem == "__init__" else module.stem


def names_module(text: str, path: str) -> bool:
  """Returns whether a test's text imports a module, or has its name."""
  stem = _stem(path)
  return bool(
    re.search(rf"import {stem}\b|\.{stem}\b|[\"'/]{stem}[\"'.]", text)
  )


def selection(
  number: int, path: str, tests: Sequence[Test], texts: dict, seconds: float
) -> list[str]:
  """Returns the names of the tests for a mutant, the most specific first."""
  files = collections.defaultdict(list)
  for test in tests:
    files[test.path].append(test)
  # Lines that run on import have no test that reaches them.
  is_reached = any(number in test.reached for test in tests)
  ranks = []
  for file, members in files.items():
    reaching = [test for test in members if number in test.reached]
    is_named = names_module(texts[file], path)
    total = sum(test.seconds for test in members)
    if reaching or is_named:
      rest = [test for test in members if test not in reaching]
      members = reaching + rest * (total < _LONG_FILE or not is_reached)
      like = pathlib.PurePath(file).name.startswith(_stem(path))
      ranks.append((not like, not reaching, not is_named, total, members))
  names, spent = [], 0.0
  for test in itertools.chain(*(rank[-1] for rank in sorted(ranks))):
    if spent + test.seconds <= seconds:
      spent += test.seconds
      names.append(test.name)
  return names


class _Recorder:
  """A plugin of pytest: what runs, in which order, and what happens."""

  def __init__(self, names=None):
    self._order = names and {name: i for i, name in enumerate(names)}
    self.failed: list[str] = []
    self.tests: dict[str, tuple[float, list[int]]] = {}

  def pytest_collection_modifyitems(self, items):
    if self._order is not None:
      selection = [item for item in items if item.nodeid in self._order]
      items[:] = sorted(selection, key=lambda item: self._order[item.nodeid])

  def pytest_collectreport(self, report):
    if report.failed:
      self.failed.append(report.nodeid)

  def pytest_runtest_logreport(self, report):
    if report.failed:
      self.failed.append(report.nodeid)
    if report.skipped:
      self.tests.pop(report.nodeid, None)

  def pytest_runtest_logstart(self, nodeid):
    self.tests[nodeid] = (time.process_time(), [])
    getattr(builtins, _MARKS).clear()

  def pytest_runtest_logfinish(self, nodeid):
    if nodeid in self.tests:
      seconds = time.process_time() - self.tests[nodeid][0]
      self.tests[nodeid] = seconds, sorted(getattr(builtins, _MARKS))


def _run_tests(arguments, names, limit: float) -> tuple[str, dict]:
  """Runs pytest in a child; returns how it ended, and what it recorded."""
  with tempfile.NamedTemporaryFile() as file:
    child = os.fork()
    if child == 0:
      os.setsid()
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
      log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
      os.dup2(log, 1)
      os.dup2(log, 2)
      recorder = _Recorder(names)
      with contextlib.suppress(BaseException):
        code = pytest.main(["-q", *arguments], plugins=[recorder])
        result = {"code": int(code), **vars(recorder)}
        pathlib.Path(file.name).write_text(json.dumps(result))
      os._exit(0)
    end = time.monotonic() + _WAITING * limit
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
      while not os.waitid(os.P_PID, child, options) and time.monotonic() < end:
        time.sleep(0.2)
    finally:
      is_late = time.monotonic() >= end
      # With the processes of the tests.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
      status = os.waitpid(child, 0)[1]
    text = pathlib.Path(file.name).read_text()
  if text:
    return "", json.loads(text)
  is_late |= os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
  return "time" if is_late else "crash", {}


def _unpack(folder: pathlib.Path, against: str | None) -> None:
  def extract(*arguments):
    command = ["git", "archive", *arguments]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], input=archive, cwd=folder, check=True)

  extract("HEAD")
  if against:
    shutil.rmtree(folder / "tff_shift")
    extract(against, "tff_shift")
  # Bytecode is compared with its source, not with the time of its file.
  mode = py_compile.PycInvalidationMode.CHECKED_HASH
  compileall.compile_dir(folder, quiet=1, invalidation_mode=mode)


def _import(folder: pathlib.Path) -> None:
  """Imports what mutants share; the package itself is forgotten."""
  os.chdir(folder)
  sys.path[0] = str(folder)
  setattr(builtins, _MARKS, set())
  # Processes that tests start have the name of the marks, too.
  (folder / "marks").mkdir()
  text = f"import builtins\nbuiltins.{_MARKS} = set()\n"
  (folder / "marks" / "sitecustomize.py").write_text(text)
  os.environ["PYTHONPATH"] = str(folder / "marks")
  sys.path.append(str(folder / "marks"))
  for name in _IMPORTED:
    importlib.import_module(name)
  for name in list(sys.modules):
    if name.split(".")[0] in ("tff_shift", "benchmarks"):
      del sys.modules[name]


def _record_tests(drawn: list[Mutant], folder: str, markers: str) -> list[Test]:
  """Runs the tests of a folder on marked sources."""
  marks: dict = collections.defaultdict(lambda: collections.defaultdict(list))
  for number, mutant in enumerate(drawn):
    marks[mutant.path][mutant.mark].append(number)
  root = pathlib.Path(folder)
  files = [
    str(file)
    for file in ([root] if root.is_file() else sorted(root.rglob("*_test.py")))
    if any(names_module(file.read_text(), path) for path in marks)
  ]
  if not files:
    return []
  sources = {path: pathlib.Path(path).read_bytes() for path in marks}
  for path, source in sources.items():
    text = marked(source.decode(), marks[path])
    pathlib.Path(path).write_text(text)
  end, run = _run_tests(["-m", markers, *files], None, limit=7200)
  for path, source in sources.items():
    pathlib.Path(path).write_bytes(source)
  if end or not run["tests"]:
    sys.exit(f"no tests without a mutant: {end or run}")
  failed = run["failed"] or "no"
  print(f"{folder}: {len(run['tests'])} tests, {failed} failures", flush=True)
  return [
    Test(name, *values)
    for name, values in run["tests"].items()
    if name not in run["failed"]
  ]


def _killer(mutant: Mutant, names: list[str], seconds: float) -> str:
  """Returns the test that a mutant fails, "time", "crash"; "" for none."""
  file = pathlib.Path(mutant.path)
  source = file.read_bytes()
  file.write_bytes(mutant.changed(source))
  files = list(dict.fromkeys(name.split("::")[0] for name in names))
  end, run = _run_tests(["-x", *files], names, _START + _SLOWER * seconds)
  file.write_bytes(source)
  if end:
    return end
  # Other codes than 0: pytest could not start, or no test is left.
  return next(iter(run["failed"]), "start" if run["code"] else "")


def table(rows: Iterable[dict]) -> str:
  """Returns the rows of results as a table in Markdown."""
  lines = ["| line | kind | [[original -> mutant]] | killed by |"]
  lines.append("| --- | --- | --- | --- |")
  for row in rows:
    change = row["shown"].replace("|", "\\|")
    killer = row["killer"] or f"**survived** {row['num_tests']} tests"
    place = f"{row['path']}:{row['line']}"
    lines.append(f"| {place} | {row['kind']} | `{change}` | {killer} |")
  return "\n".join(lines)


def _all_mutants() -> Iterator[Mutant]:
  for room in _CORE:
    for path in pathlib.Path("tff_shift", room).rglob("*.py"):
      yield from mutants(str(path), path.read_bytes())


def _run(given: argparse.Namespace, results: dict, save: Callable) -> None:
  """Adds `mutants`, `tests` and `rows` to results; saves them after each."""
  drawn = draw(_all_mutants(), given.seed, given.count)
  if results.setdefault("mutants", [*map(list, drawn)]) != [*map(list, drawn)]:
    sys.exit(f"{given.output} has other mutants")
  recorded = results.setdefault("tests", {})
  for folder in given.tests.split(","):
    if folder not in recorded:
      recorded[folder] = _record_tests(drawn, folder, given.markers)
      save()
  tests = [Test(*values) for values in itertools.chain(*recorded.values())]
  texts = {test.path: pathlib.Path(test.path).read_text() for test in tests}
  rows = results.setdefault("rows", {})
  for number, mutant in enumerate(drawn):
    place = f"{mutant.path}:{mutant.line} {mutant.kind}"
    if str(number) in rows or not re.search(given.only, place):
      continue
    names = selection(number, mutant.path, tests, texts, given.seconds)
    rows[str(number)] = row = {
      **mutant._asdict(),
      "shown": mutant.shown(pathlib.Path(mutant.path).read_bytes()),
      "num_tests": len(names),
      "killer": _killer(mutant, names, given.seconds) if names else "",
    }
    save()
    print(number, table([row]).splitlines()[-1], flush=True)


def main() -> None:
  """Draws mutants, runs tests on them, and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--seed", type=int, default=0, help="seed of the draw")
  add("--count", type=int, default=60, help="number of mutants")
  add("--against", help="commit of the sources; default HEAD")
  add("--only", default="", help="regular expression for `path:line kind`")
  add("--tests", default=",".join(_TESTS), help="files and folders of tests")
  add("--markers", default=_USUAL, help="pytest's option -m")
  add("--seconds", type=float, default=60, help="limit of unchanged tests")
  add("--output", default="mutants.json", help="file of results")
  add("--before", help="file of results to compare with")
  options = parser.parse_args()
  output = pathlib.Path(options.output).absolute()
  results = json.loads(output.read_text()) if output.exists() else {}
  before = pathlib.Path(options.before).read_text() if options.before else "{}"

  def save():
    new = output.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1))
    new.replace(output)

  # Ends the child, and removes the folder.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
  with tempfile.TemporaryDirectory() as folder:
    _unpack(pathlib.Path(folder), options.against)
    _import(pathlib.Path(folder))
    _run(options, results, save)
  rows = results["rows"]
  print(table(rows[key] for key in sorted(rows, key=int)))
  num_killed = sum(bool(row["killer"]) for row in rows.values())
  print(f"{num_killed} of {len(rows)} killed")
  for key, row in json.loads(before).get("rows", {}).items():
    if row["killer"] and key in rows and not rows[key]["killer"]:
      print("survives now:", table([rows[key]]).splitlines()[-1])


if __name__ == "__main__":
  main()
