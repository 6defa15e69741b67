"""Whether memory grows with rounds, in this process and in TFF's worker.

  python -m benchmarks.memory --executor=local --rounds=200
  python -m benchmarks.memory --executor=in_process --rounds=500

Trains on rotated digits and prints the resident size at round 50 and at the
last round. With personal state (`--algorithm=fed_rep`) states of clients cross
between driver and executor as well.
"""

import os
import sys

import psutil
import tensorflow as tf
from absl import app
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import domains
from tff_shift.simulation import evolving
from tff_shift.simulation import rounds

FLAGS = flags.FLAGS
flags.DEFINE_string("executor", "local", "local or in_process.")
flags.DEFINE_string("algorithm", "fed_evolve", "The algorithm.")
flags.DEFINE_integer("rounds", 200, "The number of rounds, 100 at least.")

_FIRST = 50
_MIB = 2**20


def _resident_sizes() -> dict[str, float]:
  """Returns the resident size in MiB of this process and of TFF's worker."""
  here = psutil.Process(os.getpid())
  sizes = {"driver": here.memory_info().rss / _MIB}
  for child in here.children(recursive=True):
    if child.name() == "worker_binary":
      sizes["worker"] = child.memory_info().rss / _MIB
  return sizes


def main(_) -> None:
  """Runs the rounds and prints the sizes."""
  dataset = domains.load_evolving("rotated_digits", seed=0)
  clients = domains.assemble_clients(dataset, num_clients=10, seed=0)
  model = models.build(
      "cnn",
      input_shape=dataset.domains[0].x.shape[1:],
      num_classes=len(dataset.class_names),
      channels=(8, 8, 8, 8),
      input_dtype=tf.uint8,
  )
  module = algorithms.get(FLAGS.algorithm)
  algorithm = module.build(model, module.HParams(local_steps=1))
  data = [evolving.training_data(client, 0) for client in clients]
  with execution.use(FLAGS.executor):
    run = rounds.Rounds(algorithm, data, run_seed=0)
    sizes = {}
    for round_num in range(1, FLAGS.rounds + 1):
      run.step()
      if round_num in (_FIRST, FLAGS.rounds):
        sizes[round_num] = _resident_sizes()
  print(f"{FLAGS.algorithm} on rotated digits, executor {FLAGS.executor}")
  for name, first in sizes[_FIRST].items():
    last = sizes[FLAGS.rounds][name]
    print(
        f"{name}: {first:.0f} MiB at round {_FIRST}, {last:.0f} MiB at round"
        f" {FLAGS.rounds}: {100 * (last / first - 1):+.1f} %"
    )
  print(f"{run.seconds_per_round:.3f} s a round", file=sys.stderr)


if __name__ == "__main__":
  app.run(main)
