"""What all binaries have in common at their beginning."""

import re

import pytest

from experiments import dynamic_personalization
from experiments import dynamic_personalization_plan
from experiments import evolving
from experiments import evolving_plan
from experiments import guidance
from experiments import guidance_plan
from experiments import online_adaptation
from experiments import online_adaptation_plan


@pytest.mark.parametrize(
  ("binary", "planning", "own", "hyperparameter"),
  [
    (evolving, evolving_plan, "angle_step", "prototype"),
    (online_adaptation, online_adaptation_plan, "timesteps", "eta_min"),
    (guidance, guidance_plan, "partition", "lambda_"),
    (
      dynamic_personalization,
      dynamic_personalization_plan,
      "periods",
      "meta_learning_rate",
    ),
  ],
)
def test_help_lists_the_flags_of_all_parts(
  run_here, capsys, binary, planning, own, hyperparameter
):
  assert run_here(binary, planning, ["--help"]) == 0
  output = capsys.readouterr().out
  assert output.startswith(binary.__doc__.partition("\n")[0])
  # Commands can be copied as they stand.
  assert re.search(r" \\\n      --\w+", output)
  listed = re.findall(r"^  --(?:\[no\])?(\w+):", output, re.MULTILINE)
  assert len(listed) == len(set(listed))
  for name in (
    own,
    hyperparameter,
    "algorithm",
    "output_dir",
    "resume",
    "aggregator",
    "workers",
  ):
    assert name in listed
  # The scenario's own come first.
  assert listed.index(own) < listed.index("algorithm")
