"""Times rounds of image models in batches of clients against the loop.

  python -m benchmarks.batched_images
  python -m benchmarks.batched_images --clients=10 --models=cnn

FedAvg, two local steps of eight images. For each model the seconds of a round
in the loop, in a batch with convolutions as groups and in a batch with patches
(see `tff_shift.execution.in_process.convolutions`), in turn in one process:
medians as ratios to the loop. Further the largest difference of a weight from
the loop's after the first round, and the part of the kernels' seconds that
batches spend in transposes, which lay the channels of clients side by side and
apart. Groups need a GPU or oneDNN, which TF_ENABLE_ONEDNN_OPTS=1 enables on any
processor. Run it on an idle machine.
"""

import statistics
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from benchmarks import executor_equality
from benchmarks import kernels
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import client_dataset
from tff_shift.execution.in_process import convolutions
from tff_shift.learning import randomness
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS

_STEPS, _BATCH, _EXAMPLES = 2, 8, 16
_SHAPES = {"cnn": (28, 28, 1)}


def _client(
  shape: tuple[int, ...], number: int
) -> client_dataset.ClientDataset:
  generator = np.random.default_rng(number)
  return client_dataset.ClientDataset.from_arrays(
    x=generator.normal(size=(_EXAMPLES, *shape)).astype(np.float32),
    y=generator.integers(0, 10, _EXAMPLES).astype(np.int32),
    domain_sizes=np.array([_EXAMPLES], np.int32),
    seed=randomness.client_seed(0, number),
    client_id=np.int32(number),
  )


class _Form:
  """Rounds in one form."""

  def __init__(self, form: str, name: str, num_clients: int):
    shape = _SHAPES.get(name, (32, 32, 3))
    hparams = algorithms.get("fed_avg").HParams(
      batch_size=_BATCH, local_steps=_STEPS, learning_rate=0.01
    )
    self._form = form
    self._context = execution.use("in_process", batch_clients=form != "loop")
    self.run = rounds.Rounds(
      algorithms.build(
        "fed_avg",
        models.build(
          name, input_shape=shape, num_classes=10, input_dtype=np.float32
        ),
        hparams,
      ),
      [_client(shape, number) for number in range(num_clients)],
      run_seed=0,
    )

  def step(self) -> float:
    """Runs a round; returns its seconds."""
    start = time.perf_counter()
    self._call(self.run.step)
    return time.perf_counter() - start

  def _call(self, function):
    is_grouped = mock.patch.object(
      convolutions, "is_grouped", lambda *_: self._form == "groups"
    )
    with self._context, is_grouped:
      return function()

  def part_of_transposes(self) -> float:
    """Returns the part of the seconds of kernels that transposes take."""
    operations = self._call(lambda: kernels.traced(self.run.step))
    seconds = [0.0, 0.0]
    for operation in operations:
      seconds[operation.kind in ("Transpose", "_MklTranspose")] += (
        operation.seconds
      )
    return seconds[1] / sum(seconds)


def _print(name: str, num_clients: int) -> None:
  names = ["loop", "patches"]
  if convolutions.is_grouped("", tf.float32):
    names.insert(1, "groups")
  forms = {form: _Form(form, name, num_clients) for form in names}
  states = {}
  for form, one in forms.items():
    one.step()
    states[form] = one.run.server_state
  turns = [
    {form: one.step() for form, one in forms.items()}
    for _ in range(1 + FLAGS.repetitions)
  ][1:]
  for form, one in forms.items():
    ratio = statistics.median(turn[form] / turn["loop"] for turn in turns)
    difference = executor_equality.largest_difference(
      states[form], states["loop"]
    )
    print(
      f"{name:12} {num_clients:3} clients, {form:8}"
      f" {statistics.median(turn[form] for turn in turns):7.3f} s, ratio"
      f" {ratio:.2f}, difference {difference:.1e}, transposes"
      f" {100 * one.part_of_transposes():.0f} %",
      flush=True,
    )


def main(_) -> None:
  """Prints a line for each model and form."""
  tf.get_logger().setLevel("ERROR")
  for name in FLAGS.models:
    _print(name, FLAGS.clients)


if __name__ == "__main__":
  flags.DEFINE_list("models", ["cnn", "resnet"], "Models to time.")
  flags.DEFINE_integer("clients", 4, "Clients in a round.")
  flags.DEFINE_integer("repetitions", 5, "Rounds of each form.")
  app.run(main)
