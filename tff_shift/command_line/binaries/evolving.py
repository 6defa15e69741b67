r"""Compares algorithms on domains that evolve; the last domain is unseen.

  python -m experiments.evolving --algorithm=fed_avg,fed_evolve,fed_evp \
      --dataset=rotated_digits --rounds=10

  python -m experiments.evolving \
      --flagfile=experiments/presets/evolving/circle.flags \
      --algorithm=fed_evolve --learning_rate=1e-5,1e-4 --select=last_source \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ into --output_dir, and prints one table. The same flags and
--resume let a run that was stopped go on.
"""

from tff_shift.command_line import program
from tff_shift.command_line.plans import evolving_plan as planning


def main() -> None:
  """Runs the comparison that the flags ask for."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the checks of the flags.
  from tff_shift.command_line.scenario_runs import evolving_runs

  evolving_runs.run(plan)


def run() -> None:
  """Reads the command line and runs this binary, to the end of the process."""
  program.run(main, planning.define_flags)


if __name__ == "__main__":
  run()
