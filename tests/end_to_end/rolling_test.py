"""Rolling evaluation: each domain is predicted by a model of those before."""

import itertools

import numpy as np
import pandas
import pytest

from tests.fixtures import tables
from tests.fixtures import trees
from tff_shift.reporting import clients
from tff_shift.reporting import read_run
from tff_shift.reporting import run_folders
from tff_shift.simulation.engine import rounds

_MONTHS = [f"2024-0{number}-15" for number in range(1, 6)]
_FLAGS = """
  --label=outcome --client=site --time=day --time_unit=month --missing=indicator
  --categories=one_hot --input_scaling=standardized --rounds=2 --local_steps=1
  --learning_rate=0.1 --evaluate_every=1 --checkpoint_every=1 --noprogress
  --model_width=4
"""
_ROLLING = "--target=rolling --min_source_domains=2"
# Of the last three months.
_TARGETS = ["2024-03", "2024-04", "2024-05"]


def make_table():
  """Makes a table with gaps and categories, 40 examples a month."""
  rng = np.random.default_rng(0)
  order = np.arange(200)
  dose = rng.normal(size=200)
  age = rng.normal(60, 10, size=200)
  age[rng.random(200) < 0.2] = np.nan
  return pandas.DataFrame(
    {
      "site": np.array(["north", "south"])[order % 2],
      "day": np.array(_MONTHS)[order // 40],
      "dose": dose,
      "age": age,
      "ward": np.array(["a", "b", "c"])[rng.integers(0, 3, 200)],
      "outcome": np.where(dose + rng.normal(size=200) > 0, "sick", "well"),
    }
  )


@pytest.fixture
def run_table(run, tmp_path):
  """Returns `run(table, *flags, ...)`: of a table in a file of one name."""

  def run_table(table, *flags, **options):
    table.to_csv(tmp_path / "visits.csv", index=False)
    file = f"--dataset={tmp_path}/visits.csv"
    return run("evolving", file, _FLAGS, *flags, **options)

  return run_table


def without(row, *names):
  return {name: value for name, value in row.items() if name not in names}


@pytest.mark.long
def test_row_of_a_target_equals_a_run_without_later_data(run_table):
  table = make_table()
  flags = "--algorithm=fed_avg,fed_evp"
  rows = run_table(table, flags, _ROLLING, "--rolling=restart").rows
  assert [(row["algorithm"], row["target"], row["round"]) for row in rows] == [
    *itertools.product(["fed_avg", "fed_evp"], _TARGETS, "12")
  ]
  for number, target in enumerate(_TARGETS):
    part = table[table["day"].isin(_MONTHS[: number + 3])]
    alone = run_table(part, flags, folder=target)
    for row in alone.rows:
      del row["num_domains"]
    names = "target", "num_domains", "rolling", "min_source_domains"
    assert alone.rows and alone.rows[0]["client_accuracy"]
    assert [without(row, "num_domains") for row in alone.rows] == [
      without(row, *names) for row in rows if row["target"] == target
    ]


@pytest.mark.long
@pytest.mark.parametrize("flag", ["restart", "continue"])
def test_later_examples_change_nothing(flag, run_table):
  """Also not the selected setting, nor what replaces missing values."""
  table = make_table()
  is_last = table["day"] == _MONTHS[-1]
  others = {
    "dose": -100 * table["dose"],
    "age": np.where(table["age"] > 60, 0, np.nan),
    "ward": "c",
    "outcome": table["outcome"].map({"sick": "well", "well": "sick"}),
  }
  changed = table.mask(is_last, table.assign(**others))
  flags = f"""
    --algorithm=fed_avg --select=last_source --learning_rate=0.01,0.1
    {_ROLLING} --rolling={flag}
  """
  before, after = (
    run_table(rows, flags, folder=name).frame
    for name, rows in (("before", table), ("after", changed))
  )
  earlier, found = (
    frame[frame["target"] != _TARGETS[-1]] for frame in (before, after)
  )
  pandas.testing.assert_frame_equal(found, earlier, check_exact=True)
  # Selection has held out the last source domain of the first target.
  pairs = earlier[["held_out", "target"]].drop_duplicates().to_numpy().tolist()
  assert pairs == [
    ["last_source", "2024-02"],
    *(["target", name] for name in _TARGETS[:-1]),
  ]
  assert not before.equals(after)


@pytest.fixture(scope="module")
def continued(run_in, tmp_path_factory):
  """A run of several methods and seeds whose models are continued."""
  folder = tmp_path_factory.mktemp("runs")
  make_table().to_csv(folder / "visits.csv", index=False)
  flags = (
    *("evolving", f"--dataset={folder}/visits.csv", _FLAGS),
    "--target=rolling --min_source_domains=3",
    "--algorithm=fed_avg,fed_evp,fed_rep --seeds=0,1 --save_model --bounds",
  )
  return flags, run_in(folder / "whole", *flags)


@pytest.mark.long
class TestContinued:
  def test_metrics_are_of_the_rows_of_the_last_rounds(self, continued):
    _, ended = continued
    rows = ended.frame.query("round == 2")
    means = rows.groupby(["algorithm", "seed"])["client_accuracy"].mean()
    entries = {entry["algorithm"]: entry for entry in ended.runs}
    for name in ("fed_avg", "fed_evp", "fed_rep"):
      metrics = entries[name]["metrics"]
      seeds = metrics["client_accuracy"]["seeds"]
      assert seeds == pytest.approx(means.xs(name).tolist())
      assert {"worst_target_client_accuracy", "mean_rank"} <= metrics.keys()
    assert "mean_rank" in entries["fed_avg"]["lower_is_better"]
    of_baseline = entries["majority_class"]["metrics"].keys()
    assert "worst_target_client_accuracy" in of_baseline
    assert "mean_rank" not in of_baseline
    expected = {"rolling": "continue", "min_source_domains": 3}
    assert expected.items() <= entries["fed_rep"]["setting"].items()
    assert "pooled is not computed with --target=rolling" in ended.errors
    lines = ended.output.splitlines()
    line = "targets (2): 2024-04 to 2024-05, 80 rows; metrics are means over"
    assert f"{line} targets" in lines
    head = next(x for x in lines if "algorithm" in x)
    assert "mean rank" in head and "worst target client accuracy (%)" in head

  def test_reports_have_means_over_targets(self, continued):
    _, ended = continued
    run = read_run.read(ended.folder)
    entry, metric = run.summary[0], "client_accuracy"
    of_entry = f"algorithm == '{entry.algorithm}'"
    means = run.metrics.query(of_entry).groupby(["seed", "round"])[metric]
    step, curves = run_folders.curves(
      ended.folder, run_folders.read_rows(ended.folder), entry, metric
    )
    assert step == "round"
    for seed, points in curves.items():
      assert dict(points) == pytest.approx(means.mean()[seed].to_dict())
    values = run.clients.query(f"{of_entry} and round == 2")
    by_client = values.groupby(["seed", "client"])[metric].mean()
    final = read_run.final_client_values(run, entry, metric)
    for seed, accuracies in final.items():
      np.testing.assert_allclose(accuracies, by_client[seed])
    harmed = clients.harmed(run.clients, of="fed_evp", against="fed_avg")
    assert len(harmed) == 2 * len(_TARGETS[1:])
    assert set(harmed["target"]) == set(_TARGETS[1:])

  def test_model_of_the_last_target_is_saved(self, continued):
    _, ended = continued
    folder = ended.folder / "model"
    paths = folder.glob("**/weights.npz")
    assert sorted(path.relative_to(folder).parts[:3] for path in paths) == [
      (name, "target", "2024-05")
      for name in ("fed_avg", "fed_evp", "fed_rep")
      for _ in "01"
    ]

  def test_resumed_run_equals_uninterrupted_run(
    self, continued, run_in, tmp_path, monkeypatch
  ):
    flags, whole = continued
    folder, step = tmp_path / "run", rounds.Rounds.step

    def stop(self):
      # In the second round of the second target of the second method.
      if self.round_num == 3 and self.algorithm.name == "fed_evp":
        raise KeyboardInterrupt
      return step(self)

    with monkeypatch.context() as patches:
      patches.setattr(rounds.Rounds, "step", stop)
      run_in(folder, *flags, code=130)
    rows = run_in(folder, *flags, "--resume")
    assert rows.rows == whole.rows
    assert rows.runs == whole.runs
    for path in whole.folder.glob("model/**/weights.npz"):
      other = folder / path.relative_to(whole.folder)
      with np.load(path) as expected, np.load(other) as weights:
        trees.assert_equal(dict(weights), dict(expected))

  def test_more_rounds_are_refused(self, continued, run_in):
    flags, ended = continued
    errors = run_in(ended.folder, *flags, "--rounds=3 --resume", code=2).errors
    assert "only --rolling=restart can be extended" in errors
    assert errors.count("\n") == 1


_REFUSED = """
--rolling=restart
    --rolling=restart does not apply without --target=rolling; leave it out
--min_source_domains=2
    --min_source_domains=2 does not apply without --target=rolling; leave it out
--target=rolling --target_extra_angle=5 --dataset=rotated_digits
    --target_extra_angle=5.0 does not apply with --target=rolling; leave it out
--target=rolling --min_source_domains=4
    --min_source_domains=4: it must be at least 1 for fed_avg with \
    --select=none, and below 4, the number of domains
--target=rolling --min_source_domains=1 --algorithm=fed_avg,fed_evp
    --min_source_domains=1: it must be at least 2 for fed_evp with
--target=rolling --min_source_domains=1 --select=last_source
    --min_source_domains=1: it must be at least 2 for fed_avg with
--target=rolling --algorithm=fed_drift
    --rolling=continue is not allowed with fed_drift, which learns the \
    source domains of one run in turn; set --rolling=restart
--target=rolling --keep=best
    --keep=best: it must be left out with --rolling=continue, the default,
--target=rolling --max_states_in_memory=1
    --max_states_in_memory=1: it must be left out with --rolling=continue
--target=next
    --target=next: it must be one of last, rolling
"""


@pytest.mark.parametrize("flag, message", tables.rows(_REFUSED))
def test_flags_that_do_not_apply_are_refused(flag, message, refused):
  flags = """
    --algorithm=fed_avg --dataset=circle --num_domains=4 --num_clients=2
    --max_examples_per_domain=20
  """
  assert message[0] in refused("evolving", [flags, flag])


def test_first_target_has_the_fewest_domains_that_all_can_train_on(planned):
  flags = """
    --dataset=circle --num_domains=5 --max_examples_per_domain=20
    --num_clients=2 --target=rolling --select=last_source
  """

  def targets(*more):
    plan = planned("evolving", [flags, *more])
    assert plan.num_runs(plan.trials[0]) == len(plan.targets[0])
    return [len(target.dataset.domains) for target in plan.targets[0]]

  assert targets("--algorithm=fed_avg") == [3, 4, 5]
  assert targets("--algorithm=fed_avg,fed_evp") == [4, 5]
  assert targets("--algorithm=cfed", "--rolling=restart") == [3, 4, 5]


@pytest.mark.parametrize("flag", ["restart", "continue"])
def test_words_are_those_of_the_months_before(flag, planned):
  flags = f"""
    --dataset=synthetic_titles --algorithm=fed_avg --num_clients=3
    --max_examples_per_domain=40 --target=rolling --rolling={flag}
  """
  targets = planned("evolving", flags).targets[0]
  first = targets[0]
  for target in targets:
    fitted_on = target if flag == "restart" else first
    train = [client.train.x for client in fitted_on.clients]
    # Word 0 is padding and 1 is unknown.
    words = {*np.unique(np.concatenate(train))}
    assert words == {0, *range(2, len(target.dataset.vocabulary))}
    assert target.dataset.vocabulary == fitted_on.dataset.vocabulary
