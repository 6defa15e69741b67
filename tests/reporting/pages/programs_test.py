"""Sentences about the values of authors' programs."""

import pytest

from tests.fixtures import page_cells
from tests.fixtures import tables
from tff_shift.reporting.pages import programs


def sentence(program, *, paper=None, ours=(), unit="%", note=""):
  cell = page_cells.cell(
    "fed_drm",
    ours,
    paper=paper and page_cells.paper(paper),
    program=page_cells.paper(program, note=note),
  )
  return programs.sentence(cell, page_cells.column(unit=unit))


@pytest.mark.parametrize(
  "options, text",
  tables.cases("""
{"paper": 70.0, "ours": [60.0, 62.0]}
    The program is 2.50 points below the paper and ours is 6.50 points
    below the program.
{"ours": [67.504], "note": "Both use the same split."}
    Ours is equal to the program. Both use the same split.
{"paper": 60.0}
    The program is 7.50 points above the paper.
{"note": "Not run here."}
    Not run here.
{"paper": 0.5, "unit": ""}
    The program is 67 above the paper.
{}
"""),
)
def test_sentence(options, text):
  assert sentence(67.5, **options) == text
