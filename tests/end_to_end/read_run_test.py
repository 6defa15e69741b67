"""A run of a binary as data frames."""

import json
import shutil

import numpy as np
import pytest

import tff_shift as ts
from tests.fixtures.refusals import refused
from tff_shift.reporting import clients
from tff_shift.reporting import read_run
from tff_shift.reporting import run_contents

FLAGS = """
  --algorithm=fed_avg,local --dataset=circle --num_domains=3
  --max_examples_per_domain=60 --num_clients=3 --rounds=3 --local_steps=1
  --evaluate_every=2 --seeds=0,1 --noprogress
"""


@pytest.fixture(scope="module")
def whole(run_once):
  return run_once("evolving", FLAGS, errors="").folder


@pytest.fixture
def folder(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / "run")


@pytest.mark.long
def test_frames_agree_with_the_files(folder, tmp_path):
  run = ts.read_run(folder)
  assert run.config.flags["rounds"] == 3
  assert run.metrics["round"].tolist() == [2, 3] * 4
  frame = run.clients
  assert list(frame) == [
    *("algorithm", "dataset", "held_out", "learning_rate", "seed", "round"),
    *("client", "client_accuracy", "client_loss"),
  ]
  assert len(frame) == 2 * 2 * 2 * 3
  # The mean over clients is the accuracy in metrics.csv.
  means, measured = (
    each.groupby(["algorithm", "seed", "round"])["client_accuracy"].mean()
    for each in (frame, run.metrics)
  )
  np.testing.assert_allclose(means, measured, rtol=1e-6)
  spread = clients.spread(frame).set_index(["algorithm", "seed"])
  for entry in run.summary:
    for metric, column in (
      ("accuracy_of_worst_client", "worst"),
      ("accuracy_percentile_10", "percentile_10"),
      ("accuracy_std_over_clients", "std"),
    ):
      np.testing.assert_allclose(
        entry.metrics[metric].values, spread.loc[entry.algorithm, column]
      )
  harmed = clients.harmed(frame, of="fed_avg", against="local")["harmed_share"]
  first = run.summary[0]
  name = "harmed_share_against_local"
  assert first.metrics[name].values == harmed.tolist()
  assert {name, "accuracy_std_over_clients"} <= {*first.lower_is_better}
  frame.to_parquet(tmp_path / "clients.parquet")
  assert (tmp_path / "clients.parquet").stat().st_size > 0
  # The page pairs the clients of two methods by seed.
  fed_avg, local = (
    read_run.final_client_values(run, each, "client_accuracy")
    for each in run.summary
  )
  assert fed_avg.keys() == local.keys() == {0, 1}
  assert harmed.tolist() == [
    100 * np.mean(fed_avg[seed] < local[seed] - 1e-4) for seed in (0, 1)
  ]
  assert read_run.final_client_values(run, first, "no_metric") == {}
  (shown,) = run_contents.to_contents(
    [read_run.read(folder)],
    metrics=["client_accuracy"],
    title="",
    command="",
    start=tmp_path,
  ).clients
  assert shown.by_method.keys() == {"fed_avg", "local"}
  np.testing.assert_array_equal(shown.by_method["local"][1], local[1])


@pytest.mark.slow
def test_other_folders_are_refused_in_one_line(folder, tmp_path):
  with refused("there is no such folder"):
    ts.read_run(tmp_path / "none")
  with refused("not a run folder"):
    ts.read_run(tmp_path)
  for path in (folder / "checkpoints").iterdir():
    path.unlink()
  run = ts.read_run(folder)
  with refused("there are no values of clients"):
    _ = run.clients
  (folder / "summary.json").write_text(json.dumps({"runs": 1}))
  with refused(r"summary\.json: "):
    ts.read_run(folder)
