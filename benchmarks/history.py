"""Runs the benchmarks of ratios and adds their results to history.md.

  python -m benchmarks.history
  python -m benchmarks.history --benchmarks=algorithm_cost --processes=1

Each benchmark runs in several processes, one after the other, because ratios
vary more between processes than within one. A row of `benchmarks/history.md`
has the commit, the date, the processor, the load of the machine before the
benchmark, and for each measure the median, the minimum and the maximum over
processes. What moved since the last row of the same processor is printed: a
measure whose new values are all above, or all below, the earlier ones. Of five
and five values without a change, this happens to 1 measure in 126.
"""

import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from absl import app
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FILE = pathlib.Path(__file__).with_name("history.md")

Row = dict[str, str]


class Benchmark(NamedTuple):
  """A benchmark whose output has measures that are comparable over time.

  Attributes:
    arguments: Its flags.
    measure: What a line with a measure matches, with the groups `name` and
      `value`.
  """

  arguments: Sequence[str]
  measure: str


BENCHMARKS = {
  "small_clients": Benchmark(
    ("--repetitions=5", "--norest"),
    r" *(?P<name>(evaluation of )?\d+ clients): .* ratio (?P<value>[\d.]+)",
  ),
  "round_cost": Benchmark(
    ("--repetitions=3",),
    # All ratios are to the loop in sequence.
    r" *[\d.]+ +(?P<value>[\d.]+)  (?P<name>(?!.*in sequence)\S.*)",
  ),
  "algorithm_cost": Benchmark(
    ("--repetitions=5", "--algorithms=fed_avg,fed_rep,fed_ade"),
    r"\| (?P<name>\w+) \| \d.* \| (?P<value>[\d.]+) \| [\d.]+ \|",
  ),
}


class Spread(NamedTuple):
  """The values of a measure."""

  median: float
  smallest: float
  largest: float

  def __str__(self):
    """Returns the cell of a table."""
    return f"{self.median:g} ({self.smallest:g} to {self.largest:g})"


def spread(values: Sequence[float]) -> Spread:
  """Returns the spread of some values."""
  return Spread(statistics.median(values), min(values), max(values))


def _spread_of(cell: str) -> Spread | None:
  found = re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", cell)
  return found and Spread(*map(float, found.groups()))


def measures(benchmark: Benchmark, output: str) -> dict[str, float]:
  """Returns the measures that a benchmark has printed, by name.

  Raises:
    ValueError: If there are none.
  """
  found = {}
  for line in output.splitlines():
    if match := re.fullmatch(benchmark.measure, line):
      found[match["name"]] = float(match["value"])
  if not found:
    raise ValueError(
      f"no line of the output matches {benchmark.measure!r}: {output[-500:]}"
    )
  return found


def parse(text: str) -> tuple[str, dict[str, list[Row]]]:
  """Reads a history.

  Args:
    text: The content of the file.

  Returns:
    What precedes the first table, and the rows of each benchmark, newest first.
  """
  introduction, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
  tables = {}
  for section in sections:
    name, *lines = section.splitlines()
    header, _, *rows = (
      [cell.strip() for cell in line.strip("|").split("|")]
      for line in lines
      if line.startswith("|")
    )
    tables[name] = [dict(zip(header, row, strict=True)) for row in rows]
  return introduction, tables


def render(introduction: str, tables: Mapping[str, Sequence[Row]]) -> str:
  """Writes a history; `parse` reads it."""
  sections = []
  for name, rows in tables.items():
    # A measure that is new or gone has empty cells.
    header = list(dict.fromkeys(column for row in rows for column in row))
    lines = [header, ["---"] * len(header)]
    lines += [[row.get(column, "") for column in header] for row in rows]
    command = " ".join(
      ["python", "-m", f"benchmarks.{name}", *_arguments_of(name)]
    )
    sections.append(
      f"## {name}\n\n    {command}\n\n"
      + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    )
  return introduction + "\n".join(sections)


def _arguments_of(name: str) -> Sequence[str]:
  return BENCHMARKS[name].arguments if name in BENCHMARKS else ()


def moved(row: Row, earlier: Sequence[Row]) -> list[str]:
  """Compares a row with the last one of the same processor.

  Args:
    row: The new row.
    earlier: The other rows, newest first.

  Returns:
    A line for each measure whose spreads do not overlap.
  """
  last = next(
    (each for each in earlier if each["processor"] == row["processor"]), {}
  )
  found = []
  for name, cell in row.items():
    now, then = _spread_of(cell), _spread_of(last.get(name, ""))
    if not (now and then):
      continue
    if now.smallest > then.largest or now.largest < then.smallest:
      found.append(f"{name}: {then} at {last['commit']}, now {now}")
  return found


def _processor() -> str:
  """Returns the processor's name and the number of cores."""
  found = re.search(
    r"^model name\s*: (.*)$",
    pathlib.Path("/proc/cpuinfo").read_text(),
    re.MULTILINE,
  )
  name = found[1].replace("|", "/") if found else "unknown"
  return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _commit() -> str:
  """Returns the commit, with "+" if other files than the history differ."""

  def git(*arguments):
    return subprocess.check_output(["git", *arguments], cwd=_ROOT, text=True)

  own = _FILE.relative_to(_ROOT)
  others = git("status", "--porcelain", "--", ".", f":(exclude){own}").strip()
  return git("rev-parse", "--short", "HEAD").strip() + "+" * bool(others)


def _run(name: str, processes: int) -> Row:
  """Runs a benchmark and returns its row."""
  row = {
    "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    "commit": _commit(),
    "processor": _processor(),
    "processes": str(processes),
    "load": f"{os.getloadavg()[0]:.1f}",
  }
  values = {}
  for _ in range(processes):
    output = subprocess.run(
      [sys.executable, "-m", f"benchmarks.{name}", *_arguments_of(name)],
      cwd=_ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
      check=True,
    ).stdout
    for measure, value in measures(BENCHMARKS[name], output).items():
      values.setdefault(measure, []).append(value)
  return row | {key: str(spread(each)) for key, each in values.items()}


def main(_) -> None:
  """Runs the benchmarks, writes the rows and prints what moved."""
  for name in flags.FLAGS.benchmarks:
    row = _run(name, flags.FLAGS.processes)
    # Read again for each: a row is kept if a later benchmark fails.
    introduction, tables = parse(_FILE.read_text())
    rows = tables.setdefault(name, [])
    changes = moved(row, rows)
    rows.insert(0, row)
    _FILE.write_text(render(introduction, tables))
    print(f"{name}: {row}", flush=True)
    for line in changes or ["nothing moved outside the spread"]:
      print(f"  {line}", flush=True)


if __name__ == "__main__":
  flags.DEFINE_multi_enum(
    "benchmarks", list(BENCHMARKS), list(BENCHMARKS), "The benchmarks to run."
  )
  flags.DEFINE_integer(
    "processes", 5, "Processes of each benchmark.", lower_bound=1
  )
  app.run(main)
