"""A data set that is one new file is there in every binary, with its model.

Whole runs of a data set of its own are in `own_data_test`.
"""

import shlex

import pytest

from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.models import guided_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "binary, arguments",
  [
    (
      evolving,
      shlex.split("""
        --algorithm=local --num_domains=2 --max_examples_per_domain=40
        --rounds=1 --local_steps=1
      """),
    ),
    (
      online_adaptation,
      shlex.split("""
        --algorithm=source --timesteps=1 --samples_per_step=5
        --initial_examples=5 --pretraining_epochs=1
      """),
    ),
    (
      guidance,
      shlex.split("""
        --algorithm=fed_drm --rounds=1 --local_steps=1 --batch_size=8
        --max_examples=80
      """),
    ),
    (
      dynamic_personalization,
      shlex.split("""
        --algorithm=local --rounds=1 --periods=2 --test_distributions=iid
        --period_size=20 --pretraining_epochs=1
      """),
    ),
  ],
)
def test_new_data_set_has_a_plan(
  binary, arguments, small_digits, planned, tmp_path
):
  if binary in (online_adaptation, dynamic_personalization):
    arguments = (*arguments, f"--cache_dir={tmp_path / 'cache'}")
  plan = planned(
    binary, [*arguments, f"--dataset={small_digits}", "--num_clients=2"]
  )
  assert plan.settings["model"] == "mlp"
  assert plan.model.input_shape[:2] == (8, 8)
  # The guide that the model brings guides.
  is_guided = isinstance(plan.model, guided_model.GuidedModel)
  assert is_guided == (binary is guidance)
