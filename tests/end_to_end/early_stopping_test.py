"""The flags of early stopping in whole binaries."""

import shlex

import numpy as np
import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import guidance

_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=60 --num_clients=6
  --local_steps=1 --evaluate_every=1 --algorithm=fed_avg --learning_rate=0.1
  --noprogress --save_model
""")


def _weights(folder):
  (path,) = folder.rglob("weights.npz")
  with np.load(path) as weights:
    return {name: weights[name] for name in weights}


@pytest.mark.long
def test_best_round_is_kept_as_if_the_run_had_ended_there(
  run_evolving, tmp_path, read_rows, read_runs
):
  """Accuracy is 50 % after each round, so the first one is the best."""

  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    assert run_evolving([*_SMALL, *flags, output]) == 0
    (found,) = read_runs(tmp_path / folder)
    return found, read_rows(tmp_path / folder), _weights(tmp_path / folder)

  short, _, best_weights = run("short", "--rounds=1")
  found, rows, weights = run("best", "--rounds=3", "--keep=best")
  assert [float(row["validation_accuracy"]) for row in rows] == [50, 50, 50]
  for name, values in short["metrics"].items():
    assert found["metrics"][name] == values
  assert weights.keys() == best_weights.keys()
  for name, value in best_weights.items():
    np.testing.assert_array_equal(weights[name], value)
  # Two rounds without a better one end a run of ten, resumed or not.
  flags = ("--keep=best", "--stop_after=2", "--checkpoint_every=1")
  _, stopped_rows, _ = run("stopped", "--rounds=10", *flags)
  assert len(stopped_rows) == 3
  run("resumed", "--rounds=2", *flags)
  resumed, resumed_rows, weights = run(
    "resumed", "--rounds=10", *flags, "--resume"
  )
  assert resumed_rows == stopped_rows
  assert resumed["metrics"] == found["metrics"]
  for name, value in best_weights.items():
    np.testing.assert_array_equal(weights[name], value)


@pytest.mark.long
def test_guidance_does_not_train_on_validation_examples(
  run_here, tmp_path, read_rows
):
  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    arguments = ["--algorithm=fed_avg", "--num_clients=2", "--rounds=2"]
    arguments += ["--evaluate_every=1", "--max_examples=200", "--noprogress"]
    arguments += [*flags, output]
    assert run_here(guidance, arguments) == 0
    return read_rows(tmp_path / folder)

  plain, validated = run("plain"), run("best", "--keep=best")
  assert all(row["validation_accuracy"] for row in validated)
  assert "validation_accuracy" not in plain[0]
  assert plain[0]["train_loss"] != validated[0]["train_loss"]


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--stop_after=0", "--stop_after=0: it must be at least 1"),
    ("--keep=first", "must be one of last, best"),
  ],
)
def test_wrong_flags_are_refused(flag, message, refused):
  assert message in refused(evolving, [*_SMALL, flag])


@pytest.mark.slow
def test_run_that_may_have_kept_its_last_round_cannot_be_extended(
  run_evolving, tmp_path, capsys
):
  arguments = [*_SMALL, "--keep=best", f"--output_dir={tmp_path / 'run'}"]
  arguments += ["--evaluate_every=2"]
  assert run_evolving([*arguments, "--rounds=1"]) == 0
  assert run_evolving([*arguments, "--rounds=2", "--resume"]) == 2
  assert "--keep=best may have kept round 1" in capsys.readouterr().err
