"""Tests of the page of claims."""

import pytest

from experiments.papers import claims
from tests.fixtures import tables
from tests.fixtures.refusals import refused
from tff_shift.reporting.pages import contents

_ACCURACY = contents.Column(heading=("digits", "client"), metric="accuracy")
_ERROR = contents.Column(
  heading=("digits", "LAT"), metric="LAT", higher_is_better=False
)


def cell(row, column, values, paper=None):
  return contents.Cell(
    row=row,
    column=column.heading,
    by_seed=dict(enumerate(values)),
    paper=None if paper is None else contents.PaperValue(mean=paper),
  )


def archives(**cells_by_name):
  return {
    name: claims.Archive(
      made=contents.Contents(
        name=name, title="", columns=[_ACCURACY, _ERROR], cells=cells
      ),
      command="",
    )
    for name, cells in cells_by_name.items()
  }


def claim(**fields):
  return claims.Claim(
    **{
      "paper": "One",
      "place": "Table 1",
      "text": "a is best",
      "archives": ("one",),
      "better": "a",
    }
    | fields
  )


@pytest.mark.slow
def test_page_is_up_to_date(capsys):
  assert claims.main(["--check"]) == 0, capsys.readouterr().err


def test_pairs_are_with_rows_that_the_paper_prints():
  made = archives(
    one=[
      cell("a", _ACCURACY, [80, 84], 90),
      cell("b", _ACCURACY, [70, 78], 85.5),
      cell("ours", _ACCURACY, [99, 99]),
      cell("not run", _ACCURACY, [], 20),
    ]
  )
  (found,) = claims.pairs(claim(), made)
  assert (found.worse, found.paper) == ("b", 4.5)
  assert found.differences == [10, 6]
  assert (found.mean, found.side) == (8, 1)
  # t of 0.975 with one degree of freedom is 12.7062, the standard error is 2.
  assert found.interval == pytest.approx((8 - 25.4124, 8 + 25.4124), abs=1e-3)
  (named,) = claims.pairs(claim(than=("ours",)), made)
  assert (named.mean, named.paper, named.side) == (-17, None, -1)
  # Of errors, the lower one is better.
  errors = cell("a", _ERROR, [1], 5), cell("b", _ERROR, [3], 20)
  (found,) = claims.pairs(claim(), archives(one=errors))
  assert (found.mean, found.paper, found.interval) == (2, 15, None)


def test_archives_are_pooled_and_columns_are_chosen():
  made = archives(
    one=[cell("a", _ACCURACY, [3], 1), cell("a", _ERROR, [3], 1)],
    two=[cell("b", _ACCURACY, [1], 1), cell("b", _ERROR, [1], 1)],
  )
  names = {"archives": ("one", "two")}
  both = claims.pairs(claim(**names), made)
  assert [each.mean for each in both] == [2, -2]
  (one,) = claims.pairs(claim(**names, columns=("digits", "client")), made)
  assert one.column == _ACCURACY
  with refused("no common column of a and another"):
    claims.pairs(claim(), made)
  with refused("no common column of a and c in one"):
    claims.pairs(claim(than=("c",)), made)


@pytest.mark.parametrize(
  "differences, verdict",
  # The mean of 0 and 2 is 1, the standard deviation 1.41.
  tables.cases("""
[(1, 2)]
    HOLDS
[(1,)]
    HOLDS
[(-1,)]
    HOLDS_NOT
[(0, 0)]
    LEVEL
[(0, 2)]
    LEVEL
[(1, 2), (0, 2)]
    LEVEL
[(1, 2), (1, 2), (0, 2)]
    HOLDS
[(1, 2), (1, 2), (-1, -2)]
    HOLDS_NOT
"""),
)
def test_verdict(differences, verdict):
  pairs = [
    claims.Pair(
      column=_ACCURACY,
      worse="b",
      paper=None,
      differences=values,
      interval=None,
    )
    for values in differences
  ]
  assert claims.verdict_of(pairs) == getattr(claims, verdict)


@pytest.mark.parametrize(
  "fields, words",
  tables.cases("""
{"verdict": "holds", "measured": "x"}
    set either better or verdict
{"better": "", "archives": ()}
    set either better or verdict
{"archives": ()}
    better and archives need each other
{"measured": "x"}
    verdict and measured need each other
{"better": "", "archives": (), "verdict": "yes", "measured": "x"}
    verdict is 'yes'; it must be one of
"""),
)
def test_wrong_claims_are_refused(fields, words):
  with refused(words):
    claim(**fields)


def test_unknown_fields_are_refused(tmp_path):
  path = tmp_path / "claims.toml"
  path.write_text("[tables]\n[[claims]]\ncolour = 1\n")
  with refused(r"claims\.toml: .*colour"):
    claims.read(path)
