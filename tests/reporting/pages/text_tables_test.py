"""The table as CSV, TeX and Markdown."""

import csv
import dataclasses
import io

import pytest

from tests.fixtures import page_cells
from tests.fixtures import tables
from tff_shift.reporting.pages import shown
from tff_shift.reporting.pages import text_tables


@pytest.fixture(scope="module")
def table(contents):
  return shown.Table(contents)


@pytest.mark.parametrize(
  "row, cell",
  tables.cases(r"""
"=1+1"
    '=1+1
"+cmd"
    '+cmd
"-2+3"
    '-2+3
"@SUM(A1)"
    '@SUM(A1)
"\t=1"
    \t=1
" =1"
    ' =1
"fed_avg, lambda -1"
    fed_avg, lambda -1
"a\x1b[2Jb"
    a\x1b[2Jb
"""),
)
def test_csv_has_no_formulas(row, cell):
  contents = page_cells.table(page_cells.cell(row, [-1.5, -2e-7]))
  text = text_tables.to_csv(shown.Table(contents))
  (found,) = csv.DictReader(io.StringIO(text))
  assert found["method"] == cell
  # Numbers stay as they are.
  assert found["values"] == "-1.5 -2e-07" and float(found["mean"]) < 0


def test_csv_has_exact_numbers(table):
  text = text_tables.to_csv(table)
  rows = list(csv.DictReader(io.StringIO(text)))
  assert len(rows) == len(table.entries) == 8
  by_place = {(row["method"], row["column"]): row for row in rows}
  for row, column, text in (
    # 63.5 of the other learning rate, against 60.5.
    (
      *("FedAvg", "Digits, client"),
      """
      values:60.0 60.5 61.0 60.5|seeds:0 1 2 3|mean:60.5|difference:-9.5
      |paper_note:Table 2 prints 71.|program_mean:62.0|is_best:False
      |oracle_mean:63.5|tuning_optimism:3.0|gradients_per_round:35.0
      |bytes_up:1398592|chosen:learning rate=0.01
      |scores:learning rate 0.001=12.5; learning rate 0.01=87.25
      """,
    ),
    ('<b>&"x"', "Digits, client", "state:partial|is_finished:False"),
    (
      *("APFL", "Digits, client"),
      "state:failed|absent:failed: no room|mean:|folder:",
    ),
    ("a_b%", "loss", "state:not run"),
    ("T3A", "Digits, client", "state:paper only"),
  ):
    fields = (field.partition(":") for field in text.strip().split("|"))
    expected = {name: value.strip() for name, _, value in fields}
    assert expected.items() <= by_place[row, column].items()
  first = by_place["FedAvg", "Digits, client"]
  assert float(first["adjusted_p_value"]) < 0.05


def test_tex_escapes_and_groups(contents, table):
  lines = text_tables.to_tex(contents, table).splitlines()
  assert lines[3] == "% Reduced: not the whole protocol."
  assert r"\begin{tabular}{lrr}" in lines
  assert r" & Digits &  \\" in lines
  assert r" & client & loss \\" in lines
  assert (
    r"{}\textless{}b\textgreater{}\&\textquotedbl{}x\textquotedbl{} &"
    r" \textbf{71.00 $\pm$ 1.41 (2) $\blacktriangledown$ [partial]} &"
    r" \textbf{0.375 $\pm$ 0.1768 (2) $\blacktriangledown$ [partial]} \\"
    in lines
  )
  assert (
    r"{}a\_b\% & 53.00 $\pm$ 2.65 (3) $\blacktriangledown$ & not run \\"
    in lines
  )
  assert r"\quad paper & 80.00 $\pm$ 2.00 & -- \\" in lines
  # Every line of the table has as many places as there are columns.
  body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
  assert {line.replace(r"\&", "").count("&") for line in body} == {2}


def test_tex_has_no_bare_specials():
  assert text_tables.escape_tex("plain text (1)") == "plain text (1)"
  bare = text_tables.escape_tex("5 % of $x_1^2$ & {#}~")
  for each in (r"\%", r"\$", r"\_", r"\&", r"\{", r"\}", r"\#", "{}"):
    bare = bare.replace(each, "")
  assert not set(bare) & set("%$_&{}#~^")


@pytest.mark.parametrize(
  "name, tex, markdown",
  [
    ("$x_1$", r"\$x\_1\$", r"\$x\_1\$"),
    ("10^$20$", r"10\textasciicircum{}\$20\$", r"10^\$20\$"),
    ("a--b---c", "a-{}-b-{}-{}-c", "a--b---c"),
    ("``x''", "`{}`x'{}'", r"\`\`x''"),
    ("a\x07b", r"a\textbackslash{}x07b", r"a\\x07b"),
    ("1\N{EN DASH}2 {}", r"1--2 \{\}", "1\N{EN DASH}2 \\{\\}"),
  ],
)
def test_names_are_shown_as_they_are_written(name, tex, markdown):
  assert text_tables.escape_tex(name) == tex
  assert text_tables.escape_markdown(name) == markdown


def test_tex_groups_columns(contents):
  columns = [page_cells.column(*heading) for heading in ("Ax", "Ay", "z")]
  table = shown.Table(
    dataclasses.replace(contents, cells=(), rows=(), columns=columns)
  )
  assert table.heading_rows() == [
    [("A", 2), ("", 1)],
    [("x", 1), ("y", 1), ("z", 1)],
  ]
  text = text_tables.to_tex(contents, table)
  assert r" & \multicolumn{2}{c}{A} &  \\\cmidrule(lr){2-3}" in text


def test_markdown_stands_alone(contents, table):
  text = text_tables.to_markdown(contents, table)
  lines = text.splitlines()
  assert lines[0] == "# A table &amp; its page"
  assert (
    "    python -m experiments.reproduce demo/1 --reduce='rounds=2'" in lines
  )
  assert (
    "2026-11-23; 2 cores. 8 cells: 3 done, 2 partial, 1 paper only, 1 failed,"
    " 1 not run." in lines
  )
  assert "| rounds | 100 | 2 (reduced) | budget |" in lines
  assert "| model | ResNet | MLP |  |" in lines
  assert not any(line.startswith("| seeds") for line in lines)
  # A losing cell is shown as one: 60.5 against 70, beyond chance.
  assert (
    "| FedAvg | 60.50 ± 0.41 (4) ▼\\* | 70.00 ± 0.50 (4) |"
    " **0.375 ± 0.1768 (2) ▲** | 0.5 |" in lines
  )
  assert any(line.startswith('| \\<b\\>&amp;"x" | **71.00') for line in lines)
  assert any(line.startswith("| a\\_b% |") for line in lines)
  assert "**Reduced**" in text


def test_orderings_are_told_in_one_line(contents, table):
  # The paper: a_b% > odd > FedAvg > T3A > APFL, all separated but odd and
  # FedAvg by 1.5 with spreads of 1.0, which is as well; of loss one pair.
  text = text_tables.to_markdown(contents, table)
  (line,) = (x for x in text.splitlines() if x.startswith("Orderings:"))
  # odd above FedAvg holds; a_b% above odd and FedAvg does not; of the loss,
  # the means are equal, so that odd is not ahead.
  assert line.startswith(
    "Orderings: 1 of 4 pairs have the paper's order in our means, 0 of them"
  )
  assert "; 7 pairs are unknown because runs are missing" in line


def test_text_without_any_cell(empty):
  table = shown.Table(empty)
  assert len(text_tables.to_csv(table).splitlines()) == 1
  assert "0 cells: none." in text_tables.to_markdown(empty, table)
  assert r"\begin{tabular}{l}" in text_tables.to_tex(empty, table)
