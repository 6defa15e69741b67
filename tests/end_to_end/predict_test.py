"""The binary that predicts, on a federation that is known by hand."""

import re

import numpy as np
import pandas
import pytest

from tests.fixtures import tables
from tests.fixtures.arrays import normal
from tff_shift.data import array_files
from tff_shift.data import table as table_lib

X = normal(0, 10, 2)
BROKEN = X * np.where(np.arange(10) == 7, np.nan, 1)[:, np.newaxis]


@pytest.fixture
def run_predict(run_here, served_federation, tmp_path):
  """Returns `run(*flags, **arrays) -> exit code`; there is x by default."""

  def run(*flags, **arrays):
    np.savez(tmp_path / "data.npz", **(arrays or {"x": X}))
    given = f"--model={served_federation} --input={tmp_path}/data.npz"
    output = f"--output={tmp_path}/predictions.npz"
    return run_here("predict", [given, output, *flags])

  return run


@pytest.fixture
def written(tmp_path):
  """Returns `read()`, which gives the arrays that were written."""

  def read():
    with np.load(tmp_path / "predictions.npz") as arrays:
      return dict(arrays)

  return read


@pytest.mark.slow
def test_server_predicts_in_batches(
  run_predict, written, served_folder, capsys
):
  logits = X @ served_folder.values.shared
  y = logits.argmax(axis=1)
  y[:3] = (y[:3] + 1) % 3
  assert run_predict("--batch_size=4", x=X, y=y) == 0
  found = written()
  assert set(found) == {"logits", "classes"}
  np.testing.assert_allclose(found["logits"], logits, rtol=1e-6)
  np.testing.assert_array_equal(found["classes"], logits.argmax(axis=1))
  assert "accuracy: 70.00 % of 10 examples" in capsys.readouterr().out


@pytest.mark.slow
def test_guide_names_and_asks(run_predict, written):
  assert run_predict("--guide", "--batch_size=3") == 0
  found = written()
  assert set(found) == {"routes", "probabilities", "classes"}
  assert found["probabilities"].shape == (10, 3)
  np.testing.assert_array_equal(
    found["routes"], found["probabilities"].argmax(axis=1)
  )
  for client in set(found["routes"]):
    assert run_predict(f"--client={client}", "--overwrite") == 0
    own = found["routes"] == client
    np.testing.assert_array_equal(
      found["classes"][own], written()["classes"][own]
    )


def test_full_disk_leaves_nothing(
  run_predict, tmp_path, capsys, monkeypatch, no_file_above
):
  write = array_files.write_npz

  def fails(path, arrays):
    with no_file_above(100):
      write(path, arrays)

  monkeypatch.setattr(array_files, "write_npz", fails)
  assert run_predict() == 5
  assert capsys.readouterr().err == (
    f"predict: {tmp_path / 'predictions.npz'} cannot be written: File too"
    " large; files written so far were kept\n"
  )
  assert [each.name for each in tmp_path.iterdir()] == ["data.npz"]
  monkeypatch.undo()
  assert run_predict() == 0


def test_no_examples(run_predict, written, capsys):
  nothing = {"x": X[:0], "y": np.zeros(0, np.int64)}
  assert run_predict(**nothing) == 0
  assert written()["logits"].shape == (0, 3)
  assert "accuracy" not in capsys.readouterr().out


@pytest.mark.parametrize(
  "flags, message",
  tables.rows(r"""
--client=3
    no client 3 .* there are 0, 1, 2
--client=1 --vote
    --client and --vote: set only one
--batch_size=0
    --batch_size=0: it must be at least 1
--output=
    --output: it must be set
--output=nowhere/a.npz
    --output=nowhere/a.npz: it must be
--output=data.npz
    data.npz: the file exists; name another or pass --overwrite
--separator=;
    --separator=; belongs to CSV files
--output=a.txt
    --output=a.txt: it must be one of .csv, .csv.gz, .parquet, .npz
--output=/proc/self/fdinfo/a.npz
    --output: .* cannot be written
--output=predictions.csv
    data.npz: x has no feature_names, the columns of --output=predictions.csv;
--model=nowhere
    no folder 'nowhere'
--input=nowhere
    --input=nowhere: the file does not exist
--input=/etc/hosts
    --input=/etc/hosts: it is not an .npz file
"""),
)
def test_wrong_flags_are_refused(
  run_predict, tmp_path, capsys, monkeypatch, flags, message
):
  monkeypatch.chdir(tmp_path)
  assert run_predict(flags) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(message[0], line)
  assert [each.name for each in tmp_path.iterdir()] == ["data.npz"]
  with np.load("data.npz") as arrays:
    assert list(arrays) == ["x"]


@pytest.mark.parametrize(
  "arrays, message",
  [
    ({"images": X}, "it must have an array x; it has images"),
    ({"x": X[:, :1]}, r"x: .* got \[10, 1\]; .* float32 \(n, 2\)"),
    # The number is that in the file, whatever the batch.
    ({"x": BROKEN}, "of example 7"),
    ({"x": X, "y": np.arange(10)}, r"y must lie in 0\.\.2, .* got 0\.\.9"),
    ({"x": X, "y": np.arange(10) - 1}, r"in 0\.\.2, .* got -1\.\.8"),
    ({"x": np.float32(1)}, "x has no examples"),
    ({"x": X, "y": np.zeros(9, np.int32)}, r"y is int32 \(9,\)"),
    ({"x": X, "y": np.zeros(10)}, r"y is float64 \(10,\)"),
  ],
)
def test_wrong_arrays_are_refused(
  run_predict, tmp_path, capsys, arrays, message
):
  assert run_predict("--batch_size=3", **arrays) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(message, line)
  assert not list(tmp_path.glob("*predictions*"))


TABLE = pandas.DataFrame({"age": X[:, 1], "dose": X[:, 0], "ward": 7})


@pytest.fixture
def run_named(run_here, served_folder, tmp_path):
  """Returns `run(file, *flags, output)` of a model of named columns."""
  folder = served_folder(
    schema=table_lib.Schema(
      classes=("a", "b", "c"),
      clients=("2", "3", "1"),
      features=("dose", "age"),
      label="outcome",
      client="ward",
      dropped=("note", "route"),
    )
  )

  def run(file, *flags, output="predictions.npz"):
    given = f"--model={folder} --input={file} --output={tmp_path / output}"
    return run_here("predict", [given, *flags])

  return run


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_columns_and_classes_are_matched_by_name(
  run_named, written, served_folder, tmp_path, capsys, suffix
):
  logits = X @ served_folder.values.shared
  classes = logits.argmax(axis=1)
  path = tmp_path / f"data{suffix}"
  names = np.array(["a", "b", "c"])[classes]
  table = TABLE.assign(outcome=names)
  if suffix == ".csv":
    table.to_csv(path, index=False)
  elif suffix == ".parquet":
    table.to_parquet(path)
  else:
    np.savez(
      path,
      x=X[:, ::-1],
      y=2 - classes,
      class_names=np.array(["c", "b", "a"]),
      feature_names=np.array(["age", "dose"]),
    )
  assert run_named(path) == 0
  np.testing.assert_allclose(written()["logits"], logits, rtol=1e-5)
  out = capsys.readouterr().out
  assert "accuracy: 100.00 % of 10 examples" in out
  assert ("classes of the predictions: 0 a" in out) == (suffix == ".npz")


# By hand: the logits are dose * (1, 0, -1) + age * (0, 2, 1).
CELLS = """\
note,age,outcome,dose,ward
007,0,a,1,"b, or c"
NA,1.50,b,0,
x,0.5,,-1.0,3
"""
CELLS_X = np.array([[1, 0], [0, 1.5], [-1, 0.5]])
LOGITS = np.array([[1, 0, -1], [0, 3, 1.5], [-1, 1, 1.5]])


def names_of(numbers, names="abc"):
  return [names[number] for number in numbers]


def softmax(logits):
  exponentials = np.exp(logits)
  return exponentials / exponentials.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("output", ["predictions.csv", "predictions.parquet"])
@pytest.mark.parametrize(
  "flag, added, predicted",
  [
    ("", [], "abc"),
    # Client 1 adds 3 (dose + age) to the logits of c.
    ("--client=1", ["model_client"], "ccb"),
  ],
)
def test_table_has_the_rows_and_their_predictions(
  run_named, served_folder, tmp_path, capsys, output, flag, added, predicted
):
  path = tmp_path / "new.csv"
  path.write_text(CELLS)
  assert run_named(path, flag, output=output) == 0
  is_csv = output.endswith(".csv")
  if is_csv:
    rows = pandas.read_csv(tmp_path / output, dtype=str, na_filter=False)
  else:
    rows = pandas.read_parquet(tmp_path / output)
  wanted = pandas.read_csv(path, dtype=str, na_filter=False)
  names = list(rows.columns)
  assert names[:5] == list(wanted.columns)
  if is_csv:
    pandas.testing.assert_frame_equal(rows[names[:5]], wanted)
  else:
    assert rows["age"].tolist() == [0, 1.5, 0.5]
    assert rows["note"].tolist() == ["007", "NA", "x"]
  probabilities = [f"probability_{each}" for each in "abc"]
  assert names[5:] == ["predicted", *probabilities, *added]
  assert "".join(rows["predicted"]) == predicted
  logits = LOGITS
  if added:
    assert set(rows["model_client"]) == {"1"}
    logits = LOGITS + np.outer([1, 1.5, -0.5], [0, 0, 3])
  np.testing.assert_allclose(
    rows[probabilities].astype(float), softmax(logits), rtol=1e-5
  )
  right = 100 if flag == "" else 0
  accuracy = f"accuracy: {right:.2f} % of 2 examples"
  assert accuracy in capsys.readouterr().out


def test_routes_and_votes_of_a_table(run_named, served_folder, tmp_path):
  path = tmp_path / "new.csv"
  path.write_text(CELLS)
  values = served_folder.values
  by_client = CELLS_X @ (values.shared + values.personal)
  classes = by_client.argmax(axis=2)
  for flag in ("--vote", "--guide"):
    assert run_named(path, flag, output=f"{flag[2:]}.csv") == 0
  votes = np.eye(3)[classes].sum(axis=0).argmax(axis=1)
  rows = pandas.read_csv(tmp_path / "vote.csv", dtype=str)
  assert list(rows.columns[5:]) == ["predicted"]
  assert rows["predicted"].tolist() == names_of(votes)
  # The first client has a quarter of the weight, and the last one a half.
  routes = softmax(CELLS_X @ values.guide - np.log([0.25, 0.25, 0.5])).argmax(
    axis=1
  )
  rows = pandas.read_csv(tmp_path / "guide.csv", dtype=str)
  assert list(rows.columns[5:]) == ["predicted", "route"]
  assert rows["route"].tolist() == names_of(routes, "231")
  chosen = classes[routes, np.arange(3)]
  assert rows["predicted"].tolist() == names_of(chosen)


def test_arrays_become_the_columns_of_a_table(run_named, tmp_path):
  for order, arrays, output in (
    (["dose", "age"], {"x": CELLS_X}, "p.csv"),
    (
      ["age", "dose"],
      {"x": CELLS_X[:, ::-1], "feature_names": np.array(["age", "dose"])},
      "q.parquet",
    ),
  ):
    np.savez(tmp_path / "x.npz", **arrays)
    assert run_named(tmp_path / "x.npz", output=output) == 0
    read = pandas.read_csv if output == "p.csv" else pandas.read_parquet
    rows = read(tmp_path / output)
    assert list(rows.columns[:3]) == [*order, "predicted"]
    np.testing.assert_array_equal(rows[["dose", "age"]], CELLS_X)
    assert "".join(rows["predicted"]) == "abc"


def test_input_may_be_the_output(run_named, tmp_path):
  (tmp_path / "new.csv").write_text(CELLS)
  run = run_named(tmp_path / "new.csv", "--overwrite", output="new.csv")
  assert run == 0
  text = (tmp_path / "new.csv").read_text()
  assert text.startswith("note,age,outcome,dose,ward,predicted,probability_a")
  assert '\n007,0,a,1,"b, or c",a,' in text


@pytest.mark.parametrize(
  "suffix, changes, flags, message",
  tables.cases(r"""
"npz", {}, "--client=0"
    no client '0' in .*; there are 2, 3, 1
"npz", {"y": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1], "class_names": ["a", "d"]}, ""
    data\.npz: class_names: 'd' is no class of the model, whose class_names
    are a, b, c
"npz", {"y": [0, 2, 0, 2, 0, 2, 0, 2, 0, 2], "class_names": ["a", "b"]}, ""
    y must lie in 0\.\.1, the classes of class_names, got 0\.\.2
"npz", {"class_names": ["a", "a"]}, ""
    class_names of it: 'a' is there twice
"npz", {"feature_names": ["age", "weight"]}, ""
    x: column 'dose' is missing, and column 'weight' is unknown
"npz", {}, "--label=outcome"
    --label=outcome: --input has no columns
"csv", {"weight": 1, "id": 2}, ""
    data\.csv: x: columns 'weight', 'id' are unknown to the model; leave out
    such columns; the model's columns are dose, age
"csv", {"outcome": "d"}, ""
    label 'outcome': 'd' is no class of the model, whose class_na
"csv", {"ward": "a", "age": "old"}, "--label=ward"
    x: features: column 'age' has 'old' in row 0, not a number
"csv", {}, "--label=out"
    label='out' is not a column; there are age, dose
"csv", {"route": 1}, "--guide"
    column 'route' has the name of a column that --output=.* adds; rename
"""),
)
def test_names_that_do_not_fit_are_refused(
  run_named, tmp_path, capsys, suffix, changes, flags, message
):
  path = tmp_path / f"data.{suffix}"
  if suffix == "npz":
    np.savez(path, x=X, **changes)
  else:
    TABLE.assign(**changes).to_csv(path, index=False)
  assert run_named(path, flags, output="p.csv") == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(message, line)
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_dialect_of_input_and_output(run_named, served_folder, tmp_path):
  path = tmp_path / "klinik.csv.gz"
  dialect = {"sep": ";", "decimal": ",", "encoding": "latin-1"}
  TABLE.assign(ward="s\u00fcd").to_csv(path, index=False, **dialect)
  output = "predictions.csv.gz"
  flags = "--separator=;", "--decimal=,", "--encoding=latin-1"
  assert run_named(path, *flags, output=output) == 0
  rows = pandas.read_csv(tmp_path / output, **dialect)
  assert rows["ward"].eq("s\u00fcd").all()
  logits = X @ served_folder.values.shared
  assert rows["predicted"].tolist() == names_of(logits.argmax(axis=1))
  np.testing.assert_allclose(
    rows["probability_b"], softmax(logits)[:, 1], rtol=1e-5
  )


def test_dialect_of_other_files_is_refused(run_named, tmp_path, capsys):
  TABLE.to_parquet(tmp_path / "data.parquet")
  assert run_named(tmp_path / "data.parquet", "--separator=;") == 2
  assert "--separator=; belongs to CSV files" in capsys.readouterr().err
