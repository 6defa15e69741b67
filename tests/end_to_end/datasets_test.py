"""A data set that is one new file runs in every binary, with its own model."""

import json

import pytest

from tff_shift.command_line.binaries import dynamic_personalization
from tff_shift.command_line.binaries import evolving
from tff_shift.command_line.binaries import guidance
from tff_shift.command_line.binaries import online_adaptation
from tff_shift.command_line.plans import dynamic_personalization_plan
from tff_shift.command_line.plans import evolving_plan
from tff_shift.command_line.plans import guidance_plan
from tff_shift.command_line.plans import online_adaptation_plan

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "binary, planning, arguments",
  [
    (
      evolving,
      evolving_plan,
      (
        *("--algorithm=local", "--num_domains=2"),
        *("--max_examples_per_domain=40", "--rounds=1", "--local_steps=1"),
      ),
    ),
    (
      online_adaptation,
      online_adaptation_plan,
      (
        *("--algorithm=source", "--timesteps=1", "--samples_per_step=5"),
        *("--initial_examples=5", "--pretraining_epochs=1"),
      ),
    ),
    (
      guidance,
      guidance_plan,
      (
        *("--algorithm=fed_drm", "--rounds=1", "--local_steps=1"),
        *("--batch_size=8", "--max_examples=80"),
      ),
    ),
    (
      dynamic_personalization,
      dynamic_personalization_plan,
      (
        *("--algorithm=local", "--rounds=1", "--periods=2"),
        *("--test_distributions=iid", "--period_size=20"),
        "--pretraining_epochs=1",
      ),
    ),
  ],
)
def test_new_data_set_runs(
  binary, planning, arguments, small_digits, run_here, tmp_path
):
  folder = tmp_path / "run"
  if planning in (online_adaptation_plan, dynamic_personalization_plan):
    arguments = (*arguments, f"--cache_dir={tmp_path / 'cache'}")
  code = run_here(
    binary,
    planning,
    [
      *arguments,
      f"--dataset={small_digits}",
      "--num_clients=2",
      "--noprogress",
      f"--output_dir={folder}",
    ],
  )
  assert code == 0
  run = json.loads((folder / "summary.json").read_text())["runs"][0]
  assert run["dataset"] == small_digits
  assert run["setting"]["model"] == "mlp"
  # The guide that the model brings guides.
  is_guided = "uncorrected_client_accuracy" in run["metrics"]
  assert is_guided == (binary is guidance)
