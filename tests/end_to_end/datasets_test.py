"""A data set that is one new file is there in every binary, with its model."""

import pytest

from tests.fixtures import tables
from tff_shift.models import guided_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "binary, flags",
  tables.rows("""
evolving
    --algorithm=local --num_domains=2
online_adaptation
    --algorithm=source --timesteps=1
guidance
    --algorithm=fed_drm --batch_size=8 --max_examples=80
dynamic_personalization
    --algorithm=local --period_size=20 --test_distributions=iid
"""),
)
def test_new_data_set_has_a_plan(
  binary, flags, small_digits, planned, tmp_path, monkeypatch
):
  # There may be a folder of a cache.
  monkeypatch.chdir(tmp_path)
  plan = planned(binary, [*flags, f"--dataset={small_digits} --num_clients=2"])
  assert plan.settings["model"] == "mlp"
  assert plan.model.input_shape[:2] == (8, 8)
  # The guide that the model brings guides.
  is_guided = isinstance(plan.model, guided_model.GuidedModel)
  assert is_guided == (binary == "guidance")
