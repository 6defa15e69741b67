"""Measures the store of client values: size, and seconds to write and read.

  python -m benchmarks.client_values --num_clients=10000 --evaluations=100

Saves a run with two metrics of each client and a checkpoint after each
evaluation, and a run without values of clients. Prints both, and the seconds to
read all values as a data frame.
"""

import pathlib
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from absl import app
from absl import flags

from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import frames
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import run_file

FLAGS = flags.FLAGS
_METRICS = ("client_accuracy", "client_loss")


class _Running:
  """The part of `rounds.Rounds` that checkpoints use, without states."""

  def __init__(self):
    self.seconds, self.starts, self.num_diverged = [], [0], 0
    self.losses, self.client_losses = [], None
    self.server_state = np.int32(0)
    self.states = client_states.ClientStates(1, lambda seeds: [()], int)


def _save(
  path: pathlib.Path,
  evaluations: Sequence[client_values.ClientValues | None],
) -> float:
  """Saves a run; returns the seconds."""
  run, running, measured = checkpoints.Run(path, "key", every=1), _Running(), []
  start = time.perf_counter()
  # Only the checkpoint is between two steps.
  for step in checkpoints.steps(
    run, len(evaluations), running, measured, make=dict, replay=print
  ):
    measured.append({"step": step, "clients": evaluations[step - 1]})
  seconds = time.perf_counter() - start
  running.states.close()
  return seconds


def main(_) -> None:
  """Saves and reads, and prints sizes and seconds."""
  generator = np.random.default_rng(0)
  evaluations = [
    client_values.of_some(
      step,
      {"round": step},
      FLAGS.num_clients,
      [
        (
          "",
          range(FLAGS.num_clients),
          {name: generator.random(FLAGS.num_clients) for name in _METRICS},
        )
      ],
    )
    for step in range(1, FLAGS.evaluations + 1)
  ]
  with tempfile.TemporaryDirectory() as folder:
    for name, each in (
      ("without values", [None] * FLAGS.evaluations),
      ("with values", evaluations),
    ):
      path = pathlib.Path(folder, f"{name}.sqlite")
      seconds = _save(path, each)
      print(f"{name:14}  {path.stat().st_size / 1e6:.2f} MB, {seconds:.2f} s")
    start = time.perf_counter()
    saved = run_file.read_clients(path)
    seconds = time.perf_counter() - start
    rows = len(frames.of_clients(saved.values))
    print(
      f"read            {seconds:.2f} s; as {rows:,} rows of a data frame"
      f" {time.perf_counter() - start:.2f} s"
    )


if __name__ == "__main__":
  flags.DEFINE_integer("num_clients", 10_000, "Number of clients.")
  flags.DEFINE_integer("evaluations", 100, "Number of evaluations.")
  app.run(main)
