"""Writes the tables of the pages in results/ from the archives in results/raw.

  python -m experiments.papers.result_tables
  python -m experiments.papers.result_tables --check

Two comments of a page enclose a table, which this program writes:

    <!-- table: archive=fed_evolve_3_circle of=fed_evolve/3 -->
    <!-- end of table -->

The fields of the first comment are:

    archive   names in results/raw; of several, the first that has a cell
    of        the table of the papers that the archives reproduce
    by        of run folders: a setting, or `round`, that columns differ in
    metrics   of run folders and JSON: the metrics to show
    folders   of run folders: the names of those to show; a row is a folder
    columns   texts, one of which a column's heading must contain
    without   rows to leave out, because their settings are others
    at        `budget`: the methods at equal budget, see `budget_curves`

Without `of` an archive has run folders, or is a JSON file.
"""

import dataclasses
import functools
import json
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from experiments.papers import binary_flags
from experiments.papers import budget_curves
from experiments.papers import claims
from experiments.papers import generated_page
from experiments.papers import plan_file
from experiments.papers import specification
from tff_shift.reporting import read_run
from tff_shift.reporting import run_folders
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics
from tff_shift.reporting.pages import text_tables

_RESULTS = pathlib.Path(__file__).parents[2] / "results"
_MARKED = re.compile(
  r"(?P<start><!-- table: (?P<fields>[^>]+) -->\n)"
  r"(?P<table>.*?)"
  r"(?P<end>^<!-- end of table -->\n)",
  re.MULTILINE | re.DOTALL,
)
_FIELDS = (
  "archive",
  "of",
  "by",
  "metrics",
  "folders",
  "columns",
  "without",
  "at",
)
_NAMES = {
  "multi_period_variance": "MPV",
  "multi_period_variance_below": "MPV below VACC",
  "low_accuracy_share": "LAT",
  "validation_accuracy": "VACC",
}
_LOWER_IS_BETTER = (
  *("MPV", "MPV below VACC", "LAT"),
  *("delay", "missed percent", "false alarm percent", "ms per period"),
)
_WIDTH = 88
_BY_COLUMN = "by column"
# Fewer methods have no order worth a line.
_FEWEST_ORDERED = 5
# More commands than these are for the page to summarize.
_MOST_COMMANDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """What an archive has.

  Attributes:
    columns: The columns.
    cells: The cells with values or a paper's value.
    commands: The commands that measure it again; empty if it has none.
    about: Date, machine and commit; "" if it has none.
    differences: The settings that differ from the paper's.
    made: The contents of the page of a reproduction.
  """

  columns: Sequence[contents_lib.Column]
  cells: Sequence[contents_lib.Cell]
  commands: Sequence[str] = ()
  about: str = ""
  differences: Sequence[str] = ()
  made: contents_lib.Contents | None = None


def _words(name: str) -> str:
  return _NAMES.get(name, name.replace("_", " "))


def _column(*heading: str) -> contents_lib.Column:
  metric = heading[-1]
  return contents_lib.Column(
    heading=heading,
    metric=metric,
    higher_is_better=metric not in _LOWER_IS_BETTER,
  )


def _about(date: str, machine: str, folder: pathlib.Path) -> str:
  commits = {
    (json.loads(path.read_text(encoding="utf-8"))["git_commit"] or "")[:8]
    for path in folder.rglob("config.json")
  }
  known = sorted(commits - {""})
  commit = f"commit {', '.join(known)}" if known else "commit not recorded"
  return "; ".join([*filter(None, (date, machine)), commit])


def _reproduction(name: str, of: str, folder: pathlib.Path) -> Source:
  """Reads the archive of a table of the papers."""
  archive = claims.unpack(name, of, folder)
  made = archive.made
  differences = [
    f"{setting.name} {setting.ours}"
    + f" ({setting.paper})" * bool(setting.paper)
    for setting in made.protocol
    if setting.is_reduced or (setting.paper and setting.paper != setting.ours)
  ]
  return Source(
    columns=made.columns,
    cells=made.cells,
    commands=[archive.command],
    about=_about(made.date, made.machine, folder),
    differences=differences,
    made=made,
  )


def _run_folders(
  name: str, fields: Mapping[str, str], folder: pathlib.Path
) -> Source:
  """Reads an archive of run folders."""
  shutil.unpack_archive(_RESULTS / "raw" / f"{name}.tar.xz", folder)
  by_place: dict[tuple, dict[int, float]] = {}
  runs, rows = [], {}
  of_folders = fields["folders"].split(",") if "folders" in fields else []
  for path in sorted(folder.rglob("summary.json")):
    if of_folders and path.parent.name not in of_folders:
      continue
    run = read_run.read(path.parent)
    runs.append(run)
    for entry in run.summary:
      row = path.parent.name if of_folders else entry.algorithm
      rows.setdefault(row)
      for metric in fields["metrics"].split(","):
        for heading, values in _values(run, entry, fields.get("by"), metric):
          by_place.setdefault((row, heading), {}).update(values)
  starts = [run.config.start_time[:10] for run in runs]
  machines = dict.fromkeys(run.config.machine for run in runs)
  commands = dict.fromkeys(
    re.sub(r" --output_dir=\S+", "", run.config.command_line) for run in runs
  )
  return Source(
    columns=[_column(*heading) for heading in _headings(by_place)],
    cells=[
      contents_lib.Cell(row=row, column=heading, by_seed=values)
      for (row, heading), values in by_place.items()
    ],
    # Those of a reproduction are jobs of one command.
    commands=list(commands)
    if len(commands) <= _MOST_COMMANDS and plan_file.read(folder) is None
    else [],
    about=_about(max(starts), ", ".join(machines), folder),
  )


def _headings(places) -> list[tuple[str, ...]]:
  return list(dict.fromkeys(heading for _, heading in places))


def _values(run, entry, by: str | None, metric: str) -> Iterator[tuple]:
  """Yields pairs of a column's heading and the values by seed."""
  if by == "round":
    _, curves = run_folders.curves(run.path, run.rows, entry, metric)
    for seed, points in curves.items():
      for step, value in points:
        yield (f"{step:g} rounds", _words(metric)), {seed: value}
  elif metric in entry.metrics:
    values = dict(zip(run.seeds, entry.metrics[metric].seeds, strict=True))
    outer = [str(entry.setting[by])] if by else []
    yield (*outer, _words(metric)), values


def _json(name: str, fields: Mapping[str, str]) -> Source:
  """Reads a JSON file, of one of the three forms that are there."""
  path = _RESULTS / "raw" / name
  content = json.loads(path.read_text(encoding="utf-8"))
  metrics = fields["metrics"].split(",")
  by_place: dict[tuple, dict[int, float]] = {}

  def add(row, heading, seed, value):
    by_place.setdefault((row, heading), {})[seed] = float(value)

  if isinstance(content, list):
    for record in content:
      outer = f"Dirichlet {record['dirichlet']:g}"
      for metric in metrics:
        heading = (outer, _words(metric))
        add(record["method"], heading, record["seed"], record[metric])
  else:
    for outer, values in content.items():
      if isinstance(values, Mapping):
        for metric in metrics:
          for seed, value in enumerate(values[metric]):
            add(outer, (_words(metric),), seed, value)
      else:
        for seed, rows in enumerate(values):
          for row, by_metric in rows.items():
            for metric in metrics:
              if by_metric.get(metric) is not None:
                heading = (outer, _words(metric))
                add(row, heading, seed, by_metric[metric])
  return Source(
    columns=[_column(*heading) for heading in _headings(by_place)],
    cells=[
      contents_lib.Cell(row=row, column=heading, by_seed=values)
      for (row, heading), values in by_place.items()
    ],
  )


def _source(fields: Mapping[str, str], name: str) -> Source:
  if name.endswith(".json"):
    return _json(name, fields)
  with tempfile.TemporaryDirectory(prefix="tff-shift-") as temporary:
    folder = pathlib.Path(temporary) / name
    if "of" in fields:
      return _reproduction(name, fields["of"], folder)
    return _run_folders(name, fields, folder)


def _fields(text: str) -> dict[str, str]:
  """Returns the fields of a comment.

  Raises:
    ValueError: If a field is unknown, or the archive is missing.
  """
  fields = dict(part.partition("=")[::2] for part in shlex.split(text))
  wrong = [name for name in fields if name not in _FIELDS]
  if wrong or not fields.get("archive"):
    raise ValueError(
      f"table: {text}: a table has an archive, and of its fields"
      f" {', '.join(_FIELDS)} any"
    )
  return fields


def _value(cell: contents_lib.Cell | None, column) -> str:
  if cell is None or not cell.by_seed:
    return shown.NOTHING
  if column.metric == "found":
    return f"{sum(cell.by_seed.values()):g} of {len(cell.by_seed)}"
  return shown.with_spread(
    statistics.mean(cell), statistics.spread(cell), column.unit, None
  )


def _paper(cell: contents_lib.Cell | None, column) -> str:
  if cell is None or cell.paper is None:
    return shown.NOTHING
  return shown.with_spread(
    cell.paper.mean, cell.paper.spread, column.unit, None
  )


def _selected(cells: Sequence[contents_lib.Cell]) -> str:
  """Returns the selected setting of a row."""
  settings = {
    ", ".join(f"{_words(name)} {value}" for name, value in run.chosen.items())
    for run in (cell.run for cell in cells)
    if run is not None
  }
  if len(settings) > 1:
    return _BY_COLUMN
  return "".join(settings)


def _is_best(cell, column, cells) -> bool:
  values = [
    statistics.mean(candidate)
    for candidate in cells
    if candidate.column == column.heading and len(candidate.by_seed) > 1
  ]
  best = (max if column.higher_is_better else min)(values, default=None)
  return (
    cell is not None
    and len(cell.by_seed) > 1
    and len(values) > 1
    and statistics.mean(cell) == best
    and column.metric != "found"
  )


def _common(columns: Sequence[contents_lib.Column]) -> list[int]:
  """Returns the places at which all headings are equal, but for the last."""
  shortest = min(len(column.heading) for column in columns)
  return [
    place
    for place in range(shortest)
    if len({column.heading[place] for column in columns}) == 1
    and (len(columns) > 1 or place < shortest - 1)
  ]


def _grid(columns, cells) -> tuple[list[str], list[list[str]], str]:
  """Returns head, rows and the common part of the headings of a table."""
  places = {(cell.row, cell.column): cell for cell in cells}
  rows = list(dict.fromkeys(cell.row for cell in cells if cell.by_seed))
  columns = [
    column
    for column in columns
    if any(places.get((row, column.heading)) for row in rows)
  ]
  common = _common(columns)
  names = [
    ", ".join(
      part for place, part in enumerate(column.heading) if place not in common
    )
    for column in columns
  ]
  about = ", ".join(columns[0].heading[place] for place in common)

  def pair(row, column, has_paper):
    cell = places.get((row, column.heading))
    value = text_tables.escape_markdown(_value(cell, column))
    if _is_best(cell, column, cells):
      value = f"**{value}**"
    return [value, _paper(cell, column)] if has_paper else [value]

  def papers(them):
    return any(places.get(place) and places[place].paper for place in them)

  # A wide table is turned: a line per column.
  if len(columns) > len(rows) + 2:
    with_paper = {
      row: papers((row, column.heading) for column in columns) for row in rows
    }
    head = [""]
    for row in rows:
      head += [row, "paper"] if with_paper[row] else [row]
    body = [
      [name, *(x for row in rows for x in pair(row, column, with_paper[row]))]
      for name, column in zip(names, columns, strict=True)
    ]
    return head, body, about
  selected = {
    row: _selected([cell for cell in cells if cell.row == row]) for row in rows
  }
  settings = set(selected.values())
  with_selected = len(settings) > 1 and bool(settings - {"", _BY_COLUMN})
  has_paper = [
    papers((row, column.heading) for row in rows) for column in columns
  ]
  head = ["method", *(["selected"] * with_selected)]
  for name, is_shown in zip(names, has_paper, strict=True):
    head += [name, "paper"] if is_shown else [name]
  body = [
    [
      text_tables.escape_markdown(row),
      *([selected[row]] * with_selected),
      *(
        x
        for column, is_shown in zip(columns, has_paper, strict=True)
        for x in pair(row, column, is_shown)
      ),
    ]
    for row in rows
  ]
  if len(settings) == 1 and settings != {""}:
    about = "; ".join(filter(None, [about, f"selected: {settings.pop()}"]))
  return head, body, about


def _block(command: str) -> str:
  """Returns a command as an indented block."""
  lines = ["    "]
  for word in map(shlex.quote, shlex.split(command)):
    if lines[-1].strip() and len(lines[-1]) + len(word) > _WIDTH:
      lines.append("      ")
    lines[-1] += f"{word} "
  return " \\\n".join(line.rstrip() for line in lines)


def markdown(fields: Mapping[str, str]) -> str:
  """Returns a table with its commands, date, machine and settings.

  Args:
    fields: The fields of its comment.

  Raises:
    OSError: If there is no such archive.
    ValueError: If an archive does not fit the fields.
  """
  names = fields["archive"].split(",")
  sources = [_source(fields, name) for name in names]
  if "at" in fields:
    return _at_budget(names[0], sources[0])
  wanted = fields.get("columns", "").split(",")
  measured = {
    cell.column for source in sources for cell in source.cells if cell.by_seed
  }
  columns = {
    column.heading: column
    for source in sources
    for column in source.columns
    if column.heading in measured
    and any(text in " ".join(column.heading) for text in wanted)
  }
  without = fields.get("without", "").split(",")
  cells: dict[tuple, contents_lib.Cell] = {}
  for source in sources:
    for cell in source.cells:
      place = (cell.row, cell.column)
      known = cells.get(place)
      if cell.column not in columns or cell.row in without:
        continue
      if known is None or not known.by_seed:
        cells[place] = cell
  chosen = list(cells.values())
  if not any(cell.by_seed for cell in chosen):
    raise ValueError(f"{fields['archive']}: no cell fits the fields")
  head, body, common = _grid(list(columns.values()), chosen)
  parts = [
    "\n".join(_block(x) for source in sources for x in source.commands),
    _caption(names, sources, chosen, common),
    text_tables.markdown_table(head, body),
  ]
  is_ordered = len({cell.row for cell in chosen if cell.by_seed}) >= (
    _FEWEST_ORDERED
  )
  if is_ordered and len(sources) == 1 and sources[0].made is not None:
    compared = dataclasses.replace(
      sources[0].made, columns=list(columns.values()), cells=chosen
    )
    if tally := shown.tally(statistics.orderings(compared)):
      parts.append(f"Orderings: {tally}.")
  return "\n\n".join(filter(None, parts)) + "\n"


def _at_budget(name: str, source: Source) -> str:
  """Returns who is ahead from which budget on, and all at the common one."""
  text = budget_curves.page(budget_curves.of_table(source.made))
  caption = f"{source.about}; `raw/{name}.tar.xz`.\n\n"
  return caption + re.sub("^## .*\n\n", "", text, flags=re.MULTILINE)


def _caption(names, sources, cells, common) -> str:
  seeds = sorted({seed for cell in cells for seed in cell.by_seed})
  about = dict.fromkeys(source.about for source in sources if source.about)
  absent = dict.fromkeys(cell.row for cell in cells if not cell.by_seed)
  measured = {cell.row for cell in cells if cell.by_seed}
  lines = [
    f"{common[:1].upper()}{common[1:]}." * bool(common),
    *(f"{text}." for text in about),
    f"Seeds {', '.join(map(str, seeds))};",
    ", ".join(
      f"`raw/{name}{'' if name.endswith('.json') else '.tar.xz'}`"
      for name in names
    )
    + ".",
  ]
  differences = dict.fromkeys(
    x for source in sources for x in source.differences
  )
  if differences:
    lines.append(f"Settings (the paper's): {'; '.join(differences)}.")
  not_run = [row for row in absent if row not in measured]
  if not_run and len(not_run) < len(measured):
    lines.append(f"Not run: {', '.join(not_run)}.")
  text = " ".join(filter(None, lines))
  text = text.replace("<", "&lt;").replace("*", "\\*")
  return textwrap.fill(
    text, _WIDTH, break_long_words=False, break_on_hyphens=False
  )


def page(path: pathlib.Path) -> str:
  """Returns a page with up-to-date tables.

  Raises:
    ValueError: If a comment is wrong or does not end.
  """
  text = path.read_text(encoding="utf-8")
  if len(_MARKED.findall(text)) != text.count("<!-- table: "):
    raise ValueError("a table has no `<!-- end of table -->`")
  return _MARKED.sub(
    lambda match: (
      f"{match['start']}\n{markdown(_fields(match['fields']))}\n{match['end']}"
    ),
    text,
  )


def pages() -> list[pathlib.Path]:
  """Returns the pages with tables that this program writes."""
  return [
    path
    for path in sorted(_RESULTS.glob("*.md"))
    if "<!-- table: " in path.read_text(encoding="utf-8")
  ]


def main(arguments: Sequence[str]) -> int:
  """Writes or checks the pages; see `generated_page.run`."""
  for binary in specification.BINARIES:
    binary_flags.of(binary)
  return max(
    generated_page.run(path, functools.partial(page, path), arguments)
    for path in pages()
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
