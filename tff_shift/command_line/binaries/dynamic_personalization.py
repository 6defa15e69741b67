r"""Compares algorithms on clients whose data drift from period to period.

  python -m experiments.dynamic_personalization \
      --algorithm=fed_3da,p_fed_hn,fed_avg,local --dataset=digits \
      --test_distributions=iid,0.5,0.9

  python -m experiments.dynamic_personalization \
      --flagfile=experiments/presets/dynamic_personalization/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ into --output_dir, keeps extractors in --cache_dir, and prints one
table. The same flags and --resume let a run that was stopped go on.
"""

from tff_shift.command_line import program
from tff_shift.command_line.plans import (
  dynamic_personalization_plan as planning,
)


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the checks of the flags.
  from tff_shift.command_line.scenario_runs import dynamic_personalization_runs

  dynamic_personalization_runs.run(plan)


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, planning.define_flags)


if __name__ == "__main__":
  run()
