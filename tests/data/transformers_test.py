"""A user's scikit-learn transformer, beside scikit-learn on training rows."""

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pandas
import pytest
from sklearn import compose
from sklearn import feature_extraction
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

ROLES = {"label": "y", "client": "c", "time": "t"}
FEATURES = ["lab", "ward", "age"]


def make_frame(seed=0):
  """Two clients, three times; missing values and categories in each."""
  generator = np.random.default_rng(seed)
  rows = np.arange(240)
  frame = pandas.DataFrame(
    {
      "y": np.where(rows % 2, "yes", "no"),
      "c": np.where(rows // 2 % 2, "p", "q"),
      "t": rows // 80,
      # Numbers of float32, as x has.
      "lab": np.float64(np.float32(generator.normal(5, 2, 240))),
      "ward": generator.choice(["A", "B", "C"], 240),
      "age": generator.integers(20, 90, 240),
    }
  )
  frame.loc[rows % 7 == 0, "lab"] = np.nan
  frame.loc[rows % 11 == 0, "ward"] = np.nan
  return frame


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


def read(transformer=None, frame=None):
  return frames.read(
    make_frame() if frame is None else frame,
    "y",
    features=FEATURES,
    preprocessing=make_transformer() if transformer is None else transformer,
  )


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.integers(0, 999), st.integers(40, 200))
def test_features_are_those_of_scikit_learn_on_training_rows(seed, num_train):
  frame = make_frame(seed)
  content = read(frame=frame)
  transformer = make_transformer()
  schema = preparation.fitted(
    content.schema, [content.x[:20], content.x[20:num_train]]
  )
  prepared = preparation.applied(content, schema)
  transformer.fit(frame[FEATURES][:num_train])
  expected = transformer.transform(frame[FEATURES])
  np.testing.assert_allclose(prepared.x, expected, rtol=1e-6, atol=1e-6)
  assert prepared.x.dtype == np.float32
  assert schema.features == tuple(transformer.get_feature_names_out())
  # Any part has the features of its rows; also one without rows.
  for rows in (slice(3, 9), slice(0)):
    part = schema.preparation.apply(content.x[rows])
    np.testing.assert_array_equal(part, prepared.x[rows])


def test_only_training_examples_are_fitted_and_the_given_one_is_not():
  frame = make_frame()
  # Neither the target nor test examples of the sources.
  frame.loc[frame.t == 2, "lab"] *= 1000
  transformer = make_transformer()
  clients, schema = ts.from_dataframe(
    "evolving", frame, **ROLES, preprocessing=transformer
  )
  trained = np.concatenate([client.train.x[:, 0] for client in clients])
  assert abs(trained.mean()) < 1e-6 and trained.std() == pytest.approx(1)
  assert not hasattr(transformer, "transformers_")
  assert schema.features[:2] == ("lab__lab", "ward__ward_A")


@pytest.mark.parametrize(
  "scenario", ["guidance", "online_adaptation", "dynamic_personalization"]
)
def test_other_scenarios_have_the_features(scenario):
  frame, roles = make_frame(), dict(ROLES)
  if scenario == "guidance":
    frame = frame.drop(columns=roles.pop("time"))
  data, schema = ts.from_dataframe(
    scenario, frame, **roles, preprocessing=make_transformer()
  )
  x = {
    "guidance": lambda: data.test[0].x,
    "online_adaptation": lambda: data.streams.batch(1, 2).x,
    "dynamic_personalization": lambda: data.batch(1, 2).x,
  }[scenario]()
  assert x.shape[1] == len(schema.features) == 5 and np.isfinite(x).all()


def test_stored_transformer_makes_the_features_of_new_rows(refusal):
  content = read()
  fitted = preparation.fitted(content.schema, [content.x])
  stored = msgspec.json.decode(msgspec.json.encode(fitted.to_fields()))
  schema = msgspec.convert(stored, table.Schema)
  assert schema == fitted
  transformer = make_transformer().fit(make_frame()[FEATURES])
  new = make_frame(1)
  features = columns.matched(new[["age", "y", "ward", "lab"]], schema)
  expected = transformer.transform(new[FEATURES])
  np.testing.assert_allclose(features, expected, rtol=1e-6, atol=1e-6)
  new.loc[4, "ward"] = "Z"
  assert refusal(columns.matched, new[FEATURES], schema) == (
    "x: column 'ward' has 'Z' in row 4, a category that training did not have"
  )


def test_output_may_be_dense_and_without_names():
  scaler = pipeline.make_pipeline(
    preprocessing.FunctionTransformer(), preprocessing.StandardScaler()
  )
  content = read(scaler, make_frame().assign(ward=1.0, lab=2.0))
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
def test_what_cannot_be_stored_is_refused_on_reading(
  transformer, message, refusal
):
  assert refusal(read, transformer).startswith(message)


def test_function_of_a_user_is_refused_by_name(refusal):
  line = refusal(read, preprocessing.FunctionTransformer(make_frame))
  assert "make_frame" in line and "\n" not in line


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
  transformer, message, refusal
):
  content = read(transformer)

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


def test_texts_are_categories_of_the_table():
  words = compose.make_column_transformer(
    (feature_extraction.text.CountVectorizer(), "note")
  )
  frame = make_frame().assign(note=["two words", "one"] * 120)
  content = frames.read(frame, "y", features=["note"], preprocessing=words)
  schema = preparation.fitted(content.schema, [content.x])
  assert [name[-5:] for name in schema.features] == ["__one", "__two", "words"]
  x = preparation.applied(content, schema).x
  assert x[:2].tolist() == [[0, 1, 1], [1, 0, 0]]


def test_data_set_of_a_users_file(tmp_path, monkeypatch):
  monkeypatch.setattr(datasets, "_registered", {})
  make_frame().to_csv(tmp_path / "t.csv", index=False)
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
