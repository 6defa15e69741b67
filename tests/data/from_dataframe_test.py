"""Tests of a DataFrame as client data of the scenarios."""

import datetime
import itertools
import warnings

import numpy as np
import pandas
import pytest

import tff_shift as ts
from tff_shift.data import examples
from tff_shift.data import from_python

COLUMNS = {"label": "outcome", "client": "site", "time": "month"}


def make_frame(size=4, **columns):
  """`size` rows for each of two sites, three months and two outcomes."""
  rows = [
    {
      "site": site,
      "month": month,
      "outcome": outcome,
      "age": 10.0 * month + number,
      "dose": number,
    }
    for site, month, outcome, number in itertools.product(
      ("b", "a"), (3, 1, 2), ("sick", "healthy"), range(size)
    )
  ]
  return pandas.DataFrame(rows).assign(**columns)


def read(scenario, frame, **options):
  return from_python.from_dataframe(scenario, frame, **COLUMNS | options)


class TestEvolving:
  def test_rows_come_to_their_client_domain_and_class(self):
    named = read("evolving", make_frame(), test_fraction=0.25)
    assert named.schema.classes == ("healthy", "sick")
    assert named.schema.clients == ("a", "b")
    assert named.schema.times == ("1", "2", "3")
    assert named.schema.features == ("age", "dose")
    first, second = named.data
    assert (first.name, second.name) == ("a", "b")
    # Of eight rows of a month, two are for testing; the last month is unseen.
    assert first.train.domain_sizes.tolist() == [6, 6, 0]
    assert first.test.domain_sizes.tolist() == [2, 2, 8]
    ages = np.concatenate([first.train.x, first.test.x])[:, 0]
    assert sorted(ages) == [
      10 * month + number
      for month in (1, 2, 3)
      for number in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    assert first.train.x.dtype == np.float32

  def test_dates_and_ordered_texts_have_an_order(self):
    month = make_frame()["month"]
    first = datetime.date(2024, 2, 1)
    days = [first + datetime.timedelta(30 * int(m)) for m in month]
    dates = pandas.to_datetime(days)
    words = month.map({1: "late", 2: "early", 3: "middle"})
    order = ["early", "middle", "late", "never"]
    for times, names, last in (
      (dates, ("2024-03-02", "2024-04-01", "2024-05-01"), 30),
      (days, ("2024-03-02", "2024-04-01", "2024-05-01"), 30),
      (
        pandas.Categorical(words, order, ordered=True),
        ("early", "middle", "late"),
        10,
      ),
    ):
      named = read("evolving", make_frame(month=times))
      assert named.schema.times == names
      assert set(named.data[0].test.x[-8:, 0]) == set(range(last, last + 4))

  def test_chosen_features_and_classes_in_the_order_of_categories(self):
    frame = make_frame(note="text")
    outcome = pandas.Categorical(frame["outcome"], ["sick", "healthy"])
    # Sorted by value.
    site = frame["site"].map({"a": "10", "b": "9"})
    named = read(
      "evolving", frame.assign(outcome=outcome, site=site), features=["dose"]
    )
    assert named.schema.features == ("dose",)
    assert named.schema.classes == ("sick", "healthy")
    assert named.schema.clients == ("9", "10")
    assert named.data[0].train.x.shape[1:] == (1,)


def test_guidance_has_no_time(refusal):
  frame = make_frame().drop(columns="month")
  named = read("guidance", frame, time=None, test_fraction=0.5)
  assert named.schema.times == ()
  assert [len(each.y) for each in named.data.train] == [12, 12]
  message = "time='month' is not allowed for guidance: it must be left out"
  assert message in refusal(read, "guidance", frame)


def mixed(value, row, other):
  """48 values, one of which differs from the others."""
  values = [other] * 48
  values[row] = value
  return pandas.Series(values)


@pytest.mark.parametrize(
  "changes, options, message",
  [
    ({}, {"label": "age_"}, "label='age_' is not a column; there are site, mo"),
    ({}, {"time": "site"}, "client='site' has another role too"),
    (
      {"month": "May"},
      {},
      "time 'month': texts have no order, such as 'May' i",
    ),
    ({"outcome": mixed([1], 3, "a")}, {}, "label 'outcome' has [1] in row 3"),
    (
      {"outcome": mixed(2.5, 4, 1)},
      {},
      "has fractions, such as 2.5 in row 4; its",
    ),
    ({"outcome": 1j}, {}, "label 'outcome' has complex numbers, such as 1j in"),
    ({"outcome": mixed(1, 7, "1")}, {}, "label 'outcome': '1' is there twice"),
    (
      {"site": mixed(None, 9, "a")},
      {},
      "client 'site' has missing values, the",
    ),
    ({"dose": 1j}, {}, "features: column 'dose' has values of type complex128"),
    (
      {"dose": mixed("x", 5, 1.0)},
      {},
      "column 'dose' has 'x' in row 5, not a n",
    ),
    ({"dose": mixed(1e20, 5, 1.0)}, {}, "column 'dose' has 1e+20 in row 5; n"),
    ({"dose ": 1.0}, {}, "columns: 'dose' (column 5) and 'dose ' (column 6"),
    ({}, {"time": None}, "time=None is not allowed for evolving: it must be a"),
    ({}, {"features": []}, "features: there must be at least one column"),
    ({}, {"features": ["size"]}, "features: 'size' is not a column"),
    ({}, {"features": ["dose", "outcome"]}, "features: 'outcome' is the label"),
  ],
)
def test_wrong_columns_are_named(changes, options, message, refusal):
  told = refusal(read, "evolving", make_frame(**changes), **options)
  assert message in told


def test_wrong_frames_are_refused(refusal):
  for wrong, message in (
    ({"a": [1]}, "a pandas.DataFrame is wanted, got dict"),
    (make_frame()[:0], "the frame has no rows"),
  ):
    assert message in refusal(read, "evolving", wrong)


class TestWarnings:
  def warned(self, frame):
    with pytest.warns(examples.DataWarning) as caught:
      read("evolving", frame, test_fraction=0.25)
    return [
      str(warning.message)
      for warning in caught
      if warning.category is examples.DataWarning
    ]

  def test_features_without_a_scale_are_named(self):
    frame = make_frame(20)
    frame["dose"] *= 1000.0
    (line,) = self.warned(frame)
    assert "as large as 1.9e+04 (dose)" in line
    assert "input_scaling" in line

  def test_every_day_is_no_domain(self):
    frame = make_frame()
    frame = pandas.concat(
      frame.assign(month=frame.month + 3 * number) for number in range(17)
    )
    many, few = self.warned(frame)
    assert "time has 51 values" in many and "51 domains" in many
    assert few.startswith("'51', the target, has only 16 examples")

  @pytest.mark.parametrize(
    "column, message",
    [
      (
        range(1000, 1240),
        "column 'extra' has another value in each of the 240 rows, like an id",
      ),
      (
        pandas.date_range("2024-01-01", periods=240),
        "column 'extra' has dates, which become days since 1970",
      ),
    ],
  )
  def test_columns_that_are_rarely_features(self, column, message):
    warning, *_ = self.warned(make_frame(20).assign(extra=column))
    assert warning.startswith(message)

  def test_ordinary_tables_give_no_line(self):
    with warnings.catch_warnings():
      warnings.simplefilter("error", examples.DataWarning)
      read("evolving", make_frame(5), test_fraction=0.25)


def test_arrays_without_a_scale_are_named():
  pair = np.float32([[1, 2], [3, 4e4]] * 5), np.arange(10) % 2
  with pytest.warns(
    examples.DataWarning, match="as large as 4e\\+04"
  ) as caught:
    ts.from_arrays("guidance", [pair, pair])
  assert "feature 1" in str(caught[0].message)
