"""Tables: their validation, and the number of their classes."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import examples
from tff_shift.data import preparation
from tff_shift.data import table

X = np.arange(8.0).reshape(4, 2)
SCHEMA = table.Schema(classes=("a", "b"))
VALID = table.Table(X, np.array([0, 1, 1, 0]), SCHEMA)


class TestNumClasses:
  def infer(self, labels):
    """Infers the number of classes of labels that lie in arrays of 4."""
    return table.num_classes_of(
      np.array(labels), lambda row: (f"y{row // 4}", row % 4)
    )

  def test_classes_that_all_occur_are_counted(self):
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      assert self.infer([0, 2, 1, 1, 0]) == 3
      assert self.infer(np.zeros(0, int)) == 1

  def test_classes_that_never_occur_are_told(self):
    # Half of them is enough.
    with pytest.warns(
      examples.DataWarning,
      match=(
        r"^y2: the greatest label is 19, and 10 of the 20 classes 0\.\.19 "
        r"occur;.* without an example: 0, 2, 4, 6, 8, \.\.\.$"
      ),
    ):
      assert self.infer(range(1, 20, 2)) == 20

  @pytest.mark.parametrize("highest", [20, 10**15])
  def test_identifiers_are_refused(self, highest, refusal):
    assert refusal(self.infer, [0, 1, 2, 3, 4, highest, *range(5, 9)]) == (
      f"y1: the greatest label is {highest}, and 10 of the {highest + 1}"
      f" classes 0..{highest} occur; if labels are identifiers, number them"
      " from 0 to 9 (y = numpy.unique(y, return_inverse=True)[1]), and if there"
      f" are {highest + 1} classes, give their number (class_names of a file,"
      " num_classes in Python)"
    )


class TestValidate:
  def test_arrays_are_cast_and_numbers_become_names(self):
    content = table.validate(
      VALID._replace(
        schema=table.Schema(), client=np.array([1, 0, 0, 1]), time=np.arange(4)
      ),
      "mine",
    )
    assert (content.x.dtype, content.y.dtype) == (np.float32, np.int32)
    assert content.client.dtype == content.time.dtype == np.int32
    assert content.schema == table.Schema(
      classes=("0", "1"), num_clients=2, times=tuple("0123")
    )

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"client": np.arange(3)}, "client of mine: the shape must be [4]"),
      ({"client": np.arange(4) - 1}, "client of mine: numbers from 0 to 2"),
      (
        {
          "time": np.arange(4),
          "schema": table.Schema(classes=("a", "b"), times=("x", "y")),
        },
        "time of mine: numbers from 0 to 1 wanted, got 0..3",
      ),
      ({"num_train": 4}, "num_train of mine: it must lie in 1..3"),
      (
        {"schema": table.Schema(classes=("a",))},
        "y of mine: there must be at least 2 classes",
      ),
      (
        {"schema": table.Schema(classes=("a", "b"), features=("x",))},
        "feature_names of mine: a name for each column of x [4, 2] wanted",
      ),
    ],
  )
  def test_invalid_fields_are_named(self, changes, message, refusal):
    changed = VALID._replace(**changes)
    assert refusal(table.validate, changed, "mine").startswith(message)

  def test_columns_of_a_preparation_may_lack_values_alone(self, refusal):
    x = X.copy()
    x[1, 0] = np.nan
    columns = tuple(preparation.Column(name=name) for name in "vw")
    schema = SCHEMA.replace(
      features=("v", "w"),
      preparation=preparation.Preparation(columns=columns, missing="mean"),
    )
    content = table.validate(VALID._replace(x=x, schema=schema), "mine")
    assert content.x.dtype == np.float32
    assert_array_equal(content.x, x)
    infinite = content._replace(x=np.full((4, 2), np.inf))
    assert refusal(table.validate, infinite, "mine").startswith(
      "x of mine: all numbers must be finite as"
    )


def test_digest_depends_on_arrays_and_names_alone():
  x, y = np.float32([[0], [1]]), np.int32([0, 1])
  schema = table.Schema(classes=("a", "b"), features=("dose",))
  whole = table.Table(x, y, schema, client=y, time=y)
  others = [
    whole._replace(x=x + 1),
    whole._replace(y=1 - y),
    whole._replace(client=1 - y),
    whole._replace(time=1 - y),
    whole._replace(group=y),
    whole._replace(num_train=1),
    whole._replace(schema=schema.replace(features=("age",))),
    whole._replace(schema=schema.replace(clients=("north", "south"))),
  ]
  digests = {table.digest(content) for content in [whole, *others]}
  assert len(digests) == 1 + len(others)
  assert table.digest(whole._replace(x=x.copy())) == table.digest(whole)
