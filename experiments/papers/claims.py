"""Writes results/claims.md: what was measured of each claim of the papers.

  python -m experiments.papers.claims
  python -m experiments.papers.claims --check

results/claims.toml lists the claims. The values of a claim with `better` come
from the archives in results/raw. Other claims state what was found and link to
the page that has it, or state why nothing could be measured.
"""

import dataclasses
import itertools
import os.path
import pathlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from experiments.papers import binary_flags
from experiments.papers import generated_page
from experiments.papers import job as job_lib
from experiments.papers import plan_file
from experiments.papers import reductions
from experiments.papers import specification
from experiments.papers import table
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import statistics

SOURCE = "claims.toml"
PAGE = "claims.md"
_RESULTS = pathlib.Path(__file__).parents[2] / "results"

HOLDS, LEVEL, HOLDS_NOT = "holds", "level", "does not hold"
UNREACHABLE, NOT_RUN = "not reachable here", "not run"
_VERDICTS = (HOLDS, LEVEL, HOLDS_NOT, UNREACHABLE, NOT_RUN)


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """A claim of a paper.

  Attributes:
    paper: The method of the paper.
    place: Where the paper has the claim, for example "Table 1".
    text: The claim, in our words.
    archives: Names of archives, without `.tar.xz`; their cells are pooled.
    columns: Texts that the heading of a column must have. Empty: all columns.
    better: The row that the paper has ahead.
    than: The rows behind it. Empty: all other rows that the paper prints.
    measured: What was found, if no archive has it.
    verdict: The verdict then.
    page: The section of results/ with details.
  """

  paper: str
  place: str
  text: str
  archives: tuple[str, ...] = ()
  columns: tuple[str, ...] = ()
  better: str = ""
  than: tuple[str, ...] = ()
  measured: str = ""
  verdict: str = ""
  page: str = ""

  def __post_init__(self):
    if bool(self.better) == bool(self.verdict):
      raise ValueError(f"{self.text!r}: set either better or verdict")
    if bool(self.better) != bool(self.archives):
      raise ValueError(f"{self.text!r}: better and archives need each other")
    if self.verdict and self.verdict not in _VERDICTS:
      raise ValueError(
        f"{self.text!r}: verdict is {self.verdict!r}; it must be one of"
        f" {', '.join(_VERDICTS)}"
      )
    if bool(self.verdict) != bool(self.measured):
      raise ValueError(f"{self.text!r}: verdict and measured need each other")


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The content of claims.toml.

  Attributes:
    tables: The name or path of the table of each archive.
    claims: The claims.
  """

  tables: dict[str, str]
  claims: Annotated[list[Claim], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archive:
  """An unpacked archive.

  Attributes:
    made: The contents of its page.
    command: The command that measures it again.
  """

  made: contents_lib.Contents
  command: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """How far one method is ahead of another in a column.

  Attributes:
    column: The column.
    worse: The other method.
    paper: The difference in the paper. None: it does not print both.
    differences: Our differences by seed.
    interval: Their 95 % confidence interval. None for fewer than two seeds.
  """

  column: contents_lib.Column
  worse: str
  paper: float | None
  differences: Sequence[float]
  interval: tuple[float, float] | None

  @property
  def mean(self) -> float:
    """The mean over seeds."""
    return float(np.mean(self.differences))

  @property
  def side(self) -> int:
    """1: ahead; -1: behind; 0: level, within a standard deviation of 0."""
    spread = 0.0
    if len(self.differences) > 1:
      spread = float(np.std(self.differences, ddof=1))
    return int(np.sign(self.mean)) if abs(self.mean) > spread else 0


def unpack(name: str, of: str, folder: pathlib.Path) -> Archive:
  """Returns the contents of an archive.

  Args:
    name: The name of the archive.
    of: Its table.
    folder: An empty folder for its files.
  """
  shutil.unpack_archive(_RESULTS / "raw" / f"{name}.tar.xz", folder)
  return read_folder(name, of, folder)


def read_folder(name: str, of: str, folder: pathlib.Path) -> Archive:
  """Returns the contents of an unpacked archive or of a reproduction.

  Args:
    name: Its name.
    of: Its table.
    folder: Its folder.

  Raises:
    ValueError: If the folder has no plan.
  """
  # No data sets but those of the runs: the same contents on every machine.
  wanted = table.Table(of, runs_in=[folder], data_dir=str(folder / "no data"))
  plan = plan_file.read(folder)
  if plan is None:
    raise ValueError(f"{name}: there is no {plan_file.NAME}")
  more_flags = binary_flags.parsed(list(plan.more_flags), wanted.of.binary)
  planned = wanted.planned(reductions.Reductions(plan.reduce), more_flags)
  made = wanted.contents(plan, planned, folder, "", {})
  command = ["python", "-m", "experiments.reproduce", of]
  if plan.reduce:
    reduce = ",".join(f"{key}={value}" for key, value in plan.reduce.items())
    command.append(f"--reduce={reduce}")
  else:
    command.append("--full")
  if plan.more_flags:
    command.append(f"--flags={shlex.join(plan.more_flags)}")
  rows = {cell.row for cell in made.cells if cell.by_seed}
  methods = dict.fromkeys(
    each.wanted.method for each in planned if each.row in rows
  )
  if columns := _columns(wanted, folder):
    command.append(f"--columns={columns}")
  command.append(f"--only={','.join(methods)}")
  command.append(f"--output_dir=runs/{name}")
  return Archive(made=made, command=shlex.join(command))


def _columns(wanted: table.Table, folder: pathlib.Path) -> str:
  """Returns the text that selects the measured columns; "" for all columns."""
  # Also of data sets that are missing on this machine.
  planned = job_lib.plan(
    wanted.of, reductions.Reductions(), has_runs=lambda dataset: True
  )
  columns = {cell.job.folder.partition("/")[0] for cell in planned if cell.job}
  measured = sorted({path.parent.parent.name for path in folder.glob("*/*/*")})
  others = columns - set(measured)
  common = os.path.commonprefix(measured)
  if not others:
    return ""
  if common and not any(common in name for name in others):
    return common
  return ",".join(measured)


def pairs(claim: Claim, archives: Mapping[str, Archive]) -> list[Pair]:
  """Returns what was measured of a claim.

  Args:
    claim: A claim with `better`.
    archives: The archives by name.

  Returns:
    A pair for each column and other method with common seeds.

  Raises:
    ValueError: If a row that the claim names has no value.
  """
  cells: dict[tuple[str, ...], dict[str, contents_lib.Cell]] = {}
  columns = {}
  for name in claim.archives:
    made = archives[name].made
    for column in made.columns:
      shown = " ".join(column.heading)
      if not all(text in shown for text in claim.columns):
        continue
      columns[column.heading] = column
      of_column = cells.setdefault(column.heading, {})
      for cell in made.cells:
        if cell.column == column.heading and cell.by_seed:
          of_column.setdefault(cell.row, cell)
  found = []
  for heading, of_column in cells.items():
    better = of_column.get(claim.better)
    if better is None:
      continue
    others = claim.than or [
      row
      for row, cell in of_column.items()
      if cell.paper and row != claim.better
    ]
    for row in others:
      if row in of_column:
        found.append(_pair(columns[heading], better, of_column[row]))
  absent = set(claim.than) - {each.worse for each in found}
  if absent or not found:
    raise ValueError(
      f"{claim.text!r}: no common column of {claim.better} and"
      f" {', '.join(sorted(absent)) or 'another row'} in"
      f" {', '.join(claim.archives)}"
    )
  return found


def _pair(
  column: contents_lib.Column,
  better: contents_lib.Cell,
  worse: contents_lib.Cell,
) -> Pair:
  sign = 1 if column.higher_is_better else -1
  paper = None
  if better.paper and worse.paper:
    paper = sign * (better.paper.mean - worse.paper.mean)
  seeds = sorted(better.by_seed.keys() & worse.by_seed.keys())
  return Pair(
    column=column,
    worse=worse.row,
    paper=paper,
    differences=[
      sign * (better.by_seed[seed] - worse.by_seed[seed]) for seed in seeds
    ],
    interval=statistics.paired_interval(column, better, worse),
  )


def _number(value: float) -> str:
  return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _range(values: Sequence[float]) -> str:
  low, high = (_number(value) for value in (min(values), max(values)))
  return low if low == high else f"{low} to {high}"


def verdict_of(found: Sequence[Pair]) -> str:
  """Returns whether a claim about all pairs holds."""
  sides = [each.side for each in found]
  if -1 in sides:
    return HOLDS_NOT
  return HOLDS if sides.count(1) > sides.count(0) else LEVEL


def describe(found: Sequence[Pair]) -> tuple[str, str, str, str]:
  """Returns the paper's lead, ours, the verdict and its confidence."""
  papers = [each.paper for each in found if each.paper is not None]
  sides = [each.side for each in found]
  nearest = min(found, key=lambda each: each.mean)
  ours = _range([each.mean for each in found])
  if len(found) > 1:
    counts = [
      f"{sides.count(side)} {word}"
      for side, word in ((1, "ahead"), (0, "level"), (-1, "behind"))
      if side in sides
    ]
    ours += f"; {', '.join(counts)}"
  if -1 in sides:
    ours += f"; least against {nearest.worse}"
    ours += f" ({', '.join(nearest.column.heading)})"
  numbers = sorted({len(each.differences) for each in found})
  confidence = f"{' or '.join(map(str, numbers))} seeds"
  intervals = [each.interval for each in found if each.interval]
  if intervals:
    certain = sum(low > 0 or high < 0 for low, high in intervals)
    reach = np.median([(high - low) / 2 for low, high in intervals])
    confidence += f"; certain: {certain} of {len(found)}; visible from"
    confidence += f" {reach:.1f}"
  return (
    _range(papers) if papers else "",
    ours,
    verdict_of(found),
    confidence,
  )


def _link(page: str) -> str:
  return f"[{page.partition('#')[0].removesuffix('.md')}]({page})"


def _rows(
  claims: Sequence[Claim], archives: Mapping[str, Archive]
) -> Iterator[list[str]]:
  for claim in claims:
    if claim.better:
      paper, ours, verdict, confidence = describe(pairs(claim, archives))
    else:
      paper, confidence = "", ""
      ours, verdict = claim.measured, claim.verdict
    source = [f"`{name}`" for name in claim.archives]
    source += [_link(claim.page)] if claim.page else []
    yield [
      claim.text,
      claim.place,
      paper,
      ours,
      f"**{verdict}**",
      confidence,
      ", ".join(source),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [head, ["---"] * len(head), *rows]
  return "".join(
    f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n"
    for line in lines
  )


_HEAD = (
  "claim", "place", "the paper's lead", "measured", "verdict", "confidence",
  "from",
)  # fmt: skip

_INTRODUCTION = """\
# The papers' claims, one by one

{summary}

A lead is the difference to another method in the unit of the column, positive
if the method of the claim is better; it is a range if a claim is about several
methods or columns. Two methods are level if the mean of their difference is
within its standard deviation over seeds. A claim holds if the method is
behind nowhere and ahead in most pairs. *Certain* is a difference whose 95 %
confidence interval over common seeds excludes 0, for this pair alone; *visible
from* is the median half width of these intervals: smaller differences cannot be
seen with these seeds. Claims without a lead were measured otherwise, as the
linked section says. Most runs are shorter and smaller than the paper's; the
linked sections say how.

This page is written by `python -m experiments.papers.claims` from
[claims.toml](claims.toml) and the archives in `raw/`.
"""


def page(source: Source, folder: pathlib.Path) -> str:
  """Returns the page.

  Args:
    source: The claims.
    folder: An empty folder for the files of the archives.
  """
  for binary in specification.BINARIES:
    binary_flags.of(binary)
  archives = {
    name: unpack(name, of, folder / name) for name, of in source.tables.items()
  }
  sections, verdicts = [], []
  for paper, claims in itertools.groupby(source.claims, lambda c: c.paper):
    rows = list(_rows(list(claims), archives))
    verdicts += [row[4].strip("*") for row in rows]
    sections += [f"## {paper}\n", _table(_HEAD, rows)]
  summary = (
    f"Of {len(verdicts)} claims {verdicts.count(HOLDS)} hold and"
    f" {verdicts.count(HOLDS_NOT)} do not. In {verdicts.count(LEVEL)} the"
    f" methods are level. {verdicts.count(UNREACHABLE)} are not reachable here,"
    f" {verdicts.count(NOT_RUN)} not run."
  )
  sections += [
    "## The archives\n",
    _table(
      ("archive", "date", "machine", "command"),
      [
        [f"`{name}`", each.made.date, each.made.machine, f"`{each.command}`"]
        for name, each in archives.items()
      ],
    ),
  ]
  text = _INTRODUCTION.format(summary=summary) + "\n" + "\n".join(sections)
  return text.rstrip("\n") + "\n"


def read(path: pathlib.Path) -> Source:
  """Reads claims.toml.

  Raises:
    ValueError: If it is wrong.
  """
  try:
    return msgspec.toml.decode(path.read_bytes(), type=Source)
  except msgspec.DecodeError as error:
    raise ValueError(f"{path}: {error}") from error


def text() -> str:
  """Returns the up-to-date page."""
  source = read(_RESULTS / SOURCE)
  with tempfile.TemporaryDirectory(prefix="tff-shift-") as folder:
    return page(source, pathlib.Path(folder))


def main(arguments: Sequence[str]) -> int:
  """Writes or checks the page; see `generated_page.run`."""
  return generated_page.run(_RESULTS / PAGE, text, arguments)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
