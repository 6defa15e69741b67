"""A data set that is one new file is there in every binary, with its model.

Whole runs of a data set of its own are in `own_data_test`.
"""

import pytest

from tff_shift.models import guided_model
from tff_shift.scenarios.dynamic_personalization import (
  configuration as dynamic_personalization_plan,
)
from tff_shift.scenarios.evolving import configuration as evolving_plan
from tff_shift.scenarios.guidance import configuration as guidance_plan
from tff_shift.scenarios.online_adaptation import (
  configuration as online_adaptation_plan,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "planning, arguments",
  [
    (
      evolving_plan,
      (
        *("--algorithm=local", "--num_domains=2"),
        *("--max_examples_per_domain=40", "--rounds=1", "--local_steps=1"),
      ),
    ),
    (
      online_adaptation_plan,
      (
        *("--algorithm=source", "--timesteps=1", "--samples_per_step=5"),
        *("--initial_examples=5", "--pretraining_epochs=1"),
      ),
    ),
    (
      guidance_plan,
      (
        *("--algorithm=fed_drm", "--rounds=1", "--local_steps=1"),
        *("--batch_size=8", "--max_examples=80"),
      ),
    ),
    (
      dynamic_personalization_plan,
      (
        *("--algorithm=local", "--rounds=1", "--periods=2"),
        *("--test_distributions=iid", "--period_size=20"),
        "--pretraining_epochs=1",
      ),
    ),
  ],
)
def test_new_data_set_has_a_plan(
  planning, arguments, small_digits, planned, tmp_path
):
  if planning in (online_adaptation_plan, dynamic_personalization_plan):
    arguments = (*arguments, f"--cache_dir={tmp_path / 'cache'}")
  plan = planned(
    planning, [*arguments, f"--dataset={small_digits}", "--num_clients=2"]
  )
  assert plan.settings["model"] == "mlp"
  assert plan.model.input_shape[:2] == (8, 8)
  # The guide that the model brings guides.
  is_guided = isinstance(plan.model, guided_model.GuidedModel)
  assert is_guided == (planning is guidance_plan)
