"""The binary `experiments.online_adaptation`, run whole."""

import functools
import json
import os

import numpy as np
import pytest

from experiments import online_adaptation
from experiments import online_adaptation_plan
from tff_shift import algorithms

_ALGORITHMS = algorithms.names("online_adaptation")
_SMALL = (
    "--dataset=digits", "--model=cnn", "--timesteps=3", "--num_clients=3",
    "--samples_per_step=10", "--initial_examples=20", "--local_epochs=1",
    "--pretraining_epochs=1", "--noprogress",
)
_CORRUPTED = (
    *_SMALL, "--algorithm=fed_ade", "--shift_kind=covariate",
)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  """Pre-trained models that the runs of this module share."""
  return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_online(run_here):
  """Returns `run(arguments) -> exit code`."""
  return functools.partial(run_here, online_adaptation, online_adaptation_plan)


def _runs(folder):
  runs = json.loads((folder / "summary.json").read_text())["runs"]
  for run in runs:
    del run["seconds_per_round"]
  return runs


class TestWholeRun:

  @pytest.fixture(scope="class")
  def finished(self, start_binary, cache_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "all"
    process = start_binary("online_adaptation", [
        *_SMALL, f"--algorithm={','.join(_ALGORITHMS)}", "--seeds=0,1",
        "--shift=linear,square", "--learning_rate=1e-3,1e-1",
        f"--cache_dir={cache_dir}", f"--output_dir={folder}",
    ])
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    return folder, output, errors

  def test_rows_are_those_of_every_run_and_step(self, finished, read_rows):
    rows = read_rows(finished[0])
    rates = {name: [""] for name in _ALGORITHMS}
    rates["fix_lr"] = ["0.001", "0.1"]
    assert [
        (r["algorithm"], r["learning_rate"], r["shift"], r["seed"],
         r["timestep"])
        for r in rows
    ] == [
        (name, rate, shift, seed, step)
        for name in _ALGORITHMS for rate in rates[name]
        for shift in ("linear", "square") for seed in "01" for step in "123"
    ]
    linear = [float(r["omega"]) for r in rows[:3]]
    np.testing.assert_allclose(linear, [1 / 3, 2 / 3, 1])

  def test_summary_is_the_mean_over_steps(self, finished, read_rows):
    rows = read_rows(finished[0])
    for run in _runs(finished[0]):
      rate = run["setting"].get("learning_rate", "")
      for column, metric in (
          ("accuracy", "accuracy"),
          ("accuracy_before", "before_adaptation_accuracy"),
      ):
        for seed, value in enumerate(run["metrics"][metric]["seeds"]):
          steps = [
              float(r[column]) for r in rows
              if (r["algorithm"], r["learning_rate"], r["shift"], r["seed"])
              == (run["algorithm"], str(rate), run["setting"]["shift"],
                  str(seed))
          ]
          assert len(steps) == 3
          assert value == pytest.approx(np.mean(steps))
      for kind in ("cumulative", "step"):
        found = f"{kind}_shift_correlation" in run["metrics"]
        assert found == (run["algorithm"] == "fed_ade")

  def test_first_step_starts_from_the_deployed_model(self, finished, read_rows):
    rows = [r for r in read_rows(finished[0]) if r["timestep"] == "1"]
    # No adaptation yet: all algorithms predict alike, but for FTH, which has
    # no history and so the uniform prior.
    for shift in ("linear", "square"):
      for seed in "01":
        found = {
            r["accuracy_before"] for r in rows
            if (r["shift"], r["seed"]) == (shift, seed)
        }
        assert len(found) == 1

  def test_rates_lie_within_the_bounds(self, finished, read_rows):
    by_name = {}
    for row in read_rows(finished[0]):
      by_name.setdefault(row["algorithm"], []).append(row["mean_learning_rate"])
    rates = np.array(by_name["fed_ade"], float)
    assert np.all((rates >= 4.999e-6) & (rates <= 1.0001e-4))
    assert np.ptp(rates) > 0
    assert set(by_name["source"]) == {""}

  def test_figures_are_there(self, finished):
    figures = {p.stem for p in (finished[0] / "figures").glob("*.png")}
    assert figures == {
        f"{kind}_{shift}"
        for kind in ("accuracy", "learning_rates", "class_estimates")
        for shift in ("linear", "square")
    } | {"measured_shift"}

  def test_table_has_a_row_per_run(self, finished):
    _, output, errors = finished
    assert errors == ""
    lines = output.splitlines()
    assert lines[0].startswith("pre-trained model: ")
    assert len(lines) == 1 + 2 + 2 * (len(_ALGORITHMS) + 1) + 1

  def test_same_flags_same_numbers(
      self, finished, cache_dir, run_online, tmp_path
  ):
    folder = tmp_path / "again"
    code = run_online([
        *_SMALL, "--algorithm=fed_ade", "--seeds=0,1", "--shift=linear,square",
        f"--cache_dir={cache_dir}", f"--output_dir={folder}",
        "--max_concurrent_clients=1",
    ])
    assert code == 0
    first = [r for r in _runs(finished[0]) if r["algorithm"] == "fed_ade"]
    assert _runs(folder) == first


def test_covariate_shift_corrupts_and_keeps_classes_even(
    cache_dir, run_online, read_rows, tmp_path
):
  folder = tmp_path / "covariate"
  code = run_online([
      *(each for each in _CORRUPTED if each != "--local_epochs=1"),
      f"--cache_dir={cache_dir}", f"--output_dir={folder}",
      "--participation=0.5", "--rounds_per_step=2", "--local_steps=2",
  ])
  assert code == 0
  assert len(read_rows(folder)) == 3
  (run,) = _runs(folder)
  assert (folder / "figures" / "corruptions.png").stat().st_size > 1000
  # Who asks for steps does not get the epochs of the default on top.
  assert run["setting"]["local_steps"] == 2
  assert run["setting"]["local_epochs"] == 0
  # The severity of all clients moves alike: there is nothing to rank.
  assert set(run["metrics"]) == {"accuracy", "before_adaptation_accuracy"}


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--algorithm=fed_avg"], ("--algorithm=fed_avg", "atlas, fed_ade")),
    (["--algorithm="], ("--algorithm", "fed_ade")),
    (["--dataset=cifar"], ("--dataset=cifar", "cifar10")),
    (["--shift=linear,cosine"],
     ("--shift=linear,cosine:", "bernoulli", "none twice")),
    (["--shift=sine,sine"], ("--shift=sine,sine:", "none twice")),
    (["--shift="], ("--shift=", "linear")),
    (["--shift_kind=concept"], ("--shift_kind=concept", "covariate")),
    (["--corrupted_images=downloaded"], ("--corrupted_images", "archive")),
    (["--bernoulli_flip=always"], ("--bernoulli_flip", "as_printed")),
    (["--pretraining_distribution=zipf"],
     ("--pretraining_distribution=zipf", "gaussian")),
    (["--model=alexnet"], ("--model=alexnet", "residual_cnn")),
    (["--model_width=8"], ("width", "cnn")),
    (["--timesteps=0"], ("--timesteps=0", "at least 1")),
    (["--rounds_per_step=0"], ("--rounds_per_step=0", "at least 1")),
    (["--num_clients=0"], ("--num_clients=0", "at least 1")),
    (["--samples_per_step=0"], ("--samples_per_step=0", "at least 1")),
    (["--initial_examples=0"], ("--initial_examples=0", "at least 1")),
    (["--initial_examples=5000"], ("5000",)),
    (["--max_pretraining_examples=0"],
     ("--max_pretraining_examples=0", "at least 1")),
    (["--pretraining_epochs=0"], ("--pretraining_epochs=0", "at least 1")),
    (["--pretraining_seed=-1"], ("--pretraining_seed=-1", "2147483647")),
    (["--participation=0"], ("--participation=0.0", "at most 1")),
    (["--dirichlet=0"], ("--dirichlet=0", "above 0")),
    (["--eta_min=1", "--eta_max=0.5"], ("--eta_max=0.5", "eta_min=1.0")),
    (["--eta_max=-1"], ("--eta_max=-1.0", "above 0")),
    (["--nouse_uncertainty", "--nouse_representation"],
     ("--use_uncertainty=False", "use_representation=False")),
    (["--similarity=l2"], ("--similarity='l2'", "wasserstein")),
    (["--learning_rate=1e-5"], ("--learning_rate", "fix_lr")),
    (["--num_learners=3"], ("--num_learners", "atlas")),
    (["--seeds=0,0"], ("--seeds=0,0", "twice")),
    (["--dataset=cifar10", "--data_dir=/nowhere"], ("/nowhere", "cifar10")),
    (["--dataset=tiny_imagenet", "--data_dir=/nowhere"],
     ("/nowhere", "tiny")),
    (["--shift_kind=covariate", "--corrupted_images=archive"],
     ("cifar10", "digits")),
])
def test_bad_flags_end_with_one_line_and_nothing_written(
    arguments, expected, tmp_path, run_online, capsys
):
  folder, cache = tmp_path / "run", tmp_path / "cache"
  code = run_online([
      *_SMALL, "--algorithm=fed_ade", f"--output_dir={folder}",
      f"--cache_dir={cache}", *arguments,
  ])
  output, errors = capsys.readouterr()
  assert code == 2
  assert output == ""
  assert errors.startswith("online_adaptation: ")
  assert errors.count("\n") == 1
  for part in expected:
    assert part in errors
  assert not folder.exists()
  assert not cache.exists()


def test_cache_folder_that_cannot_be_made_is_refused(
    tmp_path, run_online, capsys
):
  (tmp_path / "file").write_text("in the way")
  code = run_online([
      *_SMALL, "--algorithm=fed_ade", f"--output_dir={tmp_path / 'run'}",
      f"--cache_dir={tmp_path / 'file' / 'cache'}",
  ])
  assert code == 2
  errors = capsys.readouterr().err
  assert "--cache_dir" in errors
  assert errors.count("\n") == 1
  assert not os.path.exists(tmp_path / "run")


def test_archive_that_is_not_there_is_refused(tmp_path, run_online, capsys):
  # Without CIFAR-10 the data set itself is named, with it the archive.
  code = run_online([
      *_CORRUPTED, "--dataset=cifar10", "--corrupted_images=archive",
      f"--output_dir={tmp_path / 'run'}", f"--data_dir={tmp_path}",
  ])
  assert code == 2
  assert "cifar10" in capsys.readouterr().err


def test_presets_are_read(presets, run_online, tmp_path, capsys):
  assert len(presets("online_adaptation")) == 5
  for preset in presets("online_adaptation"):
    # A bound that is not allowed stops the run once all flags are known.
    code = run_online([
        f"--flagfile={preset}", "--algorithm=fed_ade,fix_lr", "--eta_max=0",
        f"--output_dir={tmp_path / 'run'}",
    ])
    assert code == 2
    assert "--eta_max=0.0" in capsys.readouterr().err
