"""The files of a page, and the parts of it that need no browser."""

import dataclasses
import html
import html.parser
import itertools
import re

import pytest

from tests.fixtures import page_cells
from tests.fixtures import tables
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


@pytest.mark.slow
def test_page_is_written_and_replaced_whole(contents, tmp_path):
  folder = tmp_path / "runs" / "page"
  page.write(contents, folder)
  assert sorted(each.name for each in folder.iterdir()) == _FILES
  first = {each.name: each.read_bytes() for each in folder.iterdir()}
  page.write(contents, folder)
  assert {each.name: each.read_bytes() for each in folder.iterdir()} == first


def test_control_characters_are_escaped(contents, tmp_path):
  changed = dataclasses.replace(
    contents, title="a\x1b[2Jb\N{RIGHT-TO-LEFT OVERRIDE}", machine="c\x00"
  )
  page.write(changed, tmp_path)
  text = (tmp_path / "report.html").read_text()
  assert r"a\x1b[2Jb\u202e" in text and r"c\x00" in text
  assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_page_asks_nobody(text):
  found = checked(text)
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
  "name, value, text",
  tables.cases("""
"number", None
    \N{EN DASH}
"number", 12.345
    12.35
"number", -0.5
    \N{MINUS SIGN}0.50
"number", 1e999
    not finite
"duration", None
    not known
"duration", 1.26
    1.26 s
"duration", 61
    1 min
"duration", 3599
    1 h 00 min
"num_bytes", None
    not known
"num_bytes", 999
    999 B
"num_bytes", 12_345
    12.3 kB
"num_bytes", 2_500_000_000
    2.5 GB
"""),
)
def test_quantities_as_text(name, value, text):
  options = {"unit": "%"} if name == "number" else {}
  assert getattr(shown, name)(value, **options) == text


def test_cell_without_anything_was_not_run():
  table = shown.Table(page_cells.table(page_cells.cell("x")))
  assert table.count(shown.NOT_RUN) == 1


def visible(text):
  """The text of a page, without tags and with single spaces."""
  return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


@pytest.fixture(scope="module")
def text(contents, tmp_path_factory):
  folder = tmp_path_factory.mktemp("page")
  page.write(contents, folder)
  return (folder / "report.html").read_text(encoding="utf-8")


def test_results_stand_before_the_protocol(text):
  headings = re.findall(r'<h2 id="(\w+)"', text)
  assert headings.index("results") < headings.index("protocol")
  linked = re.findall(r'<li><a href="#(\w+)"', text)
  assert linked == headings


def test_best_is_marked_by_type_and_sign(contents):
  table = shown.Table(contents)
  accuracy, loss = table.columns
  best = [entry.cell.row for entry in table.entries if entry.is_best]
  # 71 is the best accuracy; two losses are 0.375.
  assert best == ["FedAvg", '<b>&"x"', '<b>&"x"']
  assert table.at('<b>&"x"', accuracy).is_best
  assert table.at("FedAvg", loss).is_best
  assert table.at("APFL", accuracy).verdict == ""
  assert table.at("APFL", loss) is None
  # The difference of a single seed may be chance.
  single = dataclasses.replace(
    contents,
    cells=[
      dataclasses.replace(
        cell, by_seed=dict(itertools.islice(cell.by_seed.items(), 1))
      )
      for cell in contents.cells
    ],
  )
  assert not any(entry.is_best for entry in shown.Table(single).entries)
  # A ceiling is no competitor, and a single method has none.
  without = dataclasses.replace(contents, ceilings=['<b>&"x"', "a_b%"])
  assert not any(entry.is_best for entry in shown.Table(without).entries)


def test_sections_say_what_they_mean(text):
  found = visible(text)
  for sentence in (
    "71.00 ± 1.41 (2) ★ best of the column",
    # 62 of the program; 70 of the paper; 60.5 of ours.
    "The program is 8.00 points below the paper and ours is 1.50 points below"
    " the program. The program has one seed.",
    # 71 - 60.5.
    '<b>&"x" has the highest profile on average over tau from 0 to 10: it is'
    " the best in 100 % of the columns, and at most 0.00 points behind.",
    "The largest is 3.00 points, of FedAvg in Digits, client. The rule and the"
    " oracle agree in 0 of 1 cells.",
    # FedAvg is a floor: 60.5; the ceiling has 53.
    "Nothing to win: the ceiling is not above the floor.",
    # 70 on average against 60, and one of four clients has 50.
    '<b>&"x" is 10.00 points better than FedAvg on average, and still 25 % of'
    " the clients are worse, by 10.00 on average.",
    "1.4 MB",
    "Not known for 4 cells: the settings that were not selected did not run on"
    " the test data. --all_settings runs them as well",
  ):
    assert sentence in found, sentence


def test_page_says_what_is_not_known(contents, tmp_path):
  cells = [
    dataclasses.replace(cell, program=None, trials=(), budget=None, run=None)
    for cell in contents.cells
  ]
  bare = dataclasses.replace(
    contents, cells=cells, floors=(), ceilings=(), references=(), clients=()
  )
  page.write(bare, tmp_path)
  found = visible((tmp_path / "report.html").read_text(encoding="utf-8"))
  for sentence in (
    "No floor. No method of this table is one",
    "Not known: these runs have no values of single clients.",
    "Not known: no run has recorded it.",
    "No setting was selected",
  ):
    assert sentence in found, sentence
  assert "program is" not in found


def test_no_accuracy_differs_by_more_than_all():
  accuracy, loss = page_cells.column(), page_cells.column(unit="")
  assert shown.detectable(100.5, accuracy) == "none"
  assert shown.detectable(99.5, accuracy) == "99.50"
  assert shown.detectable(100.5, loss) == "100.5"
  assert shown.detectable(None, accuracy) == shown.NOTHING
