"""Continual learning: python -m examples.continual.continual --algorithm=..."""

import math

from absl import flags

from tff_shift import models
from tff_shift.command_line import common_flags
from tff_shift.command_line import plan as plan_lib
from tff_shift.command_line import program
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.tuning import trials
from tff_shift.data.shifts import evolving

FLAGS = flags.FLAGS

SCENARIO = "continual"
_LIKE = "evolving"  # Its algorithms.


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = make_plan()
  from examples.continual import runs

  runs.Continual(plan).run()


def define_flags() -> None:
  """Defines the flags."""
  common_flags.define_common_flags(_LIKE, dataset="circle")
  flags.DEFINE_integer("num_domains", 4, "Number of domains.")
  flags.DEFINE_integer("rounds_per_domain", 2, "Number of rounds per domain.")


def make_plan() -> plan_lib.Plan:
  """Checks the flags and loads the data."""
  common_flags.check_common_flags(_LIKE)
  common_flags.require_at_least_one("num_domains", "rounds_per_domain")
  chosen = trials.chosen(_LIKE)
  seeds = common_flags.chosen_seeds("seeds")
  with common_flags.usage_errors():
    data = {seed: _clients(seed) for seed in seeds}
    x = data[seeds[0]][0].train.x
    model = models.build(
      common_flags.model_name(_LIKE),
      input_shape=x.shape[1:],
      num_classes=2,
      input_dtype=x.dtype,
      input_scaling=input_flags.chosen([x]),
    )
    rounds = FLAGS.num_domains * FLAGS.rounds_per_domain
    return plan_lib.Plan(
      scenario=SCENARIO,
      trials=chosen,
      seeds=seeds,
      aggregators=common_flags.chosen_aggregators(chosen, rounds),
      model=model,
      settings={
        "num_domains": FLAGS.num_domains,
        "rounds_per_domain": FLAGS.rounds_per_domain,
        "num_clients": FLAGS.num_clients,
      },
      num_steps=FLAGS.num_domains,
      data=data,
    )


def _clients(seed: int) -> tuple[evolving.Client, ...]:
  # Clients have no training examples of the last domain: it is not used.
  dataset = evolving.load_evolving(
    FLAGS.dataset,
    num_domains=FLAGS.num_domains + 1,
    data_dir=FLAGS.data_dir,
    seed=seed,
  )
  return evolving.assemble_clients(
    dataset,
    num_clients=FLAGS.num_clients,
    dirichlet=math.inf,
    test_fraction=0.2,
    seed=seed,
  )


if __name__ == "__main__":
  program.run(main, define_flags)
