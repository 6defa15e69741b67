r"""Compares algorithms on clients with label shift between periods.

  python -m experiments.dynamic_personalization \
      --algorithm=fed_3da,p_fed_hn,fed_avg,local --dataset=digits \
      --test_distributions=iid,0.5,0.9

  python -m experiments.dynamic_personalization \
      --flagfile=experiments/presets/dynamic_personalization/demo.flags \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ to --output_dir, caches extractors in --cache_dir, and prints one
table. To continue an interrupted run, repeat the command with --resume.
"""

from tff_shift.command_line import program
from tff_shift.scenarios.dynamic_personalization import (
  configuration as planning,
)


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the flag checks.
  from tff_shift.scenarios.dynamic_personalization import (
    runs as dynamic_personalization_runs,
  )

  dynamic_personalization_runs.DynamicPersonalization(plan).run()


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, planning.Configuration.define_flags)


if __name__ == "__main__":
  run()
