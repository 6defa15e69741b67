"""Columns of data frames come to a model by their names."""

import numpy as np
import pandas
import pyarrow
import pytest

from tests.fixtures.arrays import assert_equal
from tests.fixtures.refusals import refused
from tff_shift.data import table
from tff_shift.serving import columns

NAMES = table.Schema(
  features=("weight", "age", "lab"),
  label="outcome",
  client="site",
  time="date",
  dropped=("note",),
)
FRAME = pandas.DataFrame(
  {"weight": [70.0, 80.0], "age": [50, 60], "lab": [0.5, -0.5]}
)
X = np.array([[70, 50, 0.5], [80, 60, -0.5]], np.float32)


def schema_of(*features):
  return table.Schema(features=features)


@pytest.mark.parametrize(
  "x",
  [
    FRAME,
    FRAME[["lab", "age", "weight"]],
    pyarrow.Table.from_pandas(FRAME[["age", "lab", "weight"]]),
  ],
)
def test_order_of_columns_has_no_effect(x):
  found = columns.matched(x, NAMES)
  assert found.dtype == np.float32
  assert_equal(found, X)


def test_arrays_and_models_without_names_have_positions():
  assert columns.matched(X, NAMES) is X
  assert columns.matched(FRAME, table.Schema()) is FRAME


def test_names_of_columns_are_compared_as_texts():
  frame = pandas.DataFrame({1: [1.0], 0: [2.0]})
  assert_equal(columns.matched(frame, schema_of("0", "1")), [[2, 1]])


def test_vectors():
  names = schema_of("v[0]", "v[1]", "age")
  frame = pandas.DataFrame({"age": [3.0], "v": [np.array([1.0, 2.0])]})
  assert_equal(columns.matched(frame, names), [[1, 2, 3]])
  frame["v"] = [np.array([1.0, 2.0, 9.0])]
  with refused(r"its vectors make the columns v\[0\], v\[1\], v\[2\], age;"):
    columns.matched(frame, names)


def test_columns_that_the_run_knows_may_be_there():
  more = FRAME.assign(outcome="a", site="b", date="May", note=None)
  assert_equal(columns.matched(more[::-1], NAMES), X[::-1])
  # A feature comes before another role.
  assert_equal(
    columns.matched(
      FRAME[["age"]], table.Schema(features=("age",), time="age")
    ),
    X[:, 1:2],
  )


def test_frame_without_rows():
  assert columns.matched(FRAME[:0], NAMES).shape == (0, 3)


@pytest.mark.parametrize(
  "frame, message",
  [
    (
      FRAME[["weight", "age"]],
      "x: column 'lab' is missing; the model's columns are weight, age, lab",
    ),
    (
      FRAME.assign(month=1, day=2),
      "x: columns 'month', 'day' are unknown to the model; leave out such"
      " columns; the model's columns are weight, age, lab",
    ),
    (
      FRAME.rename(columns={"lab": "month"}),
      "x: column 'lab' is missing, and column 'month' is unknown to the model;",
    ),
    (
      pandas.DataFrame(X),
      "x: columns 'weight', 'age', 'lab' are missing, and columns '0', '1', '2'"
      " are unknown",
    ),
    (
      pandas.concat([FRAME, FRAME[["age"]]], axis=1),
      "x: 'age' is the name of two columns",
    ),
    (
      FRAME.assign(age="old"),
      "x: features: column 'age' has 'old' in row 0, not a number",
    ),
    (
      FRAME.assign(age=[1, np.nan]),
      "x: features: column 'age' has 1 missing values, the first in row 1",
    ),
  ],
)
def test_other_columns_are_refused_by_name(frame, message):
  with refused(f"^{message}"):
    columns.matched(frame, NAMES)
