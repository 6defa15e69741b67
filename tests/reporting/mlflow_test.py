"""Tests of the tracker that tells MLflow, on a file store of MLflow's own."""

import math
import os

import pytest

from tff_shift._util import files
from tff_shift.reporting import trackers

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
  parameters = {"learning_rate": 0.1, "mu": None, "angle, °": 15}
  parameters |= {f"p{i}": i for i in range(120)}
  run = trackers.MLflow(uri, "evolving", "fed_avg/seed_0", parameters)
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
  assert found.data.params["angle_2c_ _b0_"] == "15"
  assert _points(client, found, "loss") == [(1, 0.5), (2, 1.0), (5, 2.5)]
  assert _points(client, found, "0.4_2b_0.4/accuracy") == [
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


def test_run_that_starts_again_is_told_anew(uri):
  for steps, is_done in (((1, 2, 3), False), ((1, 2, 3, 4), True)):
    run = trackers.MLflow(uri, "evolving", "a", {"x": 1})
    for step in steps:
      run.scalars({"loss": float(step)}, step)
    run.end(is_done)
    client, runs = _read(uri)
    assert runs["a"].info.status == ("FINISHED" if is_done else "FAILED")
    assert _points(client, runs["a"], "loss") == [
      (step, float(step)) for step in steps
    ]


def test_runs_of_a_replaced_identity_are_deleted(uri):
  for identity in ("before", "other"):
    run = trackers.MLflow(uri, "evolving", "a", {}, [identity])
    run.scalars({"loss": 1.0}, 5)
  # The longer run has no such point.
  run = trackers.MLflow(uri, "evolving", "a", {}, ["now", "before"])
  run.scalars({"loss": 0.5}, 6)
  client = mlflow.MlflowClient(tracking_uri=uri)
  place = client.get_experiment_by_name("evolving").experiment_id
  points = [_points(client, r, "loss") for r in client.search_runs([place])]
  assert sorted(points) == [[(5, 1.0)], [(6, 0.5)]]


def test_place_that_cannot_be_used_is_told_in_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(files.WriteError) as error:
    trackers.MLflow((tmp_path / "file").as_uri(), "evolving", "a", {})
  assert "\n" not in str(error.value)
  assert (tmp_path / "file").as_uri() in str(error.value)


def test_names_that_differ_have_keys_that_differ(uri):
  names = ["recall_猫", "recall_狗", "recall__"]
  run = trackers.MLflow(uri, "evolving", "a", {"flag°": 1, "flag²": 2})
  run.scalars({name: i for i, name in enumerate(names)}, 1)
  client, runs = _read(uri)
  keys = runs["a"].data.metrics
  assert {key: _points(client, runs["a"], key) for key in keys} == {
    "recall__732b_": [(1, 0)],
    "recall__72d7_": [(1, 1)],
    "recall__": [(1, 2)],
  }
  assert runs["a"].data.params == {"flag_b0_": "1", "flag_b2_": "2"}
