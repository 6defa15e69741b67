"""Measures how the dynamic regret of Fed-ADE grows with the number of steps.

  python -m experiments.dynamic_regret --output_dir=runs/dynamic_regret

The problem is convex and its optima are known
(`tff_shift.scenarios.online_adaptation.regret`). For each schedule of the
shift, Fed-ADE runs with learning-rate bounds [eta* / 2, 10 eta*], which contain
eta* = 3 (V / T)^(1/3), as required in section 5.2 of the paper. Their ratio of
20 is the ratio of the paper's bounds for images. V is the true cumulative
shift, sum_t |Q_t - Q_{t-1}|_1. The baselines are three constant rates, the same
for all T. Q_T is the mean of a sample from Dirichlet(0.1) and the uniform
distribution. Then the estimate of Q_t is rarely clipped to the simplex, and the
estimated risk is almost unbiased, as the theorem assumes (Lemma 5).

The bound on the regret is V^(1/3) T^(2/3) (eq. 18). It is measured in two ways:

- total_shift=fixed: the schedule of the smallest T, slowed down by repeating
  each of its steps. V is the same for all T, and the bound grows as T^(2/3).
- total_shift=growing: the schedule as defined for each T. All schedules except
  the linear one shift about sqrt(T) times, so the bound grows as T^(5/6).

The table shows the exponents of regret and bound, fitted per seed to logarithms
over log(T). The other columns are for the largest T. Values after +- are
standard deviations over seeds.

Writes config.json, metrics.csv, summary.json and figures/ to --output_dir.
"""

import dataclasses
from collections.abc import Sequence

from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.command_line import program


def _timesteps(texts: Sequence[str]) -> tuple[int, ...]:
  numbers = tuple(map(int, texts))
  # The regret of a single step can be 0, which has no logarithm.
  if (
    len(set(numbers)) < max(len(numbers), 2)
    or min(numbers) < 2
    or any(each % min(numbers) for each in numbers)
  ):
    raise ValueError(texts)
  return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of this binary."""

  seeds: tuple[int, ...] = configuration.seeds(
    (0, 1, 2, 3, 4),
    "Comma-separated seeds of the streams and of their final distributions.",
  )
  # Squares of even numbers: the schedules have whole phases.
  timesteps: tuple[int, ...] = configuration.setting(
    (100, 400, 900, 1600, 3600),
    "Comma-separated numbers of time steps (T), multiples of the smallest.",
    convert=_timesteps,
    requirement="two or more integers of at least 2, no duplicates, all"
    " multiples of the smallest",
  )
  output_dir: str | None = configuration.setting(
    None, "Folder of the results. Default: runs/dynamic_regret-<date>-<time>."
  )
  overwrite: bool = configuration.setting(
    False, "Replaces an earlier run in --output_dir."
  )


def define_flags() -> None:
  """Defines the flags of this binary."""
  configuration.define(Configuration)


def main() -> None:
  """Runs the measurement that the flags define."""
  with common_flags.usage_errors():
    chosen = configuration.chosen(Configuration)
  # Imports TensorFlow, so it comes after the flag checks.
  from tff_shift.scenarios.online_adaptation import (
    regret_runs as dynamic_regret_runs,
  )

  dynamic_regret_runs.run(chosen.seeds, chosen.timesteps)


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
