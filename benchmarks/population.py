"""Measures time, memory and disk of a round as the population grows.

  python -m benchmarks.population
  python -m benchmarks.population --populations=1000 --storage=disk

Trains FedRep on an MLP with cohorts of 10 clients. Each client has a personal
head of 3,310 numbers, and its data are built on request. Every population runs
in a separate process. With `everyone`, all clients have a state before the
first round, as after enough rounds for all to take part; otherwise only the
sampled clients have one. Prints for each:

  round       median seconds of the first 30 rounds after compilation, and of
              the last 30
  peak        the peak resident size of the process
  states      the size of the file, with two checkpoints
  checkpoint  median seconds; one checkpoint after every 10 rounds
  resume      seconds until another run has restored the last checkpoint
"""

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from absl import app
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift.algorithms import fed_rep
from tff_shift.data import client_dataset
from tff_shift.learning import randomness
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS
flags.DEFINE_list(
  "populations", ["100", "1000", "10000", "100000"], "Numbers of clients."
)
flags.DEFINE_list("storage", ["disk", "memory"], "disk, memory or both.")
flags.DEFINE_list("had_turn", ["sampled", "everyone"], "See above.")
flags.DEFINE_integer(
  "max_states_in_memory", 100, "States in memory with --storage=disk."
)
flags.DEFINE_integer("rounds", 120, "Number of rounds, at least 70.")
flags.DEFINE_bool("here", False, "Runs a single population in this process.")

_NUM_PARTICIPANTS = 10
_NUM_FEATURES, _NUM_CLASSES, _NUM_EXAMPLES = 20, 10, 60
_WINDOW = 30
# Rounds that compile, and that find new sizes of memory.
_NUM_WARM = 10
_CHUNK = 1000
_MIB = 2**20


def _make_data(client: int) -> client_dataset.ClientDataset:
  """Draws the examples of a client."""
  generator = np.random.default_rng(client)
  y = generator.integers(0, _NUM_CLASSES, _NUM_EXAMPLES, np.int32)
  x = generator.normal(size=(_NUM_EXAMPLES, _NUM_FEATURES))
  x[np.arange(_NUM_EXAMPLES), y] += 2
  return client_dataset.ClientDataset.from_arrays(
    x.astype(np.float32),
    y,
    np.array([_NUM_EXAMPLES], np.int32),
    randomness.client_seed(0, client),
    np.int32(client),
  )


def _start(population: int, checkpoint: checkpoints.Run) -> rounds.Rounds:
  model = mlp.build(
    (_NUM_FEATURES,), num_classes=_NUM_CLASSES, width=64, head_width=44
  )
  return rounds.Rounds(
    algorithms.build(
      fed_rep, model, fed_rep.HParams(batch_size=20, local_steps=3)
    ),
    rounds.DataOnDemand(population, _make_data),
    run_seed=0,
    participation=_NUM_PARTICIPANTS / population,
    storage=checkpoint.storage,
  )


def _steps(checkpoint: checkpoints.Run, running: rounds.Rounds):
  return checkpoints.steps(
    checkpoint, FLAGS.rounds, running, [], make=dict, replay=print
  )


def _measure(
  population: int, storage: str, had_turn: str, folder: pathlib.Path
) -> dict[str, Any]:
  """Runs the rounds of one population and returns the measurements."""

  def make_checkpoint():
    return checkpoints.Run(
      folder / "run.sqlite",
      "key",
      every=10,
      max_states_in_memory=(
        FLAGS.max_states_in_memory if storage == "disk" else None
      ),
    )

  checkpoint = make_checkpoint()
  running = _start(population, checkpoint)
  steps = _steps(checkpoint, running)
  next(steps)
  if had_turn == "everyone":
    (state,) = running.states.take([0])
    for start in range(0, population, _CHUNK):
      clients = range(start, min(start + _CHUNK, population))
      running.states.put(
        clients,
        [
          tuple(leaf + np.float32(client) for leaf in state)
          for client in clients
        ],
      )
  saving = []
  for step in range(1, FLAGS.rounds + 1):
    running.step()
    start = time.perf_counter()
    # Only the checkpoint is between two steps.
    next(steps, None)
    if step % 10 == 0:
      saving.append(time.perf_counter() - start)
  seconds = running.seconds[_NUM_WARM:]
  # In KiB on Linux.
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  running.close()

  checkpoint = make_checkpoint()
  resumed = _start(population, checkpoint)
  start = time.perf_counter()
  # Nothing is left to be done.
  list(_steps(checkpoint, resumed))
  resuming = time.perf_counter() - start
  if resumed.round_num != FLAGS.rounds:
    raise AssertionError(f"resumed at round {resumed.round_num}")
  return {
    "population": population,
    "storage": storage,
    "had_turn": had_turn,
    "first": statistics.median(seconds[:_WINDOW]),
    "last": statistics.median(seconds[-_WINDOW:]),
    "peak": peak,
    "states": (folder / "run.sqlite").stat().st_size / _MIB,
    "checkpoint": statistics.median(saving),
    # The first of all states comes at once where all had their turn.
    "slowest": max(saving),
    "resume": resuming,
  }


def _measure_in_child(population: str, storage: str, had_turn: str):
  ended = subprocess.run(
    [
      sys.executable,
      "-m",
      "benchmarks.population",
      "--here",
      f"--populations={population}",
      f"--storage={storage}",
      f"--had_turn={had_turn}",
      f"--rounds={FLAGS.rounds}",
      f"--max_states_in_memory={FLAGS.max_states_in_memory}",
    ],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return json.loads(ended.stdout)


def main(_) -> None:
  """Measures all populations and prints the results."""
  if FLAGS.here:
    with tempfile.TemporaryDirectory() as folder, execution.use("in_process"):
      found = _measure(
        int(FLAGS.populations[0]),
        FLAGS.storage[0],
        FLAGS.had_turn[0],
        pathlib.Path(folder),
      )
    print(json.dumps(found))
    return
  print(
    f"{'clients':>8} {'states':7} {'have one':9} {'round (s)':>15}"
    f" {'peak':>9} {'states':>10} {'checkpoint (s)':>20} {'resume':>8}"
  )
  for storage in FLAGS.storage:
    for had_turn in FLAGS.had_turn:
      for population in FLAGS.populations:
        found = _measure_in_child(population, storage, had_turn)
        print(
          "{population:8} {storage:7} {had_turn:9} {first:7.4f} {last:7.4f}"
          " {peak:5.0f} MiB {states:6.1f} MiB {checkpoint:7.3f} (max"
          " {slowest:6.3f}) {resume:6.2f} s".format(**found),
          flush=True,
        )


if __name__ == "__main__":
  app.run(main)
