"""Times rounds of FedAvg with networks for images, on the GPU and on the CPU.

  python -m benchmarks.image_rounds

10 clients take 10 SGD steps on batches of 32 random images. `cnn` is the
network for digits, `resnet` is ResNet-18 for images of 32 x 32. The first
round, with tracing, is not in the median. Without a GPU, only the CPU is
measured.
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import client_dataset
from tff_shift.learning import randomness
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["cnn", "resnet"], "The networks.")
flags.DEFINE_integer("rounds", 3, "Rounds in the median.", lower_bound=1)

_CLASSES, _BATCH, _STEPS, _NUM_CLIENTS = 10, 32, 10, 10
_MODELS = {
  "cnn": {"input_shape": (28, 28, 1)},
  "resnet": {"input_shape": (32, 32, 3), "stem": "cifar"},
}


def _client(number: int, shape: tuple[int, ...]):
  generator = np.random.default_rng([0, number])
  size = _BATCH * _STEPS
  return client_dataset.ClientDataset.from_arrays(
    x=generator.integers(0, 256, (size, *shape), np.uint8),
    y=generator.integers(0, _CLASSES, size, np.int32),
    seed=randomness.client_seed(0, number),
    client_id=number,
  )


def _start(name: str) -> rounds.Rounds:
  """Returns FedAvg with a network, before its first round."""
  hparams = algorithms.get("fed_avg").HParams(
    batch_size=_BATCH, local_steps=_STEPS, learning_rate=0.05
  )
  arguments = _MODELS[name]
  return rounds.Rounds(
    algorithms.build(
      "fed_avg",
      models.build(name, num_classes=_CLASSES, **arguments),
      hparams,
    ),
    [_client(each, arguments["input_shape"]) for each in range(_NUM_CLIENTS)],
    run_seed=0,
  )


def _seconds(run: rounds.Rounds) -> float:
  start = time.perf_counter()
  run.step()
  return time.perf_counter() - start


def main(_) -> None:
  """Prints a row for each network and device."""
  logging.set_verbosity(logging.WARNING)
  devices = {"CPU": {"server_device": "CPU:0", "client_devices": ["CPU:0"]}}
  if tf.config.list_physical_devices("GPU"):
    devices = {"GPU": {}} | devices
  print("| model | device | first round, s | median, s | least | most |")
  print("| --- | --- | --- | --- | --- | --- |")
  for name in FLAGS.models:
    for label, chosen in devices.items():
      with execution.use("in_process", **chosen):
        run = _start(name)
        first, *others = [_seconds(run) for _ in range(1 + FLAGS.rounds)]
      print(
        f"| `{name}` | {label} | {first:.2f} | {statistics.median(others):.3f}"
        f" | {min(others):.3f} | {max(others):.3f} |",
        flush=True,
      )


if __name__ == "__main__":
  app.run(main)
