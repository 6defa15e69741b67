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


def archive(columns, cells):
  return claims.Archive(
    made=contents.Contents(
      name="one/1",
      title="",
      source="",
      command="",
      machine="",
      date="",
      is_full=False,
      rows=list(dict.fromkeys(each.row for each in cells)),
      columns=columns,
      cells=cells,
      protocol=[],
      curves=[],
    ),
    command="",
  )


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
  archives = {
    "one": archive(
      [_ACCURACY],
      [
        cell("a", _ACCURACY, [80, 84], 90),
        cell("b", _ACCURACY, [70, 78], 85.5),
        cell("ours", _ACCURACY, [99, 99]),
        cell("not run", _ACCURACY, [], 20),
      ],
    )
  }
  (found,) = claims.pairs(claim(), archives)
  assert (found.worse, found.paper) == ("b", 4.5)
  assert found.differences == [10, 6]
  assert (found.mean, found.side) == (8, 1)
  # t of 0.975 with one degree of freedom is 12.7062, the standard error is 2.
  assert found.interval == pytest.approx((8 - 25.4124, 8 + 25.4124), abs=1e-3)
  (named,) = claims.pairs(claim(than=("ours",)), archives)
  assert (named.mean, named.paper, named.side) == (-17, None, -1)


def test_lower_is_better():
  archives = {
    "one": archive(
      [_ERROR], [cell("a", _ERROR, [1], 5), cell("b", _ERROR, [3], 20)]
    )
  }
  (found,) = claims.pairs(claim(), archives)
  assert (found.mean, found.paper, found.interval) == (2, 15, None)


def test_archives_are_pooled_and_columns_are_chosen():
  archives = {
    "one": archive(
      [_ACCURACY, _ERROR],
      [cell("a", _ACCURACY, [3], 1), cell("a", _ERROR, [3], 1)],
    ),
    "two": archive(
      [_ACCURACY, _ERROR],
      [cell("b", _ACCURACY, [1], 1), cell("b", _ERROR, [1], 1)],
    ),
  }
  both = claims.pairs(claim(archives=("one", "two")), archives)
  assert [each.mean for each in both] == [2, -2]
  (one,) = claims.pairs(
    claim(archives=("one", "two"), columns=("digits", "client")), archives
  )
  assert one.column == _ACCURACY
  with refused("no common column of a and another"):
    claims.pairs(claim(), archives)
  with refused("no common column of a and c in one"):
    claims.pairs(claim(than=("c",)), archives)


def pair(*differences):
  return claims.Pair(
    column=_ACCURACY,
    worse="b",
    paper=None,
    differences=differences,
    interval=None,
  )


@pytest.mark.parametrize(
  "found, verdict",
  [
    ([pair(1, 2)], claims.HOLDS),
    ([pair(1)], claims.HOLDS),
    ([pair(-1)], claims.HOLDS_NOT),
    ([pair(0, 0)], claims.LEVEL),
    # Mean 1, standard deviation 1.41.
    ([pair(0, 2)], claims.LEVEL),
    ([pair(1, 2), pair(0, 2)], claims.LEVEL),
    ([pair(1, 2), pair(1, 2), pair(0, 2)], claims.HOLDS),
    ([pair(1, 2), pair(1, 2), pair(-1, -2)], claims.HOLDS_NOT),
  ],
)
def test_verdict(found, verdict):
  assert claims.verdict_of(found) == verdict


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
