"""Writes the files of a page: report.html, table.csv, table.tex, table.md."""

import pathlib
import urllib.parse

import jinja2

from tff_shift import files
from tff_shift.reporting.pages import charts
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import notes
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics
from tff_shift.reporting.pages import text_tables

_TEMPLATES = pathlib.Path(__file__).parent / "templates"


def _link(folder: str) -> str:
  """Returns the relative link of a folder; escapes schemes and queries."""
  return urllib.parse.quote(folder) + "/"


def to_html(contents: contents_lib.Contents, table: shown.Table) -> str:
  """Renders the page as one self-contained HTML file."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {
    "duration": shown.duration,
    "heading": shown.heading,
    "link": _link,
    "markdown": notes.to_html,
    "measured": shown.measured,
    "number": shown.number,
    "p_value": shown.p_value,
  }
  orderings = [
    (column, [o for o in table.orderings if o.column == column.heading])
    for column in table.columns
  ]
  dot_plots = [
    charts.dot_plot(
      column,
      [entry for entry in table.entries if entry.column is column],
    )
    for column in table.columns
  ]
  return environment.get_template("report.html").render(
    contents=contents,
    table=table,
    states=shown.STATES,
    nothing=shown.NOTHING,
    signs=shown.SIGNS,
    level=statistics.LEVEL,
    mean=statistics.mean,
    orderings=[
      (c, found, shown.tally(found)) for c, found in orderings if found
    ],
    tally=shown.tally(table.orderings),
    dot_plots=[plot for plot in dot_plots if plot],
    curve_plots=charts.curve_plots(contents, table.rows),
    num_colors=charts.NUM_COLORS,
    num_dashes=charts.NUM_DASHES,
    seconds=sum(run.seconds or 0 for run in table.runs()),
  )


def write(contents: contents_lib.Contents, folder: pathlib.Path) -> None:
  """Writes the page of a table; replaces each file atomically.

  Args:
    contents: The contents of the page.
    folder: The folder, created if it is missing.

  Raises:
    ValueError: If a cell has no column, or two cells have the same place.
      Nothing is written.
    files.WriteError: If a file cannot be written.
  """
  table = shown.Table(contents)
  texts = {
    "report.html": to_html(contents, table),
    "table.csv": text_tables.to_csv(table),
    "table.tex": text_tables.to_tex(contents, table),
    "table.md": text_tables.to_markdown(contents, table),
  }
  with files.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for name, text in texts.items():
    files.write_atomically(folder / name, text)
