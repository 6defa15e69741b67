"""A table, as CSV or Parquet, runs in the binaries by the names of columns."""

import json
import shlex

import numpy as np
import pandas
import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.data import datasets
from tff_shift.data.your_own import own_datasets

_EVOLVING = shlex.split("""
  --algorithm=fed_avg,fed_evolve --optimizer=adam --rounds=3
  --learning_rate=0.05 --local_steps=5 --noprogress
""")


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
  """Returns `write(table, name)`, which gives the flag of the file."""

  def write(table, name="study.csv"):
    path = tmp_path / name
    if name.endswith(".csv"):
      table.to_csv(path, index=False)
    else:
      table.to_parquet(path)
    return f"--dataset={path}"

  return write


@pytest.mark.long
@pytest.mark.parametrize("name", ["study.csv", "study.parquet"])
def test_domains_clients_and_classes_keep_their_names(
  write, run_evolving, tmp_path, read_runs, name
):
  columns = "--label=outcome", "--client=site", "--time=day"
  output = f"--output_dir={tmp_path / 'run'}"
  file = write(make_table(), name)
  assert run_evolving([*_EVOLVING, file, *columns, output]) == 0
  runs = read_runs(tmp_path / "run")
  assert {run["dataset"] for run in runs} == {"study"}
  for run in runs:
    assert run["metrics"]["server_accuracy"]["mean"] == 100
    assert run["setting"]["num_domains"] == 3
    assert run["setting"]["num_clients"] == 2
  columns_by_role = dict(each[2:].split("=") for each in columns)
  path = file.removeprefix("--dataset=")
  named = own_datasets.table_name(path, columns_by_role)
  loaded = datasets.load(named)
  assert loaded.class_names == ("healthy", "sick")
  assert loaded.client_names == ("north", "south")
  assert datasets.get(named).evolution.time_names == (
    *("2024-01-31", "2024-02-29", "2024-03-31"),
  )
  flags = json.loads((tmp_path / "run" / "config.json").read_text())["flags"]
  assert (flags["dataset"], flags["label"]) == ("study", "outcome")
  assert len(flags["dataset_sha256"]) == 64
  # The same table goes on, another one does not.
  go_on = [*_EVOLVING, file, *columns, output, "--resume", "--rounds=4"]
  assert run_evolving(go_on) == 0
  write(make_table().assign(age=0.5), name)
  assert run_evolving([*go_on, "--rounds=5"]) == 2


@pytest.mark.slow
def test_features_name_the_inputs_and_warnings_the_file(
  write, run_evolving, tmp_path, capsys
):
  table = make_table()
  # A text column that is no feature; a client that lacks a domain.
  table["note"] = "x"
  lacks = (table["site"] == "south") & (table["day"] == "2024-02-29")
  file = write(table[~lacks])
  arguments = [
    *(file, "--label=outcome", "--client=site", "--time=day"),
    *("--features=dose", "--algorithm=fed_avg", "--rounds=1"),
    *("--local_steps=1", "--noprogress", f"--output_dir={tmp_path / 'run'}"),
  ]
  assert run_evolving(arguments) == 0
  errors = capsys.readouterr().err
  path = file.removeprefix("--dataset=")
  assert f"1 of 2 clients of {path} lack domains: south lacks 2024-02-29\n" in (
    errors
  )
  assert "?" not in errors
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert config["flags"]["features"] == ["dose"]


@pytest.mark.slow
def test_clients_of_guidance(write, run_here, tmp_path, read_runs):
  arguments = [
    write(make_table().drop(columns="day")),
    *("--label=outcome", "--client=site", "--algorithm=fed_avg"),
    *("--rounds=1", "--local_steps=2", "--noprogress"),
    f"--output_dir={tmp_path / 'run'}",
  ]
  assert run_here(guidance, arguments) == 0
  (run,) = read_runs(tmp_path / "run")
  assert run["setting"]["num_clients"] == 2


@pytest.mark.parametrize(
  ("changes", "flags", "message"),
  [
    ({}, "", "study.csv: --label must name the column of the class"),
    ({}, "--label=outcom", "study.csv: label='outcom' is not a column; there"),
    (
      {},
      "--label=outcome --client=site",
      "study.csv: features: column 'day' has '2024-01-31' in line 2, not a num",
    ),
    (
      {"day": "May"},
      "--label=outcome --client=site --time=day",
      "study.csv: --time=day must be numbers or dates such as 2024-01-31, got"
      " 'May'",
    ),
    (
      {"day": 3},
      "--label=outcome --client=site --time=day",
      "--time of {folder}/study.csv: there must be at least 2 (a source and a",
    ),
    (
      {"note": "x"},
      "--label=outcome --client=site",
      "study.csv: features: column 'day' has '2024-01-31' in line 2, not a"
      " number (and 'note'); encode them, or name the columns to use by"
      " features",
    ),
    (
      {},
      "--label=outcome --features=dose,weight",
      "study.csv: features: 'weight' is not a column",
    ),
    (
      {"outcome": 1},
      "--label=outcome --features=dose,outcome",
      "study.csv: features: 'outcome' is the label",
    ),
    (
      {"age": np.nan, "dose": np.nan},
      "--label=outcome --client=site --time=day",
      "column 'dose' has 240 missing values, the first in line 2 (and 'age');"
      " leave out these rows or",
    ),
    (
      {"age": np.nan},
      "--label=outcome --client=site --time=day",
      "study.csv: features: column 'age' has 240 missing values",
    ),
  ],
)
def test_wrong_columns_are_refused(
  write, refused, tmp_path, changes, flags, message
):
  file = write(make_table().assign(**changes))
  line = refused(evolving, [file, *flags.split()])
  assert message.format(folder=tmp_path) in line


@pytest.mark.parametrize("name", ["study.csv", "study.parquet"])
def test_damaged_file_is_refused(tmp_path, refused, name):
  (tmp_path / name).write_bytes(b'\x93"\x00,,\n"')
  line = refused(evolving, f"--dataset={tmp_path / name} --label=outcome")
  assert f"{name}: it cannot be read (" in line


def test_columns_in_the_name_of_the_file_are_refused(write, refused):
  file = f"{write(make_table())}?label=site"
  line = refused(evolving, [file, "--label=outcome"])
  assert "columns are named by --label, --client and --time" in line


def test_columns_without_a_table_are_refused(refused):
  assert refused(evolving, "--dataset=circle --label=outcome") == (
    "evolving: --label belongs to --dataset=path/to/data.csv or .parquet, not"
    " to --dataset=circle\n"
  )


def test_time_of_a_scenario_that_draws_its_drift_is_refused(write, refused):
  file = write(make_table())
  arguments = [file, "--label=outcome", "--client=site", "--time=day"]
  line = refused(guidance, arguments)
  assert "guidance would ignore it, because its clients have no domains" in line
  assert line.endswith("leave --time out\n")
