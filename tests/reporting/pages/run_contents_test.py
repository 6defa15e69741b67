"""Run folders of the binaries as contents of a page."""

import os
import pathlib

import pytest

from tests.fixtures import tables
from tests.fixtures.refusals import refused
from tff_shift._util import records
from tff_shift.data import table
from tff_shift.reporting import read_run
from tff_shift.reporting import run_contents
from tff_shift.reporting import summary
from tff_shift.reporting.pages import contents as contents_lib
from tff_shift.reporting.pages import page
from tff_shift.simulation.storage import run_records

_START = pathlib.Path("page")


# The flags of methods, and those without effect, as binaries declare them.
_METHODS = ("seeds", "algorithm", "learning_rate", "lambda_", "output_dir")
_FINE_TUNING = ("fine_tuning_steps", "fine_tuning_epochs")


def entry(
  algorithm="fed_avg", dataset="circle", values=(50.0, 60.0), **setting
):
  losses = [float("nan"), *values[1:]]
  return summary.RunSummary(
    algorithm=algorithm,
    dataset=dataset,
    setting={"selection": "none", "dirichlet": "inf"} | setting,
    metrics_by_seed={
      seed: {
        "client_accuracy": value,
        "client_pooled_accuracy": value,
        "client_loss": loss,
      }
      for seed, (value, loss) in enumerate(zip(values, losses, strict=True))
    },
    rounds=3,
    seconds_per_round=0.5,
    num_diverged=[1, 2],
  ).to_record()


@pytest.fixture
def make(tmp_path):
  """Returns `make(name, *entries, rows="", **flags)`, which gives a folder."""

  def write(name, *entries, rows="", schema=None, **flags):
    folder = tmp_path / name
    folder.mkdir()
    algorithms = list(dict.fromkeys(each.algorithm for each in entries))
    config = run_records.RunConfig(
      flags={"seeds": ["3", "5"], "algorithm": algorithms} | flags,
      versions={"python": "3.12.1"},
      git_commit=None,
      start_time="2026-11-22T23:00:00+00:00",
      command_line=(
        f"/its/bin/python -m experiments.evolving --output_dir={name}"
      ),
      cores=2,
      schema=schema,
      not_compared=(*_METHODS, *_FINE_TUNING),
    )
    records.write(folder / "config.json", config)
    if entries:
      records.write(
        folder / "summary.json", run_records.Summary(runs=tuple(entries))
      )
    if rows:
      (folder / "metrics.csv").write_text(rows)
    return read_run.read(folder)

  return write


def contents_of(*folders, metrics=("client_accuracy",)):
  return run_contents.to_contents(
    folders, metrics=metrics, title="t", command="c", start=_START
  )


def places(contents):
  return [f"{cell.row}: {', '.join(cell.column)}" for cell in contents.cells]


def headings(contents):
  return [", ".join(column.heading) for column in contents.columns]


def test_algorithms_are_rows_and_metrics_columns(make):
  contents = contents_of(
    make("a", entry(), entry("fed_evp")),
    metrics=("client_accuracy", "client_loss"),
  )
  assert places(contents) == [
    "fed_avg: client accuracy",
    "fed_avg: client loss",
    "fed_evp: client accuracy",
    "fed_evp: client loss",
  ]
  # Values by seed, in the order of --seeds.
  assert contents.cells[0].by_seed == {3: 50.0, 5: 60.0}
  accuracy, loss = contents.columns
  assert (accuracy.unit, accuracy.higher_is_better) == ("%", True)
  assert (loss.unit, loss.higher_is_better) == ("", False)
  missing = contents.cells[1].by_seed
  assert missing[3] != missing[3] and missing[5] == 60.0
  assert contents.date == "2026-11-22"
  assert contents.machine == "2 cores, python 3.12.1"
  assert [(each.name, each.ours) for each in contents.protocol] == [
    ("dirichlet", "inf"),
    ("selection", "none"),
  ]


def test_names_of_the_data_that_all_runs_share(make):
  features = tuple(f"gene {i}" for i in range(12))
  schema = table.Schema(
    features=features, classes=("a", "b"), clients=("n", "s"), dropped=("id",)
  )
  first = make("a", entry(), schema=schema)
  others = schema.replace(clients=("n", "w"))
  second = make("b", entry("fed_evp"), schema=others)
  found = {
    each.name: each.ours
    for each in contents_of(first, second).protocol
    if each.name.startswith("data: ")
  }
  assert found == {
    "data: features": ", ".join(features[:10]) + ", and 2 more",
    "data: classes": "a, b",
    "data: dropped": "id",
  }
  (clients,) = (
    each.ours
    for each in contents_of(first).protocol
    if each.name == "data: clients"
  )
  assert clients == "n, s"


def test_settings_in_which_an_algorithm_differs_are_told(make):
  contents = contents_of(
    make(
      "a",
      entry(learning_rate=0.1, lambda_=None),
      entry(learning_rate=0.01, lambda_=0.6),
      entry("local", learning_rate=0.5),
    )
  )
  assert [cell.row for cell in contents.cells] == [
    "fed_avg, lambda none, learning rate 0.1",
    "fed_avg, lambda 0.6, learning rate 0.01",
    "local",
  ]


def test_what_runs_are_about_are_columns(make):
  contents = contents_of(
    make("a", entry(test_distribution="iid", learning_rate=0.1)),
    make(
      "b",
      # Another rate chosen on another data set is no other method.
      entry(test_distribution="0.9", dataset="digits", learning_rate=0.2),
      # What an entry has not, is not told.
      entry("fed_drm", dataset="digits", lambda_=0.9),
    ),
  )
  assert places(contents) == [
    "fed_avg: circle, test distribution iid, client accuracy",
    "fed_avg: digits, test distribution 0.9, client accuracy",
    "fed_drm: digits, client accuracy",
  ]


@pytest.mark.parametrize(
  "flags, others, expected",
  # A data set of the same name in another file, a flag that no list has.
  tables.cases("""
{"rounds": 2}, {"rounds": 4}
    rounds 2; rounds 4
{"concept_drift": None}, {"concept_drift": "groups"}
    concept drift none; concept drift groups
{"schedules": ["sine", "square"]}, {"schedules": ["sine"]}
    schedules sine,square; schedules sine
{"dataset": "one/circle"}, {"dataset": "two/circle"}
    dataset one/circle; dataset two/circle
{"unheard_of": 1}, {"unheard_of": 2}
    unheard of 1; unheard of 2
"""),
)
def test_runs_that_differ_in_a_flag_have_two_columns(
  make, flags, others, expected
):
  contents = contents_of(
    make("a", entry(), **flags), make("b", entry("ifca"), **others)
  )
  shown = [
    heading.removesuffix(", client accuracy") for heading in headings(contents)
  ]
  assert "; ".join(shown) == expected
  assert "; ".join(cell.column[0] for cell in contents.cells) == expected


def test_flag_that_one_run_lacks_makes_another_column(make):
  contents = contents_of(make("a", entry(), late=1), make("b", entry("ifca")))
  assert headings(contents) == [
    "client accuracy",
    "other settings 1, client accuracy",
  ]


def test_long_values_that_look_alike_stay_apart(make):
  names = [f"{'x' * 50}{letter}{'y' * 50}" for letter in "ab"]
  contents = contents_of(
    *(make(each[50], entry(each[50]), path=each) for each in names)
  )
  first, second = (column.heading for column in contents.columns)
  assert first != second and len(first[0]) < 50


def test_runs_that_differ_in_methods_only_share_a_column(make):
  contents = contents_of(
    make("a", entry(learning_rate=0.1), rounds=2, learning_rate=["0.1"]),
    make(
      "b",
      # The setting is the resolved value of its flag.
      entry("ifca", rounds=2, selection="validation", learning_rate=0.2),
      rounds=None,
      learning_rate=["0.2", "0.3"],
      output_dir="b",
    ),
  )
  assert places(contents) == [
    "fed_avg: client accuracy",
    "ifca: client accuracy",
  ]


def test_columns_of_the_same_data_stand_side_by_side(make):
  contents = contents_of(
    make("a", entry(shift="sine"), entry(shift="square")),
    metrics=("client_accuracy", "client_loss"),
  )
  assert headings(contents) == [
    "shift sine, client accuracy",
    "shift sine, client loss",
    "shift square, client accuracy",
    "shift square, client loss",
  ]


def test_same_method_in_two_folders_is_two(make, tmp_path):
  contents = contents_of(make("a", entry()), make("b", entry()))
  assert [cell.row for cell in contents.cells] == [
    "fed_avg",
    f"fed_avg ({tmp_path / 'b'})",
  ]


def test_run_says_where_it_comes_from(make):
  folder = make(
    "a",
    entry(selection="last_source", learning_rate=0.1).replace(
      scores={"rate 0.1": 90.5, "rate 0.01": 30.0}
    ),
    learning_rate=["0.1", "0.01"],
  )
  (cell,) = contents_of(folder).cells
  # The selected setting alone has no trials.
  assert not cell.trials
  assert cell.budget.num_settings == 2
  run = cell.run
  assert run.folder.endswith("/a") and run.folder.startswith("..")
  assert run.command == "python -m experiments.evolving --output_dir=a"
  assert run.chosen == {"learning rate": "0.1"}
  assert run.scores == {"rate 0.1": 90.5, "rate 0.01": 30.0}
  # What only chose took time that nobody has noted.
  assert run.seconds is None
  assert run.num_diverged == 3
  plain = contents_of(make("b", entry(), entry("local"))).cells[0].run
  # 3 rounds of 0.5 s, for two seeds and two algorithms.
  assert plain.seconds == 6.0
  assert plain.chosen == {} == plain.scores


def test_stopped_run_shows_what_is_missing(make, tmp_path):
  folder = make("a", entry(), algorithm=["fed_avg", "fed_evp"])
  contents = contents_of(folder)
  first, second = contents.cells
  assert not first.run.is_finished
  assert (second.row, second.column) == ("fed_evp", ("client accuracy",))
  assert second.absent == f"not run: not finished in {tmp_path / 'a'}"
  assert contents.problems == [
    f"{tmp_path / 'a'}: fed_evp did not finish; if it is not running,"
    " continue with --resume"
  ]
  nothing = contents_of(make("b", algorithm=["fed_evp"]))
  assert not nothing.cells and len(nothing.problems) == 1


def test_curves_are_the_rows_of_the_entry(make):
  folder = make(
    "a",
    entry(learning_rate=0.1),
    entry("source"),
    # Neither another rate, nor runs that only chose, nor empty values.
    rows="""\
algorithm,dataset,held_out,dirichlet,learning_rate,seed,round,client_accuracy
fed_avg,circle,target,inf,0.1,3,1,10.0
fed_avg,circle,target,inf,0.1,3,2,20.0
fed_avg,circle,target,inf,0.1,5,1,30.0
fed_avg,circle,target,inf,0.2,3,1,99.0
fed_avg,circle,last_source,inf,0.1,3,1,99.0
fed_avg,circle,target,inf,0.1,3,3,
source,circle,target,inf,,3,1,7.0
""",
  )
  curves = contents_of(folder).curves
  assert [(c.row, c.seed, c.step, c.points) for c in curves] == [
    ("fed_avg", 3, "round", [(1.0, 10.0), (2.0, 20.0)]),
    ("fed_avg", 5, "round", [(1.0, 30.0)]),
    ("source", 3, "round", [(1.0, 7.0)]),
  ]
  # A metric that is in the summary alone has no curve.
  assert not contents_of(folder, metrics=("client_loss",)).curves


def test_main_metrics_are_accuracies_of_clients(make):
  folder = make("a", entry())
  assert run_contents.main_metrics([folder]) == ["client_accuracy"]
  assert run_contents.metric_names([folder]) == [
    "client_accuracy",
    "client_loss",
    "client_pooled_accuracy",
  ]


def test_file_that_is_none_is_refused(make):
  path = make("run", entry(), rows="round,seed\n1,3\n").path
  for name in ("config.json", "summary.json", "metrics.csv"):
    os.rename(path / name, path / "kept")
    os.mkfifo(path / name)
    with refused(rf"{name} is a named pipe"):
      read_run.read(path)
    os.rename(path / "kept", path / name)
  (path / "config.json").unlink()
  with refused(r"a run folder, because it has no config"):
    read_run.read(path)


def test_row_that_is_not_whole_is_none(make):
  path = make("run", rows="round,seed\n1,3\n").path
  with open(path / "metrics.csv", "a") as file:
    file.write("2,")
  assert read_run.read(path).rows == [{"round": "1", "seed": "3"}]


def test_cell_that_is_no_number_is_named(make):
  folder = make("run", entry(), rows="round,seed,client_accuracy\n1,3,x\n")
  with refused(r"metrics\.csv: could not conv"):
    contents_of(folder)


def test_direction_of_a_metric_is_that_of_the_run(make):
  lower = entry().replace(lower_is_better=("client_accuracy",))
  (column,) = contents_of(make("a", lower)).columns
  assert not column.higher_is_better


def test_rejected_settings_are_trials_of_the_selected_one(make):
  scores = {"rate 0.1": 40.0, "rate 0.2": 50.0}

  def of(values, rate, selection="none", name="fed_avg"):
    return entry(
      name, values=values, learning_rate=rate, selection=selection
    ).replace(scores=scores, gradients=35.0, bytes_up=12)

  contents = contents_of(
    make(
      "a",
      of((55.0, 65.0), 0.1),
      of((50.0, 60.0), 0.2, selection="validation"),
      entry("local"),
    )
  )
  # The rejected setting is not a row.
  assert [cell.row for cell in contents.cells] == ["fed_avg", "local"]
  fed_avg, local = contents.cells
  assert [
    (each.label, each.by_seed, each.is_selected) for each in fed_avg.trials
  ] == [
    ("learning rate 0.1", {3: 55.0, 5: 65.0}, False),
    ("learning rate 0.2", {3: 50.0, 5: 60.0}, True),
  ]
  assert fed_avg.budget.num_settings == 2
  assert (fed_avg.budget.num_gradients, fed_avg.budget.bytes_up) == (35.0, 12)
  assert fed_avg.budget.bytes_down is None
  assert not local.trials and local.budget.num_settings == 1
  assert contents.floors == ["local"]
  assert contents.references == ["fed_avg", "local"]


@pytest.mark.parametrize("steps, known", [(100, 100), (0, None)])
def test_budget_has_the_steps_of_fine_tuning(make, steps, known):
  tuned = entry("fed_avg_ft", fine_tuning_steps=steps, fine_tuning_epochs=1)
  (cell,) = contents_of(make("a", tuned)).cells
  assert cell.budget.fine_tuning_steps == known


def test_privacy_of_methods_is_shown_and_makes_no_columns(make, tmp_path):
  private = {
    "epsilon": 15.0721,
    "epsilon_delta": 1e-6,
    "epsilon_relation": "replacing a client",
    "epsilon_sampling": "cohorts of a fixed size",
    "epsilon_fixed_cohort_size": 15.0721,
    "epsilon_poisson": 1.5671,
  }
  infinite = private | {"epsilon": "infinite"}
  contents = contents_of(
    make(
      "a",
      entry("local"),
      entry("fed_avg", **private),
      entry("fed_evp", **infinite),
    )
  )
  assert [cell.column for cell in contents.cells] == [("client accuracy",)] * 3
  first, second = contents.guarantees
  assert first == contents_lib.Guarantee(
    row="fed_avg",
    column=(),
    epsilon="15.07",
    delta="1e-06",
    relation="replacing a client",
    sampling="cohorts of a fixed size",
    others="fixed cohort size 15.07, poisson 1.567",
  )
  assert (second.row, second.epsilon) == ("fed_evp", "infinite")
  page.write(contents, tmp_path / "page")
  text = (tmp_path / "page" / "report.html").read_text()
  section = text[text.index('id="privacy"') :]
  for text in (first.epsilon, first.delta, first.relation, second.epsilon):
    assert f">{text}<" in section
  assert first.sampling in section and first.others in section
