"""Compares the bits of short runs at another commit with those of this tree.

  python -m benchmarks.goldens --against=COMMIT
  python -m benchmarks.goldens --against=main --only='^(evolving|data)/'

Both run every preset of experiments/presets whose data are here, cut short, and
the runs of `goldens_runs.ini`: each algorithm, kind of data, aggregator,
sampler, metric, selection and resumption. For each run and algorithm the table
says whether the SHA-256 of three parts are equal:

- metrics: the rows of metrics.csv;
- weights: of the exported models where a run exports some, else of the last
  states in its checkpoints, with those of clients;
- summary: the entries in summary.json, without times.

The exit code is 1 if a run fails, or a part differs that `goldens_changed.json`
does not list: there, an entry has the name of the row, the part, the old and
the new digest as printed, and the reason. When a name changes, add it to
`_RENAMED` (columns, keys) or `_OLD_FLAGS`.

The commit is checked out into a temporary folder; this file runs both trees,
with one interpreter, by `python -m experiments.<binary>` alone. --cache_dir has
the digests of commits; this tree runs every time, as it is: change no file of
it meanwhile. Presets whose data are missing are named with the reason. TFF
draws the noise of privacy and the rounding of --aggregator=compressed without a
seed: the noise of dp is 0 here, and dp_ftrl, whose state has a drawn seed, and
compressed are not run.
"""

import argparse
import configparser
import contextlib
import csv
import hashlib
import io
import itertools
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
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CHANGED = pathlib.Path(__file__).with_name("goldens_changed.json")
_RUNS = pathlib.Path(__file__).with_name("goldens_runs.ini")
_NUM_PROCESSES = 2
# Of a process, before it starts anew.
_MAX_BYTES = 1.8e9
_PARTS = ("metrics", "weights", "summary")

# Columns of metrics.csv and keys of summary.json, old to new; new names that
# are None are left out of the comparison.
_RENAMED: dict[str, str | None] = {
  "seconds_per_round": None,
  "corruption_levels": None,
}
# Flags, or flags with a value, new to old: tried if a commit rejects the new.
_OLD_FLAGS: dict[str, str] = {}

# Of these lists in presets, the last value is run.
_LISTS = {"learning_rate", "shift", "test_distributions"}
# In the errors of presets whose data are not here.
_ABSENT = " is not in |there is no runs/"
_CACHING = ("online_adaptation", "dynamic_personalization")


def _write_data(folder: pathlib.Path) -> None:
  """Writes small data of each kind of file."""
  import numpy as np
  import pandas
  from PIL import Image

  (folder / "reddit").mkdir(parents=True)
  generator, place = np.random.default_rng(0), np.arange(240)
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
  subreddits = "AskReddit", "news", "technology", "movies", "worldnews"
  with open(folder / "reddit" / "posts.jsonl", "w", encoding="utf-8") as file:
    # Half-years from 2014 on.
    for i, half_year in itertools.product(range(20), range(10)):
      name, time_of = subreddits[i % 5], 1388620800 + half_year * 15778800
      title = f"{name} {'abcdefghij'[half_year]} {i}"
      post = {"title": title, "subreddit": name, "created_utc": time_of}
      file.write(f"{json.dumps(post)}\n")


def runs(root: pathlib.Path) -> dict[str, tuple[str, str]]:
  """Returns binary and flags by name of the run; ">" before those to resume."""
  parser = configparser.ConfigParser(
    interpolation=configparser.ExtendedInterpolation(), delimiters=("=",)
  )
  parser.read(_RUNS, encoding="utf-8")
  short, algorithms = parser["short"], parser["presets"]
  by_name = {}
  for path in sorted((root / "experiments" / "presets").rglob("*.flags")):
    binary, name = path.parent.name, f"{path.parent.name}/{path.stem}"
    preset = dict(re.findall("^--(.*?)=(.*)$", path.read_text(), re.MULTILINE))
    flags = f"--flagfile={path} {short[binary]} {short.get(name, '')}"
    for flag in sorted(_LISTS & preset.keys()):
      flags += f" --{flag}={preset[flag].split(',')[-1]}"
    if "algorithm" in preset:
      by_name[name] = binary, f"{flags} --save_model --save_clients=all"
      continue
    for line in algorithms.get(name, algorithms[binary]).split():
      by_name[f"{name} {line}"] = binary, f"{flags} --algorithm={line}"
  for binary in sorted(algorithms.keys() & set(parser)):
    for name, flags in parser[binary].items():
      by_name[name] = binary, f"{short.get(name, short[binary])} {flags}"
  always = parser["every run"]["flags"]
  return {
    name: (binary, f"{always} {flags}")
    for name, (binary, flags) in by_name.items()
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

  shas = []
  for path in (folder / "model" / algorithm).rglob("*.npz"):
    with np.load(path) as arrays:
      weights = [
        (k, v.dtype.str, v.shape, _sha(v.tobytes()))
        for k, v in sorted(arrays.items())
      ]
    shas.append(_sha(weights))
  checkpoints = (folder / "checkpoints").glob(f"{algorithm}-*.sqlite")
  for path in () if shas else checkpoints:
    with contextlib.closing(sqlite3.connect(path)) as connection:
      states = connection.execute(
        "SELECT owner, part, content, MAX(step) FROM states"
        " GROUP BY owner, part ORDER BY owner, part"
      )
      shas.append(_sha([(*row[:2], _sha(row[2])) for row in states]))
  return sorted(shas)


def digests(folder: pathlib.Path) -> dict[str, dict[str, str]]:
  """Returns the digests of an output folder by algorithm and part."""
  with open(folder / "metrics.csv", encoding="utf-8") as file:
    metrics = _renamed(list(csv.DictReader(file)))
  text = (folder / "summary.json").read_text(encoding="utf-8")
  summary = _renamed(json.loads(text)["runs"])
  return {
    name: {
      "metrics": _sha([row for row in metrics if row["algorithm"] == name]),
      "weights": _sha(_weights(folder, name)),
      "summary": _sha([run for run in summary if run["algorithm"] == name]),
    }
    for name in {entry["algorithm"] for entry in metrics + summary}
  }


def _command(binary: str, arguments: list[str]) -> tuple[int, str]:
  """Runs a binary in this process; returns its exit code and its errors."""
  from absl import flags
  from absl.testing import flagsaver

  errors = io.StringIO()
  with (
    # Takes away the flags that the binary defines, too.
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
  if code in (130, 143):
    sys.exit(code)
  return code, errors.getvalue().strip()


def _old_flag(argument: str) -> str:
  name, *value = argument.split("=", 1)
  return _OLD_FLAGS.get(
    argument, "=".join([_OLD_FLAGS.get(name, name), *value])
  )


def _run(binary: str, flags: str, folder: pathlib.Path) -> dict:
  """Runs commands; returns the digests, or an error as `{"error": line}`."""
  arguments = [f"--output_dir={folder / 'run'}"]
  if binary in _CACHING:
    arguments.append(f"--cache_dir={folder / 'cache'}")
  try:
    if "{data}" in flags:
      _write_data(folder / "data")
    for more in flags.replace("{data}", str(folder / "data")).split(" > "):
      arguments += more.split()
      code, errors = _command(binary, arguments)
      if code == 2 and (old := [*map(_old_flag, arguments)]) != arguments:
        code, errors = _command(binary, old)
      if code:
        return {"error": errors.splitlines()[-1]}
      arguments.append("--resume")
    return digests(folder / "run")
  except Exception as error:
    # The other runs go on.
    return {"error": f"{type(error).__name__}: {error}"}


def work(folder: pathlib.Path, only: str) -> None:
  """Runs what no other process has begun; digests go to files in `folder`."""
  import psutil
  from absl import app
  from matplotlib.backends import backend_agg
  from matplotlib.backends import backend_pdf

  import tff_shift

  root = pathlib.Path.cwd().resolve()
  if root not in pathlib.Path(tff_shift.__file__).parents:
    sys.exit(f"{tff_shift.__file__} is not in {root}")
  # Else each run would define them, and lose them at its end.
  app.define_help_flags()
  # Figures are laid out, but not drawn: that takes seconds.
  backend_agg.FigureCanvasAgg.print_png = lambda *_, **__: None
  backend_pdf.FigureCanvasPdf.print_pdf = lambda *_, **__: None
  for name, (binary, flags) in runs(root).items():
    place, start = folder / _sha(name.encode()), time.process_time()
    if not re.search(only, name) or place.exists():
      continue
    with contextlib.suppress(FileExistsError):
      place.mkdir()
      with tempfile.TemporaryDirectory() as output:
        results = _run(binary, flags, pathlib.Path(output))
      text = json.dumps({"name": name, "digests": results})
      (place / "digests.json").write_text(text, encoding="utf-8")
      seconds = time.process_time() - start
      print(
        f"{seconds:6.1f} CPU s {name} {results.get('error', '')}", flush=True
      )
    if psutil.Process().memory_info().rss > _MAX_BYTES:
      # Graphs stay in memory.
      os.execv(sys.executable, sys.orig_argv)


def _work_all(
  root: pathlib.Path, folder: pathlib.Path, only: str, temporary: pathlib.Path
) -> dict:
  """Runs a tree in two processes; returns the digests by name of the run."""
  folder.mkdir(parents=True, exist_ok=True)
  for place in folder.iterdir():
    if not (place / "digests.json").exists():
      # It was interrupted.
      shutil.rmtree(place)
  settings = {"PYTHONPATH": str(root), "TMPDIR": str(temporary)}
  settings |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
  command = [
    sys.executable,
    "-P",
    __file__,
    f"--work={folder}",
    f"--only={only}",
  ]
  processes = [
    subprocess.Popen(command, cwd=root, env=os.environ | settings)
    for _ in range(_NUM_PROCESSES)
  ]
  try:
    codes = [process.wait() for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  if any(codes):
    sys.exit(f"processes in {root} ended with {codes}")
  texts = [path.read_text() for path in folder.glob("*/digests.json")]
  by_name = {
    record["name"]: record["digests"] for record in map(json.loads, texts)
  }
  return {
    name: parts for name, parts in by_name.items() if re.search(only, name)
  }


def compare(
  old: Mapping, new: Mapping, changed: Iterable[Mapping]
) -> tuple[list[str], bool]:
  """Returns the lines of the table, and whether all is equal or listed."""
  lines, is_equal = (
    [f"{'':50} {' '.join(f'{part:7}' for part in _PARTS)}"],
    True,
  )
  listed = {
    tuple(entry[key] for key in ("name", "part", "old", "new"))
    for entry in changed
  }
  for name in sorted({*old, *new}):
    pair = [tree.get(name, {"error": "no such run"}) for tree in (old, new)]
    errors = [digests.get("error", "") for digests in pair]
    if any(errors):
      is_absent = all(re.search(_ABSENT, error) for error in errors)
      is_equal &= is_absent
      state = "skipped" if is_absent else "FAILED"
      lines.append(f"{name}: {state}: {' | '.join(dict.fromkeys(errors))}")
      continue
    for algorithm in sorted({*pair[0], *pair[1]}):
      row, cells = f"{name.split()[0]} {algorithm}", []
      for part in _PARTS:
        shas = [tree.get(algorithm, {}).get(part, "none")[:12] for tree in pair]
        is_listed = (row, part, *shas) in listed
        is_equal &= shas[0] == shas[1] or is_listed
        cell = "listed" if is_listed else f"DIFFERS {' '.join(shas)}"
        cells.append(f"{'equal' if shas[0] == shas[1] else cell:7}")
      lines.append(f"{row:50} {' '.join(cells)}")
  return lines, is_equal


def main() -> None:
  """Compares, or runs what one process of a comparison runs."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--against", metavar="COMMIT", help="the other commit")
  parser.add_argument("--only", default="", help="regular expression of names")
  parser.add_argument(
    "--cache_dir", type=pathlib.Path, default=_ROOT / "runs/goldens"
  )
  parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
  given = parser.parse_args()
  if given.work:
    work(given.work, given.only)
    return
  if not given.against:
    parser.error("--against is missing")
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  git, start = ["git", "-C", str(_ROOT)], time.monotonic()
  name = f"{given.against}^{{commit}}"
  commit = subprocess.check_output(
    [*git, "rev-parse", "--verify", name], text=True
  ).strip()
  version = _sha(pathlib.Path(__file__).read_bytes() + _RUNS.read_bytes())
  cached = given.cache_dir.resolve() / f"{commit[:12]}-{version[:8]}"
  with tempfile.TemporaryDirectory() as folder:
    temporary = pathlib.Path(folder).resolve()
    tree = temporary / "tree"
    try:
      subprocess.run(
        [*git, "worktree", "add", "--quiet", "--detach", str(tree), commit],
        check=True,
      )
      old = _work_all(tree, cached, given.only, temporary)
    finally:
      subprocess.run(
        [*git, "worktree", "remove", "--force", str(tree)], check=True
      )
    new = _work_all(_ROOT, temporary / "new", given.only, temporary)
  lines, is_equal = compare(old, new, json.loads(_CHANGED.read_text()))
  usage = os.times()
  print(*lines, sep="\n")
  print(
    f"{'equal' if is_equal else 'NOT EQUAL'}: {commit[:12]} and this tree;"
    f" {time.monotonic() - start:.0f} s,"
    f" {usage.children_user + usage.children_system:.0f} CPU s"
  )
  sys.exit(not is_equal)


if __name__ == "__main__":
  main()
