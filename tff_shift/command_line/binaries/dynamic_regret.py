"""Measures how the dynamic regret of Fed-ADE grows with the number of steps.

  python -m experiments.dynamic_regret --output_dir=runs/dynamic_regret

The problem is convex and its optima are known
(`tff_shift.simulation.scenarios.regret`). For each schedule of the shift,
Fed-ADE runs with bounds of the learning rate that hold
eta* = 3 (V / T)^(1/3), as section 5.2 of the paper asks for:
[eta* / 2, 10 eta*], whose ratio of 20 is that of the paper's bounds for images.
V is the true cumulative shift, sum_t |Q_t - Q_{t-1}|_1. Three constant rates,
the same for all T, run beside it. Q_T is half a draw from Dirichlet(0.1) and
half uniform: then the estimate of Q_t is seldom clipped to the simplex, and the
estimated risk almost unbiased, as the theorem assumes (Lemma 5).

The bound on the regret is V^(1/3) T^(2/3) (eq. 18), in two readings:

- total_shift=fixed: the schedule of the smallest T, slowed down by holding each
  of its steps longer. V is the same for all T, and the bound is T^(2/3).
- total_shift=growing: the schedule of each T as it is defined. All but the
  linear one shift about sqrt(T) times, which makes T^(5/6) of the bound.

The table shows the exponents of regret and bound, fitted for each seed to their
logarithms over log(T); the rest is of the largest T. Behind +- stands the
standard deviation over seeds.

Writes config.json, metrics.csv, summary.json and figures/ into --output_dir.
"""

import numpy as np
from absl import flags

from tff_shift.command_line import common_flags
from tff_shift.command_line import program


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_list(
    "seeds",
    ["0", "1", "2", "3", "4"],
    "Comma-separated seeds of the stream and of what it drifts to.",
  )
  # Squares of even numbers, for which the phases of the schedules are whole.
  flags.DEFINE_list(
    "timesteps",
    ["100", "400", "900", "1600", "3600"],
    "Comma-separated numbers of time steps (T), multiples of the smallest.",
  )
  flags.DEFINE_string(
    "output_dir",
    None,
    "Folder of the results. Default: runs/dynamic_regret-<date>-<time>.",
  )
  flags.DEFINE_bool(
    "overwrite", False, "Replaces an earlier run in --output_dir."
  )


def _timesteps() -> list[int]:
  """Returns the numbers of `--timesteps`, checked."""

  def parse(text):
    number = int(text)
    # In a single step the regret can be 0, which has no logarithm.
    if number < 2:
      raise ValueError(text)
    return number

  numbers = common_flags.parse_numbers(
    "timesteps", parse, "integers of at least 2"
  )
  common_flags.require(
    "timesteps",
    len(numbers) > 1 and not np.any(np.mod(numbers, min(numbers))),
    "two numbers or more, all of them multiples of the smallest",
  )
  return numbers


def main() -> None:
  """Runs the measurement that the flags ask for."""
  seeds = common_flags.chosen_seeds("seeds")
  timesteps = _timesteps()
  # Imports TensorFlow, so it comes after the checks of the flags.
  from tff_shift.command_line.scenario_runs import dynamic_regret_runs

  dynamic_regret_runs.run(seeds, timesteps)


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
