"""The flags of what is done to pixels, in every binary."""

import json

import numpy as np
import pytest

import tff_shift
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.command_line import common_flags
from tff_shift.models import input_scaling

pytestmark = pytest.mark.slow

_GUIDANCE = (
  *("--dataset=digits", "--model=mlp", "--model_width=4"),
  *("--algorithm=fed_avg", "--max_examples=200", "--num_clients=3"),
  "--noprogress",
)
_PLANS = {
  evolving: (
    *("--algorithm=fed_avg", "--model=mlp", "--dataset=rotated_digits"),
    *("--num_domains=3", "--num_clients=2"),
  ),
  guidance: _GUIDANCE,
  online_adaptation: (
    *("--algorithm=source", "--dataset=digits", "--model=mlp"),
    *("--num_clients=2", "--timesteps=2"),
  ),
  dynamic_personalization: (
    *("--algorithm=local", "--dataset=digits", "--max_examples=600"),
    *("--num_clients=2", "--period_size=20", "--distance_threshold=1"),
    *("--distance_features=extractor", "--test_distributions=iid"),
  ),
}
# That of each paper, where it says one.
_DEFAULTS = {
  evolving: "zero_one",
  guidance: "minus_one_one",
  online_adaptation: "standardized",
  dynamic_personalization: "zero_one",
}


def training_images(plan):
  """The images that the flags of `_PLANS` train on, with the first seed."""
  if hasattr(plan, "extractor"):
    return plan.dataset.train.x
  if hasattr(plan, "dataset"):
    return plan.dataset.pretraining.x
  dataset = plan.datasets[plan.seeds[0]]
  if hasattr(dataset, "train"):
    return np.concatenate([each.x for each in dataset.train])
  clients = plan.clients[plan.seeds[0]]
  return np.concatenate([client.train.x for client in clients])


@pytest.fixture
def make_plan(planned, tmp_path):
  """Returns `make(binary, arguments)`: plan, training images."""

  def make(binary, *arguments):
    flags = [*_PLANS[binary], *arguments]
    if binary in (online_adaptation, dynamic_personalization):
      flags.append(f"--cache_dir={tmp_path}")

    def ask():
      plan = binary.planning.make_plan()
      return plan, training_images(plan)

    return planned(binary, flags, ask)

  return make


def name_of(binary):
  return binary.planning.SCENARIO


@pytest.mark.parametrize("binary", _PLANS, ids=name_of)
def test_default_is_that_of_the_paper(make_plan, binary):
  plan, images = make_plan(binary)
  name = _DEFAULTS[binary]
  assert plan.settings["input_scaling"] == name
  assert plan.model.input_scaling == input_scaling.make(name, [images])


@pytest.mark.parametrize(
  "binary",
  [each for each in _PLANS if _DEFAULTS[each] != "standardized"],
  ids=name_of,
)
def test_numbers_are_those_of_the_training_part(make_plan, binary):
  plan, images = make_plan(
    binary, "--input_scaling=standardized", "--seeds=1,0"
  )
  pixels = images.reshape(-1, images.shape[-1]) / 255
  scaling = plan.model.input_scaling
  np.testing.assert_allclose(scaling.mean, pixels.mean(axis=0), rtol=1e-9)
  np.testing.assert_allclose(scaling.deviation, pixels.std(axis=0), rtol=1e-9)
  if binary is dynamic_personalization:
    assert plan.extractor.input_scaling == scaling


@pytest.fixture
def table(tmp_path):
  """A file of two features in units of their own, and of a constant one."""
  rng = np.random.default_rng(0)
  y = rng.integers(0, 3, 600)
  np.savez(
    tmp_path / "table.npz",
    x=np.column_stack(
      [
        rng.normal(40, 10, 600) + 20 * y,
        rng.normal(30_000, 5_000, 600) + 25_000 * y,
        np.full(600, 0.1),
      ]
    ),
    y=y,
    domain=np.arange(600) % 3,
  )
  return tmp_path / "table.npz"


_VECTORS = {
  evolving: _PLANS[evolving],
  online_adaptation: (
    *_PLANS[online_adaptation],
    "--initial_examples=20",
  ),
  dynamic_personalization: (
    *_PLANS[dynamic_personalization],
    "--model=mlp",
  ),
}


@pytest.mark.parametrize("binary", _VECTORS, ids=name_of)
def test_features_are_standardized_by_the_training_part(
  make_plan, monkeypatch, binary, table
):
  monkeypatch.setitem(_PLANS, binary, _VECTORS[binary])
  if binary is not evolving:
    with np.load(table) as arrays:
      np.savez(table, x=arrays["x"], y=arrays["y"])
  arguments = (f"--dataset={table}",)
  plan, _ = make_plan(binary, *arguments)
  assert plan.model.input_scaling == input_scaling.ZERO_ONE
  assert plan.settings["input_scaling"] is None
  plan, x = make_plan(binary, *arguments, "--input_scaling=standardized")
  scaling = plan.model.input_scaling
  assert plan.settings["input_scaling"] == "standardized"
  # In float64: sums of float32 numbers are rounded.
  np.testing.assert_allclose(
    scaling.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-9
  )
  np.testing.assert_allclose(
    scaling.deviation[:2], x.std(axis=0, dtype=np.float64)[:2], rtol=1e-9
  )
  assert scaling.deviation[2] == 1
  # Not by all examples.
  assert len(x) < 600
  if binary is dynamic_personalization:
    assert plan.extractor.input_scaling == scaling


@pytest.mark.long
def test_raw_features_train_and_a_saved_model_scales_alike(
  run_here, tmp_path, capsys, read_rows, table
):
  run = tmp_path / "run"
  arguments = [
    f"--dataset={table}",
    *("--algorithm=fed_avg", "--num_clients=2", "--rounds=10", "--noprogress"),
    f"--output_dir={run}",
  ]
  assert run_here(evolving, [*arguments, "--learning_rate=9"]) == 3
  told = capsys.readouterr().err
  warned, diverged = told.strip().splitlines()
  assert "features of --dataset=table are as large as" in warned
  assert "diverged" in diverged and "with features as large as" in diverged
  arguments += ["--input_scaling=standardized", "--overwrite"]
  assert run_here(evolving, [*arguments, "--save_model"]) == 0
  assert "as large as" not in capsys.readouterr().err
  flags = json.loads((run / "config.json").read_text())["flags"]
  assert [len(flags[f"input_{n}"]) for n in ("mean", "std")] == [3, 3]
  (row, *_) = read_rows(run)
  assert row["input_scaling"] == "standardized"
  model = tff_shift.load(run)
  with np.load(table) as arrays:
    x, y = arrays["x"], arrays["y"]
  assert np.mean(np.argmax(model.predict(x), axis=1) == y) > 0.9
  # Numbers of its own scale nothing: a model that saw raw ones would be lost.
  mean, deviation = (
    np.float64(flags[f"input_{name}"]) for name in ("mean", "std")
  )
  scaled = model.predict((x - mean) / deviation)
  assert len(set(np.argmax(scaled, axis=1).tolist())) == 1


@pytest.mark.parametrize(
  "flag", ["--input_scaling=minus_one_one", "--input_mean=1"]
)
def test_scaling_of_images_is_not_that_of_features(refused, table, flag):
  arguments = [*_VECTORS[evolving], f"--dataset={table}", flag]
  told = refused(evolving, arguments)
  assert "applies to images" in told
  assert "pass --input_scaling=standardized" in told


def test_given_numbers_count(make_plan):
  plan, _ = make_plan(
    guidance,
    *("--input_scaling=standardized", "--input_mean=0.25,0.5,0.75"),
    "--input_std=0.5",
  )
  assert plan.model.input_scaling == input_scaling.InputScaling(
    (0.25, 0.5, 0.75), (0.5, 0.5, 0.5)
  )


@pytest.mark.parametrize(
  ("flags", "parts"),
  [
    ("--input_scaling=one", ["--input_scaling=one", "minus_one_one"]),
    (
      "--input_mean=0.5 --input_std=0.5",
      ["--input_mean belongs to --input_scaling=standardized"],
    ),
    (
      "--input_scaling=standardized --input_mean=0.5",
      ["--input_mean needs --input_std"],
    ),
    *(
      (
        f"--input_scaling=standardized --input_mean=1 --input_std=1 {each}",
        [each, "one finite number", "or 3"],
      )
      for each in (
        *("--input_mean=a", "--input_mean=nan", "--input_mean=1,2"),
        "--input_std=0",
      )
    ),
  ],
)
def test_wrong_flags_end_with_one_line(flags, parts, refused):
  line = refused(guidance, [*_GUIDANCE, *flags.split()])
  assert all(part in line for part in parts)


def test_numbers_are_recorded_and_a_run_goes_on_with_no_others(
  run_here, tmp_path, capsys, read_rows
):
  arguments = [
    *_GUIDANCE,
    *("--input_scaling=standardized", "--rounds=1", "--batch_size=8"),
    "--local_steps=1",
    f"--output_dir={tmp_path / 'run'}",
  ]
  assert run_here(guidance, arguments) == 0
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  recorded = {
    name: config["flags"][name] for name in ("input_mean", "input_std")
  }
  # Three channels, for digits are tinted.
  assert [len(numbers) for numbers in recorded.values()] == [3, 3]
  (row,) = read_rows(tmp_path / "run")
  assert row["input_scaling"] == "standardized"

  def open_again():
    plan = guidance.planning.make_plan()
    common_flags.open_folder(guidance.planning.SCENARIO, plan.model)

  again = [*arguments, "--resume"]
  given = [f"--{name}={','.join(recorded[name])}" for name in recorded]
  for numbers in ([], given):
    assert run_here(guidance, [*again, *numbers], open_again) == 0
  capsys.readouterr()
  given[0] = "--input_mean=0.5"
  assert run_here(guidance, [*again, *given], open_again) == 2
  errors = capsys.readouterr().err
  assert "--input_mean was 0." in errors and "and is 0.5" in errors
  assert errors.count("\n") == 1
