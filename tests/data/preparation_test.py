"""Missing values and categories, beside scikit-learn."""

import sys

import numpy as np
import pandas
import pytest
from sklearn import compose
from sklearn import impute
from sklearn import preprocessing

import tff_shift as ts
from tff_shift.data import preparation
from tff_shift.data.sources import frames
from tff_shift.serving import columns

ROLES = {"label": "y", "client": "c", "time": "t"}


def oracle(missing, categories):
  """Returns scikit-learn's transformer of the three features."""
  return compose.ColumnTransformer(
    [
      (
        "lab",
        impute.SimpleImputer(
          strategy="median" if missing == "median" else "mean",
          add_indicator=missing == "indicator",
        ),
        ["lab"],
      ),
      (
        "ward",
        preprocessing.OneHotEncoder(
          categories=[categories], handle_unknown="ignore", sparse_output=False
        ),
        ["ward"],
      ),
      ("age", "passthrough", ["age"]),
    ]
  )


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_features_are_those_of_scikit_learn(missing, make_patients):
  frame = make_patients()
  content = frames.read(frame, "y", missing=missing, categories="one_hot")
  schema = content.schema
  # "c" and "t" are features here, and have nothing to prepare.
  names = [column.name for column in schema.preparation.columns]
  assert names == ["c", "t", "lab", "ward", "age"]
  train = frame[:120]
  fitted = schema.preparation.fit([content.x[:60], content.x[60:120]])
  features = fitted.apply(content.x)
  transformer = oracle(missing, ["A", "B", "C"]).fit(train)
  expected = transformer.transform(frame)
  start = fitted.features.index("lab")
  np.testing.assert_allclose(features[:, start:], expected, rtol=1e-6)
  assert fitted.features[:3] == ("c=p", "c=q", "t")
  assert features.dtype == np.float32 and np.isfinite(features).all()


def test_missing_and_unseen_categories_have_the_next_number():
  frame = pandas.DataFrame({"ward": ["A", None, "B", "C"], "y": [0, 1, 0, 1]})
  content = frames.read(
    frame,
    "y",
    missing="mean",
    categories="embedding_index",
    unseen_categories="ignore",
  )
  # C has no training example.
  schema = preparation.fitted(content.schema, [content.x[:3]])
  assert schema.features == ("ward",)
  x = np.append(content.x, [[3]], axis=0)  # Not a category of the table.
  assert schema.preparation.apply(x).tolist() == [[0], [3], [1], [3], [3]]


def test_columns_may_have_numbers_as_names():
  frame = pandas.DataFrame(
    {
      0: ["a", "b", "a", "b"],
      1: pandas.to_datetime(["1970-01-02", "1970-01-03"] * 2),
      "y": [0, 1, 0, 1],
    }
  )
  content = frames.read(frame, "y", categories="one_hot")
  schema = preparation.fitted(content.schema, [content.x])
  assert schema.features == ("0=a", "0=b", "1")
  assert (
    preparation.applied(content, schema).x.tolist()
    == [
      [1, 0, 1],
      [0, 1, 2],
    ]
    * 2
  )
  assert frame[0].tolist() == ["a", "b", "a", "b"]


class TestFromDataframe:
  def test_only_training_examples_are_fitted(self, make_patients):
    frame = make_patients()
    # Neither the target nor the test examples of the sources.
    frame.loc[frame.t == 2, "lab"] *= 1000
    clients, schema = ts.from_dataframe(
      "evolving", frame, **ROLES, missing="mean", categories="one_hot"
    )
    lab = next(c for c in schema.preparation.columns if c.name == "lab")
    assert schema.features == ("lab", "ward=A", "ward=B", "ward=C", "age")
    trained = np.concatenate([client.train.x[:, 0] for client in clients])
    is_filled = np.isclose(trained, lab.fill)
    assert is_filled.any() and trained.max() < 20
    assert lab.fill == pytest.approx(trained[~is_filled].mean(), rel=1e-5)

  @pytest.mark.parametrize(
    "scenario, x_of",
    [
      ("guidance", lambda data: data.test[0].x),
      ("online_adaptation", lambda data: data.streams.batch(1, 2).x),
      ("dynamic_personalization", lambda data: data.batch(1, 2).x),
    ],
  )
  def test_other_scenarios_have_the_features(
    self, scenario, x_of, make_patients
  ):
    frame, roles = make_patients(), dict(ROLES)
    if scenario == "guidance":
      frame = frame.drop(columns=roles.pop("time"))
    data, schema = ts.from_dataframe(
      scenario, frame, **roles, missing="indicator", categories="one_hot"
    )
    assert len(schema.features) == 6
    x = x_of(data)
    assert x.shape[1] == 6 and np.isfinite(x).all()

  def test_category_without_training_example(self, make_patients, refusal):
    frame = make_patients()
    frame.loc[frame.index[-1], "ward"] = "new"
    options = {**ROLES, "missing": "mean", "categories": "one_hot"}
    assert refusal(ts.from_dataframe, "evolving", frame, **options) == (
      "column 'ward': the category 'new' of 1 examples has no training"
      " example; --unseen_categories=ignore makes all its indicators 0"
    )
    clients, schema = ts.from_dataframe(
      "evolving", frame, **options, unseen_categories="ignore"
    )
    wards = [schema.features.index(f"ward={name}") for name in "ABC"]
    assert schema.features.index("ward=new") > 0
    indicators = clients[0].test.x[-1]
    assert not indicators[wards].any()


class TestPrediction:
  @pytest.fixture
  def frame(self, make_patients):
    return make_patients().drop(columns=["c", "t"])

  def fitted(self, frame, **options):
    content = frames.read(
      frame, "y", missing="median", categories="one_hot", **options
    )
    return content, preparation.fitted(content.schema, [content.x])

  def test_columns_come_in_any_order_with_missing_values(self, frame):
    content, schema = self.fitted(frame)
    np.testing.assert_array_equal(
      columns.matched(frame[["age", "y", "ward", "lab"]], schema),
      preparation.applied(content, schema).x,
    )

  def test_new_category_is_named_with_its_row(self, frame, refusal):
    _, schema = self.fitted(frame)
    _, lenient = self.fitted(frame, unseen_categories="ignore")
    frame.loc[5, "ward"] = "Z"
    assert refusal(columns.matched, frame, schema) == (
      "x: column 'ward' has 'Z' in row 5, a category that training did not have"
    )
    assert not columns.matched(frame, lenient)[5, 1:4].any()


@pytest.mark.parametrize(
  "options, message",
  [
    ({"missing": "zero"}, "missing must be one of error, mean, median, ind"),
    (
      {"categories": "one_hot"},
      "features: column 'lab' has 35 missing values, the first in row 0"
      " (and 'ward'); leave out these rows or columns, or fill the values"
      " (--missing=median)",
    ),
    *(
      (
        {"preprocessing": impute.SimpleImputer(), **option},
        "preprocessing: it fills missing values and encodes",
      )
      for option in ({"missing": "mean"}, {"categories": "one_hot"})
    ),
    (
      {"preprocessing": impute.SimpleImputer()},
      "the package skops is missing; install the extra `sk",
    ),
  ],
)
def test_refusals_name_the_option_that_helps(
  options, message, make_patients, refusal, monkeypatch
):
  monkeypatch.setitem(sys.modules, "skops.io", None)
  frame = make_patients().drop(columns=["c", "t"])
  assert refusal(frames.read, frame, "y", **options).startswith(message)


def test_table_without_need_is_not_prepared(make_patients):
  frame = make_patients()[["y", "age"]]
  content = frames.read(frame, "y", missing="mean", categories="one_hot")
  assert content.schema.preparation is None
  assert preparation.fitted(content.schema, [content.x]) == content.schema
  assert preparation.applied(content, content.schema) is content
