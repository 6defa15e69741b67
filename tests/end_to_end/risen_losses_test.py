"""Runs whose training loss rises: finite is not converged."""

import math

import pytest

from tff_shift.binaries import evolving
from tff_shift.reporting import summary


@pytest.mark.parametrize(
  ("losses", "expected"),
  [
    ([2.0, 1.0, 0.5, 0.4], False),
    # The loss of seed 4 of FedEvp.
    ([1.9, 0.8, 6.2, 22.6, 81.0], True),
    # A last round alone is no rise, and three are.
    ([2.0, 0.5, 0.5, 0.5, 9.0], False),
    ([2.0, 0.5, 9.0, 0.5, 9.0], True),
    # Three times the least value, and not above it.
    ([0.9, 0.5, 1.5, 1.5, 1.5], False),
    ([0.9, 0.5, 1.6, 1.6, 1.6], True),
    # Harder data than before, and easier than at first.
    ([2.0, 0.1, 0.9, 0.9, 0.9], False),
    # Losses of adaptation can be negative, and those of lost rounds are NaN.
    ([-1.0, -3.0, 5.0, 5.0], False),
    ([1.0, math.nan, 0.1, 4.0, 4.0, math.nan], True),
    ([], False),
  ],
)
def test_loss_has_risen(losses, expected):
  assert summary.has_risen(losses) == expected


@pytest.mark.slow
def test_run_is_marked_in_table_summary_and_at_its_end(run):
  # A server's step of twenty times the mean update swings ever farther.
  server = "--server_optimizer=fed_avg_m --server_learning_rate=20"
  flags = (
    "--dataset=circle --num_domains=4 --num_clients=2 --rounds=8"
    f" --evaluate_every=8 --model_width=4 --seeds=0,1 {server}"
  )
  ended = run(evolving, "--algorithm=local,fed_avg", flags)
  calm, rising = ended.runs
  assert "risen" not in calm and rising["risen"] == [0, 1]
  assert " 0 of 2" in ended.output and " 2 of 2" in ended.output
  (line,) = (
    line for line in ended.output.splitlines() if "training loss of" in line
  )
  assert line.startswith("the training loss of fed_avg ended above 3 times")
  assert "(seed 0, 1)" in line and "weight_decay" in line
