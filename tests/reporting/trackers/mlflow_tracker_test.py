"""Tests of the tracker that tells MLflow, on a file store of MLflow's own."""

import math
import os

import pytest

from tff_shift import files
from tff_shift.reporting.trackers import mlflow_tracker

# Before anything imports MLflow.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
mlflow = pytest.importorskip(
  "mlflow", reason="MLflow, the extra mlflow, is not installed"
)


@pytest.fixture
def uri(tmp_path):
  return (tmp_path / "mlruns").as_uri()


def _read(uri, experiment="evolving"):
  """Returns the client, and the runs of an experiment by name."""
  client = mlflow.MlflowClient(tracking_uri=uri)
  found = client.get_experiment_by_name(experiment)
  runs = client.search_runs([found.experiment_id])
  by_name = {run.info.run_name: run for run in runs}
  assert len(by_name) == len(runs)
  return client, by_name


def _points(client, run, key):
  history = client.get_metric_history(run.info.run_id, key)
  return [(point.step, point.value) for point in history]


def test_run_has_parameters_scalars_by_step_and_files(uri, tmp_path):
  tracker = mlflow_tracker.MLflow(uri, "evolving", "one")
  parameters = {"learning_rate": 0.1, "mu": None, "angle, °": 15}
  run = tracker.start(
    "fed_avg/seed_0", parameters | {f"p{i}": i for i in range(120)}
  )
  for step in (1, 2, 5):
    run.scalars({"loss": 0.5 * step, "share": math.nan}, step)
    run.scalars({"accuracy": 10.0 * step}, step, group="0.4+0.4")
  figure = tmp_path / "accuracy.png"
  figure.write_bytes(b"png")
  run.artifact(figure, "figures")
  run.artifact(figure)
  run.end()
  client, runs = _read(uri)
  (found,) = runs.values()
  assert found.info.run_name == "fed_avg/seed_0"
  assert found.info.status == "FINISHED"
  assert len(found.data.params) == 123
  assert found.data.params["learning_rate"] == "0.1"
  assert found.data.params["mu"] == "None"
  # What MLflow does not take in a name is replaced.
  assert found.data.params["angle_ _"] == "15"
  assert _points(client, found, "loss") == [(1, 0.5), (2, 1.0), (5, 2.5)]
  assert _points(client, found, "0.4_0.4/accuracy") == [
    (1, 10.0),
    (2, 20.0),
    (5, 50.0),
  ]
  assert all(math.isnan(value) for _, value in _points(client, found, "share"))
  run_id = found.info.run_id
  assert {each.path for each in client.list_artifacts(run_id)} == {
    "accuracy.png",
    "figures",
  }
  (copied,) = client.list_artifacts(run_id, "figures")
  local = client.download_artifacts(run_id, copied.path, str(tmp_path))
  with open(local, "rb") as file:
    assert file.read() == b"png"


def test_run_that_goes_on_has_each_point_once(uri):
  first = mlflow_tracker.MLflow(uri, "evolving", "one").start("a", {"x": 1})
  for step in (1, 2, 3):
    first.scalars({"loss": float(step)}, step)
  first.end(is_done=False)
  client, runs = _read(uri)
  assert runs["a"].info.status == "FAILED"
  # It stopped after a checkpoint at step 2, and tells all from its start.
  again = mlflow_tracker.MLflow(uri, "evolving", "one").start("a", {"x": 1})
  assert _read(uri)[1]["a"].info.status == "RUNNING"
  for step in (1, 2, 3, 4):
    again.scalars({"loss": float(step)}, step)
  again.end()
  assert _read(uri)[1]["a"].info.run_id == runs["a"].info.run_id
  assert _read(uri)[1]["a"].info.status == "FINISHED"
  assert _points(client, runs["a"], "loss") == [
    (step, float(step)) for step in (1, 2, 3, 4)
  ]


def test_other_identity_is_another_run(uri):
  for identity in ("one", "two"):
    run = mlflow_tracker.MLflow(uri, "evolving", identity).start(identity, {})
    run.scalars({"loss": 1.0}, 1)
    run.end()
  client, runs = _read(uri)
  assert set(runs) == {"one", "two"}
  for run in runs.values():
    assert _points(client, run, "loss") == [(1, 1.0)]


def test_runs_of_a_replaced_identity_are_deleted_and_told_anew(uri):
  for identity in ("before", "other"):
    run = mlflow_tracker.MLflow(uri, "evolving", identity).start(identity, {})
    run.scalars({"loss": 1.0}, 5)
    run.end()
  # The longer run has no such point.
  tracker = mlflow_tracker.MLflow(uri, "evolving", "now", ["before"])
  run = tracker.start("before", {})
  run.scalars({"loss": 0.5}, 6)
  run.end()
  client, runs = _read(uri)
  assert set(runs) == {"before", "other"}
  assert _points(client, runs["before"], "loss") == [(6, 0.5)]
  # Once more, as by a process that goes on.
  mlflow_tracker.MLflow(uri, "evolving", "now", ["before"]).start("before", {})
  assert _read(uri)[1]["before"].info.run_id == runs["before"].info.run_id


def test_place_that_cannot_be_used_is_told_in_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(files.WriteError) as error:
    mlflow_tracker.MLflow((tmp_path / "file").as_uri(), "evolving", "one")
  assert "\n" not in str(error.value)
  assert (tmp_path / "file").as_uri() in str(error.value)


def test_names_that_differ_have_keys_that_differ(uri):
  names = ["recall_猫", "recall_狗", "recall__", "Recall__"]
  for _ in range(2):
    # A resumed run reports the same names again.
    tracker = mlflow_tracker.MLflow(uri, "evolving", "one")
    run = tracker.start("a", {"flag°": 1, "flag²": 2})
    for step in (1, 2):
      run.scalars({name: step + i for i, name in enumerate(names)}, step)
    run.end()
  client, runs = _read(uri)
  (found,) = runs.values()
  assert {key: _points(client, found, key) for key in found.data.metrics} == {
    "recall__": [(1, 1), (2, 2)],
    "recall___2": [(1, 2), (2, 3)],
    "recall___3": [(1, 3), (2, 4)],
    "Recall___4": [(1, 4), (2, 5)],
  }
  assert found.data.params == {"flag_": "1", "flag__2": "2"}
