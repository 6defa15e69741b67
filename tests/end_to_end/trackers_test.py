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
    client = mlflow.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    found = client.get_experiment_by_name("tff_shift evolving")
    runs = client.search_runs([found.experiment_id])
    # The latest comes first, and counts.
    return client, {run.info.run_name: run for run in reversed(runs)}

  first = run(*given)
  assert not (folder / "tensorboard").exists()
  client, runs = read()
  assert len(runs) == 3
  (name,) = (each for each in runs if each.endswith("seed_1"))
  assert runs[name].data.params["algorithm"] == "local"
  assert runs[name].data.params["num_clients"] == "2"
  of_seed = [row for row in first.rows if row["seed"] == "1"]

  def points(key):
    history = client.get_metric_history(runs[name].info.run_id, key)
    return [(point.step, point.value) for point in history]

  expected = [
    (int(row["round"]), float(row["client_accuracy"])) for row in of_seed
  ]
  assert points("client_accuracy") == expected and len(expected) == 2
  assert [step for step, _ in points("train_loss")] == [1, 2]
  kept = {
    each.path for each in client.list_artifacts(runs["comparison"].info.run_id)
  }
  assert kept == {"config.json", "metrics.csv", "summary.json", "figures"}

  # The second seed was stopped after its first round.
  (path,) = folder.glob("checkpoints/*-1.sqlite")
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    connection.execute("DELETE FROM checkpoints WHERE step = 2")
  resumed = run(*given, "--resume")
  before = runs
  client, runs = read()
  assert set(runs) == set(before)
  assert points("client_accuracy") == expected
  assert [step for step, _ in points("train_loss")] == [1, 2]

  earlier = resumed.config["identity"]
  assert run(*given, "--overwrite").config["identity"] != earlier
  _, runs = read()
  assert set(runs) == set(before)
  assert runs[name].info.run_id != before[name].info.run_id
