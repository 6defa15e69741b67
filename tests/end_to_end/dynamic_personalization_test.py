"""The binary `experiments.dynamic_personalization`, run whole."""

import functools
import re
import shlex

import numpy as np
import pytest

from tff_shift.binaries import dynamic_personalization

# The contract runs over all of them; here are those that differ in what they
# leave.
_ALGORITHMS = ("fed_3da", "fed_avg")
_SMALL = shlex.split("""
  --dataset=digits --max_examples=600 --num_clients=3 --rounds=2
  --period_size=20 --periods=4 --periods_per_distribution=2
  --pretraining_epochs=1 --model=mlp --model_width=4 --noprogress
""")
# Flags of hypernetworks.
_SMALL_META = ("--hidden_width=6", "--num_hidden=1")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_dynamic(run_here, cache_dir):
  """Returns `run(arguments) -> exit code`."""
  run = functools.partial(run_here, dynamic_personalization)
  return lambda arguments: run([f"--cache_dir={cache_dir}", *arguments])


@pytest.mark.slow
class TestWholeRun:
  @pytest.fixture(scope="class")
  def finished(self, run_whole, cache_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "all"
    output = run_whole(
      dynamic_personalization,
      [
        *_SMALL,
        *_SMALL_META,
        *(f"--algorithm={','.join(_ALGORITHMS)}", "--seeds=0,1"),
        *("--test_distributions=iid,0.9", f"--output_dir={folder}"),
        f"--cache_dir={cache_dir}",
      ],
    )
    return folder, output

  def test_rows_are_those_of_every_period(self, finished, read_rows):
    assert [
      (r["algorithm"], r["seed"], r["test_distribution"], r["period"])
      for r in read_rows(finished[0])
    ] == [
      (name, seed, distribution, period)
      for name in _ALGORITHMS
      for seed in "01"
      for distribution in ("iid", "0.9")
      for period in "1234"
    ]

  def test_every_round_has_a_training_loss(self, finished, read_scalars):
    found = read_scalars(finished[0])
    losses = {k: v for k, v in found.items() if k.endswith("train_loss")}
    assert len(losses) == 2 * len(_ALGORITHMS)
    for run in losses.values():
      assert [step for step, _ in run] == [1, 2]
    # Streams have their own curves beside it.
    assert any(name.endswith("seed_1/0.9/accuracy") for name in found)

  def test_summary_is_the_mean_over_the_periods(
    self, finished, read_rows, read_runs
  ):
    rows, runs = read_rows(finished[0]), read_runs(finished[0])
    assert len(runs) == 2 * len(_ALGORITHMS)
    for run in runs:
      found = run["setting"].get("representation_size")
      assert found == (64 if run["algorithm"] == "fed_3da" else None)
      distribution = run["setting"]["test_distribution"]
      for seed in (0, 1):
        mine = [
          r
          for r in rows
          if (r["algorithm"], r["seed"], r["test_distribution"])
          == (run["algorithm"], str(seed), distribution)
        ]

        def value(name, seed=seed, metrics=run["metrics"]):
          return metrics[name]["seeds"][seed]

        accuracy = [float(r["accuracy"]) for r in mine]
        assert value("accuracy") == pytest.approx(np.mean(accuracy))
        requests = [float(r["requests"]) for r in mine]
        assert value("request_share") == pytest.approx(
          100 * np.mean(requests) / 3
        )
        found = value("true_positive_rate")
        assert (found is None) == (distribution == "iid")

  def test_figures_are_there(self, finished):
    figures = {p.stem for p in (finished[0] / "figures").glob("*.png")}
    assert figures >= {
      f"{kind}_{name}"
      for kind in ("accuracy", "distance", "clients")
      for name in ("iid", "0.9")
    }
    # No client drifts in IID periods.
    assert "timeline_0.9" in figures and "timeline_iid" not in figures


@pytest.mark.long
def test_selection_looks_at_validation_alone(
  run_dynamic, read_rows, read_runs, tmp_path, capsys
):
  folder = tmp_path / "run"
  code = run_dynamic(
    [
      *_SMALL,
      *("--algorithm=local", "--learning_rate=1e-9,0.1"),
      *("--select=validation", "--test_distributions=0.9"),
      f"--output_dir={folder}",
    ]
  )
  assert code == 0
  (run,) = read_runs(folder)
  assert run["setting"]["selection"] == "validation"
  (line,) = (
    line
    for line in capsys.readouterr().out.splitlines()
    if line.startswith("accuracy (%) on validation periods: ")
  )
  scores = {
    rate: float(score)
    for rate, score in re.findall(r"local, learning rate (\S+): ([\d.]+)", line)
  }
  best = max(scores, key=scores.get)
  assert list(scores) == ["1e-09", "0.1"]
  assert line.endswith(f"chosen: local, learning rate {best}")
  assert {row["learning_rate"] for row in read_rows(folder)} == {best}
  # What chose it is the accuracy that its run reports.
  assert run["metrics"]["validation_accuracy"]["mean"] == pytest.approx(
    scores[best], abs=0.005
  )


@pytest.mark.slow
class TestOptions:
  def run(self, run_dynamic, tmp_path, *arguments):
    folder = tmp_path / "run"
    code = run_dynamic(
      [
        *_SMALL,
        "--test_distributions=0.9",
        f"--output_dir={folder}",
        *arguments,
      ]
    )
    assert code == 0
    return folder

  @pytest.mark.long
  def test_drift_is_always_seen_and_lengths_of_r_are_compared(
    self, run_dynamic, read_rows, read_runs, tmp_path
  ):
    folder = self.run(
      run_dynamic,
      tmp_path,
      *_SMALL_META,
      *("--algorithm=fed_3da", "--rounds=1", "--distance_threshold=0"),
      *("--representation=pca", "--representation_size=6,10"),
      *("--apply_update=current", f"--cache_dir={tmp_path / 'cache'}"),
    )
    assert [
      (r["algorithm"], r["representation_size"], r["requests"])
      for r in read_rows(folder)
    ] == [
      *[("fed_3da", "6", "3")] * 4,
      *[("fed_3da", "10", "3")] * 4,
    ]
    # A threshold that is given and principal components need no extractor.
    assert not (tmp_path / "cache").exists()
    settings = [run["setting"] for run in read_runs(folder)]
    assert [each["representation_size"] for each in settings] == [6, 10]
    assert {each["distance_threshold"] for each in settings} == {0}


@pytest.mark.slow
def test_every_pair_of_rates_is_chosen(planned):
  arguments = ["--learning_rate=0.1,0.2", "--meta_learning_rate=0.01,0.02"]
  plan = planned(
    dynamic_personalization, [*_SMALL, "--algorithm=p_fed_hn", *arguments]
  )
  found = [
    (each.hparams.learning_rate, each.hparams.meta_learning_rate)
    for each in plan.trials
  ]
  assert sorted(found) == [(0.1, 0.01), (0.1, 0.02), (0.2, 0.01), (0.2, 0.02)]


@pytest.mark.slow
class TestBadFlags:
  @pytest.mark.parametrize(
    "flags, named",
    [
      ("--test_distributions=0.6", "--test_distributions=0.6"),
      ("--test_distributions=iid,iid", "duplicates"),
      ("--train_distributions=", "--train_distributions="),
      ("--period_size=1", "--period_size=1: it must be at least 2"),
      ("--period_size=200", "--period_size=200: it must be at most half"),
      ("--periods_per_distribution=0", "--periods_per_distribution=0"),
      ("--rest=none", "--rest=none"),
      ("--representation=mean", "--representation=mean"),
      ("--representation_size=9", "=9: it must be 64"),
      (
        "--representation=pca --representation_size=9",
        "size must be even for pca",
      ),
      ("--distance_features=labels", "--distance_features=labels"),
      ("--threshold_quantile=0", "--threshold_quantile=0"),
      (
        "--distance_threshold=1 --threshold_quantile=0.9",
        "leave one of them out",
      ),
      ("--apply_update=later", "--apply_update=later"),
      ("--public_fraction=0.95", "public_fraction"),
      ("--max_examples=5", "part of digits would be empty"),
      ("--model=cnn --model_width=5", "channels"),
      (
        "--model=cnn --model_width=8 --normalization=batch",
        "fed_3da does not change the running",
      ),
      (
        "--algorithm=local --meta_learning_rate=1",
        "belongs to fed_3da, p_fed_hn, none of which",
      ),
      ("--algorithm=fed_ade", "--algorithm=fed_ade"),
      ("--cache_dir=/dev/null/cache", "--cache_dir=/dev/null/cache"),
    ],
  )
  def test_one_line_and_nothing_written(self, flags, named, refused):
    arguments = [*_SMALL, *_SMALL_META, "--algorithm=fed_3da", *flags.split()]
    line = refused(dynamic_personalization, arguments)
    assert named in line
