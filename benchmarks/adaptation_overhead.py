"""Measures the cost of measuring the shift: a round of Fed-ADE against FixLR.

  python -m benchmarks.adaptation_overhead

Ten clients with 64 labelled and 50 unlabelled digits each run the two updates
of Fed-ADE (four epochs each, batches of 32) with the residual network, once at
a constant rate and once at a rate set by the measured shift. Each round is a
new time step, so that every round measures the shift. Both alternate; the ratio
is the median over repetitions. Run it on an idle machine.
"""

import statistics
import time

import numpy as np
from absl import app
from absl import flags
from absl import logging

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.data.shifts import schedules
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)

_REPETITIONS = flags.DEFINE_integer(
  "repetitions", 15, "Number of repetitions of each algorithm.", lower_bound=1
)
_WIDTH = flags.DEFINE_integer(
  "model_width", 8, "Channels of the network's first layer.", lower_bound=8
)

_NUM_CLIENTS = 10
_WARM_UP_ROUNDS = 2
_NAMES = ("fix_lr", "fed_ade")


def main(_) -> None:
  """Times alternating rounds and prints medians and the ratio."""
  # TFF logs each compilation at INFO.
  logging.set_verbosity(logging.WARNING)
  dataset = online_adaptation_data.load_online("digits")
  num_classes = len(dataset.class_names)
  model = models.build(
    "residual_cnn",
    input_shape=dataset.stream.x.shape[1:],
    num_classes=num_classes,
    width=_WIDTH.value,
  )
  num_turns = _WARM_UP_ROUNDS + _REPETITIONS.value
  client_streams = online_adaptation_data.Streams(
    dataset.stream,
    num_classes,
    schedules.omega("linear", num_turns),
    num_clients=_NUM_CLIENTS,
    samples_per_step=50,
  )
  deployment = online_adaptation.Deployment(
    [
      online_adaptation_data.initial_examples(dataset, 64, client, 0)
      for client in range(_NUM_CLIENTS)
    ],
    np.eye(num_classes, dtype=np.float32),
  )
  with execution.use("in_process"):
    running = {}
    for name in _NAMES:
      module = algorithms.get(name)
      running[name] = online_adaptation.Adaptation(
        algorithms.build(module, model, module.HParams()),
        client_streams,
        deployment,
        run_seed=0,
      )
    seconds = {name: [] for name in _NAMES}
    for turn in range(num_turns):
      for name, adaptation in running.items():
        adaptation.rounds.data = adaptation.data(turn + 1)
        start = time.perf_counter()
        adaptation.rounds.step()
        seconds[name].append(time.perf_counter() - start)
  timed = {name: each[_WARM_UP_ROUNDS:] for name, each in seconds.items()}
  for name, each in timed.items():
    print(f"{name:8} {statistics.median(each):.3f} s a round")
  ratios = [
    adaptive / fixed for fixed, adaptive in zip(*timed.values(), strict=True)
  ]
  print(
    f"fed_ade / fix_lr: {statistics.median(ratios):.3f} (median of"
    f" {len(ratios)} turns, {min(ratios):.3f} to {max(ratios):.3f})"
  )


if __name__ == "__main__":
  app.run(main)
