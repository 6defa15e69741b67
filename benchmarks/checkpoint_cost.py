"""Measures checkpoints: seconds to save and to restore, and size.

  python -m benchmarks.checkpoint_cost

For a small CNN whose last layers are personal to 20 clients, and for 20 clients
with states of a million numbers each. All states change between checkpoints.
Prints medians, the size of the file with two checkpoints, and the median ratio
of a checkpoint to writing the same numbers to a file and flushing it, in turns.
"""

import operator
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app

from tff_shift.models.networks import cnn
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import client_states as client_states_lib

_NUM_CLIENTS = 20
_REPETITIONS = 5


class _Running:
  """The part of `rounds.Rounds` that checkpoints use, with given states."""

  def __init__(self, server_state, client_states):
    self.seconds, self.starts, self.num_diverged = [], [0], 0
    self.losses, self.client_losses = [], None
    self.server_state = server_state
    self.states = client_states_lib.ClientStates(
      len(client_states),
      lambda clients: [client_states[client] for client in clients],
      seed_of=int,
    )
    self.given = client_states

  def change(self):
    """Has all states to be saved again."""
    self.states.put(range(len(self.states)), self.given)

  def resume(self, server_state, *_):
    self.server_state = server_state


def _states() -> dict[str, _Running]:
  """Returns the states to save, by name."""
  model = cnn.build((28, 28, 1), num_classes=10)
  seed = np.zeros(2, np.int32)
  with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as s:
    weights = s.run(model.initial_weights(seed))
  generator = np.random.default_rng(0)
  return {
    "CNN, 20 heads": _Running(
      weights.backbone, [weights.head for _ in range(_NUM_CLIENTS)]
    ),
    "20 x 1 M numbers": _Running(
      (),
      list(generator.normal(size=(_NUM_CLIENTS, 10**6)).astype(np.float32)),
    ),
  }


def _write(path: pathlib.Path, states) -> None:
  """Writes all numbers of some states to a file, and flushes it."""
  with path.open("wb") as file:
    for each in tf.nest.flatten(states):
      file.write(np.asarray(each).tobytes())
    file.flush()
    os.fsync(file.fileno())


def _seconds(action, *arguments) -> float:
  start = time.perf_counter()
  action(*arguments)
  return time.perf_counter() - start


def main(_) -> None:
  """Times checkpoints and prints the medians."""
  for name, running in _states().items():
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "run.sqlite")
      run = checkpoints.Run(path, "key", every=1)
      steps = checkpoints.steps(
        run, _REPETITIONS, running, [], make=dict, replay=print
      )
      next(steps)
      saving, writing, restoring = [], [], []
      for _ in range(_REPETITIONS):
        running.change()
        # Only the checkpoint is between two steps.
        saving.append(_seconds(next, steps, None))
        states = running.server_state, running.given
        writing.append(_seconds(_write, path.with_name("plain"), states))
      for _ in range(_REPETITIONS):
        restored = checkpoints.steps(
          run, _REPETITIONS, running, [], make=dict, replay=print
        )
        restoring.append(_seconds(list, restored))
      size = path.stat().st_size
      ratio = statistics.median(map(operator.truediv, saving, writing))
      running.states.close()
    print(
      f"{name:16}  save {statistics.median(saving):.3f} s (first"
      f" {saving[0]:.3f}), restore {statistics.median(restoring):.3f} s,"
      f" {size / 1e6:.1f} MB, {ratio:.2f} times a plain write"
    )


if __name__ == "__main__":
  app.run(main)
