"""Floors, ceilings, forgetting and the reset control in whole runs."""

import shlex

import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import online_adaptation

CIRCLE = shlex.split("""
  --dataset=circle --num_domains=3 --max_examples_per_domain=60 --num_clients=4
  --rounds=2 --evaluate_every=1 --local_steps=3 --participation=0.5 --bounds
  --forgetting --noprogress
""")


@pytest.mark.long
def test_evolving_has_floor_ceiling_and_forgetting(
  run_whole, read_runs, read_rows, tmp_path
):
  folder = tmp_path / "run"
  output = run_whole(
    evolving,
    [*CIRCLE, "--algorithm=fed_avg,fed_rep", f"--output_dir={folder}"],
  )
  runs = {each["algorithm"]: each for each in read_runs(folder)}
  assert list(runs) == ["fed_avg", "fed_rep", "majority_class", "pooled"]
  assert "majority_class" in output and "pooled" in output
  # Two of four clients take part in a round.
  assert runs["pooled"]["setting"]["local_steps"] == 6
  assert "left_out" not in runs["pooled"]
  assert {each["algorithm"] for each in read_rows(folder)} == {
    *("fed_avg", "fed_rep", "pooled")
  }
  for name, run in runs.items():
    has_rounds = name != "majority_class"
    assert ("forgetting" in run["metrics"]) == has_rounds
    assert ("forgetting" in run["lower_is_better"]) == has_rounds


@pytest.mark.slow
def test_ceiling_without_one_setting_is_left_out_with_a_reason(
  run_here, read_runs, tmp_path, capsys
):
  folder = tmp_path / "run"
  code = run_here(
    evolving,
    [*CIRCLE, "--algorithm=fed_rep", f"--output_dir={folder}"],
  )
  assert code == 0
  assert [each["algorithm"] for each in read_runs(folder)] == [
    *("fed_rep", "majority_class")
  ]
  assert "--bounds: pooled is not computed" in capsys.readouterr().err


@pytest.mark.long
def test_online_adaptation_has_a_reset_control(run_whole, read_runs, tmp_path):
  folder = tmp_path / "run"
  run_whole(
    online_adaptation,
    [
      *("--dataset=digits", "--model_width=8", "--timesteps=2"),
      *("--num_clients=2", "--initial_examples=20", "--samples_per_step=20"),
      *("--pretraining_epochs=1", "--max_pretraining_examples=200"),
      *("--algorithm=fth,source", "--reset_control", "--bounds"),
      *(f"--output_dir={folder}", f"--cache_dir={tmp_path / 'cache'}"),
    ],
  )
  runs = {each["algorithm"]: each["metrics"] for each in read_runs(folder)}
  assert list(runs) == ["fth", "fth_reset", "source", "majority_class"]
  for name in ("fth", "fth_reset"):
    (gain,) = runs[name]["adaptation_gain"]["seeds"]
    assert gain == pytest.approx(
      runs[name]["accuracy"]["mean"] - runs["source"]["accuracy"]["mean"]
    )
  # Each step starts from the deployed model.
  before = "before_adaptation_accuracy"
  assert runs["fth_reset"][before] == runs["source"][before]
