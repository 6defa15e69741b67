r"""Compares algorithms on evolving domains; the last domain is unseen.

  python -m experiments.evolving --algorithm=fed_avg,fed_evolve,fed_evp \
      --dataset=rotated_digits --rounds=10

  python -m experiments.evolving \
      --flagfile=experiments/presets/evolving/circle.flags \
      --algorithm=fed_evolve --learning_rate=1e-5,1e-4 --select=last_source \
      --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ to --output_dir, and prints one table. To continue an interrupted
run, repeat the command with --resume.
"""

from tff_shift.command_line import program
from tff_shift.scenarios.evolving import configuration as planning


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the flag checks.
  from tff_shift.scenarios.evolving import runs as evolving_runs

  evolving_runs.Evolving(plan).run()


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, planning.Configuration.define_flags)


if __name__ == "__main__":
  run()
