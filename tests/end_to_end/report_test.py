"""The binary `report`, on what a real run has left."""

import csv

import pytest

from tests.fixtures import tables

_RUN = """
  --dataset=circle --num_domains=4 --num_clients=3 --rounds=2
  --algorithm=local,fed_avg --evaluate_every=1 --seeds=0,1 --local_steps=1
  --learning_rate=0.01 --tracker=none --checkpoint_every=0 --noprogress
"""


@pytest.fixture(scope="module")
def whole(run_once):
  return run_once("evolving", _RUN, folder="circle", errors="")


@pytest.fixture
def folder(whole):
  return whole.folder


def table_of(page):
  with open(page / "table.csv", encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.fixture
def run_report(run_in):
  """Returns `run(output, *arguments, **options)`."""
  return lambda output, *given, **options: run_in(
    output, "report", *given, takes_arguments=True, **options
  )


@pytest.mark.slow
def test_page_has_the_numbers_of_the_run(run_report, whole):
  folder = whole.folder
  output = folder.parent / "page"
  printed = run_report(output, folder, "--title=Two", errors="").output
  # Local training has no server, so that one column has two methods.
  lead, page = printed.splitlines()
  assert lead.startswith("client accuracy: ")
  assert page == f"page: {output}/report.html"
  expected = {
    (run["algorithm"], metric.replace("_", " ")): run["metrics"][metric]
    for run in whole.runs
    for metric in ("client_accuracy", "server_accuracy")
    if metric in run["metrics"]
  }
  rows = table_of(output)
  assert len(rows) == len(expected) == 3
  for row in rows:
    metric = expected[row["method"], row["column"]]
    assert list(map(float, row["values"].split())) == metric["seeds"]
    assert float(row["mean"]) == pytest.approx(metric["mean"])
    assert (row["state"], row["folder"]) == ("done", "../circle")
  text = (output / "report.html").read_text(encoding="utf-8")
  assert "<h1>Two</h1>" in text
  assert "experiments.report" in (output / "table.md").read_text()


@pytest.mark.slow
def test_page_is_replaced_only_if_asked(run_report, folder, tmp_path):
  given = tmp_path / "page", folder, "--metrics=client_loss"
  run_report(*given)
  page = tmp_path / "page" / "report.html"
  before = page.read_bytes()
  assert "pass --overwrite" in run_report(*given, code=2).errors
  assert page.read_bytes() == before
  run_report(*given, "--overwrite")
  assert b" --overwrite" in page.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
  "given, message",
  tables.cases("""
""
    name the run folders
"{run}"
    --output_dir: it must be set
"{run} {run}/ --output_dir={new}"
    is named twice
"{run} --output_dir={run}/config.json"
    it must be a folder
"{run} --output_dir={new} --metrics=nothing"
    client_accuracy
"nowhere --output_dir={new}"
    nowhere: there is no such folder
"{run} --output_dir={new} --unknown"
    unknown
"""),
)
def test_wrong_input_is_said_in_a_line(
  refused, folder, tmp_path, given, message
):
  given = given.format(run=folder, new=tmp_path / "new").split()
  assert message in refused("report", given, takes_arguments=True)


@pytest.mark.slow
def test_runs_that_differ_in_more_than_methods_have_two_columns(
  run, run_report, folder, tmp_path
):
  for name, flags, columns in (
    ("method", "--learning_rate=0.1 --aggregator=robust", [""]),
    ("longer", "--rounds=3", ["rounds 2, ", "rounds 3, "]),
  ):
    other = run("evolving", _RUN, flags, errors="", folder=name).folder
    output = tmp_path / f"page_{name}"
    run_report(output, folder, other)
    assert {row["column"] for row in table_of(output)} == {
      f"{column}{kind} accuracy"
      for column in columns
      for kind in ("client", "server")
    }
