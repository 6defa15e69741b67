"""Writes the files of a page: report.html, table.csv, table.tex, table.md.

Choices:
  * Figures are SVG from a template instead of matplotlib's, so that they take
    the page's colours (dark, print). The page's security policy forbids network
    access.
"""

import math
import pathlib
import urllib.parse
from typing import Any

import jinja2

from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.reporting.pages import budgets
from tff_shift.reporting.pages import charts
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import difficulty
from tff_shift.reporting.pages import harm
from tff_shift.reporting.pages import notes
from tff_shift.reporting.pages import profiles
from tff_shift.reporting.pages import programs
from tff_shift.reporting.pages import sensitivity
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics
from tff_shift.reporting.pages import text_tables
from tff_shift.reporting.pages import tuning

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
    "detectable": shown.detectable,
    "duration": shown.duration,
    "heading": shown.heading,
    "known": shown.known,
    "link": _link,
    "markdown": notes.to_html,
    "measured": shown.measured,
    "num_bytes": shown.num_bytes,
    "number": shown.number,
    "p_value": shown.p_value,
    "trial_mean": tuning.mean,
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
  text = environment.get_template("report.html").render(
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
    best=shown.BEST,
    sensitivities=[
      (column, sensitivity.of_column(found)) for column, found in orderings
    ],
    smallest=sensitivity.corrected_difference,
    power=sensitivity.POWER,
    sentence=programs.sentence,
    **_profile(contents, table),
    **_difficulty(contents, table),
    **_tuning(table),
    **_clients(contents, table),
    **_budget(contents, table),
  )
  # HTML has no form of control characters: names from outside may have them.
  return shown_names.lines(text)


def _profile(contents, table) -> dict[str, Any]:
  """Returns the performance profiles of the columns in percent."""
  columns = [each for each in table.columns if each.unit == "%"]
  found = profiles.profiles(
    [
      {
        entry.cell.row: statistics.mean(entry.cell)
        * (1 if column.higher_is_better else -1)
        for entry in table.entries
        if entry.column is column
        and entry.cell.by_seed
        and entry.cell.row not in contents.ceilings
      }
      for column in columns
    ]
  )
  most_tau = profiles.TAUS[-1]
  found.sort(key=lambda each: -each.area(most_tau))
  leader = ""
  if len(found) > 1:
    first, farthest = found[0], found[0].distances[-1]
    leader = (
      f"{first.row} has the highest profile on average over tau from 0 to"
      f" {most_tau:g}: it is the best in {100 * first.share(0):.0f} % of the"
      " columns, and "
    )
    if math.isfinite(farthest):
      leader += f"at most {shown.number(farthest, '%')} points behind."
    else:
      leader += "has no value in some."
  return {
    "profiles": found,
    "profile_plot": charts.profile_plot(found, table.rows) if found else None,
    "num_profiled": len(found[0].distances) if found else 0,
    "taus": profiles.TAUS,
    "leader": leader,
  }


def _difficulty(contents, table) -> dict[str, Any]:
  """Returns what can be won in each column."""
  return {
    "difficulties": [
      difficulty.difficulty(
        column,
        [each.cell for each in table.entries if each.column is column],
        contents.floors,
        contents.ceilings,
      )
      for column in table.columns
    ]
  }


def _tuning(table) -> dict[str, Any]:
  """Returns the selections beside the oracle's."""
  found = [
    (entry.column, each)
    for entry in table.entries
    if (each := tuning.optimism(entry.cell, entry.column.higher_is_better))
  ]
  # Units differ between columns: percentages first.
  shown_first = [pair for pair in found if pair[0].unit == "%"] or found
  largest = tuning.largest(each for _, each in shown_first)
  return {
    "optimisms": found,
    "largest": largest,
    "largest_column": next(
      (column for column, each in found if each is largest), None
    ),
    "num_untested": sum(tuning.is_unknown(e.cell) for e in table.entries),
  }


def _clients(contents, table) -> dict[str, Any]:
  """Returns the tables of harmed clients."""
  by_heading = {column.heading: column for column in table.columns}
  tables = [
    (
      by_heading[each.column],
      harm.clients(
        each.by_method,
        contents.references,
        higher_is_better=by_heading[each.column].higher_is_better,
      ),
    )
    for each in contents.clients
  ]
  return {"client_tables": [pair for pair in tables if pair[1]]}


def _budget(contents, table) -> dict[str, Any]:
  """Returns the budgets of the methods."""
  found = budgets.lines(table.entries)
  return {
    "budgets": found,
    "extremes": budgets.extremes(found, contents.floors),
  }


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
