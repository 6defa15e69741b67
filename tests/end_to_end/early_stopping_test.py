"""The flags of early stopping in whole binaries."""

import numpy as np
import pytest

from tests.fixtures import trees

_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=6
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress --save_model
"""


def _weights(folder):
  (path,) = folder.rglob("weights.npz")
  with np.load(path) as weights:
    return dict(weights)


@pytest.mark.long
def test_best_round_is_kept_as_if_the_run_had_ended_there(run):
  """Accuracy is 50 % after each round, so the first one is the best."""

  def run_to(folder, flags):
    ended = run("evolving", _SMALL, flags, folder=folder)
    (found,) = ended.runs
    return found, ended.rows, _weights(ended.folder)

  short, _, best_weights = run_to("short", "--rounds=1")
  found, rows, weights = run_to("best", "--rounds=3 --keep=best")
  assert [float(row["validation_accuracy"]) for row in rows] == [50, 50, 50]
  for name, values in short["metrics"].items():
    assert found["metrics"][name] == values
  trees.assert_equal(weights, best_weights)
  # Two rounds without a better one end a run of ten, resumed or not.
  flags = "--keep=best --stop_after=2 --checkpoint_every=1"
  _, stopped_rows, _ = run_to("stopped", f"--rounds=10 {flags}")
  assert len(stopped_rows) == 3
  run_to("resumed", f"--rounds=2 {flags}")
  resumed, resumed_rows, weights = run_to(
    "resumed", f"--rounds=10 {flags} --resume"
  )
  assert resumed_rows == stopped_rows
  assert resumed["metrics"] == found["metrics"]
  trees.assert_equal(weights, best_weights)


@pytest.mark.long
def test_guidance_does_not_train_on_validation_examples(run):
  plain, validated = (
    run(
      *("guidance", "--algorithm=fed_avg --num_clients=2 --rounds=2"),
      "--evaluate_every=1 --max_examples=200 --noprogress",
      f"--keep={kept}",
      folder=kept,
    ).rows
    for kept in ("last", "best")
  )
  assert all(row["validation_accuracy"] for row in validated)
  assert "validation_accuracy" not in plain[0]
  assert plain[0]["train_loss"] != validated[0]["train_loss"]


@pytest.mark.slow
def test_run_that_may_have_kept_its_last_round_cannot_be_extended(run):
  flags = "evolving", _SMALL, "--keep=best --evaluate_every=2"
  run(*flags, "--rounds=1")
  ended = run(*flags, "--rounds=2 --resume", code=2)
  assert "--keep=best may have kept round 1" in ended.errors
