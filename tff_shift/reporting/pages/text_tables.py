"""Formats the table of a page as CSV, TeX and Markdown."""

import csv
import io
import itertools
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift._util import shown_names
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import statistics
from tff_shift.reporting.pages import tuning

_TEX = {
  "\\": r"\textbackslash{}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "<": r"\textless{}",
  ">": r"\textgreater{}",
  "|": r"\textbar{}",
  '"': r"\textquotedbl{}",
  "±": r"$\pm$",
  "\N{MINUS SIGN}": "$-$",
  "\N{EN DASH}": "--",
  "▲": r"$\blacktriangle$",
  "▼": r"$\blacktriangledown$",
  **{each: f"\\{each}" for each in "&%$#_{}"},
}


_TEX_BOLD = r"\textbf{", "}"
_MARKDOWN_BOLD = "**", "**"

# A number as `repr` shows it.
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?(e[-+]?\d+)?|inf|nan)")

# TeX joins two of these to a ligature: a dash or a quotation mark.
_LIGATURES = re.compile(r"([-'`,])(?=\1)")


def _one_line(text: str) -> str:
  return shown_names.printable(" ".join(text.split()))


def _settings(values: Mapping[str, object]) -> str:
  return "; ".join(f"{name}={value}" for name, value in values.items())


def _csv_text(text: str) -> str:
  """Makes a text a cell that no spreadsheet program takes for a formula."""
  text = shown_names.printable(text)
  if text.lstrip().startswith(("=", "+", "-", "@")) and not _is_number(text):
    return f"'{text}"
  return text


def _is_number(text: str) -> bool:
  return all(_NUMBER.fullmatch(part) for part in text.split())


def to_csv(table: shown.Table) -> str:
  """Formats one line per cell, with all its data.

  Numbers have all digits. Unknown values are empty.
  """
  rows: list[list[Any]] = [
    [
      *("method", "column", "metric", "unit"),
      *("higher_is_better", "state"),
      *("paper_mean", "paper_spread", "paper_seeds", "paper_note"),
      *("mean", "spread", "num_seeds", "seeds", "values"),
      *("difference", "p_value", "adjusted_p_value", "why_no_test", "absent"),
      *("folder", "chosen", "scores", "seconds", "is_finished"),
      *("num_diverged", "command"),
      *("is_best", "program_mean", "program_spread", "program_seeds"),
      *("program_note", "oracle_mean", "oracle", "tuning_optimism"),
      *("gradients_per_round", "bytes_down", "bytes_up", "seconds_per_round"),
    ]
  ]
  for entry in table.entries:
    cell, column, run = entry.cell, entry.column, entry.cell.run
    paper, program, budget = cell.paper, cell.program, cell.budget
    oracle = tuning.optimism(cell, column.higher_is_better)
    rows.append(
      [
        cell.row,
        shown.heading(cell.column),
        column.metric,
        column.unit,
        column.higher_is_better,
        entry.state,
        *(
          (paper.mean, paper.spread, paper.num_seeds, _one_line(paper.note))
          if paper
          else ("",) * 4
        ),
        statistics.mean(cell),
        statistics.spread(cell),
        len(cell.by_seed),
        " ".join(map(str, cell.by_seed)),
        " ".join(map(repr, cell.by_seed.values())),
        entry.agreement.difference,
        entry.agreement.p_value,
        entry.agreement.adjusted,
        entry.agreement.why_no_test,
        _one_line(cell.absent),
        *(
          (
            run.folder,
            _settings(run.chosen),
            _settings(run.scores),
            run.seconds,
            run.is_finished,
            run.num_diverged,
            run.command,
          )
          if run
          else ("",) * 7
        ),
        entry.is_best,
        *(
          (
            program.mean,
            program.spread,
            program.num_seeds,
            _one_line(program.note),
          )
          if program
          else ("",) * 4
        ),
        *(
          (oracle.oracle_mean, oracle.oracle, oracle.difference)
          if oracle
          else ("",) * 3
        ),
        *(
          (
            budget.num_gradients,
            budget.bytes_down,
            budget.bytes_up,
            budget.seconds_per_round,
          )
          if budget
          else ("",) * 4
        ),
      ]
    )
  file = io.StringIO()
  csv.writer(file, lineterminator="\n").writerows(
    [_csv_text(cell) if isinstance(cell, str) else cell for cell in row]
    for row in rows
  )
  return file.getvalue()


def escape_tex(text: str) -> str:
  """Escapes text for TeX."""
  # Empty braces break ligatures; they must not be escaped themselves.
  parts = _LIGATURES.split(shown_names.printable(text))
  return "{}".join(
    "".join(_TEX.get(sign, sign) for sign in before + pair)
    for before, pair in itertools.zip_longest(
      parts[::2], parts[1::2], fillvalue=""
    )
  )


def to_tex(contents: contents_lib.Contents, table: shown.Table) -> str:
  """Formats a `tabular` with our line and the paper's line per method.

  It needs the packages booktabs, amssymb and textcomp (T1 fonts).
  """
  lines = [
    f"% {_one_line(contents.name)}: {_one_line(contents.title)}",
    f"% Made by: {_one_line(contents.command)}",
    r"% Needs \usepackage[T1]{fontenc} and the packages booktabs and amssymb.",
  ]
  if not contents.is_full:
    lines.append("% Reduced: not the whole protocol.")
  lines += [
    r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
    r"\toprule",
  ]
  for level in table.heading_rows():
    cells, rules, first = [""], [], 2
    for text, span in level:
      escaped = escape_tex(text)
      if span > 1:
        escaped = rf"\multicolumn{{{span}}}{{c}}{{{escaped}}}"
        rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
      cells.append(escaped)
      first += span
    lines.append(" & ".join(cells) + r" \\" + "".join(rules))
  lines.append(r"\midrule")
  for row in table.rows:
    entries = [table.at(row, column) for column in table.columns]
    ours = [
      _bold(entry, escape_tex(_ours(entry)), _TEX_BOLD) for entry in entries
    ]
    # After a line end, TeX reads "[" and "*" as its options.
    lines.append("{}" + " & ".join([escape_tex(row), *ours]) + r" \\")
    if table.has_paper:
      papers = [entry.paper if entry else "" for entry in entries]
      lines.append(
        " & ".join([r"\quad paper", *map(escape_tex, papers)]) + r" \\"
      )
  lines += [r"\bottomrule", r"\end{tabular}"]
  return "\n".join(lines) + "\n"


def _bold(entry: shown.Entry | None, text: str, marks: tuple[str, str]) -> str:
  """Marks the best value of a column."""
  if entry is None or not entry.is_best:
    return text
  return text.join(marks)


def _ours(entry: shown.Entry | None) -> str:
  """Formats our value of an entry."""
  if entry is None:
    return ""
  if not entry.cell.by_seed:
    return entry.state
  marks = [entry.ours, entry.sign + "*" * entry.is_certain]
  if entry.state == shown.PARTIAL:
    marks.append(f"[{shown.PARTIAL}]")
  return " ".join(filter(None, marks))


def escape_markdown(text: str) -> str:
  """Escapes text for Markdown, also within tables."""
  text = re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", _one_line(text))
  return text.replace("&", "&amp;")


def to_markdown_table(
  head: Sequence[str], rows: Iterable[Sequence[str]], number: str = "---:"
) -> str:
  """Formats plain texts as a table.

  Args:
    head: The heads of the columns.
    rows: The rows.
    number: The alignment of all columns but the first.
  """
  return markdown_table(
    head, [map(escape_markdown, row) for row in rows], number
  )


def markdown_table(
  head: Sequence[str], rows: Iterable[Iterable[str]], number: str = "---:"
) -> str:
  """As `to_markdown_table`, of rows that are Markdown."""
  units = ["---", *[number] * (len(head) - 1)]
  lines = [map(escape_markdown, head), units, *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_markdown(contents: contents_lib.Contents, table: shown.Table) -> str:
  """Formats a short version of the page, as used in results/."""
  parts = [f"# {escape_markdown(contents.title)}"]
  if contents.source:
    parts.append(f"Paper: {escape_markdown(contents.source)}")
  if not contents.is_full:
    parts.append(
      "**Reduced**: the runs reduce settings of the paper; see the protocol."
    )
  # An indented block needs no escapes.
  parts.append("    " + "\n    ".join(contents.command.splitlines()))
  counts = [
    f"{table.count(state)} {state}"
    for state in shown.STATES
    if table.count(state)
  ]
  status = [
    f"{contents.date}; " * bool(contents.date),
    f"{escape_markdown(contents.machine)}. " * bool(contents.machine),
    f"{len(table.entries)} cells: {', '.join(counts) or 'none'}.",
  ]
  parts.append("".join(status))
  parts += [f"- {escape_markdown(each)}" for each in contents.problems]
  parts.append(_protocol(contents))
  parts.append(_legend(table))
  parts.append(_results(table))
  if table.orderings:
    parts.append(f"Orderings: {shown.tally(table.orderings)}.")
  return "\n\n".join(filter(None, parts)) + "\n"


def _legend(table):
  text = (
    "Mean ± sample standard deviation over seeds (number of seeds); bold: the"
    " best of a column"
  )
  if table.has_paper:
    text += (
      f"; {shown.SIGNS[shown.BETTER]} better and {shown.SIGNS[shown.WORSE]}"
      " worse than the paper's mean, \\* where Welch's test, adjusted by Holm"
      f" over the table, gives p below {statistics.LEVEL:g}"
    )
  return text + "."


def _protocol(contents):
  differing = [
    setting
    for setting in contents.protocol
    if setting.is_reduced or (setting.paper and setting.paper != setting.ours)
  ]
  if not differing:
    return ""
  return to_markdown_table(
    ["setting", "paper", "run", "reason"],
    [
      [
        each.name,
        each.paper,
        f"{each.ours} (reduced)" if each.is_reduced else each.ours,
        each.reason,
      ]
      for each in differing
    ],
    "---",
  )


def _results(table):
  heads = ["method"]
  for column in table.columns:
    heads.append(shown.heading(column.heading))
    if table.has_paper:
      heads.append("paper")
  rows = []
  for row in table.rows:
    cells = [escape_markdown(row)]
    for column in table.columns:
      entry = table.at(row, column)
      cells.append(_bold(entry, escape_markdown(_ours(entry)), _MARKDOWN_BOLD))
      if table.has_paper:
        cells.append(escape_markdown(entry.paper if entry else ""))
    rows.append(cells)
  return markdown_table(heads, rows, "---:")
