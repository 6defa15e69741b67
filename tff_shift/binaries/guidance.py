r"""Compares algorithms that answer queries, each routed to a client.

  python -m experiments.guidance --dataset=digits --partition=dirichlet_0.3 \
      --algorithm=fed_drm,fed_avg,fed_avg_ft,fed_rep

  python -m experiments.guidance \
      --flagfile=experiments/presets/guidance/demo.flags --seeds=0,1,2

Writes config.json, metrics.csv, summary.json, figures/, tensorboard/ and
checkpoints/ to --output_dir, and prints one table. To continue an interrupted
run, repeat the command with --resume.
"""

from tff_shift.command_line import program
from tff_shift.scenarios.guidance import configuration as planning


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = planning.make_plan()
  # Imports TensorFlow, so it comes after the flag checks.
  from tff_shift.scenarios.guidance import runs as guidance_runs

  guidance_runs.Guidance(plan).run()


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, planning.Configuration.define_flags)


if __name__ == "__main__":
  run()
