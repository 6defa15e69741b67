r"""Compares algorithms that adapt a deployed model to unlabelled drifting data.

  python -m experiments.online_adaptation --algorithm=source,fix_lr,fed_ade \
      --dataset=digits --shift=linear,square --timesteps=20

  python -m experiments.online_adaptation \
      --flagfile=experiments/presets/online_adaptation/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ to --output_dir, caches pre-trained models in --cache_dir, and
prints one table. To continue an interrupted run, repeat the command with
--resume.
"""

from tff_shift.command_line import program
from tff_shift.scenarios.online_adaptation import configuration as planning


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the flag checks.
  from tff_shift.scenarios.online_adaptation import (
    runs as online_adaptation_runs,
  )

  online_adaptation_runs.OnlineAdaptation(plan).run()


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, planning.Configuration.define_flags)


if __name__ == "__main__":
  run()
