"""Statistics against numbers by hand and other ways to get them."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from tests.fixtures import tables
from tests.fixtures.page_cells import cell
from tests.fixtures.page_cells import cells
from tests.fixtures.page_cells import column
from tests.fixtures.page_cells import paper
from tests.fixtures.page_cells import table
from tff_shift.reporting.pages import statistics


def test_holm_by_hand():
  # 0.01 * 3; 0.03 * 2; 0.04 * 1, but not below the one before.
  assert statistics.holm([0.01, 0.04, None, 0.03]) == pytest.approx(
    [0.03, 0.06, None, 0.06]
  )


@hypothesis.given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p_values):
  # A hypothesis falls if Bonferroni rejects each intersection that it is in.
  indices = range(len(p_values))
  subsets = [
    subset
    for size in range(1, len(p_values) + 1)
    for subset in itertools.combinations(indices, size)
  ]
  expected = [
    max(
      min(1.0, len(subset) * min(p_values[i] for i in subset))
      for subset in subsets
      if index in subset
    )
    for index in indices
  ]
  assert statistics.holm(p_values) == pytest.approx(expected)


def test_welch_by_hand_and_its_correction_for_all_tested_cells():
  near, far, untested = statistics.agreements(
    [
      cell("a", [1.0, 2.0, 3.0], paper=paper(4.0, 1.0, 3)),
      cell("b", [1.0, 2.0, 3.0], paper=paper(40.0, 1.0, 3)),
      cell("c"),
    ]
  )
  # t^2 = 2^2 / (1/3 + 1/3) = 6 with 4 degrees of freedom, whose distribution
  # has a closed form.
  share = 0.5 + 0.375 * math.sqrt(6 / 2.5) * (1 - 6 / 2.5 / 12)
  assert near.difference == -2.0
  assert near.p_value == near.adjusted == pytest.approx(2 * (1 - share))
  assert near.why_no_test == ""
  assert far.adjusted == pytest.approx(2 * far.p_value)
  assert untested.adjusted is None


@hypothesis.given(
  *[st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True)] * 2
)
def test_welch_is_that_of_the_values_themselves(ours, theirs):
  (found,) = statistics.agreements(
    [
      cell(
        "a",
        list(map(float, ours)),
        paper=paper(np.mean(theirs), np.std(theirs, ddof=1), len(theirs)),
      )
    ]
  )
  expected = stats.ttest_ind(ours, theirs, equal_var=False).pvalue
  assert found.p_value == pytest.approx(expected)


@pytest.mark.parametrize(
  "values, printed, why",
  # The mean, the spread and the number of seeds of the paper.
  tables.cases("""
[1.0, 2.0], None
    no value in the paper
[], (1.0, 1.0, 3)
    no value of ours
[1.0, 2.0], (1.0, None, 3)
    no spread in the paper
[1.0, 2.0], (1.0, 1.0)
    the paper's number of seeds is unknown
[1.0, 2.0], (1.0, 1.0, 1)
    the paper has one seed
[1.0], (1.0, 1.0, 3)
    one seed of ours
[1.0, 1e999], (1.0, 1.0, 3)
    a value of ours is not finite
[1.0, 1.0], (2.0, 0.0, 3)
    nothing varies
"""),
)
def test_no_test_where_there_can_be_none(values, printed, why):
  printed = printed and paper(*printed)
  (found,) = statistics.agreements([cell("a", values, paper=printed)])
  assert (found.why_no_test, found.p_value, found.adjusted) == (why, None, None)


def orderings(text, **options):
  contents = table(*cells(text), columns=[column(**options)])
  return statistics.orderings(contents)


class TestOrderings:
  def test_pairs_that_the_paper_separates(self):
    # The paper does not separate a and b: 2 is not above the larger spread.
    found = orderings("""
a: 10 20 30 | 50 1
b:  1  2    | 48 2
c: 11 17 21 | 40 3
""")
    assert [(each.better, each.worse) for each in found] == [
      ("a", "c"),
      ("b", "c"),
    ]
    first, second = found
    assert (first.paper_difference, first.threshold) == (10.0, 3.0)
    # -1, 3 and 9.
    assert first.difference == pytest.approx(11 / 3)
    assert (first.num_held, first.num_seeds) == (2, 3)
    assert first.holds
    # Over the two seeds that both have: -10 and -15.
    assert second.difference == -12.5
    assert (second.num_held, second.num_seeds) == (0, 2)
    assert second.holds is False

  def test_paired_test_and_interval_by_hand(self):
    (found,) = orderings("a: 10 20 30 | 2\nb: 9 18 27 | 1")
    # 1, 2 and 3: mean 2, standard error 1 / sqrt(3), 2 degrees of freedom, of
    # which t = 4.302653 has 95 %; P(|T| > t) = 1 - t / sqrt(t^2 + 2).
    reach = 4.302653 / math.sqrt(3)
    assert found.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    t = 2 * math.sqrt(3)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert (found.spread, found.threshold) == (1, None)
    assert not found.is_certain

  def test_less_can_be_better(self):
    (found,) = orderings("a: 1 2 | 5\nb: .5 .5 | 1", higher_is_better=False)
    assert (found.better, found.worse) == ("b", "a")
    assert found.difference == 1.0
    assert found.num_held == 2

  def test_missing_runs_are_not_left_out(self):
    found = orderings("a: 1 | 2\nb: - 5 | 1\nc: | 0")
    assert len(found) == 3
    assert all(each.holds is None for each in found)

  @pytest.mark.parametrize(
    "text",
    # Equal but for rounding; one that has diverged; a single seed.
    [
      "a: 1.1 2.2 | 2\nb: 1 2.1 | 1",
      "a: 1 nan | 2\nb: 1 2 | 1",
      "a: 2 | 2\nb: 1 | 1",
    ],
  )
  def test_no_test_where_nothing_varies_or_is_known(self, text):
    (found,) = orderings(text)
    assert found.p_value is found.interval is found.adjusted is None
    assert found.holds in (True, None)

  def test_best_is_corrected_for_all_pairs_that_it_was_chosen_among(self):
    # Differences of a and b: 4, 5, 6; of a and c: 9, 9, 12; of b and c, who are
    # not told of: 5, 4, 6. So t is 5 sqrt(3), 10 and 5 sqrt(3).
    # One seed of d: no test, which does not count.
    found = orderings("b: 6 6 6\nc: 1 2 0\na: 10 11 12\nd: -1")
    assert [(each.better, each.worse) for each in found] == [
      ("a", "b"),
      ("a", "c"),
      ("a", "d"),
    ]
    assert [each.difference for each in found] == [5.0, 10.0, 11.0]
    assert all(each.paper_difference is None for each in found)
    near, far = (1 - t / math.sqrt(t**2 + 2) for t in (5 * math.sqrt(3), 10))
    assert [each.p_value for each in found] == pytest.approx([near, far, None])
    assert [each.num_tests for each in found] == [3, 3, 3]
    # Three times the smallest; twice the next is less, and is raised to it.
    assert [each.adjusted for each in found] == pytest.approx(
      [3 * far, 3 * far, None]
    )

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "num_methods, num_seeds, num_columns, num_tables",
    [(3, 2, 1, 2000), (5, 3, 1, 500), (4, 5, 3, 300), (10, 5, 1, 300)],
  )
  def test_equal_methods_rarely_have_a_certain_winner(
    self, num_methods, num_seeds, num_columns, num_tables
  ):
    generator = np.random.default_rng([num_methods, num_seeds, num_columns])
    columns = [column(str(number)) for number in range(num_columns)]
    # What a seed gives to all methods alike, and to each by itself.
    shape = num_tables, num_columns, num_methods, num_seeds
    values = generator.normal(size=shape) + generator.normal(
      size=(*shape[:2], 1, num_seeds)
    )

    def has_certain_winner(of_table):
      found = statistics.orderings(
        table(
          *(
            cell(str(method), by_seed, one.heading)
            for one, methods in zip(columns, of_table.tolist(), strict=True)
            for method, by_seed in enumerate(methods)
          ),
          columns=columns,
        )
      )
      assert len(found) == num_columns * (num_methods - 1)
      return any(each.is_certain for each in found)

    assert np.mean([has_certain_winner(each) for each in values]) <= 0.05

  def test_columns_can_be_left_out(self):
    assert not orderings("a: 1\nb: 2", orderings=False)

  def test_certain_is_what_is_left_after_correction(self):
    # Differences of 1, 2, 3 in a column and of 1.1, 1, 1.2 in another.
    columns = [column(), column("other")]
    first = cells("a: 1 2 3 | 2\nb: 0 0 0 | 1")
    second = cells("a: 1.1 1 1.2 | 2\nb: 0 0 0 | 1", ("other",))
    found = statistics.orderings(table(*first, *second, columns=columns))
    # By t = mean / (deviation / sqrt(3)) and 1 - t / sqrt(t^2 + 2).
    ts = [2 * math.sqrt(3), 1.1 * math.sqrt(3) / 0.1]
    p_values = [1 - t / math.sqrt(t**2 + 2) for t in ts]
    assert [each.adjusted for each in found] == pytest.approx(
      [p_values[0], 2 * p_values[1]]
    )
    assert [each.is_certain for each in found] == [False, True]


def test_sentence_about_the_best_method():
  # Differences of 4, 5 and 6 to b: t is 5 sqrt(3), p 0.013. 1, 2 and 3 to c: p
  # 0.074. Those of b and c do not vary, so that there are two tests. Intervals
  # reach 4.3027 / sqrt(3) to both sides.
  contents = table(*cells("b: 6 6 6\na: 10 11 12\nc: 9 9 9"))
  assert statistics.sentences(contents) == [
    "accuracy: a is not shown to be ahead of c by 2.0 (-0.5 to 4.5); ahead of b"
    " by 5.0 (2.5 to 7.5) (95 % intervals, 3 seeds)"
  ]


def test_sentence_about_one_seed():
  contents = table(*cells("b: 1\na: 2"))
  assert statistics.sentences(contents) == [
    "accuracy: a is not shown to be ahead of b by 1.0 (no interval) (95 %"
    " intervals, 1 seed)"
  ]
