"""The flags of what is done to pixels, in every binary."""

import json
import types

import numpy as np
import pytest

from experiments import command_line
from experiments import dynamic_personalization_plan
from experiments import evolving_plan
from experiments import guidance
from experiments import guidance_plan
from experiments import online_adaptation_plan
from tff_shift.models import input_scaling

pytestmark = pytest.mark.slow

_GUIDANCE = (
  "--dataset=digits",
  "--model=mlp",
  "--model_width=4",
  "--algorithm=fed_avg",
  "--max_examples=200",
  "--num_clients=3",
  "--noprogress",
)
_PLANS = {
  evolving_plan: (
    "--algorithm=fed_avg",
    "--model=mlp",
    "--dataset=rotated_digits",
    "--num_domains=3",
    "--num_clients=2",
  ),
  guidance_plan: _GUIDANCE,
  online_adaptation_plan: (
    "--algorithm=source",
    "--dataset=digits",
    "--model=mlp",
    "--num_clients=2",
    "--timesteps=2",
  ),
  dynamic_personalization_plan: (
    "--algorithm=local",
    "--dataset=digits",
    "--max_examples=600",
    "--num_clients=2",
    "--period_size=20",
    "--distance_threshold=1",
    "--distance_features=extractor",
    "--test_distributions=iid",
  ),
}
# That of each paper, where it says one.
_DEFAULTS = {
  evolving_plan: "zero_one",
  guidance_plan: "minus_one_one",
  online_adaptation_plan: "standardized",
  dynamic_personalization_plan: "zero_one",
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
  clients = evolving_plan.assemble(dataset, plan.seeds[0], np.inf)
  return np.concatenate([client.train.x for client in clients])


@pytest.fixture
def make_plan(run_here, tmp_path):
  """Returns `make(planning, arguments)`: plan, training images."""

  def make(planning, *arguments):
    found = []

    def ask():
      plan = planning.make_plan()
      found.append((plan, training_images(plan)))

    binary = types.SimpleNamespace(__name__=planning.SCENARIO, main=ask)
    flags = [*_PLANS[planning], *arguments]
    if planning in (online_adaptation_plan, dynamic_personalization_plan):
      flags.append(f"--cache_dir={tmp_path}")
    assert run_here(binary, planning, flags) == 0
    return found[0]

  return make


def name_of(planning):
  return planning.SCENARIO


@pytest.mark.parametrize("planning", _PLANS, ids=name_of)
def test_default_is_that_of_the_paper(make_plan, planning):
  plan, images = make_plan(planning)
  name = _DEFAULTS[planning]
  assert plan.settings["input_scaling"] == name
  assert plan.model.input_scaling == input_scaling.make(name, [images])


@pytest.mark.parametrize(
  "planning",
  [each for each in _PLANS if _DEFAULTS[each] != "standardized"],
  ids=name_of,
)
def test_numbers_are_those_of_the_training_part(make_plan, planning):
  plan, images = make_plan(
    planning, "--input_scaling=standardized", "--seeds=1,0"
  )
  pixels = images.reshape(-1, images.shape[-1]) / 255
  scaling = plan.model.input_scaling
  np.testing.assert_allclose(scaling.mean, pixels.mean(axis=0), rtol=1e-9)
  np.testing.assert_allclose(scaling.deviation, pixels.std(axis=0), rtol=1e-9)
  if planning is dynamic_personalization_plan:
    assert plan.extractor.input_scaling == scaling


def test_given_numbers_count(make_plan):
  plan, _ = make_plan(
    guidance_plan,
    "--input_scaling=standardized",
    "--input_mean=0.25,0.5,0.75",
    "--input_deviation=0.5",
  )
  assert plan.model.input_scaling == input_scaling.InputScaling(
    (0.25, 0.5, 0.75), (0.5, 0.5, 0.5)
  )


@pytest.mark.parametrize(
  ("arguments", "expected"),
  [
    (["--input_scaling=one"], ("--input_scaling=one", "minus_one_one")),
    (
      ["--input_mean=0.5", "--input_deviation=0.5"],
      ("--input_mean belongs to --input_scaling=standardized",),
    ),
    (
      ["--input_scaling=standardized", "--input_mean=0.5"],
      ("--input_mean without --input_deviation",),
    ),
    *(
      (
        ["--input_scaling=standardized", *numbers],
        (wrong, "one finite number", "or 3"),
      )
      for numbers, wrong in (
        (("--input_mean=a", "--input_deviation=1"), "--input_mean=a"),
        (("--input_mean=nan", "--input_deviation=1"), "--input_mean=nan"),
        (("--input_mean=1,2", "--input_deviation=1"), "--input_mean=1,2"),
        (("--input_mean=1", "--input_deviation=0"), "--input_deviation=0"),
      )
    ),
  ],
)
def test_wrong_flags_end_with_one_line(
  run_here, tmp_path, capsys, arguments, expected
):
  folder = tmp_path / "run"
  code = run_here(
    guidance,
    guidance_plan,
    [*_GUIDANCE, *arguments, f"--output_dir={folder}"],
  )
  errors = capsys.readouterr().err
  assert code == 2
  assert errors.count("\n") == 1
  for part in expected:
    assert part in errors
  assert not folder.exists()


def test_numbers_are_recorded_and_a_run_goes_on_with_no_others(
  run_here, tmp_path, capsys, read_rows
):
  arguments = [
    *_GUIDANCE,
    "--input_scaling=standardized",
    "--rounds=1",
    "--batch_size=8",
    "--local_steps=1",
    f"--output_dir={tmp_path / 'run'}",
  ]
  assert run_here(guidance, guidance_plan, arguments) == 0
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  recorded = {
    name: config["flags"][name] for name in ("input_mean", "input_deviation")
  }
  # Three channels, for digits are tinted.
  assert [len(numbers) for numbers in recorded.values()] == [3, 3]
  (row,) = read_rows(tmp_path / "run")
  assert row["input_scaling"] == "standardized"

  def open_again():
    guidance_plan.make_plan()
    command_line.open_folder(guidance_plan.SCENARIO)

  binary = types.SimpleNamespace(__name__="guidance", main=open_again)
  again = [*arguments, "--resume"]
  given = [f"--{name}={','.join(recorded[name])}" for name in recorded]
  for numbers in ([], given):
    assert run_here(binary, guidance_plan, [*again, *numbers]) == 0
  capsys.readouterr()
  given[0] = "--input_mean=0.5"
  assert run_here(binary, guidance_plan, [*again, *given]) == 2
  errors = capsys.readouterr().err
  assert "--input_mean was 0." in errors and "and is 0.5" in errors
  assert errors.count("\n") == 1
