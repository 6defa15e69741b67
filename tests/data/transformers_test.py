"""A user's scikit-learn transformer, beside scikit-learn on training rows."""

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pandas
import pytest
from sklearn import compose
from sklearn import impute
from sklearn import linear_model
from sklearn import pipeline
from sklearn import preprocessing

import tff_shift as ts
from tff_shift.data import datasets
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data import transformers
from tff_shift.data.sources import frames
from tff_shift.serving import columns

skops = pytest.importorskip(
  "skops.io", reason="the extra skops is not installed"
)

FEATURES = ["lab", "ward", "age"]


def make_transformer():
  lab = pipeline.make_pipeline(
    impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler()
  )
  ward = pipeline.make_pipeline(
    impute.SimpleImputer(strategy="most_frequent"),
    preprocessing.OneHotEncoder(handle_unknown="ignore"),
  )
  return compose.ColumnTransformer(
    [("lab", lab, ["lab"]), ("ward", ward, ["ward"])],
    remainder="passthrough",
  )


def read(frame, transformer):
  return frames.read(frame, "y", features=FEATURES, preprocessing=transformer)


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.integers(0, 999), st.integers(40, 200))
def test_features_are_those_of_scikit_learn_on_training_rows(
  make_patients, seed, num_train
):
  frame, transformer = make_patients(seed), make_transformer()
  content = read(frame, transformer)
  schema = preparation.fitted(
    content.schema, [content.x[:20], content.x[20:num_train]]
  )
  prepared = preparation.applied(content, schema)
  # A copy was fitted.
  assert not hasattr(transformer, "transformers_")
  transformer.fit(frame[FEATURES][:num_train])
  expected = transformer.transform(frame[FEATURES])
  np.testing.assert_allclose(prepared.x, expected, rtol=1e-6, atol=1e-6)
  assert schema.features == tuple(transformer.get_feature_names_out())
  # Any part has the features of its rows; also one without rows.
  for rows in (slice(3, 9), slice(0)):
    part = schema.preparation.apply(content.x[rows])
    np.testing.assert_array_equal(part, prepared.x[rows])


def test_stored_transformer_makes_the_features_of_new_rows(make_patients):
  transformer = make_transformer()
  content = read(make_patients(), transformer)
  fitted = preparation.fitted(content.schema, [content.x])
  stored = msgspec.json.decode(msgspec.json.encode(fitted.to_fields()))
  schema = msgspec.convert(stored, table.Schema)
  assert schema == fitted
  transformer.fit(make_patients()[FEATURES])
  new = make_patients(1)
  features = columns.matched(new[["age", "y", "ward", "lab"]], schema)
  expected = transformer.transform(new[FEATURES])
  np.testing.assert_allclose(features, expected, rtol=1e-6, atol=1e-6)


def test_output_may_be_dense_and_without_names(make_patients):
  scaler = pipeline.make_pipeline(
    preprocessing.FunctionTransformer(), preprocessing.StandardScaler()
  )
  content = read(make_patients().assign(ward=1.0, lab=2.0), scaler)
  schema = preparation.fitted(content.schema, [content.x])
  assert len(schema.features) == 3
  x = preparation.applied(content, schema).x
  assert x[:, 0].tolist() == [0] * 240 and x[:, 2].std() == pytest.approx(1)


class Own(preprocessing.StandardScaler):
  """A transformer of a user, whose code skops does not run."""


@pytest.mark.parametrize(
  "transformer, message",
  [
    ("zip", "preprocessing: 'zip' has no fit; it must be a transformer of sc"),
    (preprocessing.StandardScaler, "preprocessing: <class 'sklearn.preproces"),
    (linear_model.LogisticRegression(), "preprocessing: LogisticRegression()"),
    (
      Own(),
      "preprocessing has types that skops does not trust, and a saved model"
      f" could not be loaded: {Own.__module__}.Own",
    ),
    (
      compose.ColumnTransformer([("own", Own(), ["lab"])]),
      "preprocessing has types that skops does not trust, and a saved model",
    ),
  ],
)
def test_transformer_that_cannot_be_stored_is_refused_on_reading(
  transformer, message, make_patients, refusal
):
  assert refusal(read, make_patients(), transformer).startswith(message)


def test_function_of_a_user_is_refused_by_name(make_patients, refusal):
  transformer = preprocessing.FunctionTransformer(make_patients)
  assert "make_patients" in refusal(read, make_patients(), transformer)


@pytest.mark.parametrize(
  "transformer, message",
  [
    (preprocessing.StandardScaler(), "preprocessing: could not convert string"),
    (
      compose.make_column_transformer(
        (preprocessing.TargetEncoder(), ["ward"])
      ),
      "preprocessing: ",
    ),
    (
      compose.make_column_transformer(("passthrough", ["lab"])),
      "preprocessing: feature 'passthrough__lab' has nan, not a finite number",
    ),
    (
      compose.make_column_transformer(("passthrough", ["lob"])),
      "preprocessing: ",
    ),
  ],
)
def test_transformer_that_does_not_fit_is_refused(
  transformer, message, make_patients, refusal
):
  content = read(make_patients(), transformer)

  def prepare():
    schema = preparation.fitted(content.schema, [content.x])
    return preparation.applied(content, schema)

  assert refusal(prepare).startswith(message)


def test_content_with_other_types_is_not_loaded(refusal):
  content = skops.dumps(Own().fit([[1.0], [2.0]]))
  frame = pandas.DataFrame({"lab": [1.0]})
  line = refusal(transformers.features, content, frame, ("lab",))
  assert f"{Own.__module__}.Own" in line
  line = refusal(transformers.features, b"PK", frame, ("lab",))
  assert line.startswith("preprocessing: skops cannot read it")


def test_data_set_of_a_users_file(make_patients, tmp_path, monkeypatch):
  monkeypatch.setattr(datasets, "_registered", {})
  make_patients().to_csv(tmp_path / "t.csv", index=False)
  (tmp_path / "mine.py").write_text(
    "import pandas\n"
    "from sklearn import impute\n"
    "from tff_shift.data.sources import frames\n"
    "def load():\n"
    f"  frame = pandas.read_csv({str(tmp_path / 't.csv')!r})\n"
    "  return frames.read(frame, 'y', 'c', 't', ['lab'],\n"
    "    preprocessing=impute.SimpleImputer(add_indicator=True))\n"
  )
  datasets.load_file(tmp_path / "mine.py")
  dataset = ts.load_online_adaptation("mine", num_clients=2)
  assert dataset.schema.features == ("lab", "missingindicator_lab")
  assert dataset.stream.x.shape[1] == 2 and np.isfinite(dataset.stream.x).all()
