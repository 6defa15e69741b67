"""The files of a page, and the parts of it that need no browser."""

import dataclasses
import html.parser
import re

import pytest

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import notes
from tff_shift.reporting.pages import page
from tff_shift.reporting.pages import shown

_FILES = ["report.html", "table.csv", "table.md", "table.tex"]


class _Checked(html.parser.HTMLParser):
  """Collects what is asked about a page."""

  _VOID = frozenset({"meta", "link", "input", "br"})

  def __init__(self):
    super().__init__()
    self.open, self.ids, self.tags, self.attributes = [], [], [], []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    self.ids += [value for name, value in attrs if name == "id"]
    if tag not in self._VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def checked(text):
  found = _Checked()
  found.feed(text)
  assert not found.open
  assert len(found.ids) == len(set(found.ids))
  return found


def test_page_is_written_and_replaced_whole(contents, tmp_path):
  folder = tmp_path / "runs" / "page"
  page.write(contents, folder)
  assert sorted(each.name for each in folder.iterdir()) == _FILES
  first = {each.name: each.read_bytes() for each in folder.iterdir()}
  page.write(contents, folder)
  assert {each.name: each.read_bytes() for each in folder.iterdir()} == first


def test_page_asks_nobody(contents, tmp_path):
  page.write(contents, tmp_path)
  found = checked((tmp_path / "report.html").read_text(encoding="utf-8"))
  for name, value in found.attributes:
    if name in ("src", "href", "srcset", "action", "data"):
      assert not re.match(r"\w+:(?!,)|//", value), value
  assert "iframe" not in found.tags and "img" not in found.tags


def test_empty_page(empty, tmp_path):
  page.write(empty, tmp_path)
  text = (tmp_path / "report.html").read_text(encoding="utf-8")
  checked(text)
  assert "There are no cells yet." in text
  assert 'href="#orderings"' not in text


def test_nothing_of_ours_yet(contents, tmp_path):
  cells = [
    dataclasses.replace(cell, by_seed={}, run=None, absent="not run")
    for cell in contents.cells
  ]
  page.write(dataclasses.replace(contents, cells=cells), tmp_path)
  text = (tmp_path / "report.html").read_text(encoding="utf-8")
  checked(text)
  assert "8 of 8 cells that can be run are missing or partial" in " ".join(
    text.split()
  )


def test_cell_that_is_nowhere_is_refused(contents, tmp_path):
  lost = dataclasses.replace(contents.cells[0], column=("nowhere",))
  for cells in ([lost], [contents.cells[0]] * 2):
    with pytest.raises(ValueError, match="FedAvg"):
      page.write(dataclasses.replace(contents, cells=cells), tmp_path)
  assert not list(tmp_path.iterdir())


def test_addresses_of_folders_are_folders(contents, tmp_path):
  run = dataclasses.replace(contents.cells[0].run, folder="javascript:a b?#%")
  cell = dataclasses.replace(contents.cells[0], run=run)
  page.write(dataclasses.replace(contents, cells=[cell]), tmp_path)
  text = (tmp_path / "report.html").read_text(encoding="utf-8")
  assert 'href="javascript%3Aa%20b%3F%23%25/"' in text


def test_notes_are_text_and_no_program():
  text = notes.to_html(
    "# Why\n\n<b onclick='x'>no</b> [out](https://example.org/a)"
    " [in](results/a.md) [bad](javascript:alert(1)) ![seen](x.png)\n\n"
    "| a | b |\n| --- | --- |\n| `1` | 2 |\n"
  )
  found = checked(text)
  assert "b" not in found.tags and "img" not in found.tags
  assert "<h4>Why</h4>" in text
  assert [v for n, v in found.attributes if n == "href"] == [
    "https://example.org/a"
  ]
  assert "&lt;b" in text and "<td><code>1</code></td>" in text
  assert "seen" in text


@pytest.mark.parametrize(
  ("value", "unit", "text"),
  [
    (None, "%", "\N{EN DASH}"),
    (12.345, "%", "12.35"),
    (-0.5, "%", "\N{MINUS SIGN}0.50"),
    (0.123456, "", "0.1235"),
    (float("nan"), "%", "not finite"),
  ],
)
def test_numbers_as_text(value, unit, text):
  assert shown.number(value, unit) == text


@pytest.mark.parametrize(
  ("seconds", "text"),
  [
    (None, "not known"),
    (1.26, "1.26 s"),
    (61, "1 min"),
    (3599, "1 h 00 min"),
    (7500, "2 h 05 min"),
  ],
)
def test_durations_as_text(seconds, text):
  assert shown.duration(seconds) == text


def test_verdict_knows_what_is_better(contents):
  table = shown.Table(contents)
  accuracy, loss = table.columns
  assert table.at("FedAvg", accuracy).verdict == shown.WORSE
  assert table.at("FedAvg", accuracy).is_certain
  # A loss of 0.375 is below 0.5, and above 0.3.
  assert table.at("FedAvg", loss).verdict == shown.BETTER
  assert table.at('<b>&"x"', loss).verdict == shown.WORSE
  assert table.at("APFL", accuracy).verdict == ""
  assert table.at("APFL", loss) is None


def test_each_run_is_counted_once(contents):
  folders = [run.folder for run in shown.Table(contents).runs()]
  assert folders == ["runs/fed_avg", "runs/odd", "runs/a_b%"]


def test_states_of_cells(contents):
  table = shown.Table(contents)
  assert {state: table.count(state) for state in shown.STATES} == {
    shown.DONE: 3,
    shown.PARTIAL: 2,
    shown.PAPER_ONLY: 1,
    shown.FAILED: 1,
    shown.NOT_RUN: 1,
  }
  silent = contents_lib.Cell(row="x", column=contents.columns[0].heading)
  table = shown.Table(dataclasses.replace(contents, cells=[silent]))
  assert table.count(shown.NOT_RUN) == 1
