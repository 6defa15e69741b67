"""Tests of the tracker of Weights & Biases, on its own offline files."""

import json
import math
import struct
import subprocess
import sys

import pytest

from tff_shift.binaries import evolving
from tff_shift.reporting import trackers

wandb = pytest.importorskip(
  "wandb", reason="wandb is an extra that the lock does not have"
)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
  """Ends the process of wandb; a key of the user must not matter."""
  monkeypatch.delenv("WANDB_MODE", raising=False)
  monkeypatch.delenv("WANDB_API_KEY", raising=False)
  yield
  wandb.teardown()


def records(path):
  """Yields the records of a file, which is a log like those of LevelDB.

  wandb itself reads it in Go only. After a mark of 7 bytes, blocks of 32 KiB
  have parts of records: checksum, size, kind (1: whole, 4: last), content.
  """
  log = path.read_bytes()
  assert log.startswith(b":W&B")
  position, record = 7, b""
  while position < len(log):
    left = -position % 2**15
    if 0 < left < 7:
      position += left
      continue
    _, size, kind = struct.unpack_from("<IHB", log, position)
    position += 7 + size
    record += log[position - size : position]
    if kind in (1, 4):
      yield record
      record = b""


def read(folder):
  """Returns config, points, files and exit code of each run, by name."""
  from wandb.proto import wandb_internal_pb2

  # A run that has ended may still be in the memory of wandb's process.
  wandb.teardown()
  found = {}
  for path in folder.glob("wandb/offline-run-*/*.wandb"):
    run = {"config": {}, "points": [], "files": [], "exit": None}
    for content in records(path):
      record = wandb_internal_pb2.Record()
      record.ParseFromString(content)
      kind = record.WhichOneof("record_type")
      if kind == "run":
        name = record.run.display_name
        run["project"] = record.run.project
        for each in record.run.config.update:
          run["config"][each.key] = json.loads(each.value_json)
      if kind == "history":
        run["points"].append(
          {
            "/".join(each.nested_key) or each.key: json.loads(each.value_json)
            for each in record.history.item
            if not ("/".join(each.nested_key) or each.key).startswith("_")
          }
        )
      if kind == "files":
        run["files"] += [each.path for each in record.files.files]
      if kind == "exit":
        run["exit"] = record.exit.exit_code
    run["folder"] = path.parent / "files"
    assert name not in found
    found[name] = run
  return found


def test_runs_have_parameters_points_and_files(tmp_path):
  # Several runs at a time, as trials and their comparison.
  other = trackers.WandB(tmp_path, "evolving", "comparison", {})
  parameters = {"learning_rate": 0.1, "mu": None}
  run = trackers.WandB(tmp_path, "evolving", "fed_avg/seed_0", parameters)
  for step in (1, 2, 5):
    run.scalars({"loss": 0.5 * step, "share": math.nan}, step)
    run.scalars({"accuracy": 10.0 * step}, step, group="0.4+0.4")
  figure = tmp_path / "a [1].png"
  figure.write_bytes(b"before")
  run.artifact(figure, "figures")
  figure.write_bytes(b"after")
  run.end()
  other.end(is_done=False)
  runs = read(tmp_path)
  assert set(runs) == {"comparison", "fed_avg/seed_0"}
  assert (runs["comparison"]["exit"], runs["fed_avg/seed_0"]["exit"]) == (1, 0)
  found = runs["fed_avg/seed_0"]
  assert found["project"] == "evolving"
  config = {k: v for k, v in found["config"].items() if k[0] != "_"}
  assert config == {"learning_rate": 0.1, "mu": None}
  points = found["points"]
  assert [p["loss"] for p in points if "loss" in p] == [0.5, 1.0, 2.5]
  assert all(math.isnan(float(p["share"])) for p in points if "share" in p)
  of_group = [p for p in points if "0.4+0.4/accuracy" in p]
  assert [p["step"] for p in of_group] == [1, 2, 5]
  assert [p["0.4+0.4/accuracy"] for p in of_group] == [10.0, 20.0, 50.0]
  # Its content when it was told.
  kept = found["folder"] / "figures" / "a [1].png"
  assert kept.read_bytes() == b"before"
  assert any(each.startswith("figures/a ") for each in found["files"])


def test_run_that_starts_again_replaces_its_files(tmp_path):
  for loss, replaced in ((1.0, []), (2.0, []), (3.0, ["one"])):
    identity = "two" if replaced else "one"
    run = trackers.WandB(tmp_path, "evolving", "a", {}, [identity, *replaced])
    run.scalars({"loss": loss}, 1)
    run.end()
    # Another program starts it again.
    (found,) = read(tmp_path).values()
    assert [point["loss"] for point in found["points"]] == [loss]


@pytest.mark.slow
def test_run_of_a_binary(tmp_path):
  folder = tmp_path / "run"
  subprocess.run(
    [
      *(sys.executable, "-m", evolving.__name__, "--algorithm=local"),
      *("--dataset=circle", "--num_domains=4", "--num_clients=2"),
      *("--max_examples_per_domain=20", "--rounds=2", "--evaluate_every=1"),
      *("--tracker=wandb", f"--output_dir={folder}"),
    ],
    check=True,
    capture_output=True,
  )
  runs = read(folder)
  comparison = runs.pop("comparison")
  assert "summary.json" in comparison["files"]
  (found,) = runs.values()
  assert found["exit"] == 0
  assert found["config"]["algorithm"] == "local"
  losses = [p["step"] for p in found["points"] if "train_loss" in p]
  assert losses == [1, 2]
