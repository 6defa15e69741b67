"""The drift of one's own table in the binaries that otherwise draw one."""

import json
import shutil

import numpy as np
import pandas
import pytest

import tff_shift as ts
from tests.fixtures import tables

_COMMON = """
  --label=outcome --client=site --time=year --pretraining_epochs=1
  --model_width=4 --noprogress
"""
_FED_ADE = """
  --algorithm=source,fed_ade --eta_min=0.01 --eta_max=0.1 --local_epochs=1
"""
_FED_3DA = "--algorithm=fed_3da,fed_avg --hidden_width=6 --num_hidden=1"
_SAVED = "--save_model --save_clients=all"
# The number of examples of each site in the years 2019 to 2022.
_SIZES = {
  "gap": (24, 12, 0, 8),
  "late": (0, 12, 12, 4),
  "leaver": (24, 12, 0, 0),
  "stays": (24, 12, 8, 4),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  """The flag of a table; the outcome follows from the dose."""
  rows = [
    (site, year)
    for site, sizes in _SIZES.items()
    for year, size in enumerate(sizes, 2019)
    for _ in range(size)
  ]
  frame = pandas.DataFrame(rows, columns=["site", "year"])
  sick = np.arange(len(rows)) % 2
  noise = np.random.default_rng(0).normal(size=len(rows))
  frame["dose"] = 2 * sick - 1 + noise
  frame["outcome"] = np.array(["healthy", "sick"])[sick]
  path = tmp_path_factory.mktemp("data") / "study.csv"
  frame.sample(frac=1, random_state=1).to_csv(path, index=False)
  return f"--dataset={path}"


def check_names(folder):
  """Checks that a run and its models know their columns and clients."""
  found = ts.read_run(folder)
  assert found.config.schema.features == ("dose",)
  sites = list(_SIZES)
  names = [sites[client] for client in found.clients.client]
  assert found.clients.client_name.tolist() == names
  models = list(folder.rglob("model.json"))
  assert models
  for path in models:
    described = json.loads(path.read_text())
    assert described["schema"]["clients"] == sites
    assert described["schema"]["features"] == ["dose"]


@pytest.fixture
def run_table(table, run, tmp_path):
  """Returns `run(binary, *flags, folder="run")`, with the table."""
  cache = f"--cache_dir={tmp_path / 'cache'}"
  return lambda binary, *flags, **options: run(
    *(binary, table, _COMMON, cache, *flags), **options
  )


@pytest.mark.long
def test_online_adaptation_runs_and_resumes(run_table):
  ended = run_table("online_adaptation", _FED_ADE, "--controls", _SAVED)
  check_names(ended.folder)
  absent, few, without = ended.errors.splitlines()
  assert absent.endswith(
    "study.csv lack time steps, in which they are absent: gap lacks 2021;"
    " leaver lacks 2021, 2022"
  )
  # Of 24 examples, rint(15.6) are for pre-training, rint(19.2) - 16 held out.
  assert few.endswith("use all of them (at least 5)")
  assert "1 of 4 clients have no labelled examples of their own" in without
  rows = ended.rows
  algorithms = ["source", "fed_ade", "fix_lr_mean", "fed_ade_shuffled"]
  assert [(r["algorithm"], r["shift"], r["time"]) for r in rows] == [
    (name, "own", year)
    for name in algorithms
    for year in ("2020", "2021", "2022")
  ]
  assert not {"omega", "dirichlet", "samples_per_step"} & set(rows[0])
  runs = {each["algorithm"]: each for each in ended.runs}
  setting = runs["fed_ade"]["setting"]
  assert setting["clients_without_labelled_examples"] == 1
  assert "shift_kind" not in setting
  assert "step_shift_correlation" in runs["fed_ade"]["metrics"]
  config = ended.config["flags"]
  assert (config["shift"], config["timesteps"]) == (["own"], 3)
  for steps in ("--timesteps=2", "--timesteps=3 --resume"):
    stopped = run_table("online_adaptation", _FED_ADE, steps, folder="stopped")
  assert stopped.rows == rows[: 2 * 3]


@pytest.mark.long
def test_dynamic_personalization_runs_and_resumes(run_table):
  binary = "dynamic_personalization"
  ended = run_table(binary, _FED_3DA, "--rounds=3", _SAVED)
  check_names(ended.folder)
  rows = ended.rows
  assert [
    (r["algorithm"], r["test_distribution"], r["time"]) for r in rows
  ] == [
    (name, "own", year)
    for name in ("fed_3da", "fed_avg")
    for year in ("2021", "2022")
  ]
  assert not {"drifted_share", "period_size", "rest"} & set(rows[0])
  for number, each in enumerate(ended.runs):
    assert each["setting"]["train_periods"] == 2
    assert "true_positive_rate" not in each["metrics"]
    # Two sites have examples in 2021, and three in 2022.
    two, three = (float(r["accuracy"]) for r in rows[2 * number :][:2])
    assert each["metrics"]["accuracy"]["mean"] == pytest.approx(
      (2 * two + 3 * three) / 5
    )
  for steps in ("--rounds=1", "--rounds=3 --resume"):
    stopped = run_table(binary, _FED_3DA, steps, folder="stopped")
  assert stopped.rows == rows


@pytest.mark.slow
def test_deployed_model_of_a_file_is_not_trained(run_table, tmp_path):
  given = "online_adaptation", "--algorithm=source"
  trained = run_table(*given, folder="trained")
  (cached,) = (tmp_path / "cache").glob("*.npz")
  with np.load(cached) as arrays:
    weights = {name: arrays[name] for name in arrays if "/" in name}
  np.savez(tmp_path / "weights.npz", **weights)
  shutil.rmtree(tmp_path / "cache")
  file = f"--weights_file={tmp_path / 'weights.npz'} --pretraining_epochs=0"
  deployed = run_table(*given, file, folder="deployed")
  assert "held-out examples, not trained" in deployed.output
  assert not (tmp_path / "cache").exists()
  assert deployed.rows == trained.rows
  # 72 rows of 2019: 47 to pre-train on, 10 to stop early, 15 of clients; at
  # last the model is trained on all of them.
  lines = trained.output.splitlines()
  assert "before deployment: 2019, 72 rows" in lines
  assert "pre-training on 72 of 72 labelled rows, distribution as they" in (
    trained.output
  )


@pytest.mark.slow
def test_rows_of_the_parts_of_periods(run_table):
  flags = "--algorithm=fed_avg --rounds=1 --distance_features=extractor"
  ended = run_table("dynamic_personalization", flags)
  # Of 36, 36, 36 and 12 rows of 2019 and 2020, a fifth is public, and a tenth
  # validates: rint(7.2) and rint(10.8) - 7; rint(2.4) and rint(3.6) - 2.
  lines = ended.output.splitlines()
  assert (
    "rows for training, validation and the public part: 83, 14, 23, of the"
    " periods 2019, 2020" in lines
  )
  assert "pre-training of the extractor on 23 of 120 rows" in lines


_REFUSED = {
  "online_adaptation": """
--shift=linear
    --shift=linear does not apply to --dataset=
--dirichlet=0.5
    whose domains are the drift; leave it out
--timesteps=4
    --timesteps=4: it must be at most 3, the numb
--num_clients=3
    study.csv has 4 clients of its own; leave
--aggregator=dp
    2 of 4 clients are absent in some time step
--pretraining_epochs=0
    --pretraining_epochs=0: it must be at least 1, or --weights_file must
""",
  "dynamic_personalization": """
--period_size=9
    --period_size=9 does not apply to --datase
--train_periods=4
    --train_periods=4: it must be from 1 to
""",
}


@pytest.mark.parametrize(
  "binary, flags, message",
  [
    (binary, *row)
    for binary, text in _REFUSED.items()
    for row in tables.rows(text)
  ],
)
def test_flags_that_do_not_apply_are_refused(
  binary, flags, message, table, refused
):
  algorithm = _FED_ADE if binary == "online_adaptation" else _FED_3DA
  line = refused(binary, [table, _COMMON, algorithm, flags])
  assert message[0] in line
