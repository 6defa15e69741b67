"""The binary `report`, on what a real run has left."""

import csv
import functools
import json
import shlex

import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import report

_RUN = shlex.split("""
  --dataset=circle --num_domains=4 --num_clients=3 --rounds=2
  --algorithm=local,fed_avg --evaluate_every=1 --seeds=0,1 --local_steps=1
  --learning_rate=0.01 --tracker=none --checkpoint_every=0 --noprogress
""")


@pytest.fixture(scope="module")
def folder(run_whole, tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "circle"
  run_whole(evolving, [*_RUN, f"--output_dir={path}"])
  return path


@pytest.fixture
def run_report(run_here):
  return functools.partial(run_here, report, takes_arguments=True)


@pytest.mark.slow
def test_page_has_the_numbers_of_the_run(run_report, folder, capsys):
  output = folder.parent / "page"
  code = run_report([str(folder), f"--output_dir={output}", "--title=Two"])
  captured = capsys.readouterr()
  assert (code, captured.err) == (0, "")
  # Local training has no server, so that one column has two methods.
  lead, page = captured.out.splitlines()
  assert lead.startswith("client accuracy: ")
  assert page == f"page: {output}/report.html"
  with open(output / "table.csv", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  runs = json.loads((folder / "summary.json").read_text())["runs"]
  expected = {
    (run["algorithm"], metric.replace("_", " ")): run["metrics"][metric]
    for run in runs
    for metric in ("client_accuracy", "server_accuracy")
    if metric in run["metrics"]
  }
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
def test_page_is_replaced_only_if_asked(run_report, folder, tmp_path, capsys):
  output = tmp_path / "page"
  arguments = [str(folder), f"--output_dir={output}", "--metrics=client_loss"]
  assert run_report(arguments) == 0
  before = (output / "report.html").read_bytes()
  assert run_report(arguments) == 2
  assert "pass --overwrite" in capsys.readouterr().err
  assert (output / "report.html").read_bytes() == before
  assert run_report([*arguments, "--overwrite"]) == 0
  assert b" --overwrite" in (output / "report.html").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "name the run folders"),
    (["{run}"], "--output_dir: it must be set"),
    (["{run}", "{run}/", "--output_dir={new}"], "is named twice"),
    (["{run}", "--output_dir={run}/config.json"], "it must be a folder"),
    (["{run}", "--output_dir={new}", "--metrics=nothing"], "client_accuracy"),
    (["nowhere", "--output_dir={new}"], "nowhere: there is no such folder"),
    (["{run}", "--output_dir={new}", "--unknown"], "unknown"),
  ],
)
def test_wrong_input_is_said_in_a_line(
  run_report, folder, tmp_path, capsys, arguments, message
):
  places = {"run": folder, "new": tmp_path / "new"}
  assert run_report([each.format(**places) for each in arguments]) == 2
  captured = capsys.readouterr()
  assert message in captured.err and captured.err.count("\n") == 1
  assert captured.out == ""
  assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_runs_that_differ_in_more_than_methods_have_two_columns(
  run_whole, run_report, folder
):
  names = []
  for name, flags in {
    "method": ["--learning_rate=0.1", "--aggregator=robust", "--bounds"],
    "longer": ["--rounds=3"],
  }.items():
    path = folder.parent / name
    run_whole(evolving, [*_RUN, *flags, f"--output_dir={path}"])
    output = folder.parent / f"page_{name}"
    run_report([str(folder), str(path), f"--output_dir={output}"])
    with open(output / "table.csv", encoding="utf-8") as file:
      names.append({row["column"] for row in csv.DictReader(file)})
  method, longer = names
  assert method == {"client accuracy", "server accuracy"}
  assert {"rounds 2, client accuracy", "rounds 3, client accuracy"} <= longer
  assert len(longer) == 4
