"""A table, as CSV or Parquet, runs in the binaries by the names of columns."""

import json

import numpy as np
import pandas
import pytest

import tff_shift as ts
from tests.fixtures import tables
from tff_shift.data import datasets

_EVOLVING = """
  --algorithm=fed_avg,fed_evolve --optimizer=adam --rounds=3
  --learning_rate=0.05 --local_steps=5 --noprogress
"""
_FLAGS = "--label=outcome --client=site --time=day"


def make_table():
  """Makes a table of two sites, whose outcome follows from the dose."""
  generator = np.random.default_rng(0)
  order = np.arange(240)
  outcome = np.array(["healthy", "sick"])[order % 2]
  month = order // 2 % 3
  return pandas.DataFrame(
    {
      "site": np.array(["north", "south"])[order // 6 % 2],
      "day": np.array(["2024-01-31", "2024-02-29", "2024-03-31"])[month],
      "dose": np.where(order % 2, 1.0, -1.0) + 0.1 * generator.normal(size=240),
      "age": generator.normal(size=240),
      "outcome": outcome,
    }
  )


@pytest.fixture
def write(tmp_path):
  """Returns `write(table)`, which gives the flag of the file."""

  def write(table):
    table.to_csv(tmp_path / "study.csv", index=False)
    return f"--dataset={tmp_path / 'study.csv'}"

  return write


@pytest.mark.long
def test_table_has_a_name_domains_and_clients(write, run):
  ended = run("evolving", _EVOLVING, write(make_table()), _FLAGS)
  assert {each["dataset"] for each in ended.runs} == {"study"}
  for each in ended.runs:
    assert each["metrics"]["server_accuracy"]["mean"] == 100
    assert each["setting"]["num_domains"] == 3
    assert each["setting"]["num_clients"] == 2
  flags = ended.config["flags"]
  assert (flags["dataset"], flags["label"]) == ("study", "outcome")
  assert len(flags["dataset_sha256"]) == 64


@pytest.mark.slow
def test_features_name_the_inputs_and_warnings_the_file(write, run):
  table = make_table()
  # A text column that is no feature; a client that lacks a domain.
  table["note"] = "x"
  lacks = (table["site"] == "south") & (table["day"] == "2024-02-29")
  file = write(table[~lacks])
  flags = "--features=dose --algorithm=fed_avg --rounds=1 --local_steps=1"
  ended = run("evolving", file, _FLAGS, flags)
  path = file.removeprefix("--dataset=")
  lacks = f"1 of 2 clients of {path} lack domains: south lacks 2024-02-29\n"
  assert lacks in ended.errors and "?" not in ended.errors
  assert ended.config["flags"]["features"] == ["dose"]


@pytest.mark.slow
def test_dropped_columns_are_not_read(write, run):
  file = write(make_table().assign(note="x", patient=np.arange(240)))
  flags = "--drop=note,patient --algorithm=fed_avg --rounds=1 --local_steps=1"
  ended = run("evolving", file, _FLAGS, flags)
  assert ended.config["schema"] == {
    "classes": ["healthy", "sick"],
    "features": ["dose", "age"],
    "num_clients": 2,
    "clients": ["north", "south"],
    "times": ["2024-01-31", "2024-02-29", "2024-03-31"],
    "label": "outcome",
    "client": "site",
    "time": "day",
    "dropped": ["note", "patient"],
  }
  assert ended.output.splitlines()[:7] == [
    "data: study, 240 rows",
    "features (2): dose, age",
    "columns left out (2): note, patient",
    "clients (2): north 120, south 120",
    "times (3): 2024-01-31 80, 2024-02-29 80, 2024-03-31 80",
    "classes (2): healthy 120 (50 %), sick 120 (50 %)",
    "target: 2024-03-31, 80 rows",
  ]
  # Joined times are one domain.
  ended = run("evolving", file, _FLAGS, flags, "--num_domains=2 --overwrite")
  assert "target: 2024-02-29 to 2024-03-31, 160 rows\n" in ended.output


@pytest.mark.slow
def test_groups_from_training_to_prediction(
  write, run, run_here, tmp_path, capsys
):
  table = make_table()
  # Ten rows a patient, 5 to 7 of them before the last day.
  table["patient"] = [f"no {row // 10}" for row in range(240)]
  flags = "--group=patient --algorithm=fed_avg --rounds=1 --local_steps=1"
  ended = run("evolving", write(table), _FLAGS, flags, "--save_model")
  assert ended.config["schema"]["group"] == "patient"
  assert ended.config["schema"]["features"] == ["dose", "age"]
  (line,) = [x for x in ended.output.splitlines() if x.startswith("group")]
  before, after = line.split(": ")
  # All 24 have rows of the last day; about a fifth have not trained.
  both, rest = after.split(" ", 1)
  assert before == "group patient" and 15 <= int(both) < 24
  assert rest == "of 24 are in training and in test, which --time separates"
  (model,) = (ended.folder / "model").rglob("model.json")
  new = tmp_path / "new.csv"
  arguments = f"--model={model.parent} --input={new} --overwrite"
  for columns in (["age", "dose"], ["age", "patient", "dose"]):
    table[columns].to_csv(new, index=False)
    assert (
      run_here("predict", f"{arguments} --output={tmp_path / 'p.csv'}") == 0
    )
  # Guidance has no time: no patient is on both sides.
  file = write(table.drop(columns="day"))
  ended = run(
    "guidance", file, "--label=outcome --client=site --overwrite", flags
  )
  assert "group patient: 0 of 24 are in training and in test\n" in ended.output
  assert ended.runs[0]["setting"]["num_clients"] == 2


@pytest.mark.slow
def test_gaps_and_texts_from_training_to_prediction(
  write, run, run_here, tmp_path, capsys
):
  table = make_table()
  table["ward"] = np.where(table["outcome"] == "sick", "A", "B")
  table.loc[::5, "ward"] = None
  table.loc[::4, "age"] = np.nan
  file = write(table)
  flags = """
    --algorithm=fed_avg --rounds=3 --model=linear --learning_rate=0.5
    --missing=indicator --categories=one_hot --save_model --save_clients=all
  """
  ended = run("evolving", file, _FLAGS, flags)
  (summary,) = ended.runs
  assert summary["metrics"]["server_accuracy"]["mean"] == 100
  (model,) = (ended.folder / "model").rglob("model.json")
  described = json.loads(model.read_text())["schema"]
  assert ended.config["schema"].items() <= described.items()
  # The columns in another order, without client and time.
  new = table[["ward", "outcome", "age", "dose"]]
  new.to_csv(tmp_path / "new.csv", index=False)
  arguments = f"--model={model.parent} --input={tmp_path / 'new.csv'}"
  assert run_here("predict", f"{arguments} --output={tmp_path / 'p.csv'}") == 0
  assert "accuracy: 100.00 % of 240 examples" in capsys.readouterr().out
  rows = pandas.read_csv(tmp_path / "p.csv")
  assert rows["predicted"].tolist() == table["outcome"].tolist()
  pandas.testing.assert_frame_equal(
    rows[new.columns], new.reset_index(drop=True)
  )
  # Without the class, by the model of a client.
  new.drop(columns="outcome").to_csv(tmp_path / "new.csv", index=False)
  output = f"--client=south --output={tmp_path / 'few.csv'}"
  assert run_here("predict", f"{arguments} {output}") == 0
  assert "accuracy" not in capsys.readouterr().out
  south = pandas.read_csv(tmp_path / "few.csv")
  # FedAvg has one model for all.
  assert south["predicted"].tolist() == table["outcome"].tolist()
  assert set(south["model_client"]) == {"south"}
  new.assign(ward="C").to_csv(tmp_path / "new.csv", index=False)
  output = f"--output={tmp_path / 'q.csv'}"
  assert run_here("predict", f"{arguments} {output}") == 2
  message = "column 'ward' has 'C' in row 0, a category that training did not"
  assert message in capsys.readouterr().err
  assert not (tmp_path / "q.csv").exists()


_WARDS = """
import pathlib

import numpy as np
from tff_shift.data import table


def load():
  y = np.arange(60) % 2
  factor = np.loadtxt(pathlib.Path(__file__).with_name("factor.txt"))
  return table.Table(
    y[:, np.newaxis] * factor - 1,
    y,
    table.Schema(classes=("healthy", "sick"), features=("dose",)),
    client=np.arange(60) // 2 % 3,
    time=np.arange(60) // 20,
  )
"""


@pytest.mark.slow
def test_data_set_of_a_users_file(tmp_path, run, monkeypatch):
  monkeypatch.setattr(datasets, "_registered", {})
  path = tmp_path / "wards.py"
  path.write_text(_WARDS)
  (tmp_path / "factor.txt").write_text("2")
  flags = f"--import={path} --dataset=wards"
  ended = run("evolving", _EVOLVING, flags, "--algorithm=fed_avg --rounds=8")
  (summary,) = ended.runs
  assert summary["dataset"] == "wards"
  assert summary["setting"]["num_clients"] == 3
  assert summary["metrics"]["server_accuracy"]["mean"] == 100
  assert ended.config["schema"]["features"] == ["dose"]
  # What the file reads has changed.
  (tmp_path / "factor.txt").write_text("3")
  monkeypatch.setattr(datasets, "_registered", {})
  message = run(
    "evolving",
    _EVOLVING,
    flags,
    "--algorithm=fed_avg --rounds=9 --resume",
    code=2,
  ).errors
  assert "--dataset_sha256 was " in message


_PREPROCESSED = """
import pandas
from sklearn import compose, impute, preprocessing
from tff_shift.data.sources import frames


def load():
  return frames.read(
    pandas.read_csv({path!r}), "outcome", "site", "month", ["ward", "age"],
    preprocessing=compose.make_column_transformer(
      (preprocessing.OneHotEncoder(handle_unknown="ignore"), ["ward"]),
      (impute.SimpleImputer(), ["age"]),
    ),
  )
"""


@pytest.mark.slow
def test_transformer_of_a_users_file_is_in_the_saved_model(
  tmp_path, run, run_here, capsys, monkeypatch
):
  skops = pytest.importorskip(
    "skops.io", reason="the extra skops is not installed"
  )
  monkeypatch.setattr(datasets, "_registered", {})
  table = make_table()
  table["month"] = table["day"].str[5:7].astype(int)
  table["ward"] = np.where(table["outcome"] == "sick", "A", "B")
  table.loc[::4, "age"] = np.nan
  data, path = tmp_path / "study.csv", tmp_path / "mine.py"
  table.to_csv(data, index=False)
  path.write_text(_PREPROCESSED.format(path=str(data)))
  flags = f"--import={path} --dataset=mine --algorithm=fed_avg --rounds=3"
  options = "--model=linear --learning_rate=0.5 --save_model --seeds=0,1"
  ended = run("evolving", flags, options)
  assert ended.runs[0]["metrics"]["server_accuracy"]["mean"] == 100
  # The transformer of a model is fitted to the training rows of its seed.
  first, second = sorted((ended.folder / "model").rglob("model.json"))
  means = {
    skops.loads(
      ts.load(path.parent).schema.preparation.transformer,
      trusted=["numpy.dtype"],
    )
    .named_transformers_["simpleimputer"]
    .statistics_[0]
    for path in (first, second)
  }
  assert len(means) == 2
  # Rows in the form of the file, with the columns in another order.
  table[["age", "outcome", "ward"]].to_csv(tmp_path / "new.csv", index=False)
  arguments = f"--model={first.parent} --input={tmp_path / 'new.csv'}"
  assert run_here("predict", f"{arguments} --output={tmp_path / 'p.csv'}") == 0
  assert "accuracy: 100.00 % of 240 examples" in capsys.readouterr().out


def test_arrays_of_a_users_file_are_those_of_a_file(
  tmp_path, run_here, monkeypatch, capsys
):
  monkeypatch.setattr(datasets, "_registered", {})
  path = tmp_path / "wards.py"
  path.write_text(_WARDS.replace("y[:, np.newaxis]", "y[:, None, None]"))
  (tmp_path / "factor.txt").write_text("2")
  arguments = f"--import={path} --dataset=wards --algorithm=fed_avg --rounds=1"
  assert (
    run_here("evolving", f"{arguments} --output_dir={tmp_path / 'run'}") == 2
  )
  message = "x of wards: uint8 images [n, height, width, 1 or 3], or floats"
  assert message in capsys.readouterr().err
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  "changes, flags, message",
  tables.cases("""
{}, ""
    study.csv: --label must name the column of the class
{}, "--label=outcom"
    study.csv: label='outcom' is not a column; there
{"note": "x"}, "--label=outcome --client=site --drop=day"
    study.csv: features: column 'note' has 'x' in line 2, not a number; \
    --categories=one_hot encodes texts
{}, "--label=outcome --features=dose,weight"
    study.csv: features: 'weight' is not a column
{"age": None, "dose": None}, "ROLES"
    column 'dose' has 240 missing values, the first in line 2 (and 'age'); \
    leave out these rows or
{}, "ROLES --drop=age,id"
    study.csv: drop='id' is not a column; there are site, day, dose, age,
{}, "ROLES --drop=age --features=age,dose"
    study.csv: drop='age' has another role too
{}, "--dataset={folder}/study.csv?label=site --label=outcome"
    columns are named by --label, --client and --time
{}, "--dataset={folder}/a.npz --drop=id"
    --drop belongs to --dataset=path/to/data.csv or .parquet, not to \
    --dataset={folder}/a.npz
"""),
)
def test_wrong_columns_are_refused(
  write, refused, tmp_path, changes, flags, message
):
  np.savez(tmp_path / "a.npz", x=np.eye(4), y=np.arange(4) % 2)
  file = write(make_table().assign(**changes))
  flags = flags.replace("ROLES", _FLAGS).format(folder=tmp_path)
  line = refused("evolving", [file, flags])
  assert message.format(folder=tmp_path) in line


@pytest.mark.parametrize("name", ["study.csv", "study.parquet"])
def test_damaged_file_is_refused(tmp_path, refused, name):
  (tmp_path / name).write_bytes(b'\x93"\x00,,\n"')
  line = refused("evolving", f"--dataset={tmp_path / name} --label=outcome")
  assert f"{name}: it cannot be read (" in line
