"""The binary `experiments.dynamic_personalization`, run whole."""

import re

import pytest

# The contract runs over all of them; here are those that differ in what they
# leave.
_ALGORITHMS = ("fed_3da", "fed_avg")
_SMALL = """
  --dataset=digits --max_examples=600 --num_clients=3 --rounds=2
  --period_size=20 --periods=4 --periods_per_distribution=2
  --pretraining_epochs=1 --model=mlp --model_width=4 --noprogress
"""
# Flags of hypernetworks.
_SMALL_META = "--hidden_width=6 --num_hidden=1"


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return f"--cache_dir={tmp_path_factory.mktemp('cache')}"


@pytest.mark.slow
class TestWholeRun:
  @pytest.fixture(scope="class")
  def finished(self, run_once, cache_dir):
    return run_once(
      *("dynamic_personalization", _SMALL, _SMALL_META, cache_dir),
      f"--algorithm={','.join(_ALGORITHMS)} --seeds=0,1",
      "--test_distributions=iid,0.9",
      errors="",
    )

  def test_rows_are_those_of_every_period(self, finished):
    columns = "algorithm", "seed", "test_distribution", "period"
    assert [",".join(map(row.get, columns)) for row in finished.rows] == [
      f"{name},{seed},{distribution},{period}"
      for name in _ALGORITHMS
      for seed in "01"
      for distribution in ("iid", "0.9")
      for period in "1234"
    ]

  def test_every_round_has_a_training_loss(self, finished, read_scalars):
    found = read_scalars(finished.folder)
    losses = {k: v for k, v in found.items() if k.endswith("train_loss")}
    assert len(losses) == 2 * len(_ALGORITHMS)
    for run in losses.values():
      assert [step for step, _ in run] == [1, 2]
    # Streams have their own curves beside it.
    assert any(name.endswith("seed_1/0.9/accuracy") for name in found)

  def test_summary_is_the_mean_over_the_periods(self, finished):
    means = finished.frame.groupby(["algorithm", "test_distribution", "seed"])[
      ["accuracy", "requests"]
    ].mean()
    assert len(finished.runs) == 2 * len(_ALGORITHMS)
    for run in finished.runs:
      name, setting, metrics = (
        run[key] for key in ("algorithm", "setting", "metrics")
      )
      found = setting.get("representation_size")
      assert found == (64 if name == "fed_3da" else None)
      distribution = setting["test_distribution"]
      expected = means.xs((name, distribution))
      for metric, values in (
        ("accuracy", expected["accuracy"]),
        ("request_share", 100 * expected["requests"] / 3),
      ):
        assert metrics[metric]["seeds"] == pytest.approx(values.tolist())
      rates = metrics["true_positive_rate"]["seeds"]
      assert [rate is None for rate in rates] == [distribution == "iid"] * 2

  def test_figures_are_there(self, finished):
    kinds = "accuracy", "distance", "clients"
    expected = {f"{kind}_{name}" for kind in kinds for name in ("iid", "0.9")}
    # No client drifts in IID periods.
    assert finished.figures >= expected | {"timeline_0.9"}
    assert "timeline_iid" not in finished.figures


@pytest.mark.long
def test_selection_looks_at_validation_alone(run, cache_dir):
  ended = run(
    *("dynamic_personalization", _SMALL, cache_dir),
    "--algorithm=local --learning_rate=1e-9,0.1 --select=validation",
    "--test_distributions=0.9",
  )
  (summary,) = ended.runs
  assert summary["setting"]["selection"] == "validation"
  (line,) = (
    line
    for line in ended.output.splitlines()
    if line.startswith("accuracy (%) on validation periods: ")
  )
  scores = {
    rate: float(score)
    for rate, score in re.findall(r"local, learning rate (\S+): ([\d.]+)", line)
  }
  best = max(scores, key=scores.get)
  assert list(scores) == ["1e-09", "0.1"]
  assert line.endswith(f"chosen: local, learning rate {best}")
  assert {row["learning_rate"] for row in ended.rows} == {best}
  # What chose it is the accuracy that its run reports.
  assert summary["metrics"]["validation_accuracy"]["mean"] == pytest.approx(
    scores[best], abs=0.005
  )


@pytest.mark.long
def test_drift_is_always_seen_and_lengths_of_r_are_compared(run, tmp_path):
  flags = """
    --test_distributions=0.9 --algorithm=fed_3da --rounds=1
    --distance_threshold=0 --representation=pca --representation_size=6,10
    --apply_update=current
  """
  cache = f"--cache_dir={tmp_path / 'cache'}"
  ended = run("dynamic_personalization", _SMALL, _SMALL_META, flags, cache)
  assert [
    (r["algorithm"], r["representation_size"], r["requests"])
    for r in ended.rows
  ] == [("fed_3da", size, "3") for size in ("6", "10") for _ in range(4)]
  # A threshold that is given and principal components need no extractor.
  assert not (tmp_path / "cache").exists()
  settings = [each["setting"] for each in ended.runs]
  assert [each["representation_size"] for each in settings] == [6, 10]
  assert {each["distance_threshold"] for each in settings} == {0}
