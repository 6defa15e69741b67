"""Continual learning: python -m examples.continual.continual --algorithm=..."""

import dataclasses

from tff_shift import models
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.command_line import plan as plan_lib
from tff_shift.command_line import program
from tff_shift.command_line.flags import input_flags
from tff_shift.command_line.tuning import trials
from tff_shift.data.shifts import evolving

SCENARIO = "continual"
_LIKE = "evolving"  # Its algorithms.
_Common = common_flags.Configuration


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(_Common):
  """The flags."""

  scenario = _LIKE
  dataset: str = configuration.changed(_Common, "dataset", "circle")
  num_domains: int = configuration.setting(4, "Number of domains.", minimum=1)
  rounds_per_domain: int = configuration.setting(2, "Rounds.", minimum=1)


def main() -> None:
  """Runs the comparison that the flags define."""
  plan = make_plan()
  from examples.continual import runs  # It imports TensorFlow.

  runs.Continual(plan).run()


def make_plan() -> plan_lib.Plan:
  """Checks the flags and loads the data."""
  given = common_flags.chosen(Configuration)
  chosen = trials.chosen(_LIKE)
  with common_flags.usage_errors():
    loaded = {seed: _load(given, seed) for seed in given.seeds}
    dataset, _ = loaded[given.seeds[0]]
    x = dataset.domains[0].x
    model = models.build(
      common_flags.model_name(_LIKE),
      input_shape=x.shape[1:],
      num_classes=len(dataset.schema.classes),
      input_dtype=x.dtype,
      input_scaling=input_flags.chosen([x]),
    )
    rounds = given.num_domains * given.rounds_per_domain
    return plan_lib.Plan(
      scenario=SCENARIO,
      configuration=given,
      trials=chosen,
      seeds=given.seeds,
      aggregators=common_flags.chosen_aggregators(chosen, rounds),
      model=model,
      settings={
        name: getattr(given, name)
        for name in ("num_domains", "rounds_per_domain", "num_clients")
      },
      num_steps=given.num_domains,
      data={seed: clients for seed, (_, clients) in loaded.items()},
    )


def _load(given: Configuration, seed: int):
  # Clients have no training examples of the last domain: it is not used.
  shape = {"num_domains": given.num_domains + 1, "data_dir": given.data_dir}
  dataset = evolving.load_evolving(given.dataset, **shape, seed=seed)
  split = {"dirichlet": float("inf"), "test_fraction": 0.2, "seed": seed}
  return dataset, evolving.assemble_clients(
    dataset, num_clients=given.num_clients, **split
  )


if __name__ == "__main__":
  program.run(main, Configuration.define_flags)
