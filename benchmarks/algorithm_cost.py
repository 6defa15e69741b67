"""What each algorithm costs beside its gradient steps in a plain loop.

  python -m benchmarks.algorithm_cost
  python -m benchmarks.algorithm_cost --algorithms=fed_avg,fed_evolve

A round is all phases of an algorithm, in process, for 100 small clients of 64
examples in two domains (see `benchmarks.plain_loop`, whose model has a guide
here, for those that need one). The plain loop takes as many gradient steps of
cross-entropy, on batches of the same size: on all weights, or on the head with
each example embedded once. Both take turns; the ratio is the median over the
turns. Run it when the machine is idle.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from benchmarks import plain_loop
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.learning import randomness
from tff_shift.models import guided_model

FLAGS = flags.FLAGS
flags.DEFINE_list(
  "algorithms", [], "Algorithms, comma-separated. Default: all."
)
flags.DEFINE_integer("num_clients", 100, "Clients in a round.", lower_bound=1)
flags.DEFINE_integer("repetitions", 7, "Turns of each.", lower_bound=1)

# Two domains of two batches each; an epoch is one iteration.
_DOMAIN_SIZES = (plain_loop.EXAMPLES // 2,) * 2
_SETTINGS = {
  "batch_size": plain_loop.BATCH,
  "local_steps": 4,
  "head_steps": 4,
  "head_epochs": 1,
  "learning_rate": 0.01,
}
_LEARNERS = 6


class _Steps(NamedTuple):
  """Gradient steps of a client in a round."""

  on_all: int
  on_head: int = 0


# An iteration visits each domain.
_BOTH_DOMAINS = _Steps(8)
_STEPS = {
  "atlas": _Steps(0, 4 * _LEARNERS),
  "fed_3da": _Steps(4),
  "fed_ade": _Steps(4, 4),
  "fed_avg": _BOTH_DOMAINS,
  "fed_avg_ft": _BOTH_DOMAINS,
  "fed_drm": _BOTH_DOMAINS,
  # A step is one on each of its two networks.
  "fed_evolve": _Steps(2 * 4),
  "fed_evp": _Steps(4),
  # Each half of its steps moves a part, through all of the model.
  "fed_rep": _Steps(2 * 8),
  "fix_lr": _Steps(4, 4),
  "fth": _Steps(0),
  "local": _BOTH_DOMAINS,
  "p_fed_hn": _Steps(4),
  "source": _Steps(0),
}


def _start(name: str):
  """Returns a function that runs a round of an algorithm."""
  module = algorithms.get(name)
  model = guided_model.with_guide(
    plain_loop.build_model(),
    num_clients=FLAGS.num_clients,
    width=plain_loop.WIDTH,
  )
  names = {field.name for field in dataclasses.fields(module.HParams)}
  settings = _SETTINGS | {"local_epochs": 1 if "head_epochs" in names else 0}
  if name == "atlas":
    settings |= {"local_epochs": 1, "num_learners": _LEARNERS}
  hparams = module.HParams(**{k: v for k, v in settings.items() if k in names})
  algorithm = algorithms.build(module, model, hparams)
  kind = algorithm.evaluate_clients.type_signature.parameter[2].member
  data = [
    executor_equality.make_data(kind, client, 0, _DOMAIN_SIZES)
    for client in range(FLAGS.num_clients)
  ]
  state = algorithm.initialize(randomness.server_seed(0))
  states = algorithm.initialize_client(state, [each.seed for each in data])

  def run():
    nonlocal state, states, data
    if "timestep" in data[0]._fields:
      # Each round is a new time step, so that the shift is measured in it.
      data = [
        each._replace(timestep=np.int32(each.timestep + 1)) for each in data
      ]
    for phase in algorithm.phases:
      state, states, _ = phase(state, states, data)

  return run


def _compare(name: str) -> None:
  steps = _STEPS[name]
  with plain_loop.started(FLAGS.num_clients, *steps) as plain:
    ours, theirs, ratio = plain.compare(_start(name), FLAGS.repetitions)
  print(
    f"| {name} | {steps.on_all} | {steps.on_head} | {ours:.4f} |"
    f" {theirs:.4f} | {ratio:.2f} |",
    flush=True,
  )


def main(_) -> None:
  """Prints a table."""
  logging.set_verbosity(logging.WARNING)
  print("| algorithm | steps | of the head | seconds | plain | ratio |")
  print("| --- | --- | --- | --- | --- | --- |")
  with execution.use("in_process"):
    for name in FLAGS.algorithms or algorithms.names():
      _compare(name)


if __name__ == "__main__":
  app.run(main)
