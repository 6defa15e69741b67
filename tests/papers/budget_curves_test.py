"""Curves against gradient steps, with numbers by hand."""

import math

import numpy as np
import pytest

from experiments.papers import budget_curves
from tests.fixtures.refusals import refused
from tff_shift.reporting.pages import contents

_COLUMN = contents.Column(heading=("digits",), metric="accuracy")


def cell(row, values, *, column=_COLUMN, **budget):
  return contents.Cell(
    row=row,
    column=column.heading,
    by_seed=dict(enumerate(values)),
    budget=contents.Budget(
      **{"num_rounds": 4, "num_gradients": 1.0, "participation": 1.0} | budget
    ),
  )


def curves(row, by_seed, *, steps=(2, 4), step="round", column=_COLUMN):
  return [
    contents.Curve(
      row=row,
      column=column.heading,
      seed=seed,
      step=step,
      points=list(zip(steps, values, strict=True)),
    )
    for seed, values in enumerate(by_seed)
  ]


def of(cells, curves_, columns=(_COLUMN,), name="one"):
  return budget_curves.of_table(
    contents.Contents(
      name=name, title="", columns=columns, cells=cells, curves=curves_
    )
  )


def of_rows(by_row, budgets=None, name="one", **steps):
  """The curves of a table of one column; its values are the last points."""
  cells, lines = [], []
  for row, by_seed in by_row.items():
    budget = (budgets or {}).get(row, {})
    cells.append(cell(row, [points[-1] for points in by_seed], **budget))
    lines += curves(row, by_seed, **steps)
  (found,) = of(cells, lines, name=name)
  return found


def crossing():
  """Returns curves of "fast", which spends 10 a round, and "slow", 20."""
  return of_rows(
    {"fast": [[40, 50], [42, 54]], "slow": [[30, 80], [32, 84]]},
    {"fast": {"num_gradients": 10}, "slow": {"num_gradients": 20}},
  )


def test_steps_are_rounds_times_gradients_times_participation():
  found = of_rows(
    {"a": [[1, 5], [3, 7]], "two phases": [[1, 5], [3, 7]]},
    {
      "a": {"num_gradients": 10, "participation": 0.5},
      "two phases": {"num_gradients": 30, "participation": 0.5},
    },
  )
  assert found.by_row["a"].rounds.tolist() == [10, 20]
  assert found.by_row["two phases"].rounds.tolist() == [30, 60]
  assert found.by_row["a"].by_seed.tolist() == [[1, 5], [3, 7]]
  assert found.gradients == {"a": 10, "two phases": 30}
  assert found.axis == "gradient steps of a client"


def test_leads_compare_at_equal_budget():
  found = crossing()
  # "fast" ends at 40 steps, where "slow" has its first point.
  assert found.common == 40
  # Half way between 20 and 40 steps; "slow" has no value yet.
  assert {row: v.tolist() for row, v in found.at(30).items()} == {
    "fast": [45, 48]
  }
  # Half way between 40 and 80 steps; "fast" has ended.
  assert {row: v.tolist() for row, v in found.at(60).items()} == {
    "slow": [55, 58]
  }
  (lead,) = budget_curves.leads(found)
  assert (lead.step, lead.best, lead.second) == (40, "fast", "slow")
  # 50 - 30 and 54 - 32. t of 0.975 with one degree of freedom is 12.7062, the
  # standard error is 1.
  assert (lead.values, lead.lead) == ([50, 54], 21)
  assert lead.interval == pytest.approx((21 - 12.7062, 21 + 12.7062), abs=1e-3)
  assert budget_curves.visible(found) == pytest.approx(12.7062, abs=1e-3)


def test_leads_say_when_the_best_changes():
  found = of_rows(
    {"a": [[5, 6, 7, 8]], "b": [[1, 2, 9, 9.5]]}, steps=(1, 2, 3, 4)
  )
  leads = budget_curves.leads(found)
  # From step 1 on a, from 3 on b, which also leads at the end.
  assert [(each.step, each.best, each.lead) for each in leads] == [
    *((1, "a", 4), (3, "b", 2), (4, "b", 1.5))
  ]
  # One seed shows no spread.
  assert leads[0].interval is None
  assert budget_curves.visible(found) is None


def test_streams_have_the_mean_up_to_each_time_step():
  found = of_rows(
    {"a": [[50, 70]], "still": [[60, 40]]},
    {"a": {"num_gradients": None}, "still": {"num_gradients": 0.0}},
    steps=(1, 2),
    step="timestep",
  )
  assert found.axis == "time step"
  assert found.by_row["a"].rounds.tolist() == [1, 2]
  assert found.by_row["a"].by_seed.tolist() == [[50, 60]]
  assert found.by_row["still"].by_seed.tolist() == [[60, 50]]


def test_columns_of_rounds_are_points_of_one_curve():
  columns = [
    contents.Column(heading=("digits", f"{n} rounds"), metric="accuracy")
    for n in (10, 5)
  ]
  cells = [
    cell(row, [value + n], num_gradients=2, column=column, num_rounds=n)
    for row, value in (("a", 50), ("b", 60))
    for n, column in zip((10, 5), columns, strict=True)
  ]
  periods = [
    each
    for column in columns
    for row in "ab"
    for each in curves(row, [[0, 0]], step="period", column=column)
  ]
  (found,) = of(cells, periods, columns)
  assert found.by_row["a"].rounds.tolist() == [10, 20]
  assert found.by_row["a"].by_seed.tolist() == [[55, 60]]
  assert found.by_row["b"].by_seed.tolist() == [[65, 70]]


def test_methods_without_all_gradients_are_left_out_by_name():
  rows = "a", "b", "until it converges", "none", "tuned"
  found = of_rows(
    {row: [[1, 5]] for row in rows},
    {
      "until it converges": {"num_gradients": None},
      "none": {"num_gradients": 0.0},
      "tuned": {"fine_tuning_steps": 100},
    },
  )
  assert list(found.by_row) == ["a", "b"]
  assert found.left_out == {
    "until it converges": "the number of its gradients is not known",
    "none": "it computes no gradients",
    "tuned": "100 steps of fine-tuning before each evaluation are not in its"
    " steps",
  }
  page = budget_curves.page([found])
  assert "Without none: it computes no gradients." in page


def test_a_table_without_curves_is_refused_with_the_reason():
  with refused(r"one: two methods .*; b: it computes no"):
    of_rows({"a": [[1, 5]], "b": [[1, 5]]}, {"b": {"num_gradients": 0.0}})
  with refused("one: no run has finished"):
    of([cell("a", [])], [])


def test_profiles_are_over_the_tables_that_have_a_method():
  tables = {
    "one": {"a": 90, "b": 88, "only": 91},
    "two": {"a": 50, "b": 60},
    "three": {"b": 70, "c": 75},
  }
  found = budget_curves.profiles(
    [
      of_rows({row: [[0, mean]] for row, mean in means.items()}, name=name)
      for name, means in tables.items()
    ]
  )
  # "only" and "c" are in one table; the best of a table may be one of these.
  # Ordered by the mean share up to 10 points.
  assert [(each.row, each.distances) for each in found] == [
    *(("b", [0, 3, 5]), ("a", [1, 10]))
  ]
  b, a = found
  assert [a.share(tau) for tau in (0, 1, 10)] == [0, 1 / 2, 1]
  assert [b.share(tau) for tau in (0, 3, 5)] == [1 / 3, 2 / 3, 1]


def test_seeds_must_agree():
  with refused("one: all methods must have the same"):
    of_rows({"a": [[1, 5], [1, 6]], "b": [[1, 5]]})
  two = [[1, 5], [1, 6]]
  first, _ = curves("a", two)
  _, second = curves("a", two, steps=(1, 4))
  with refused("one: a: its seeds have values at diff"):
    of(
      [cell("a", [5, 6]), cell("b", [5, 6])],
      [first, second, *curves("b", two)],
    )


def test_page_has_the_numbers():
  page = budget_curves.page([crossing()])
  assert "| 40 | fast | 52.0 | slow | 21.0 | 8.3 to 33.7 |" in page
  assert "Visible from 12.7 points." in page
  assert "| slow | 20 | 31.0 ± 1.4 |" in page
  assert np.std([30, 32], ddof=1) == pytest.approx(math.sqrt(2))
