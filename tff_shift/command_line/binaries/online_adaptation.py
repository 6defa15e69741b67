r"""Adapts a deployed model to unlabelled, drifting data by several algorithms.

  python -m experiments.online_adaptation --algorithm=source,fix_lr,fed_ade \
      --dataset=digits --shift=linear,square --timesteps=20

  python -m experiments.online_adaptation \
      --flagfile=experiments/presets/online_adaptation/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ into --output_dir, keeps pre-trained models in --cache_dir, and
prints one table. The same flags and --resume let a run that was stopped go on.
"""

from tff_shift.command_line import program
from tff_shift.command_line.plans import online_adaptation_plan as planning


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the checks of the flags.
  from tff_shift.command_line.scenario_runs import online_adaptation_runs

  online_adaptation_runs.run(plan)


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, planning.define_flags)


if __name__ == "__main__":
  run()
