"""The flags of trackers: what is refused, and what MLflow has of a run."""

import contextlib
import importlib.util
import sqlite3

import pytest

from tests.fixtures import tables

_RUN = """
  --algorithm=local --dataset=circle --num_domains=4 --num_clients=2
  --max_examples_per_domain=20 --rounds=2 --evaluate_every=1
  --checkpoint_every=1 --seeds=0,1
"""


@pytest.mark.parametrize(
  "flags, expected",
  tables.rows("""
--tracker=comet
    --tracker=comet: it must be one or
--tracker=
    --tracker=: it must be one or
--tracker=none,none
    duplicates
--tracker=none,tensorboard
    none excludes all others
--mlflow_uri=runs
    --mlflow_uri needs --tracker=mlflow
--tracker=mlflow
    --tracker=mlflow: MLflow is not installed; install the extra mlflow: pip \
    install 'tff_shift[mlflow]'
--tracker=wandb
    --tracker=wandb: Weights & Biases is not installed
--tracker=mlflow --mlflow_uri=http://127.0.0.1:1
    --mlflow_uri=http://127.0.0.1:1: no answer
--tracker=mlflow --mlflow_uri=/dev/null
    /dev/null: it must be a writable folder
"""),
)
def test_trackers_that_cannot_be_are_refused_before_anything_is_written(
  refused, monkeypatch, flags, expected
):
  find_spec = importlib.util.find_spec
  is_installed = "--mlflow_uri" in flags
  monkeypatch.setattr(
    importlib.util,
    "find_spec",
    lambda name: (
      is_installed or None if name in ("mlflow", "wandb") else find_spec(name)
    ),
  )
  assert expected[0] in refused("evolving", [_RUN, flags])


@pytest.mark.slow
def test_run_with_mlflow_goes_on_and_starts_anew(run, tmp_path, monkeypatch):
  # Before anything imports MLflow.
  monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
  mlflow = pytest.importorskip(
    "mlflow", reason="MLflow, the extra mlflow, is not installed"
  )
  folder = tmp_path / "run"
  given = "evolving", _RUN, "--tracker=mlflow"

  def read():
    found = client.get_experiment_by_name("tff_shift evolving")
    runs = client.search_runs([found.experiment_id])
    # The latest comes first, and counts.
    return {run.info.run_name: run for run in reversed(runs)}

  first = run(*given)
  client = mlflow.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
  assert not (folder / "tensorboard").exists()
  runs = read()
  assert len(runs) == 3
  (name,) = (each for each in runs if each.endswith("seed_1"))
  expected = {"algorithm": "local", "num_clients": "2"}
  assert expected.items() <= runs[name].data.params.items()
  rows = first.frame.query("seed == 1")

  def check_points():
    """The curves of the second seed are those of its rows."""
    for key in ("client_accuracy", "train_loss"):
      history = client.get_metric_history(read()[name].info.run_id, key)
      assert [point.step for point in history] == [1, 2]
      if key == "client_accuracy":
        assert [point.value for point in history] == rows[key].tolist()

  check_points()
  artifacts = client.list_artifacts(runs["comparison"].info.run_id)
  assert {each.path for each in artifacts} == {
    *("config.json", "metrics.csv", "summary.json", "figures")
  }

  # The second seed was stopped after its first round.
  (path,) = folder.glob("checkpoints/*-1.sqlite")
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    connection.execute("DELETE FROM checkpoints WHERE step = 2")
  resumed = run(*given, "--resume")
  before = read()
  assert set(runs) == set(before)
  check_points()

  earlier = resumed.config["identity"]
  assert run(*given, "--overwrite").config["identity"] != earlier
  after = read()
  assert set(after) == set(before)
  assert after[name].info.run_id != before[name].info.run_id
