"""Runs TFF's own tests with the in-process executor and with TFF's native one.

  python -m benchmarks.conformance SOURCES --output=results/conformance.md

SOURCES is a folder with `tensorflow_federated/python` of TFF's repository, at
the tag of the installed release, whose wheel has no tests. Each
test file runs in a process of its own, with a time limit, with one of the two
executors as TFF's default context. Files that execute no computation are left
out of the table.

Prints a line for each file, and writes the table and the reason of each failure
to `--output`. Exit code 1 if a test fails in process that passes natively.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

import msgspec
from absl import app
from absl import flags

_PACKAGE = "tensorflow_federated/python"
_EXECUTORS = ("in_process", "native")
# Rooms with tests of what runs on an executor. `core` has the tests of TFF's
# own executors and compilers.
_ROOMS = "aggregators,analytics,learning,program,simulation,tests"

_OUTPUT = flags.DEFINE_string("output", None, "The page. Default: none.")
_FILES = flags.DEFINE_list(
  "rooms",
  _ROOMS.split(","),
  "Folders or files below tensorflow_federated/python.",
)
_NATIVE = flags.DEFINE_enum(
  "native",
  "all",
  ["all", "failed"],
  "Which files also run with the native executor; failed: those with a test"
  " that fails in process.",
)
_LIMIT = flags.DEFINE_integer("time_limit", 900, "Seconds for a file.")
_RUN = flags.DEFINE_enum(
  "run",
  None,
  _EXECUTORS,
  "Runs one file in this process, for the program itself.",
)


class Outcome(msgspec.Struct):
  """The outcome of a test file on an executor.

  Attributes:
    num_tests: The number of tests.
    skipped: The number of tests that TFF skips.
    failed: The reason by the name of the test.
    num_calls: The number of computations that were executed.
    seconds: The duration of the tests.
  """

  num_tests: int = 0
  skipped: int = 0
  failed: dict[str, str] = {}
  num_calls: int = 0
  seconds: float = 0.0

  @property
  def passed(self) -> int:
    """The number of tests that passed."""
    return self.num_tests - self.skipped - len(self.failed)


def _import_helpers(sources: pathlib.Path) -> None:
  """Lets the packages of the wheel have the modules that only tests use."""
  folders = {path.parent for path in sources.glob(f"{_PACKAGE}/**/*.py")}
  for folder in sorted(folders):
    name = ".".join(folder.relative_to(sources).parts)
    try:
      importlib.import_module(name).__path__.append(str(folder))
    except ImportError:
      continue


def _set_test_contexts(sources: pathlib.Path, make_context) -> None:
  """Replaces the contexts that tests in `tests/` request by name."""
  package = types.ModuleType("tensorflow_federated.python.tests")
  package.__path__ = [str(sources / _PACKAGE / "tests")]
  contexts = types.ModuleType(f"{package.__name__}.test_contexts")
  contexts.get_all_contexts = lambda: [("default", make_context)]  # type: ignore[attr-defined]
  sys.modules |= {each.__name__: each for each in (package, contexts)}


def _run_here(sources: pathlib.Path, file: str, executor: str) -> Outcome:
  """Runs a file in this process."""
  import tensorflow_federated as tff

  from tff_shift.execution import in_process

  def make_context():
    if executor == "in_process":
      return in_process.in_process_context()
    return tff.backends.native.create_sync_local_cpp_execution_context()

  _import_helpers(sources)
  _set_test_contexts(sources, make_context)
  os.chdir(sources)
  name = f"conformance_{pathlib.Path(file).stem}"
  spec = importlib.util.spec_from_file_location(name, file)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  outcome = Outcome()
  context = make_context()
  tff.framework.set_default_context(context)
  context_type = type(context)
  invoke = context_type.invoke

  def counted(self, *arguments):
    outcome.num_calls += 1
    return invoke(self, *arguments)

  context_type.invoke = counted
  suite = unittest.defaultTestLoader.loadTestsFromModule(module)
  start = time.perf_counter()
  with open(os.devnull, "w") as nowhere:
    found = unittest.TextTestRunner(nowhere, verbosity=0).run(suite)
  outcome.seconds = time.perf_counter() - start
  outcome.num_tests = found.testsRun
  outcome.skipped = len(found.skipped)
  for test, trace in found.failures + found.errors:
    lines = trace.strip().splitlines()
    # The message of an error can have further lines.
    errors = [each for each in lines if re.match(r"[\w.]*(Error|Fail)", each)]
    reason = (errors or lines)[-1]
    outcome.failed[test.id().partition(".")[2]] = reason[:300]
  return outcome


def _run(sources: pathlib.Path, file: str, executor: str) -> Outcome | str:
  """Runs a file in a process of its own; returns why it gave no outcome."""
  command = [sys.executable, "-m", "benchmarks.conformance"]
  with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile() as log:
    # TFF's executor has processes of its own, which must end with this one.
    process = subprocess.Popen(
      [*command, f"--run={executor}", str(sources), file],
      stdout=output,
      stderr=log,
      env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
      start_new_session=True,
    )
    try:
      process.wait(_LIMIT.value)
    except subprocess.TimeoutExpired:
      return f"longer than {_LIMIT.value} s"
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
    output.seek(0)
    lines = output.read().strip().splitlines()
  try:
    return msgspec.json.decode(lines[-1], type=Outcome)
  except (IndexError, msgspec.DecodeError):
    return f"exit code {process.returncode}, without an outcome"


def _page(rows: list[tuple[str, dict[str, Outcome | str]]]) -> str:
  """Returns the page, Markdown."""
  import tensorflow_federated as tff

  lines = [
    "# TFF's own tests with the in-process executor",
    "",
    "    python -m benchmarks.conformance SOURCES"
    f" --rooms={','.join(_FILES.value)}",
    "",
    f"The test files of TFF {tff.__version__} that execute computations, with"
    " the in-process executor and",
    "with TFF's native executor as the default context;"
    f" {time.strftime('%Y-%m-%d')}, {len(os.sched_getaffinity(0))} cores,",
    f"at most {_LIMIT.value} s a file.",
    *(
      ["Natively, only files ran with a test that fails in process."]
      if _NATIVE.value == "failed"
      else []
    ),
    "",
    "| file | tests | skipped | in process: passed, failed, seconds | native:"
    " passed, failed, seconds |",
    "| --- | --- | --- | --- | --- |",
  ]
  reasons = []
  sums = {each: [0, 0, 0.0] for each in _EXECUTORS}
  num_tests = num_skipped = 0
  for file, by_executor in rows:
    cells = []
    for executor in _EXECUTORS:
      found = by_executor.get(executor)
      if found is None:
        cells.append("not run")
        continue
      if isinstance(found, str):
        cells.append("no outcome")
        reasons.append(f"- `{file}`, {executor}: {found}")
        continue
      values = found.passed, len(found.failed), found.seconds
      sums[executor] = list(map(sum, zip(sums[executor], values, strict=True)))
      cells.append(f"{values[0]}, {values[1]}, {values[2]:.0f}")
      reasons += [
        f"- `{test}`, {executor}: {reason}"
        for test, reason in found.failed.items()
      ]
    known = [each for each in by_executor.values() if isinstance(each, Outcome)]
    tests, skipped = (known[0].num_tests, known[0].skipped) if known else (0, 0)
    num_tests, num_skipped = num_tests + tests, num_skipped + skipped
    lines.append(f"| {file} | {tests} | {skipped} | {' | '.join(cells)} |")
  cells = [f"{a}, {b}, {c:.0f}" for a, b, c in sums.values()]
  lines.append(f"| all | {num_tests} | {num_skipped} | {' | '.join(cells)} |")
  if reasons:
    lines += ["", "## What failed", "", *reasons]
  return "\n".join(lines) + "\n"


def main(argv):
  """Runs the tests and writes the page."""
  if len(argv) != 2 + bool(_RUN.value):
    raise app.UsageError("one argument: the folder with TFF's sources")
  sources = pathlib.Path(argv[1]).resolve()
  if _RUN.value:
    outcome = _run_here(sources, argv[2], _RUN.value)
    print(f"\n{msgspec.json.encode(outcome).decode()}", flush=True)
    # Tests leave threads behind.
    os._exit(0)
  root = sources / _PACKAGE
  if not root.is_dir():
    raise app.UsageError(f"{argv[1]} has no folder {_PACKAGE}")
  files = set()
  for each in _FILES.value:
    path = root / each
    files |= set(path.rglob("*_test.py")) if path.is_dir() else {path}
  rows = []
  ours, native = _EXECUTORS
  for path in sorted(files):
    file = path.relative_to(sources)
    found = {ours: _run(sources, str(file), ours)}
    if isinstance(found[ours], Outcome) and not found[ours].num_calls:
      continue
    if _NATIVE.value == "all" or _failures(found[ours]):
      found[native] = _run(sources, str(file), native)
    rows.append((str(file.relative_to(_PACKAGE)), found))
    if _OUTPUT.value:
      # After each file, so that an interrupted run leaves its rows.
      pathlib.Path(_OUTPUT.value).write_text(_page(rows), encoding="utf-8")
    shown = {
      executor: each
      if isinstance(each, str)
      else f"{each.passed} passed, {len(each.failed)} failed, {each.num_calls}"
      f" computations, {each.seconds:.0f} s"
      for executor, each in found.items()
    }
    print(f"{file}: {json.dumps(shown)}", flush=True)
  for _, found in rows:
    passed_natively = _failures(found[ours]) - _failures(found.get(native))
    if isinstance(found.get(native), Outcome) and passed_natively:
      sys.exit(1)


def _failures(outcome: Outcome | str | None) -> set[str]:
  """Returns the tests that failed; one without a name without an outcome."""
  if isinstance(outcome, Outcome):
    return set(outcome.failed)
  return {""} if outcome else set()


if __name__ == "__main__":
  app.run(main)
