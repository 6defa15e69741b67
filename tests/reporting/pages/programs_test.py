"""Sentences about the values of authors' programs."""

import pytest

from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import programs


def sentence(program, *, paper=None, ours=(), unit="%", note=""):
  cell = contents_lib.Cell(
    row="fed_drm",
    column=("accuracy",),
    by_seed=dict(enumerate(ours)),
    paper=paper and contents_lib.PaperValue(mean=paper),
    program=contents_lib.PaperValue(mean=program, note=note),
  )
  column = contents_lib.Column(heading=("accuracy",), metric="m", unit=unit)
  return programs.sentence(cell, column)


@pytest.mark.parametrize(
  "options, text",
  [
    (
      {"paper": 70.0, "ours": [60.0, 62.0]},
      "The program is 2.50 points below the paper and ours is 6.50 points"
      " below the program.",
    ),
    (
      {"ours": [67.504], "note": "Both use the same split."},
      "Ours is equal to the program. Both use the same split.",
    ),
    ({"paper": 60.0}, "The program is 7.50 points above the paper."),
    ({"note": "Not run here."}, "Not run here."),
    ({"paper": 0.5, "unit": ""}, "The program is 67 above the paper."),
    ({}, ""),
  ],
)
def test_sentence(options, text):
  assert sentence(67.5, **options) == text
