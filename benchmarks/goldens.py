"""Compares the bits of short runs at another commit with those of this tree.

  python -m benchmarks.goldens --against=COMMIT
  python -m benchmarks.goldens --against=main --only=evolving/circle

Runs, at both, every preset of experiments/presets whose data are here, cut
short, and one run of each kind of data, aggregator, sampler, metric, selection
and resumption; each algorithm is in one of them. Prints for each run and
algorithm whether the SHA-256 of three parts are equal:

- metrics: the rows of metrics.csv;
- weights: of the exported models where a run exports some, else of the last
  states in its checkpoints, with those of clients;
- summary: its entries in summary.json, without times.

The exit code is 1 if a part differs that `goldens_changed.json` does not list,
or if a run fails. An entry there has the name of the row, the part, the old and
the new digest as printed, and the reason.

The commit is checked out into a temporary folder; this file runs both trees,
with one interpreter and through `python -m experiments.<binary>` alone. Digests
of a commit are kept in --cache_dir; this tree, with what is not committed, runs
every time. Figures are not drawn.

When a name changes, add it to `_RENAMED` (columns, keys of summary.json) or
`_OLD_FLAGS`. The runs are in `goldens_runs.ini`.
"""

import argparse
import configparser
import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CHANGED = pathlib.Path(__file__).with_name("goldens_changed.json")
_RUNS = pathlib.Path(__file__).with_name("goldens_runs.ini")
# Of a process, before it starts anew.
_MAX_BYTES = 1.8e9
_PARTS = ("metrics", "weights", "summary")

# Columns of metrics.csv and keys of summary.json, old to new; new names that
# are None are left out of the comparison.
_RENAMED: dict[str, str | None] = {"seconds_per_round": None}
# Flags, or flags with a value, new to old: tried if a commit rejects the new.
_OLD_FLAGS: dict[str, str] = {}

# Of these lists in presets, the last value is run.
_LISTS = {"learning_rate", "shift", "test_distributions"}
_CACHING = ("online_adaptation", "dynamic_personalization")


def _write_data(folder: pathlib.Path) -> None:
  """Writes small data of each kind of file."""
  import numpy as np
  import pandas
  from PIL import Image

  (folder / "reddit").mkdir(parents=True)
  generator = np.random.default_rng(0)
  place = np.arange(240)
  label, client, period = place % 2, place // 2 % 3, place // 6 % 4
  x = (generator.normal(size=(240, 4)) + label[:, np.newaxis]).astype("float32")
  np.savez(folder / "a.npz", x=x, y=label, client=client, domain=period)
  table = pandas.DataFrame(x, columns=[*"abcd"])
  table = table.assign(label=label, client=client, time=period)
  table.to_csv(folder / "table.csv", index=False)
  for i in range(96):
    image = folder.joinpath("images", f"client{client[i]}", f"class{label[i]}")
    image.mkdir(parents=True, exist_ok=True)
    pixels = generator.integers(0, 256, (9, 10, 3), "uint8")
    Image.fromarray(pixels).save(image / f"{i}.png")
  posts = [
    {
      "title": f"{'abcdefghij'[i // 8]} {i % 3}",
      "subreddit": ("news", "movies")[i % 2],
      # In half-years from 2014.
      "created_utc": 1388620800 + i // 8 * 15778800,
    }
    for i in range(80)
  ]
  text = "".join(f"{json.dumps(post)}\n" for post in posts)
  (folder / "reddit" / "posts.jsonl").write_text(text, encoding="utf-8")


def runs(root: pathlib.Path) -> dict[str, tuple[str, str]]:
  """Returns binary and flags by name of the run; ">" before those to resume."""
  parser = configparser.ConfigParser(
    interpolation=configparser.ExtendedInterpolation(), delimiters=("=",)
  )
  parser.read(_RUNS, encoding="utf-8")
  short, algorithms = parser["short"], parser["presets"]
  found = {}
  for path in sorted((root / "experiments" / "presets").rglob("*.flags")):
    binary, name = path.parent.name, f"{path.parent.name}/{path.stem}"
    preset = dict(re.findall("^--(.*?)=(.*)$", path.read_text(), re.MULTILINE))
    flags = f"--flagfile={path} {short[binary]} {short.get(name, '')}"
    for flag in sorted(_LISTS & preset.keys()):
      flags += f" --{flag}={preset[flag].split(',')[-1]}"
    if "algorithm" in preset:
      found[name] = binary, f"{flags} --save_model --save_clients=all"
      continue
    for line in algorithms.get(name, algorithms[binary]).split():
      found[f"{name} {line}"] = binary, f"{flags} --algorithm={line}"
  for binary in sorted(algorithms.keys() & set(parser)):
    for name, flags in parser[binary].items():
      found[name] = binary, f"{short[binary]} {flags}"
  always = parser["every run"]["flags"]
  return {
    name: (binary, f"{always} {flags}")
    for name, (binary, flags) in found.items()
  }


def _sha(value: Any) -> str:
  if not isinstance(value, bytes):
    value = json.dumps(value, sort_keys=True).encode()
  return hashlib.sha256(value).hexdigest()


def _renamed(value: Any) -> Any:
  """Returns JSON with the new names of the keys of its objects."""
  if isinstance(value, list):
    return [_renamed(item) for item in value]
  if not isinstance(value, Mapping):
    return value
  names = {name: _RENAMED.get(name, name) for name in value}
  return {names[k]: _renamed(v) for k, v in value.items() if names[k]}


def _weights(folder: pathlib.Path, algorithm: str) -> list[str]:
  """Returns the digests of the weights of the runs of an algorithm."""
  import numpy as np

  found = []
  for path in (folder / "model" / algorithm).rglob("*.npz"):
    with np.load(path) as arrays:
      found.append(
        _sha(
          [
            (k, str(v.dtype), v.shape, _sha(v.tobytes()))
            for k, v in sorted(arrays.items())
          ]
        )
      )
  if found:
    return sorted(found)
  for path in (folder / "checkpoints").glob(f"{algorithm}-*.sqlite"):
    with contextlib.closing(sqlite3.connect(path)) as connection:
      states = connection.execute(
        "SELECT owner, part, content, MAX(step) FROM states"
        " GROUP BY owner, part ORDER BY owner, part"
      )
      found.append(_sha([(row[0], row[1], _sha(row[2])) for row in states]))
  return sorted(found)


def digests(folder: pathlib.Path) -> dict[str, dict[str, str]]:
  """Returns the digests of an output folder by algorithm and part."""
  with open(folder / "metrics.csv", encoding="utf-8") as file:
    rows = [_renamed(row) for row in csv.DictReader(file)]
  summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
  parts: dict[str, dict[str, list]] = {}
  for part, entries in (
    ("metrics", rows),
    ("summary", _renamed(summary["runs"])),
  ):
    for entry in entries:
      lists = parts.setdefault(entry["algorithm"], {k: [] for k in _PARTS})
      lists[part].append(entry)
  for algorithm, lists in parts.items():
    lists["weights"] = _weights(folder, algorithm)
  return {
    algorithm: {part: _sha(value) for part, value in lists.items()}
    for algorithm, lists in parts.items()
  }


def _command(binary: str, arguments: list[str]) -> tuple[int, str]:
  """Runs a binary in this process; returns its exit code and its errors."""
  from absl import flags
  from absl.testing import flagsaver

  errors = io.StringIO()
  with (
    flagsaver.flagsaver(),
    contextlib.redirect_stdout(io.StringIO()),
    contextlib.redirect_stderr(errors),
  ):
    flags.FLAGS.unparse_flags()
    sys.argv = [f"{binary}.py", *arguments]
    try:
      runpy.run_module(f"experiments.{binary}", run_name="__main__")
      code = 0
    except SystemExit as end:
      code = end.code or 0
  return code, errors.getvalue()


def _with_old_flags(arguments: list[str]) -> list[str]:
  """Returns arguments as a commit before changes of names takes them."""
  found = []
  for argument in arguments:
    name, *value = argument.split("=", 1)
    name = _OLD_FLAGS.get(name, name)
    found.append(_OLD_FLAGS.get(argument, "=".join([name, *value])))
  return found


def _run(binary: str, commands: list[str], folder: pathlib.Path) -> dict:
  """Runs commands; returns the digests, or an error as `{"error": line}`."""
  arguments = [f"--output_dir={folder / 'run'}"]
  if binary in _CACHING:
    arguments.append(f"--cache_dir={folder / 'cache'}")
  for place, flags in enumerate(commands):
    arguments += flags.replace("{data}", str(folder / "data")).split()
    arguments += ["--resume"] * (place > 0)
    code, errors = _command(binary, arguments)
    if code == 2 and arguments != (old := _with_old_flags(arguments)):
      code, errors = _command(binary, old)
    if code in (130, 143):
      sys.exit(code)
    if code:
      return {"error": errors.strip().splitlines()[-1]}
  return digests(folder / "run")


def work(root: pathlib.Path, folder: pathlib.Path, only: str) -> None:
  """Runs what no other process has begun; digests go to files in `folder`."""
  import psutil
  from absl import app
  from matplotlib.backends import backend_agg
  from matplotlib.backends import backend_pdf

  import tff_shift

  if root not in pathlib.Path(tff_shift.__file__).parents:
    sys.exit(f"{tff_shift.__file__} is not in {root}")
  # Else each run would define them, and lose them at its end.
  app.define_help_flags()
  backend_agg.FigureCanvasAgg.print_png = lambda *_, **__: None
  backend_pdf.FigureCanvasPdf.print_pdf = lambda *_, **__: None
  for name, (binary, flags) in runs(root).items():
    place = folder / _sha(name.encode())[:12]
    if not re.search(only, name):
      continue
    try:
      place.mkdir()
    except FileExistsError:
      continue
    start = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
      results = pathlib.Path(temporary)
      if "{data}" in flags:
        _write_data(results / "data")
      try:
        found = _run(binary, flags.split(" > "), results)
      except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    text = json.dumps({"name": name, "digests": found})
    (place / "digests.json").write_text(text, encoding="utf-8")
    seconds = time.process_time() - start
    print(f"{seconds:6.1f} CPU s {name} {found.get('error', '')}", flush=True)
    if psutil.Process().memory_info().rss > _MAX_BYTES:
      # Graphs stay in memory.
      os.execv(sys.executable, sys.orig_argv)


def _work_all(
  root: pathlib.Path, folder: pathlib.Path, only: str, num: int
) -> dict:
  """Runs a tree in processes; returns the digests by name of the run."""
  folder.mkdir(parents=True, exist_ok=True)
  for place in folder.iterdir():
    # It was interrupted.
    if not (place / "digests.json").exists():
      shutil.rmtree(place)
  settings = {"PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
  # One core for a process: both finish earlier.
  settings |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
  command = [
    sys.executable,
    "-P",
    __file__,
    f"--work={folder}",
    f"--only={only}",
  ]
  processes = [
    subprocess.Popen(command, cwd=root, env=os.environ | settings)
    for _ in range(num)
  ]
  try:
    codes = [process.wait() for process in processes]
  finally:
    for process in processes:
      process.terminate()
      process.wait()
  if any(codes):
    sys.exit(f"a process of {root} ended with {codes}")
  records = [
    json.loads(path.read_text()) for path in folder.glob("*/digests.json")
  ]
  return {
    record["name"]: record["digests"]
    for record in records
    if re.search(only, record["name"])
  }


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[pathlib.Path]:
  git = ["git", "-C", str(_ROOT), "worktree"]
  with tempfile.TemporaryDirectory() as name:
    tree = pathlib.Path(name).resolve() / "tree"
    subprocess.run(
      [*git, "add", "--quiet", "--detach", str(tree), commit], check=True
    )
    try:
      yield tree
    finally:
      subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(
  old: Mapping, new: Mapping, changed: list[dict]
) -> tuple[list[str], bool]:
  """Returns the lines of the table, and whether all is equal or listed."""
  lines, is_equal = [], True
  listed = {(e["name"], e["part"], e["old"], e["new"]) for e in changed}
  for name in sorted({*old, *new}):
    pair = [each.get(name, {"error": "not run"}) for each in (old, new)]
    errors = [each.get("error", "") for each in pair]
    if any(errors):
      absent = all(" is not in " in error for error in errors)
      is_equal &= absent
      lines.append(
        f"{name}: {'skipped' if absent else 'FAILED'}: {errors[1] or errors[0]}"
      )
      continue
    for algorithm in sorted({*pair[0], *pair[1]}):
      row = f"{name.split()[0]} {algorithm}"
      cells = []
      for part in _PARTS:
        shas = [each.get(algorithm, {}).get(part, "none")[:12] for each in pair]
        if shas[0] == shas[1]:
          cells.append("equal")
        elif (row, part, *shas) in listed:
          cells.append("listed")
        else:
          is_equal = False
          cells.append(f"DIFFERS {shas[0]} {shas[1]}")
      lines.append(f"{row:50} " + "".join(f"{cell:8}" for cell in cells))
  return lines, is_equal


def main() -> None:
  """Compares, or runs what one process of a comparison runs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--against", help="the other commit")
  parser.add_argument("--only", default="", help="regular expression of names")
  parser.add_argument(
    "--cache_dir", type=pathlib.Path, default=_ROOT / "runs/goldens"
  )
  parser.add_argument("--processes", type=int, default=2)
  parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
  given = parser.parse_args()
  if given.work:
    work(pathlib.Path.cwd().resolve(), given.work, given.only)
    return
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  git = ["git", "-C", str(_ROOT), "rev-parse", f"{given.against}^{{commit}}"]
  commit = subprocess.check_output(git, text=True).strip()
  start = time.monotonic()
  key = _sha(pathlib.Path(__file__).read_bytes() + _RUNS.read_bytes())[:8]
  options = given.only, given.processes
  with _checkout(commit) as tree:
    old = _work_all(
      tree, given.cache_dir.resolve() / f"{commit[:12]}-{key}", *options
    )
  with tempfile.TemporaryDirectory() as name:
    new = _work_all(_ROOT, pathlib.Path(name), *options)
  lines, is_equal = compare(old, new, json.loads(_CHANGED.read_text()))
  usage = os.times()
  print(
    "\n".join([f"{'':50} " + "".join(f"{part:8}" for part in _PARTS), *lines])
  )
  print(
    f"{'equal' if is_equal else 'NOT EQUAL'}: {commit[:12]} and this tree;"
    f" {time.monotonic() - start:.0f} s,"
    f" {usage.children_user + usage.children_system:.0f} CPU s"
  )
  sys.exit(not is_equal)


if __name__ == "__main__":
  main()
