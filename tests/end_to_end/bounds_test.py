"""Floors, ceilings, forgetting and the reset control in whole runs."""

import pytest

CIRCLE = """
  --dataset=circle --num_domains=3 --max_examples_per_domain=60 --num_clients=4
  --rounds=2 --evaluate_every=1 --local_steps=3 --participation=0.5 --bounds
  --forgetting --noprogress
"""

BASELINES = (
  "majority_class",
  "local_logistic_regression",
  "pooled_logistic_regression",
)


@pytest.mark.long
def test_evolving_has_floor_ceiling_and_forgetting(run):
  ended = run("evolving", CIRCLE, "--algorithm=fed_avg,fed_rep", errors="")
  runs = {each["algorithm"]: each for each in ended.runs}
  assert list(runs) == ["fed_avg", "fed_rep", *BASELINES, "pooled"]
  assert "majority_class" in ended.output and "pooled" in ended.output
  # Two of four clients take part in a round.
  assert runs["pooled"]["setting"]["local_steps"] == 6
  assert "left_out" not in runs["pooled"]
  assert {each["algorithm"] for each in ended.rows} == {
    *("fed_avg", "fed_rep", "pooled")
  }
  for name, run in runs.items():
    has_rounds = name not in BASELINES
    assert ("forgetting" in run["metrics"]) == has_rounds
    assert ("forgetting" in run["lower_is_better"]) == has_rounds


@pytest.mark.slow
def test_ceiling_without_one_setting_is_left_out_with_a_reason(run):
  ended = run("evolving", CIRCLE, "--algorithm=fed_rep")
  names = [each["algorithm"] for each in ended.runs]
  assert names == ["fed_rep", *BASELINES]
  assert "--bounds: pooled is not computed" in ended.errors


@pytest.mark.long
def test_online_adaptation_has_a_reset_control(run, tmp_path):
  flags = """
    --dataset=digits --model_width=8 --timesteps=2 --num_clients=2
    --initial_examples=20 --samples_per_step=20 --pretraining_epochs=1
    --max_pretraining_examples=200 --algorithm=fth,source --reset_control
    --bounds
  """
  cache = f"--cache_dir={tmp_path / 'cache'}"
  ended = run("online_adaptation", flags, cache, errors="")
  runs = {each["algorithm"]: each["metrics"] for each in ended.runs}
  assert list(runs) == ["fth", "fth_reset", "source", "majority_class"]
  for name in ("fth", "fth_reset"):
    (gain,) = runs[name]["adaptation_gain"]["seeds"]
    assert gain == pytest.approx(
      runs[name]["accuracy"]["mean"] - runs["source"]["accuracy"]["mean"]
    )
  # Each step starts from the deployed model.
  before = "before_adaptation_accuracy"
  assert runs["fth_reset"][before] == runs["source"][before]


@pytest.mark.slow
def test_streams_that_drift_have_a_floor_each(run, tmp_path):
  flags = """
    --dataset=digits --max_examples=600 --rounds=2 --noprogress --num_clients=3
    --periods=2 --period_size=20 --pretraining_epochs=1 --model=mlp
    --model_width=4 --test_distributions=iid,0.9 --bounds --algorithm=fed_avg
  """
  cache = f"--cache_dir={tmp_path / 'cache'}"
  floors = {
    each["setting"]["test_distribution"]: each["metrics"]["accuracy"]["mean"]
    for each in run("dynamic_personalization", flags, cache, errors="").runs
    if each["algorithm"] == "majority_class"
  }
  assert list(floors) == ["iid", "0.9"]
  for accuracy in floors.values():
    # A whole number of the examples of the stream is predicted.
    num_right = accuracy / 100 * 3 * 2 * 20
    assert 0 < num_right < 3 * 2 * 20
    assert num_right == pytest.approx(round(num_right), abs=1e-6)
